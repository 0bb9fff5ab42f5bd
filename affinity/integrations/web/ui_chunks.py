"""Items of a conversation as chunks of the UI message stream of Vercel's AI SDK 7.

A step of a message has either provisional output or entries, never both: the chunk ``reset-step`` removes all parts
since the last ``start-step``, so `Retracted` takes back what was streamed, and nothing that was committed.

The state between two chunks is three letters, which a place in the stream has (`affinity.integrations.web.turns`):

1. ``0`` before ``start``; then ``1`` in a message of this turn, or ``2`` in one that goes on, whose calls of tools the
   browser has;
2. the open step: ``-`` none, ``e`` empty, ``p`` provisional output, ``c`` entries;
3. the open part: ``-`` none, ``t`` text, ``r`` reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from affinity.conversation import (
    TRACE_KINDS,
    AgentMessage,
    ConfirmationAnswer,
    ContextSummary,
    CustomToolResult,
    CustomToolUse,
    FeedItem,
    JournalEntry,
    JournalEvent,
    Reply,
    Retracted,
    Streamed,
    ToolConfirmation,
    ToolEnded,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from affinity.integrations.web.content import Piece, call_of, error_kind, error_text, pieces_of, streamed_piece

Chunk: TypeAlias = Mapping[str, Any]

NEW: Final = "0--"
"""The state before the first chunk."""

GOES_ON: Final = "2--"
"""The state of a message that goes on, behind ``start``."""

_OPENED: Final = {"text": "t", "reasoning": "r"}
_OPEN_KINDS: Final = {letter: kind for kind, letter in _OPENED.items()}

_HIDDEN: Final = (*TRACE_KINDS, "user.")
"""Beginnings of the kinds of entries that no message shows."""

_FINISH_REASONS: Final = {
    "end_turn": "stop",
    "revisit": "stop",
    "truncated": "length",
    "requires_action": "tool-calls",
    "failed": "error",
}


class UiChunks:
    """Turns items into chunks.

    Args:
        state: see the module.
        calls: entries of calls and requests that the browser has, besides those of these chunks.
        show_errors: whether errors of tools have their messages, or their kinds only.
    """

    def __init__(self, state: str = NEW, *, calls: Iterable[JournalEntry] = (), show_errors: bool = False) -> None:
        self._started, self._step, self._open = state[0], state[1], state[2]
        self._show_errors = show_errors
        self._calls: set[str] = set()
        self._requests: set[str] = set()
        for entry in calls:
            self._chunks_of(entry)

    @property
    def state(self) -> str:
        """See the module."""
        return self._started + self._step + self._open

    def start(self, message_id: str) -> Iterator[Chunk]:
        """Begin a message, unless it has begun."""
        if self._started == "0":
            self._started = "1"
            yield {"type": "start", "messageId": message_id}

    def read(self, item: FeedItem) -> Iterator[Chunk]:
        """Yield the chunks of an item. `state` is right behind each of them."""
        match item:
            case Streamed():
                yield from self._streamed(item)
            case ToolStarted() | ToolEnded():
                yield _tool_status(item)
            case Retracted():
                if self._step == "p":
                    self._step, self._open = "e", "-"
                    yield {"type": "reset-step"}
            case JournalEntry():
                yield from self._entry(item)

    def finish(self, reply: Reply) -> Iterator[Chunk]:
        """End the message with the reply."""
        yield from self._end_step()
        about = {"seq": reply.seq, "stopReason": reply.stop_reason, "usage": reply.usage}
        reason = _FINISH_REASONS.get(reply.stop_reason, "other")
        yield {"type": "finish", "finishReason": reason, "messageMetadata": about}

    def _streamed(self, item: Streamed) -> Iterator[Chunk]:
        piece = streamed_piece(item.value)
        if piece.kind in _OPENED and not piece.text:
            return
        yield from self.start(item.wake_id)
        if self._step == "c":
            yield from self._end_step()
        yield from self._begin_step()
        self._step = "p"
        wanted = _OPENED.get(piece.kind, "-")
        if self._open not in ("-", wanted):
            ended, self._open = self._open, "-"
            yield {"type": f"{_OPEN_KINDS[ended]}-end", "id": _OPEN_KINDS[ended]}
        if wanted == "-":
            yield _whole(piece)
            return
        if self._open == "-":
            self._open = wanted
            yield {"type": f"{piece.kind}-start", "id": piece.kind}
        yield {"type": f"{piece.kind}-delta", "id": piece.kind, "delta": piece.text}

    def _entry(self, entry: JournalEntry) -> Iterator[Chunk]:
        chunks = self._chunks_of(entry)
        if not chunks:
            return
        yield from self.start(entry.wake_id or str(entry.seq))
        if self._step == "p":  # no retraction has come: these parts are void all the same
            self._step, self._open = "e", "-"
            yield {"type": "reset-step"}
        yield from self._begin_step()
        self._step = "c"
        yield from chunks

    def _begin_step(self) -> Iterator[Chunk]:
        if self._step == "-":
            self._step = "e"
            yield {"type": "start-step"}

    def _end_step(self) -> Iterator[Chunk]:
        if self._step != "-":
            self._step, self._open = "-", "-"
            yield {"type": "finish-step"}

    def _chunks_of(self, entry: JournalEntry) -> list[Chunk]:
        """Return the chunks of an entry: always the same for the same entry."""
        event = entry.event
        match event:
            case AgentMessage():
                return [chunk for piece in pieces_of(event.content) for chunk in _committed(piece)]
            case ToolUse() | CustomToolUse():
                return self._call(event)
            case ToolResult():
                return self._result(event)
            case ToolConfirmation():
                return self._request(event)
            case ConfirmationAnswer():
                about = {"approvalId": event.request_id, "approved": event.allowed, "reason": event.reason or None}
                answer = {"type": "tool-approval-response", **about}
                return [_without_none(answer)] if self._is_known(event.request_id, self._requests) else []
        is_hidden = isinstance(event, CustomToolResult | ContextSummary) or entry.kind.startswith(_HIDDEN)
        return [] if is_hidden else [_data(entry.kind, event, str(entry.seq))]

    def _is_known(self, name: str, known: set[str]) -> bool:
        """Whether the browser has a call or a request: a chunk for one that it does not have ends its stream."""
        return self._started == "2" or name in known

    def _call(self, event: ToolUse | CustomToolUse) -> list[Chunk]:
        call = call_of(event)
        self._calls.add(call)
        raw = event.raw_arguments if isinstance(event, ToolUse) else None
        about: dict[str, Any] = {"toolCallId": call, "toolName": event.tool}
        if isinstance(event, CustomToolUse) and event.title:
            about["title"] = event.title
        if raw is not None:
            return [{"type": "tool-input-error", **about, "input": raw, "errorText": "invalid_tool_arguments"}]
        return [{"type": "tool-input-available", **about, "input": event.arguments}]

    def _result(self, event: ToolResult) -> list[Chunk]:
        call = call_of(event)
        if event.provisional or not self._is_known(call, self._calls):
            return []
        if error_kind(event) == "refused":
            return [{"type": "tool-output-denied", "toolCallId": call}]
        if event.is_error:
            text = error_text(event, show_errors=self._show_errors)
            return [{"type": "tool-output-error", "toolCallId": call, "errorText": text}]
        return [{"type": "tool-output-available", "toolCallId": call, "output": event.result}]

    def _request(self, event: ToolConfirmation) -> list[Chunk]:
        call, chunks = call_of(event), list[Chunk]()
        has_call = bool(event.call_key or event.tool_use_id)
        if not has_call or not self._is_known(call, self._calls):  # a handler may ask without a call
            self._calls.add(call)
            about = {"toolCallId": call, "toolName": event.tool, "input": event.arguments}
            chunks.append({"type": "tool-input-available", **about})
        self._requests.add(event.request_id)
        shown = {"title": event.title, "summary": event.summary, "dangerous": event.dangerous}
        asked = {"approvalId": event.request_id, "toolCallId": call, "approvalDescriptor": shown}
        chunks.append(_without_none({"type": "tool-approval-request", **asked, "reason": event.summary or None}))
        return chunks


def _committed(piece: Piece) -> list[Chunk]:
    """Return the chunks of a piece of a message."""
    if piece.kind not in _OPENED:
        return [_whole(piece)]
    parts = ({"type": f"{piece.kind}-start"}, {"type": f"{piece.kind}-delta", "delta": piece.text})
    return [{**part, "id": piece.kind} for part in (*parts, {"type": f"{piece.kind}-end"})]


def _whole(piece: Piece) -> Chunk:
    """Return the one chunk of a piece that is not text."""
    match piece.kind:
        case "file":
            return {"type": "file", "url": piece.value["url"], "mediaType": piece.value["mediaType"]}
        case "chunk":
            chunk: Chunk = piece.value
            return chunk
    return {"type": f"data-{piece.name}", "data": piece.value}


def _data(kind: str, event: JournalEvent, number: str) -> Chunk:
    """Return an event that has no chunk of its own as a data part, which a repetition replaces."""
    return {"type": f"data-{kind}", "id": number, "data": event.model_dump(mode="json", exclude={"kind"})}


def _tool_status(item: ToolStarted | ToolEnded) -> Chunk:
    """Return whether a call runs: for ``onData`` alone. It is no part of the message."""
    about = {"toolCallId": item.call_key or item.tool_use_id, "running": isinstance(item, ToolStarted)}
    return {"type": "data-tool-status", "transient": True, "data": about}


def _without_none(chunk: dict[str, Any]) -> Chunk:
    return {name: value for name, value in chunk.items() if value is not None}


def parts_of(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """Return the parts of a message whose chunks of entries are these, as the client of the AI SDK makes them."""
    parts: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        kind: str = chunk["type"]
        if kind == "start-step":
            parts.append({"type": "step-start"})
        elif kind.endswith("-delta"):
            parts.append({"type": kind.removesuffix("-delta"), "text": chunk["delta"], "state": "done"})
        elif kind == "file" or kind.startswith("data-"):
            parts.append(dict(chunk))
        elif kind.startswith("tool-input-"):
            call = calls[chunk["toolCallId"]] = {"type": f"tool-{chunk['toolName']}", **_call_fields(chunk)}
            parts.append(call)
        elif kind.startswith("tool-"):
            _apply(chunk, calls)
    return parts


def _call_fields(chunk: Chunk) -> dict[str, Any]:
    about = {name: chunk[name] for name in ("toolCallId", "title", "input", "errorText") if name in chunk}
    return {**about, "state": "output-error" if "errorText" in chunk else "input-available"}


def _apply(chunk: Chunk, calls: Mapping[str, dict[str, Any]]) -> None:
    """Apply a chunk to the call that it is about."""
    match chunk:
        case {"type": "tool-approval-response", "approvalId": request}:
            for call in calls.values():
                if call.get("approval", {}).get("id") == request:
                    answered = {name: chunk[name] for name in ("approved", "reason") if name in chunk}
                    call.update(state="approval-responded", approval={**call["approval"], **answered})
        case {"type": "tool-approval-request", "toolCallId": name}:
            approval = {"id": chunk["approvalId"], "descriptor": chunk["approvalDescriptor"]}
            reason = {"requestReason": chunk["reason"]} if "reason" in chunk else {}
            calls[name].update(state="approval-requested", approval={**approval, **reason})
        case {"type": "tool-output-available", "toolCallId": name}:
            calls[name].update(state="output-available", output=chunk["output"])
        case {"type": "tool-output-error", "toolCallId": name}:
            calls[name].update(state="output-error", errorText=chunk["errorText"])
        case {"type": "tool-output-denied", "toolCallId": name}:
            calls[name].update(state="output-denied")
