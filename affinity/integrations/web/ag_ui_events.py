"""Items of a conversation as events of AG-UI 1.0, and a journal as its messages.

Each entry is a message with an id of its own, from its number: the same in a stream, in a snapshot, and in another web
process. Streamed text is a message under an id of its attempt, until it is retracted: AG-UI has no event that takes a
message back, so a snapshot of all messages follows, which leaves it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from affinity.conversation import (
    TRACE_KINDS,
    AgentMessage,
    AnswerEvent,
    ContextSummary,
    CustomToolUse,
    FeedItem,
    JournalEntry,
    JournalEvent,
    PendingRequest,
    Reply,
    RequestEvent,
    Retracted,
    Streamed,
    ToolConfirmation,
    ToolEnded,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from affinity.integrations.web.content import as_text, call_of, error_text, pieces_of, streamed_piece

Event: TypeAlias = Mapping[str, Any]

SNAPSHOT: Final[Event] = {"type": "MESSAGES_SNAPSHOT"}
"""Stands for a snapshot of all messages, which is to be read."""

MESSAGES: Final = (UserMessage, AgentMessage, ToolUse, CustomToolUse, ToolResult)
"""The events that are messages."""

_ALLOWED: Final = {
    "type": "object",
    "properties": {"allowed": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["allowed"],
}

_USAGE: Final = {
    "inputTokens": ("input_tokens", "prompt_tokens"),
    "outputTokens": ("output_tokens", "completion_tokens"),
}


class AgUiEvents:
    """Turns items into events. ``show_errors``: whether errors of tools have their messages, or their kinds only."""

    def __init__(self, *, show_errors: bool = False) -> None:
        self._show_errors = show_errors
        self._open = ("", "")  # kind and id of the message that is streamed
        self._has_shown = False  # something provisional, that no snapshot has left out yet

    def read(self, item: FeedItem) -> Iterator[Event]:
        """Yield the events of an item; `SNAPSHOT` stands for one of all messages before it."""
        match item:
            case Streamed():
                yield from self._streamed(item)
            case ToolStarted() | ToolEnded():
                running = isinstance(item, ToolStarted)
                about = {"toolCallId": item.call_key or item.tool_use_id, "running": running}
                yield {"type": "CUSTOM", "name": "tool_status", "value": about}
            case Retracted():
                yield from self._take_back()
            case JournalEntry():
                yield from self._take_back()
                yield from self._entry(item)

    def close(self) -> Iterator[Event]:
        """End the message that is streamed."""
        (kind, name), self._open = self._open, ("", "")
        if kind == "text":
            yield {"type": "TEXT_MESSAGE_END", "messageId": name}
        elif kind:
            yield {"type": "REASONING_MESSAGE_END", "messageId": name}
            yield {"type": "REASONING_END", "messageId": name}

    def _take_back(self) -> Iterator[Event]:
        yield from self.close()
        if self._has_shown:
            self._has_shown = False
            yield SNAPSHOT

    def _streamed(self, item: Streamed) -> Iterator[Event]:
        piece = streamed_piece(item.value)
        if piece.kind not in ("text", "reasoning"):
            value = piece.value.get("data") if piece.kind == "chunk" else piece.value
            yield {"type": "CUSTOM", "name": piece.name or piece.kind, "value": value}
            return
        self._has_shown = True
        if self._open[0] != piece.kind:
            yield from self.close()
            self._open = (piece.kind, f"{item.wake_id}.{item.attempt}.{item.number}")
            yield from _opening(*self._open)
        yield _delta(*self._open, piece.text)

    def _entry(self, entry: JournalEntry) -> Iterator[Event]:
        event, name = entry.event, name_of(entry)
        match event:
            case AgentMessage():
                yield from self._message(event, name)
            case ToolUse() | CustomToolUse():
                call = call_of(event)
                about = {"toolCallName": event.tool, "parentMessageId": name}
                yield {"type": "TOOL_CALL_START", "toolCallId": call, **about}
                yield {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": _arguments(event)}
                yield {"type": "TOOL_CALL_END", "toolCallId": call}
            case ToolResult(provisional=False):
                message = _tool_message(event, name, show_errors=self._show_errors)
                about = {"messageId": name, "toolCallId": message["toolCallId"], "content": message["content"]}
                yield {"type": "TOOL_CALL_RESULT", **about, "role": "tool"}
            case _ if _is_custom(entry.kind, event):
                yield {"type": "CUSTOM", "name": entry.kind, "value": event.model_dump(mode="json", exclude={"kind"})}

    def _message(self, event: AgentMessage, name: str) -> Iterator[Event]:
        """Yield the events of a message. Its reasoning is a message of its own, before it."""
        text, reasoning = _joined(event, "text"), _joined(event, "reasoning")
        for kind, message_id, content in (("reasoning", f"{name}.r", reasoning), ("text", name, text)):
            if content:
                self._open = (kind, message_id)
                yield from _opening(kind, message_id)
                yield _delta(kind, message_id, content)
                yield from self.close()
        for piece in pieces_of(event.content):
            if piece.kind in ("file", "data"):
                yield {"type": "CUSTOM", "name": piece.name or piece.kind, "value": piece.value}


def name_of(entry: JournalEntry) -> str:
    """Return the id of the message of an entry: the browser's own for a message of the user."""
    given = entry.event_id if entry.wake_id is None else None
    return given or f"entry-{entry.seq}"


