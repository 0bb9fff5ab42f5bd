"""A journal as messages of the AI SDK, and what its client sends: a message, or answers to requests.

A message of the assistant is what wakes have written for a message of the user. Its id is that of the first of these
wakes, so that a stream, a reload and another web process agree. A wake that reads answers goes on in the last message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from affinity import ConversationHandle
from affinity.conversation import AnswerEvent, JournalEntry, UserMessage
from affinity.integrations.web.answers import PostedAnswer
from affinity.integrations.web.content import pieces_of
from affinity.integrations.web.ui_chunks import Chunk, UiChunks, parts_of

_TEXTS: Final = ("text", "reasoning")


# -- from the browser


class Approval(BaseModel):
    """The approval of a call."""

    id: str
    approved: bool | None = None
    reason: str | None = None


class Part(BaseModel, extra="allow"):
    """A part of a message."""

    type: str
    toolCallId: str = ""  # noqa: N815 -- a name of the AI SDK, as those below
    state: str = ""
    output: Any = None
    errorText: str | None = None  # noqa: N815
    approval: Approval | None = None


class Message(BaseModel):
    """A message."""

    id: str = ""
    role: Literal["system", "user", "assistant"]
    parts: list[Part] = Field(default_factory=list)


class Post(BaseModel):
    """The body that ``DefaultChatTransport`` sends. Only one of its messages is read."""

    id: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = None  # noqa: N815

    @property
    def message(self) -> Message:
        """The message of the user that is new, or the message of the assistant whose requests are answered.

        Raises:
            pydantic.ValidationError: it is none.
        """
        last = self.messages[-1]
        wanted = self.messageId
        named = [message for message in self.messages if wanted is not None and message.get("id") == wanted]
        if named and last.get("role") != "user" and named[-1].get("role") == "assistant":
            last = named[-1]
        return Message.model_validate(last)


def answers_in(message: Message) -> list[PostedAnswer]:
    """Return the answers in a message of the assistant: approvals, and results of tools that the browser runs."""
    found: list[PostedAnswer] = []
    for part in message.parts:
        approval = part.approval
        if part.state == "approval-responded" and approval is not None and approval.approved is not None:
            found.append(PostedAnswer(approval.id, {"allowed": approval.approved, "reason": approval.reason or ""}))
        elif part.state == "output-available" and approval is None:
            found.append(PostedAnswer(part.toolCallId, {"result": part.output}))
        elif part.state == "output-error" and approval is None:
            found.append(PostedAnswer(part.toolCallId, {"result": part.errorText or "", "is_error": True}))
    return found


# -- to the browser


@dataclass(slots=True)
class Turn:
    """A message, as the journal has it."""

    id: str
    role: Literal["user", "assistant"]
    chunks: list[Chunk] = field(default_factory=list)  # of the assistant
    parts: list[dict[str, Any]] = field(default_factory=list)  # of the user

    def to_message(self) -> dict[str, Any]:
        """Return the message as JSON."""
        parts = self.parts if self.role == "user" else parts_of(self.chunks)
        return {"id": self.id, "role": self.role, "parts": parts}


def whole_turns(entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    """Return a page of entries without its beginning, if that is of a turn which the page before has."""
    starts = [place for place, entry in enumerate(entries) if isinstance(entry.event, UserMessage)]
    is_first = not entries or entries[0].seq == 1
    return entries if is_first or not starts else entries[starts[0] :]


async def read_turns(talk: ConversationHandle, entries: Sequence[JournalEntry], *, show_errors: bool) -> list[Turn]:
    """Return the messages of some entries that follow each other. A message of the user stands before the wake that has
    read it; those that no wake has read come last.
    """
    processed = await talk.processed_by(entries)
    said = [entry for entry in entries if isinstance(entry.event, UserMessage) and entry.wake_id is None]
    answering = {processed.get(entry.seq) for entry in entries if isinstance(entry.event, AnswerEvent)}
    turns: list[Turn] = []
    chunks, last_wake = UiChunks(show_errors=show_errors), ""
    for entry in entries:
        wake = entry.wake_id
        if wake is not None and wake != last_wake:
            read = [each for each in said if processed.get(each.seq) == wake]
            said = [each for each in said if each not in read]
            turns += map(_user_turn, read)
            if read or wake not in answering or not turns:
                turns.append(Turn(wake, "assistant"))
                chunks = UiChunks(show_errors=show_errors)
            last_wake = wake
        made = [chunk for chunk in chunks.read(entry) if chunk["type"] != "start"]
        if made and (not turns or turns[-1].role == "user"):
            turns.append(Turn(wake or str(entry.seq), "assistant"))
        if made:
            turns[-1].chunks += made
    turns += map(_user_turn, said)
    return [turn for turn in turns if turn.role == "user" or turn.chunks]


def _user_turn(entry: JournalEntry) -> Turn:
    return Turn(entry.event_id or str(entry.seq), "user", parts=[*_user_parts(entry)])


def _user_parts(entry: JournalEntry) -> Iterator[dict[str, Any]]:
    for piece in pieces_of(getattr(entry.event, "content", "")):
        if piece.kind in _TEXTS:
            yield {"type": "text", "text": piece.text}
        elif piece.kind == "file":
            yield {"type": "file", **piece.value}
