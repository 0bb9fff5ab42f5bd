"""The reply to an input: the entries of the wake that processed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

from pydantic_core import to_json

from affinity.conversation.events import AgentMessage, EventTypes, JournalEntry, JournalEvent, RequestEvent
from affinity.conversation.follow import SPAN_COMPLETED, fields_of
from affinity.conversation.trace import TRACE_KINDS
from affinity.errors import WakeFailed
from affinity.journal import Entry, JournalPage

CONVERSATION_IDLE: Final = "conversation.idle"
STATUS_CHANGED: Final = "conversation.status_changed"


@dataclass(frozen=True)
class Reply:
    """The entries of a wake: the reply to each input that it has processed."""

    conversation_id: str
    seq: int
    """Number of the input."""
    wake_id: str
    processed: int
    """The number up to which all inputs are processed."""
    stop_reason: str
    """Why the wake has ended: see `ConversationIdle`; empty if that is not recorded."""
    _entries: Sequence[Entry] = field(repr=False)
    _types: EventTypes = field(repr=False)

    kind: ClassVar[str] = "reply"

    @cached_property
    def entries(self) -> Sequence[JournalEntry]:
        """All entries of the wake, its trace too."""
        return [*map(self._types.read, self._entries)]

    @property
    def events(self) -> Sequence[JournalEvent]:
        """The events that the handler has appended, without the trace."""
        return [each.event for each in self.entries if not each.kind.startswith(TRACE_KINDS)]

    @cached_property
    def text(self) -> str:
        """Of the last `AgentMessage`; empty if there is none."""
        for entry in reversed(self._entries):
            if entry.kind == "agent.message":
                event = self._types.decode(entry.kind, entry.payload)
                return event.text if isinstance(event, AgentMessage) else ""
        return ""

    @property
    def usage(self) -> dict[str, int]:
        """The sum of ``usage`` of its events: tokens by name."""
        total = Counter[str]()
        for event in self.events:
            total.update(getattr(event, "usage", {}))
        return dict(total)

    @property
    def requires_action(self) -> bool:
        """The conversation waits for an answer: see `requests`."""
        return self.stop_reason == "requires_action"

    @property
    def requests(self) -> Sequence[RequestEvent]:
        """The requests that the wake has made; `ConversationHandle.requests` gives all that are pending."""
        return [event for event in self.events if isinstance(event, RequestEvent)]

    def to_json(self) -> str:
        """The reply without its entries as one JSON object, on one line."""
        names = ("kind", "conversation_id", "seq", "wake_id", "text", "stop_reason", "usage")
        return to_json({name: getattr(self, name) for name in names}).decode()


class ReplyReader:
    """Finds the reply to an input in the pages of its journal: the entries of the first wake that has processed it."""

    def __init__(self, conversation_id: str, seq: int, types: EventTypes, *, is_new: bool = True) -> None:
        """``is_new``: the input was appended just now; otherwise its own entry is read too."""
        self.position: int = seq if is_new else max(seq - 1, 0)
        """Up to where entries are read."""
        self.is_input = True if is_new else None
        """False: the entry is none, or was processed before it became one of this journal. None: it was not read."""
        self.failure: WakeFailed | None = None
        """Of the last wake that was to process the input, if it has failed for good, and none is to try again."""
        self._conversation_id = conversation_id
        self._seq = seq
        self._types = types
        self._wake: list[Entry] = []  # entries of the last wake so far: the entries of a wake stand together
        self._span: dict[str, Any] = {}  # the end of that wake; none of one that a merge has copied
        self._inputs = {seq} if is_new else set[int]()  # numbers of the inputs that were read

    def read(self, page: JournalPage) -> Reply | None:
        """The reply, if the page completes it."""
        for entry in page.entries:
            if self._wake and entry.wake_id != self._wake[0].wake_id:
                if self._is_reply():
                    return self._reply()
                if entry.wake_id is not None:  # an input may come between two parts of a wake
                    self._wake, self._span = [], {}
            self.position = entry.seq
            if entry.is_input:
                self._inputs.add(entry.seq)
            if entry.seq == self._seq:
                self.is_input = entry.is_input
            elif entry.wake_id is not None:
                self._add(entry)
            elif entry.is_input or _is_resumed(entry):  # a later wake tries again
                self.failure = None
        return self._reply() if not page.more and self._is_reply() else None

    def _add(self, entry: Entry) -> None:
        self._wake.append(entry)
        if entry.is_copied:
            return
        if entry.kind == SPAN_COMPLETED:
            fields = fields_of(entry)
            if fields.get("processed") is not None:
                self._span = fields
        elif entry.kind == CONVERSATION_IDLE and self._concerns("read"):
            self.failure = failure_of(self._conversation_id, entry)

    def _is_reply(self) -> bool:
        # An imported conversation's own wakes process its new inputs; imported wakes have processed the others.
        is_of_same = self.is_input is None or (self._span.get("processed") in self._inputs) == self.is_input
        return is_of_same and self._concerns("processed")

    def _concerns(self, name: str) -> bool:
        """Whether the wake has read (``read``) or processed (``processed``) the input, as far as is recorded.

        Not so in a fork that was cut between the input and its reply.
        """
        last, base = self._span.get(name), self._span.get("base")
        return bool(self._span) and (last is None or last >= self._seq) and (base is None or base < self._seq)

    def _reply(self) -> Reply:
        idle = next((each for each in reversed(self._wake) if each.kind == CONVERSATION_IDLE), None)
        return Reply(
            conversation_id=self._conversation_id,
            seq=self._seq,
            wake_id=self._wake[0].wake_id or "",
            processed=self._span["processed"],
            stop_reason="" if idle is None else fields_of(idle).get("stop_reason", ""),
            _entries=self._wake,
            _types=self._types,
        )


def _is_resumed(entry: Entry) -> bool:
    """Whether `ConversationHandle.resume` has written the entry."""
    return entry.kind == STATUS_CHANGED and fields_of(entry).get("status") == "running"


def failure_of(conversation_id: str, entry: Entry) -> WakeFailed | None:
    """The error of a wake with this last entry; None: it has not failed."""
    idle = fields_of(entry)
    if idle.get("stop_reason") != "failed":
        return None
    error = idle.get("error") or {}
    return WakeFailed(conversation_id, error.get("type", ""), error.get("message", ""), error.get("stack", ""))
