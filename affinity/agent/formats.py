"""Events as the messages of the APIs of models, and back: chat completions of OpenAI, and messages of Anthropic.

Both are plain lists of dicts, so no SDK is needed. Ids of tool calls stay as they are; one that is empty, or that an
earlier call has, is written as a new one, since the APIs know calls by it. An input that is no
message, such as the end of a child, is a message of the user, with the text that `render_input` gives. Events that are
no part of a talk (spans, statuses, requests for confirmation) have no message.

Blocks of contents are kept as they came, and converted where they are written for the other API:

- text, PDF files that are data, and images that are data or URLs are converted; a refusal becomes text for Anthropic;
- thinking is left out for OpenAI (it is for the model that wrote it), and so are cache marks and citations of text;
- a block of the other API without a counterpart, such as a file by its id, is refused with `InvalidInput`;
- a block of a type that neither API is known to have stays as it is.

In the results of tools, only blocks that the API takes there stay blocks; any other value is its JSON text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from affinity.agent.blocks import anthropic_blocks, is_result_block, openai_content
from affinity.conversation.events import (
    AgentMessage,
    CallEnded,
    ChildEnded,
    ConfirmationAnswer,
    Content,
    ContextSummary,
    CustomToolResult,
    CustomToolUse,
    DefineOutcome,
    JournalEvent,
    RequestExpired,
    RevisitDue,
    RunEnded,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserInterrupt,
    UserMessage,
    text_of,
)
from affinity.errors import InvalidInput, problem_of

Message: TypeAlias = dict[str, Any]
"""A message of an API: JSON values by name."""

Render: TypeAlias = Callable[[JournalEvent], Content | None]
"""See `render_input`."""


class Transcript(NamedTuple):
    """The system prompts and the events of a list of messages."""

    system: Sequence[str]  # texts of the system messages, in order
    events: Sequence[JournalEvent]


class _Result(NamedTuple):
    """The result of one call."""

    tool_use_id: str  # in the messages
    content: Any
    is_error: bool


@dataclass(slots=True, eq=False)
class _Call:
    """A call of a tool in a message of the assistant, and its result, whenever this came."""

    call: ToolUse | CustomToolUse
    reply: _Assistant
    tool_use_id: str  # in the messages
    result: _Result | None = None
    is_ended: bool = False
    """It has a result that is not provisional."""


@dataclass(slots=True, eq=False)
class _Assistant:
    """One message of the assistant: text and calls of tools."""

    message_id: str
    content: Content | None = None
    calls: list[_Call] = field(default_factory=list)


class _Calls:
    """The calls of a talk, to which its results belong."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Call] = {}
        self._by_id: defaultdict[str, list[_Call]] = defaultdict(list)  # of models, which may use one again
        self._requests: dict[str, _Call] = {}  # of tools that the client runs
        self._shown: set[str] = set()

    def add(self, call: ToolUse | CustomToolUse, reply: _Assistant) -> _Call:
        known = self._by_id[call_id(call)]
        shown = call_id(call)
        if not shown or shown in self._shown:
            digest = sha256(to_json([call.call_key or call.message_id, call_id(call), len(known)])).hexdigest()
            shown = f"call_{digest[:24]}"
        self._shown.add(shown)
        made = _Call(call, reply, shown)
        known.append(made)
        if call.call_key:
            self._by_key[call.call_key] = made
        if isinstance(call, CustomToolUse):
            self._requests[call.request_id] = made
        return made

    def of_result(self, event: ToolResult) -> Sequence[_Call]:
        """The calls to which a result may belong."""
        if event.call_key:
            return [self._by_key[event.call_key]] if event.call_key in self._by_key else []
        return self._by_id.get(event.tool_use_id, [])

    def of_request(self, request_id: str) -> Sequence[_Call]:
        """The call of a tool that the client runs."""
        return [self._requests[request_id]] if request_id in self._requests else []


# -- events to messages


def render_input(event: JournalEvent) -> Content | None:
    """The text by which a model reads an input that is no message; None: it reads nothing."""
    match event:
        case ChildEnded():
            value = event.error.message if event.error is not None else event.result
            found = (
                f"[the work of {event.child!r} has ended: {event.outcome}] {'' if value is None else _as_text(value)}"
            )
        case RunEnded() | CallEnded():
            name = event.orchestration if isinstance(event, RunEnded) else event.activity
            how, value = ("failed", event.error.message) if event.error is not None else ("completed", event.result)
            found = f"[{name!r} has ended: {how}] {'' if value is None else _as_text(value)}"
        case UserInterrupt():
            found = f"[the user interrupts you] {event.reason}"
        case DefineOutcome():
            found = "\n- ".join([f"[the outcome that is wanted] {event.outcome}", *event.criteria])
        case RevisitDue():
            found = f"[you asked to come back now] {event.reason} {'' if event.note is None else _as_text(event.note)}"
        case ContextSummary():
            intro = "[a summary of what came before]"
            if not isinstance(event.content, str):
                return [{"type": "text", "text": intro}, *event.content]
            found = f"{intro} {event.content}"
        case RequestExpired():
            found = f"[no answer came in time to the request {event.request_id!r}]"
        case ConfirmationAnswer() | CustomToolResult():  # it is in the result of its call
            return None
        case _ if str(event.kind).startswith("user."):
            found = f"[{event.kind}] {_as_text(event.model_dump(mode='json', exclude={'kind'}))}"
        case _:
            return None
    return found.strip()


