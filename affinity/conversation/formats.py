"""Events as the messages of the APIs of models, and back: chat completions of OpenAI, and messages of Anthropic.

Both are plain lists of dicts, so no SDK is needed. Ids of tool calls stay exactly as they are. Events that are no part
of a talk (spans, statuses, requests for confirmation) have no message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from pydantic_core import from_json, to_json

from affinity.conversation.events import (
    AgentMessage,
    Content,
    CustomToolResult,
    CustomToolUse,
    JournalEvent,
    ToolResult,
    ToolUse,
    UserMessage,
    text_of,
)
from affinity.errors import InvalidInput

Message: TypeAlias = dict[str, Any]
"""A message of an API: JSON values by name."""


class Transcript(NamedTuple):
    """The system prompts and the events of a list of messages."""

    system: Sequence[str]  # texts of the system messages, in order
    events: Sequence[JournalEvent]


@dataclass(slots=True)
class _Assistant:
    """One message of the assistant: text, and calls of tools."""

    message_id: str
    content: Content | None = None
    calls: list[ToolUse | CustomToolUse] = field(default_factory=list)


class _Result(NamedTuple):
    """The result of one call."""

    tool_use_id: str
    content: Any
    is_error: bool


# -- events to messages


def to_openai(events: Iterable[JournalEvent], *, system: Sequence[str] = ()) -> list[Message]:
    """The messages of a chat completion: the system messages first, then the talk."""
    found: list[Message] = [{"role": "system", "content": text} for text in system]
    for part in _parts(events):
        match part:
            case UserMessage():
                found.append({"role": "user", "content": part.content})
            case _Assistant():
                found.append(_openai_assistant(part))
            case _Result():
                found.append({"role": "tool", "tool_call_id": part.tool_use_id, "content": _as_text(part.content)})
    return found


def to_anthropic(events: Iterable[JournalEvent]) -> list[Message]:
    """The ``messages`` of a request; the system prompt is a parameter of its own there.

    Results of tools are blocks of a user's message. Messages of one role that follow each other are one message.
    """
    found: list[Message] = []
    for part in _parts(events):
        match part:
            case UserMessage():
                _add_blocks(found, "user", _blocks(part.content))
            case _Assistant():
                calls = [_anthropic_call(call) for call in part.calls]
                _add_blocks(found, "assistant", [*_blocks(part.content), *calls])
            case _Result():
                _add_blocks(found, "user", [_anthropic_result(part)])
    return found


def _parts(events: Iterable[JournalEvent]) -> Iterator[UserMessage | _Assistant | _Result]:
    """The talk in the order of its messages; a call and the text before it, of one reply of the model, are together."""
    reply: _Assistant | None = None
    calls: dict[str, str] = {}  # tool_use_id, by the id of the request of a tool that the client runs
    for event in events:
        match event:
            case AgentMessage() | ToolUse() | CustomToolUse():
                if isinstance(event, CustomToolUse):
                    calls[event.request_id] = event.tool_use_id or event.request_id
                if reply is not None and not _continues(reply, event):
                    yield reply
                    reply = None
                reply = reply or _Assistant(event.message_id)
                _add(reply, event)
                continue
            case UserMessage():
                part: UserMessage | _Result = event
            case ToolResult():
                part = _Result(event.tool_use_id, event.result, event.is_error)
            case CustomToolResult() if event.request_id in calls:
                part = _Result(calls[event.request_id], event.result, event.is_error or event.expired)
            case _:
                continue
        if reply is not None:
            yield reply
            reply = None
        yield part
    if reply is not None:
        yield reply


def _continues(reply: _Assistant, event: AgentMessage | ToolUse | CustomToolUse) -> bool:
    """Whether the event is of the same reply of the model."""
    if event.message_id != reply.message_id:
        return False
    return not isinstance(event, AgentMessage)


def _add(reply: _Assistant, event: AgentMessage | ToolUse | CustomToolUse) -> None:
    if isinstance(event, AgentMessage):
        reply.content = event.content
    else:
        reply.calls.append(event)


def _openai_assistant(reply: _Assistant) -> Message:
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(call),
                "type": "function",
                "function": {"name": call.tool, "arguments": arguments_text(call)},
            }
            for call in reply.calls
        ]
    return message


def _anthropic_call(call: ToolUse | CustomToolUse) -> Message:
    return {"type": "tool_use", "id": _call_id(call), "name": call.tool, "input": call.arguments}


def _anthropic_result(result: _Result) -> Message:
    block: Message = {"type": "tool_result", "tool_use_id": result.tool_use_id, "content": _result_content(result)}
    return {**block, "is_error": True} if result.is_error else block


def _result_content(result: _Result) -> Any:
    return result.content if _is_blocks(result.content) else _as_text(result.content)


def _call_id(call: ToolUse | CustomToolUse) -> str:
    return call.tool_use_id or (call.request_id if isinstance(call, CustomToolUse) else "")


def arguments_text(call: ToolUse | CustomToolUse) -> str:
    """The arguments as JSON text; as the model gave them, when that was no JSON object."""
    raw = call.raw_arguments if isinstance(call, ToolUse) else None
    return to_json(call.arguments).decode() if raw is None else raw


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


def _blocks(content: Content | None) -> list[Any]:
    if content is None or content == "":
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _is_blocks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "type" in each for each in value)


def _add_blocks(messages: list[Message], role: str, blocks: list[Any]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


# -- messages to events


def from_openai(messages: Iterable[Mapping[str, Any]]) -> Transcript:
    """The events that these messages of a chat completion stand for.

    Raises:
        InvalidInput: a message that is none, or of an unknown role.
    """
    system: list[str] = []
    events: list[JournalEvent] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        match message.get("role"):
            case "system" | "developer":
                system.append(text_of(content or ""))
            case "user":
                events.append(UserMessage(content or ""))
            case "assistant":
                events += _of_openai_assistant(message, f"m{number}")
            case "tool":
                events.append(ToolResult(str(message.get("tool_call_id", "")), content))
            case role:
                raise InvalidInput(f"message {number} has the role {role!r}, which is none of the API's")
    return Transcript(system, events)


def _of_openai_assistant(message: Mapping[str, Any], message_id: str) -> Iterator[JournalEvent]:
    calls = message.get("tool_calls") or ()
    if message.get("content") is not None or not calls:
        yield AgentMessage(message.get("content") or "", message_id=message_id)
    for call in calls:
        function = call.get("function", {})
        yield call_of(str(function.get("name", "")), function.get("arguments", ""), str(call.get("id", "")), message_id)


def from_anthropic(messages: Iterable[Mapping[str, Any]]) -> Sequence[JournalEvent]:
    """The events that these ``messages`` of a request, or a response's message, stand for.

    Raises:
        InvalidInput: a message that is none, or of an unknown role.
    """
    events: list[JournalEvent] = []
    for number, message in enumerate(messages):
        blocks = _blocks(message.get("content"))
        match message.get("role"):
            case "user":
                events += _of_anthropic_user(blocks)
            case "assistant":
                events += _of_anthropic_assistant(blocks, f"m{number}")
            case role:
                raise InvalidInput(f"message {number} has the role {role!r}, which is none of the API's")
    return events


def _of_anthropic_user(blocks: Sequence[Mapping[str, Any]]) -> Iterator[JournalEvent]:
    shown: list[Any] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            if shown:
                yield UserMessage(_content(shown))
            shown = []
            is_error = bool(block.get("is_error"))
            yield ToolResult(str(block.get("tool_use_id", "")), block.get("content"), is_error)
        else:
            shown.append(block)
    if shown:
        yield UserMessage(_content(shown))


def _of_anthropic_assistant(blocks: Sequence[Mapping[str, Any]], message_id: str) -> Iterator[JournalEvent]:
    shown = [block for block in blocks if block.get("type") != "tool_use"]
    if shown:
        yield AgentMessage(_content(shown), message_id=message_id)
    for block in blocks:
        if block.get("type") == "tool_use":
            yield call_of(str(block.get("name", "")), block.get("input", {}), str(block.get("id", "")), message_id)


def _content(blocks: list[Any]) -> Content:
    """Plain text where that is the same."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and blocks[0]["type"] == "text":
        return str(blocks[0]["text"])
    return blocks


def call_of(tool: str, arguments: Any, tool_use_id: str, message_id: str = "") -> ToolUse:
    """The call of a tool, its arguments a JSON object or the text of one; other text is kept as it is."""
    if not isinstance(arguments, str):
        return ToolUse(tool, dict(arguments or {}), tool_use_id, message_id=message_id)
    try:
        found = from_json(arguments) if arguments.strip() else {}
    except ValueError:
        found = None
    if isinstance(found, dict):
        return ToolUse(tool, found, tool_use_id, message_id=message_id)
    return ToolUse(tool, {}, tool_use_id, message_id=message_id, raw_arguments=arguments)