def messages_of(entries: Iterable[JournalEntry], *, show_errors: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of entries."""
    for entry in entries:
        event, name = entry.event, name_of(entry)
        match event:
            case UserMessage():
                yield {"id": name, "role": "user", "content": event.text}
            case AgentMessage():
                if reasoning := _joined(event, "reasoning"):
                    yield {"id": f"{name}.r", "role": "reasoning", "content": reasoning}
                if text := _joined(event, "text"):
                    yield {"id": name, "role": "assistant", "content": text}
            case ToolUse() | CustomToolUse():
                function = {"name": event.tool, "arguments": _arguments(event)}
                call = {"id": call_of(event), "type": "function", "function": function}
                yield {"id": name, "role": "assistant", "toolCalls": [call]}
            case ToolResult(provisional=False):
                yield _tool_message(event, name, show_errors=show_errors)


def interrupts_of(requests: Sequence[PendingRequest[JournalEvent]]) -> list[Event]:
    """Return the requests that wait for an answer as interrupts."""
    found: list[Event] = []
    for request in requests:
        event = request.event
        about: dict[str, Any] = {"id": request.request_id, "reason": request.kind}
        if isinstance(event, ToolConfirmation | CustomToolUse):
            about["toolCallId"] = call_of(event)
            about["message"] = event.summary or event.title or event.tool
        if isinstance(event, ToolConfirmation):
            about["responseSchema"] = _ALLOWED
        if request.expires_at is not None:
            about["expiresAt"] = request.expires_at.isoformat()
        shown = event.model_dump(mode="json", exclude={"kind", "usage"})
        found.append({**about, "metadata": {"request": shown}})
    return found


def finished(thread: str, run: str, reply: Reply | None, interrupts: Sequence[Event]) -> Event:
    """Return the end of a run. ``reply``: None if nothing was to be answered."""
    outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
    usage = {} if reply is None else reply.usage
    tokens = {name: usage[key] for name, keys in _USAGE.items() for key in keys if key in usage}
    about = {"usage": [tokens]} if tokens else {}
    return {"type": "RUN_FINISHED", "threadId": thread, "runId": run, "outcome": outcome, **about}


def _opening(kind: str, name: str) -> Iterator[Event]:
    if kind == "text":
        yield {"type": "TEXT_MESSAGE_START", "messageId": name, "role": "assistant"}
    else:
        yield {"type": "REASONING_START", "messageId": name}
        yield {"type": "REASONING_MESSAGE_START", "messageId": name, "role": "reasoning"}


def _delta(kind: str, name: str, text: str) -> Event:
    prefix = "TEXT" if kind == "text" else "REASONING"
    return {"type": f"{prefix}_MESSAGE_CONTENT", "messageId": name, "delta": text}


def _joined(event: AgentMessage, kind: str) -> str:
    return "".join([piece.text for piece in pieces_of(event.content) if piece.kind == kind])


def _arguments(event: ToolUse | CustomToolUse) -> str:
    raw = event.raw_arguments if isinstance(event, ToolUse) else None
    return json.dumps(event.arguments) if raw is None else raw


def _tool_message(event: ToolResult, name: str, *, show_errors: bool) -> dict[str, Any]:
    about = {"id": name, "role": "tool", "toolCallId": call_of(event)}
    if event.is_error:
        error = error_text(event, show_errors=show_errors)
        return {**about, "content": error, "error": error}
    return {**about, "content": as_text(event.result)}


def _is_custom(kind: str, event: JournalEvent) -> bool:
    """Whether an event that has no event of AG-UI is shown as a custom one."""
    hidden = isinstance(event, AnswerEvent | ContextSummary | RequestEvent | UserMessage | ToolResult)
    return not hidden and not kind.startswith((*TRACE_KINDS, "user."))