def to_openai(
    events: Iterable[JournalEvent], *, system: Sequence[str] = (), render: Render = render_input
) -> list[Message]:
    """The messages of a chat completion: the system messages first, then the talk. ``render``: gives the text, or the
    blocks, of an input that is no message.

    Raises:
        InvalidInput: a block of Anthropic's that chat completions have no counterpart for.
    """
    found: list[Message] = [{"role": "system", "content": text} for text in system]
    for part in _parts(events, render):
        match part:
            case UserMessage():
                found.append({"role": "user", "content": openai_content(part.content)})
            case _Assistant():
                found.append(_openai_assistant(part))
            case _Result():
                content = openai_content(part.content) if _is_text(part.content) else _as_text(part.content)
                found.append({"role": "tool", "tool_call_id": part.tool_use_id, "content": content})
    return found


def to_anthropic(events: Iterable[JournalEvent], *, render: Render = render_input) -> list[Message]:
    """The ``messages`` of a request; the system prompt is a parameter of its own there. ``render``: as for `to_openai`.

    Results of tools are blocks of a user's message. Messages of one role that follow each other are one message.

    Raises:
        InvalidInput: a block of OpenAI's that Anthropic has no counterpart for.
    """
    found: list[Message] = []
    for part in _parts(events, render):
        match part:
            case UserMessage():
                _add_blocks(found, "user", anthropic_blocks(_blocks(part.content)))
            case _Assistant():
                made = [_anthropic_call(each) for each in part.calls]
                _add_blocks(found, "assistant", [*anthropic_blocks(_blocks(part.content)), *made])
            case _Result():
                _add_blocks(found, "user", [_anthropic_result(part)])
    return found


def _parts(events: Iterable[JournalEvent], render: Render) -> Iterator[UserMessage | _Assistant | _Result]:
    """The talk in the order of its messages; a call and the text before it, of one reply of the model, are together.

    Both APIs want the results of calls directly behind them, and one of each. In a journal something else may stand
    between the two, such as a message that came while a person was asked. The result that follows a provisional one is
    a message.
    """
    talk: list[UserMessage | _Assistant | _Result] = []
    calls = _Calls()
    for event in events:
        match event:
            case AgentMessage() | ToolUse() | CustomToolUse():
                _add_to_reply(talk, calls, event)
            case UserMessage():
                talk.append(event)
            case ToolResult():
                if owners := calls.of_result(event):
                    _add_result(talk, owners, event.result, event.is_error, is_provisional=event.provisional)
                else:  # its call is not among these events
                    talk.append(_Result(event.tool_use_id, event.result, event.is_error))
            case CustomToolResult() if owners := calls.of_request(event.request_id):
                _add_result(talk, owners, event.result, event.is_error or event.expired)
            case _ if (content := render(event)) is not None:
                talk.append(UserMessage(content))
    for part in talk:
        yield part
        if isinstance(part, _Assistant):  # results come in the order in which calls end
            yield from [each.result for each in part.calls if each.result is not None]


def _add_to_reply(
    talk: list[UserMessage | _Assistant | _Result], calls: _Calls, event: AgentMessage | ToolUse | CustomToolUse
) -> None:
    reply = talk[-1] if talk else None
    if not (isinstance(reply, _Assistant) and _continues(reply, event)):
        talk.append(reply := _Assistant(event.message_id))
    if isinstance(event, AgentMessage):
        reply.content = event.content
    else:
        reply.calls.append(calls.add(event, reply))


def _add_result(
    talk: list[UserMessage | _Assistant | _Result],
    owners: Sequence[_Call],
    content: Any,
    is_error: bool,
    *,
    is_provisional: bool = False,
) -> None:
    """Give a result to its call: of several, to the first without a result in the last reply that has one. A second
    result of a call is left out.
    """
    left = [each for each in owners if not each.is_ended]
    owner = next((each for each in left if each.reply is left[-1].reply), None)
    if owner is None:
        return
    owner.is_ended = not is_provisional
    if owner.result is None:
        owner.result = _Result(owner.tool_use_id, content, is_error)
    elif not is_provisional:
        talk.append(late_result(owner.call, content))


