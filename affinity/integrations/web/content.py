"""The content of messages and streamed values, in the pieces that a browser shows.

Blocks are those of the APIs of models (Anthropic's, and OpenAI's chat completions), as `affinity.agent` keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import to_json

from affinity.conversation import Content, CustomToolUse, ToolConfirmation, ToolResult, ToolUse
from affinity.errors import InvalidInput

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)[;,]", re.ASCII)
_NAME: Final = re.compile(r"data-[\w.-]{1,100}", re.ASCII)


class Piece(NamedTuple):
    """A piece of a content."""

    kind: Literal["text", "reasoning", "file", "data", "chunk"]
    text: str = ""  # of text and reasoning
    name: str = ""  # of data: what it is
    value: Any = None  # of a file its fields; of data the value; of a chunk the chunk itself


def pieces_of(content: Content) -> Iterator[Piece]:
    """Yield the pieces of the content of a message."""
    blocks: Iterable[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if (piece := _piece(block)) is not None and piece != Piece("text"):
            yield piece


def streamed_piece(value: Any) -> Piece:
    """Return the piece of a streamed value: text, reasoning as a block of it, or anything else as data. An object whose
    ``type`` begins with "data-" is a chunk of the UI message stream.
    """
    if isinstance(value, str):
        return Piece("text", value)
    if isinstance(value, dict):
        if (name := _field(value, "type")).startswith("data-") and "data" in value and _NAME.fullmatch(name):
            chunk = {key: value[key] for key in ("type", "id", "data", "transient") if key in value}
            return Piece("chunk", name=name.removeprefix("data-"), value=chunk)
        if (piece := _piece(value)) is not None and piece.kind != "data":
            return piece
    return Piece("data", name="stream", value=value)


def _piece(block: Any) -> Piece | None:
    match block:
        case {"type": "text" | "output_text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return Piece("text", text)
        case {"type": "thinking", "thinking": str(text)} | {"type": "reasoning", "text": str(text)}:
            return Piece("reasoning", text)
        case {"type": "redacted_thinking"}:
            return None
    return _file(block) or Piece("data", name=_field(block, "type") or "block", value=block)


def _file(block: Any) -> Piece | None:
    match block:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            about = {"url": url, "mediaType": _media_type(url, "image/*")}
        case {"type": "image" | "document" as kind, "source": {"type": "url", "url": str(url)}}:
            about = {"url": url, "mediaType": _media_type(url, "image/*" if kind == "image" else "application/pdf")}
        case {"type": "image" | "document", "source": {"media_type": str(media_type), "data": str(data)}}:
            about = {"url": f"data:{media_type};base64,{data}", "mediaType": media_type}
        case {"type": "file", "file": {"file_data": str(url)}}:
            about = {"url": url, "mediaType": _media_type(url, "application/octet-stream")}
        case _:
            return None
    return Piece("file", value=about)


def _field(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else ""


def _media_type(url: str, fallback: str) -> str:
    found = _DATA_URL.match(url)
    return found[1] if found else fallback


def content_of(parts: Sequence[Mapping[str, Any]]) -> Content:
    """Return the content of a message of the AI SDK: its text, or blocks if it has files.

    Raises:
        InvalidInput: it has a part that is neither text nor a file, or no part.
    """
    blocks = [_block(part) for part in parts]
    if not blocks:
        raise InvalidInput("the message has no parts")
    if all(block["type"] == "text" for block in blocks):
        return "".join([block["text"] for block in blocks])
    return blocks


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "file", "url": str(url), "mediaType": str(media_type), **about}:
            if media_type.startswith("image/"):
                return {"type": "image_url", "image_url": {"url": url}}
            return {"type": "file", "file": {"file_data": url, "filename": str(about.get("filename") or "file")}}
    raise InvalidInput(f"a message has parts of text and files, not {part!r:.80}")


def call_of(event: ToolUse | ToolResult | ToolConfirmation | CustomToolUse) -> str:
    """Return the id of a call of a tool, which is unique in its conversation: ids of models repeat."""
    return event.call_key or event.tool_use_id or getattr(event, "request_id", "")


def error_kind(result: ToolResult) -> str:
    """Return the kind of the error of a tool, as `affinity.agent.run_loop` names it; empty: it has none."""
    match result.result:
        case {"error": {"kind": str(kind)}}:
            return kind
    return ""


def error_text(result: ToolResult, *, show_errors: bool) -> str:
    """Return the error of a tool for the browser: its kind, or its message too."""
    kind = error_kind(result) or "tool_error"
    if not show_errors:
        return kind
    match result.result:
        case {"error": {"message": str(message)}}:
            return f"{kind}: {message}"
        case str(text):
            return text
    return as_text(result.result)


def as_text(value: Any) -> str:
    """Return a text as it is, and another value as JSON."""
    return value if isinstance(value, str) else to_json(value).decode()
