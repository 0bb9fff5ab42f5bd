"""The reply to an input: the entries of the wake that processed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from pydantic_core import to_json

from affinity.conversation.events import AgentMessage, EventTypes, JournalEntry, JournalEvent, RequestEvent
from affinity.conversation.follow import entries_removed
from affinity.conversation.journal import Entry, JournalPage, JournalWake
from affinity.conversation.trace import TRACE_KINDS
from affinity.errors import ConversationTerminated, UnknownEntry, WakeFailed
from affinity.provider.contract import FINISHED
from affinity.records import parse_stored


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
    """The reason why the wake has ended: see `ConversationIdle`."""
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
        return [entry.event for entry in self.entries if not entry.kind.startswith(TRACE_KINDS)]

    @cached_property
    def text(self) -> str:
        """Text of the last `AgentMessage`; empty without a message."""
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
        """True if the conversation waits for an answer: see `requests`."""
        return self.stop_reason == "requires_action"

    @property
    def requests(self) -> Sequence[RequestEvent]:
        """The requests that the wake has made; `ConversationHandle.requests` gives all that are pending."""
        return [event for event in self.events if isinstance(event, RequestEvent)]

    def to_json(self) -> str:
        """Return the reply without its entries as one JSON object, on one line."""
        names = ("kind", "conversation_id", "seq", "wake_id", "text", "stop_reason", "usage")
        return to_json({name: getattr(self, name) for name in names}).decode()


def check_awaited(conversation_id: str, seq: int, page: JournalPage, after: int) -> None:
    """Raise unless the page has the reply to an entry, or a reply is to come. ``after``: the last entry of the page
    before.

    Raises:
        UnknownEntry, EntriesRemoved, WakeFailed, ConversationTerminated: see `ConversationHandle.reply`.
    """
    wake = page.wake
    if page.last_seq < seq:
        raise UnknownEntry(conversation_id, f"its journal has no entry {seq}")
    if page.first_seq > max(after, seq) + 1:
        raise entries_removed(conversation_id, max(after, seq), page.first_seq)
    if not page.is_input:
        text = f"the reply to entry {seq}, if it is an input, is in one that it was made from"
        raise UnknownEntry(conversation_id, text)
    if wake is not None and wake.outcome == "failed":  # a dead letter, if a wake has processed it
        raise failure_of(conversation_id, wake)
    if page.processed >= seq:
        if wake is None:
            raise UnknownEntry(conversation_id, f"it was forked before the reply to entry {seq}")
        return
    if page.closed or page.instance_status in {None, *FINISHED}:
        raise ConversationTerminated(conversation_id, f"entry {seq} was not processed before its end")


def failure_of(conversation_id: str, wake: JournalWake) -> WakeFailed:
    """Return the error of a wake that has failed."""
    error = parse_stored(wake.error or "{}")
    return WakeFailed(conversation_id, *[error.get(name, "") for name in ("type", "message", "stack")])