def late_result(call: ToolUse | CustomToolUse | None, result: Any) -> UserMessage:
    """The result of a call that has waited, as the model reads it when it comes. None: the call is not known."""
    what = "a call from before" if call is None else f"the call {call.tool}({arguments_text(call)})"
    return UserMessage(f"[{what} has ended now] {_as_text(result)}")


def _continues(reply: _Assistant, event: AgentMessage | ToolUse | CustomToolUse) -> bool:
    """Whether the event is of the same reply of the model."""
    has_results = any(each.result is not None for each in reply.calls)
    return event.message_id == reply.message_id and not has_results and not isinstance(event, AgentMessage)


def _openai_assistant(reply: _Assistant) -> Message:
    content = None if reply.content is None else openai_content(reply.content)
    if content == [] and reply.content:  # thinking alone
        content = None if reply.calls else ""
    message: Message = {"role": "assistant", "content": content}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": each.tool_use_id,
                "type": "function",
                "function": {"name": each.call.tool, "arguments": arguments_text(each.call)},
            }
            for each in reply.calls
        ]
    return message


def _anthropic_call(made: _Call) -> Message:
    return {"type": "tool_use", "id": made.tool_use_id, "name": made.call.tool, "input": made.call.arguments}


def _anthropic_result(result: _Result) -> Message:
    block: Message = {"type": "tool_result", "tool_use_id": result.tool_use_id, "content": _result_content(result)}
    return {**block, "is_error": True} if result.is_error else block


def _result_content(result: _Result) -> Any:
    if isinstance(result.content, list) and result.content and all(map(is_result_block, result.content)):
        with suppress(InvalidInput):
            return anthropic_blocks(result.content)
    return _as_text(result.content)


def call_id(call: ToolUse | CustomToolUse) -> str:
    """The id by which the model knows the call."""
    return call.tool_use_id or (call.request_id if isinstance(call, CustomToolUse) else "")


def is_of(event: ToolResult | ToolConfirmation, call: ToolUse | CustomToolUse) -> bool:
    """Whether a result, or a request for confirmation, may be of this call. One without a key is known by the id."""
    return event.call_key == call.call_key if event.call_key else event.tool_use_id == call_id(call)


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


def _is_text(value: Any) -> bool:
    """Whether these are blocks of text, which both APIs have."""
    return isinstance(value, list) and bool(value) and all(map(_is_text_block, value))


def _is_text_block(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


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
        with _message(number):
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


@contextmanager
def _message(number: int) -> Iterator[None]:
    """Raise `InvalidInput` for a message that is none."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValidationError) as error:
        raise InvalidInput(f"message {number} is none of the API's: {problem_of(error)}") from error


def _of_openai_assistant(message: Mapping[str, Any], message_id: str) -> Iterator[JournalEvent]:
    calls = message.get("tool_calls") or ()
    if message.get("content") is not None or not calls:
        yield AgentMessage(message.get("content") or "", message_id=message_id)
    for call in calls:
        function = call.get("function", {})
        yield call_of(
            str(function.get("name", "")), function.get("arguments", ""), str(call.get("id") or ""), message_id
        )


def from_anthropic(messages: Iterable[Mapping[str, Any]]) -> Sequence[JournalEvent]:
    """The events that these ``messages`` of a request, or a response's message, stand for.

    Raises:
        InvalidInput: a message that is none, or of an unknown role.
    """
    events: list[JournalEvent] = []
    for number, message in enumerate(messages):
        with _message(number):
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
            yield ToolResult(str(block.get("tool_use_id", "")), block.get("content") or "", is_error)
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
            yield call_of(str(block.get("name", "")), block.get("input", {}), str(block.get("id") or ""), message_id)


def _content(blocks: list[Any]) -> Content:
    """Plain text where that is the same."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and blocks[0]["type"] == "text":
        return str(blocks[0]["text"])
    return blocks


def call_of(tool: str, arguments: Any, tool_use_id: str, message_id: str = "", call_key: str = "") -> ToolUse:
    """The call of a tool, its arguments a JSON object or the text of one; anything else is kept as text."""
    try:
        if isinstance(arguments, str):
            found = from_json(arguments, allow_inf_nan=False) if arguments.strip() else {}
        else:
            found = from_json(to_json(arguments or {}))  # text that is no Unicode has no JSON form
        return ToolUse(tool, found, tool_use_id, message_id=message_id, call_key=call_key)
    except (TypeError, ValueError):
        raw = str(arguments).encode(errors="backslashreplace").decode()
        return ToolUse(tool, {}, tool_use_id, message_id=message_id, raw_arguments=raw, call_key=call_key)
