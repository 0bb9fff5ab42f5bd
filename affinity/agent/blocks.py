"""Converts content blocks between the APIs of models, for `affinity.agent.formats`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from affinity.conversation.events import Content
from affinity.errors import InvalidInput

_DATA_URL: Final = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]*)*;base64,([A-Za-z0-9+/=]+)", re.ASCII | re.IGNORECASE
)
_PDF: Final = "application/pdf"
_ONLY_ANTHROPIC: Final = ("image", "document", "search_result", "container_upload", "tool_use", "tool_result")
_ONLY_OPENAI: Final = ("image_url", "input_audio", "file", "refusal")
_TEXT_OF_ANTHROPIC: Final = frozenset({"cache_control", "citations"})


def openai_content(content: Content) -> Content:
    """A content for chat completions, without thinking.

    Raises:
        InvalidInput: a block of Anthropic's has no counterpart there.
    """
    if isinstance(content, str):
        return content
    return [found for block in content if (found := _openai_block(block)) is not None]


def anthropic_blocks(blocks: Iterable[Any]) -> list[Any]:
    """Blocks for messages of Anthropic.

    Raises:
        InvalidInput: a block of OpenAI's has no counterpart there.
    """
    return [*map(_anthropic_block, blocks)]


def is_result_block(value: Any) -> bool:
    """Whether Anthropic takes a value, converted, as a block of the result of a tool."""
    match value:
        case {"type": "text", "text": str()} | {"type": "image_url", "image_url": {"url": str()}}:
            return True
        case {"type": "image" | "document", "source": {"type": str()}} | {"type": "search_result", "source": str()}:
            return True
    return False


def _openai_block(block: Mapping[str, Any]) -> dict[str, Any] | None:
    match block:
        case {"type": "thinking" | "redacted_thinking"}:
            return None
        case {"type": "text"}:
            return {name: value for name, value in block.items() if name not in _TEXT_OF_ANTHROPIC}
        case {"type": "image", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": str(data)}}:
            name = block.get("title") or "document.pdf"
            return {"type": "file", "file": {"file_data": f"data:{_PDF};base64,{data}", "filename": name}}
        case {"type": str(kind)} if kind in _ONLY_ANTHROPIC or kind.endswith(("_tool_use", "_tool_result")):
            raise _no_counterpart(kind, "chat completions")
    return dict(block)


def _anthropic_block(block: Any) -> Any:
    match block:
        case {"type": "image_url", "image_url": {"url": str(url)}} if (source := _source(url)) is not None:
            return {"type": "image", "source": source}
        case {"type": "file", "file": {"file_data": str(url), **about}} if (_source(url) or {}).get(
            "media_type"
        ) == _PDF:
            title = {"title": about["filename"]} if about.get("filename") else {}
            return {"type": "document", "source": _source(url), **title}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": str(kind)} if kind in _ONLY_OPENAI:
            raise _no_counterpart(kind, "messages of Anthropic")
    return block


def _source(url: str) -> dict[str, str] | None:
    """The source of an image at a URL; None: none that Anthropic takes."""
    if (data := _DATA_URL.fullmatch(url)) is not None:
        return {"type": "base64", "media_type": data[1], "data": data[2]}
    return {"type": "url", "url": url} if url.lower().startswith(("https://", "http://")) else None


def _no_counterpart(kind: str, where: str) -> InvalidInput:
    return InvalidInput(f"a block of type {kind!r} has no counterpart in {where}, or not with this content")
