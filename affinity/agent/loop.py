"""`run_loop`: a model and its tools, round after round, until the model answers, as part of a wake.

The model's answer with its calls commits before a tool runs, and each result when it is there (`Wake.commit`). A wake
that is repeated goes on at the call without a result. A call that was running when its process ended runs again, or the
model reads that its outcome is not known: see `Tool.repeat`.

A call that a person has to allow, or that the client runs, is a request (`Wake.require`). The loop ends with
``requires_action``. The loop of the wake that has the answer goes on from there, before it asks the model again.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import anyio
from pydantic import BaseModel, JsonValue, ValidationError

from affinity.agent.formats import (
    Message,
    Render,
    call_id,
    call_of,
    render_input,
    to_anthropic,
    to_openai,
)
from affinity.agent.tools import (
    Tool,
    ToolContext,
    ToolErrorKind,
    checked_arguments,
    error_value,
    in_chains,
    tools_by_name,
)
from affinity.agent.transcript import (
    ContextWindow,
    LoopTranscript,
    OpenCall,
    TranscriptWake,
    is_read,
    name_late,
    open_calls,
    read_transcript,
)
from affinity.conversation.events import (
    AgentMessage,
    ConfirmationAnswer,
    Content,
    CustomToolUse,
    JournalEntry,
    JournalEvent,
    RequestEvent,
    RevisitDue,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    text_of,
)
from affinity.conversation.trace import TRACE_KINDS
from affinity.conversation.views import PendingRevisit
from affinity.errors import (
    InvalidInput,
    InvalidOptions,
    NotSerializable,
    PayloadTooLarge,
    SessionWriteConflict,
    WakeMisuse,
    problem_of,
)
from affinity.limits import MAX_ID_BYTES, truncate
from affinity.orchestration.failures import describe_error
from affinity.session import Resource
from affinity.tasks import call_any

T = TypeVar("T")
R = TypeVar("R", bound=RequestEvent)

MAX_ROUNDS: Final = 64
"""Default of ``max_rounds``."""

CUT_BYTES: Final = 64 * 1024
"""UTF-8 bytes that are kept of the text of an answer that no event has room for."""

_NOT_RUN: Final = "the call was interrupted and has not run: its request was dropped by an interrupt"
_INTERRUPTED: Final = "an interrupt came while the call ran: it is not known whether it had an effect"
_UNKNOWN: Final = (
    "the call had begun when its process ended, and is not run again: it is not known whether it had an effect. Find "
    "out before you call it again"
)
_NOT_READ: Final = "the call was interrupted: no result of the client was read"

_WAITS: Final = "the call waits for an answer: its result comes later, as a message. Do not make it again"
_WAITS_ALREADY: Final = "the same call waits for an answer already: this one has not run"
_NOTICES: Final = {
    "queue": "An answer to a request is needed first: your message is read after it.",
    "refuse": "An answer to a request is needed first: send your message again after it.",
}

WhileWaiting: TypeAlias = Literal["answer", "queue", "refuse"]
"""What a message gets that comes while a call waits for an answer. ``answer``: the answer of the model, to which the
call has a provisional result; the real one is a message, when it comes. ``queue`` and ``refuse``: a message of the
agent that says so; the model reads the user's message with the real result, and this notice behind it.
"""

FINAL_REASONS: Final = frozenset({None, "stop", "end_turn", "stop_sequence"})
CALL_REASONS: Final = frozenset({"tool_calls", "tool_use", "function_call"})

LoopStop: TypeAlias = Literal["answer", "requires_action", "truncated", "unknown_finish_reason", "invalid_reply"]
"""Why a loop has ended: the model answered; a request is pending; ``max_rounds`` were used up; the model ended for a
reason that is neither an answer nor a call, such as ``length`` (see `LoopResult.finish_reason`).

``invalid_reply``: no event has room for the answer (`limits.MAX_EVENT_BYTES`), or it has no JSON form. Its calls are
not run. The appended message has the beginning of its text, and the reason.
"""


class LoopWake(TranscriptWake, Protocol):
    """The parts of a `Wake` that a loop needs."""

    @property
    def attempt(self) -> int:
        """Of the wake, from 1."""
        ...

    @property
    def conversation_id(self) -> str:
        """Whose wake it is."""
        ...

    @property
    def due(self) -> Sequence[PendingRevisit]:
        """The revisits that are due."""
        ...

    @property
    def committed(self) -> Sequence[JournalEntry]:
        """What earlier attempts of the wake have committed."""
        ...

    def note_truncated(self) -> None:
        """The loop was cut off."""
        ...

    async def begin_once(self, key: str, /) -> bool:
        """Record that something begins; False: it has begun before."""
        ...

    def has_begun(self, key: str, /) -> bool:
        """Whether that was recorded."""
        ...

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Of the wake."""
        ...

    async def resource(self, resource: Resource[T], /) -> T:
        """A resource of the conversation's session."""
        ...

    def require(self, request: R, /, *, expires_in: float | None = None) -> R:
        """Append a request; returns it with its id."""
        ...

    def stream(self, value: Any, /) -> None:
        """Show provisional output to readers."""
        ...

    def stream_tool(
        self, tool: str, tool_use_id: str, arguments: Mapping[str, JsonValue], /
    ) -> AbstractContextManager[object]:
        """Show readers that a call of a tool runs."""
        ...


class ToolCall(NamedTuple):
    """A call of a tool, as a model gives it."""

    tool_use_id: str
    tool: str
    arguments: str | Mapping[str, Any]  # JSON text of an object, or the object


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The answer of a model."""

    content: Content | None = None
    calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None  # as the API names it; None: it answered
    usage: Mapping[str, int] = field(default_factory=dict)  # tokens by name

    @classmethod
    def from_openai(cls, response: Mapping[str, Any]) -> ModelReply:
        """The first choice of a chat completion, as plain JSON values.

        Raises:
            InvalidInput: it is none, such as the response to a request that has failed.
        """
        try:
            choice = response["choices"][0]
            message = choice["message"]
            calls = [
                ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls") or ()
            ]
        except (AttributeError, LookupError, TypeError) as error:
            raise InvalidInput(f"the response is no chat completion: {problem_of(error)}") from error
        return cls(
            content=message.get("content") or message.get("refusal"),
            calls=calls,
            finish_reason=choice.get("finish_reason"),
            usage=_numbers(response.get("usage")),
        )

    @classmethod
    def from_anthropic(cls, response: Mapping[str, Any]) -> ModelReply:
        """A message, as plain JSON values.

        Raises:
            InvalidInput: it is none, such as the response to a request that has failed.
        """
        if not isinstance(response, Mapping) or not isinstance(blocks := response.get("content"), list):
            raise InvalidInput("the response is no message: it has no content")
        try:
            shown = [block for block in blocks if block.get("type") != "tool_use"]
            calls = [ToolCall(b["id"], b["name"], b["input"]) for b in blocks if b.get("type") == "tool_use"]
        except (AttributeError, LookupError, TypeError) as error:
            raise InvalidInput(f"the response is no message: {problem_of(error)}") from error
        text = text_of(shown) if all(block.get("type") == "text" for block in shown) else shown
        return cls(
            content=text or None,
            calls=calls,
            finish_reason=response.get("stop_reason"),
            usage=_numbers(response.get("usage")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The input of a model: the system prompts, then the transcript."""

    system: Sequence[str]
    events: Sequence[JournalEvent]
    tools: Sequence[Tool]
    round: int  # from 1; an attempt that comes again goes on behind the rounds that are committed
    stream: Callable[[Any], None]  # `Wake.stream`: shows a part of the answer to readers now

    render: Render = render_input  # as for `run_loop`

    def openai_messages(self) -> list[Message]:
        """``messages`` of a chat completion."""
        return to_openai(self.events, system=self.system, render=self.render)

    def openai_tools(self) -> list[dict[str, Any]]:
        """``tools`` of a chat completion."""
        return [each.to_openai() for each in self.tools]

    def anthropic_messages(self) -> list[Message]:
        """``messages`` of a message request; its ``system`` is a parameter of its own."""
        return to_anthropic(self.events, render=self.render)

    def anthropic_tools(self) -> list[dict[str, Any]]:
        """``tools`` of a message request."""
        return [each.to_anthropic() for each in self.tools]


Model: TypeAlias = Callable[[ModelRequest], Awaitable[ModelReply] | ModelReply]
"""Asks a model; what it raises ends the loop, and the wake fails. A function that is not async runs in a thread, which
an interrupt does not end.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """How a loop has ended."""

    stop: LoopStop
    text: str  # of the last answer
    finish_reason: str | None  # of the model, in the last round
    rounds: int  # calls of the model, with the ones that earlier attempts of the wake have committed
    usage: Mapping[str, int]  # of all rounds, summed by name


async def run_loop(
    wake: LoopWake,
    *,
    model: Model,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    system: str | Sequence[str] = (),
    transcript: Iterable[JournalEvent] | None = None,
    max_rounds: int = MAX_ROUNDS,
    builtins: Iterable[Tool] = (),
    render: Render = render_input,
    context: ContextWindow | None = None,
    while_waiting: WhileWaiting = "answer",
) -> LoopResult:
    """Ask the model, run the tools that it calls, append both to the journal, and again, until it answers.

    Calls of one round run at the same time; calls that use the same resource (`Tool.resource`) run one after the other.
    Each result is committed when it is there; the model reads them in the order of the calls. What the handler has
    appended before the loop is committed with the first of them.

    Errors of a call are results, which the model reads, and the other calls go on. They have the form
    ``{"error": {"kind": …}}``, with one of these kinds:

    - ``invalid_tool_arguments``, ``unknown_tool``, ``tool_execution_exception``.
    - ``refused``: a person did not allow it, or an interrupt came before it ran.
    - ``outcome_unknown``: it had begun when its process ended, or an interrupt came, and is not run again.
    - the error of a call that is larger than an event may be, or of a request beyond `ConversationLimits.requests`.

    An answer that is larger than an event may be, or has no JSON form, ends the loop (``invalid_reply``).

    Args:
        wake: appends, requires and streams.
        model: asks a model; an async function, or a function, which runs in a thread.
        tools: functions, or what `tool` made of them.
        system: prompts that come first in each request, and are not appended to the journal.
        transcript: the events before this loop. None: the last 1,000 entries of the journal, or what comes behind its
            last summary, from the beginning of a turn on, which costs a read; an application that keeps its transcript
            in the state gives that, with the events of `Wake.pending`.
        max_rounds: calls of the model at most, in all attempts of the wake.
        builtins: what `builtin_tools` gave, or some of it.
        render: gives the text of an input that is no message, such as the end of a child, an interrupt, or an event of
            the application; None: the model does not read it.
        context: how much of the transcript the model is given, in bytes or in tokens, and who summarises the rest.
        while_waiting: what a message gets that comes while a call waits for an answer; see `WhileWaiting`.

    Raises:
        InvalidOptions: ``max_rounds`` is below 1, ``while_waiting`` is none of its words, or two tools have one name,
            built-in tools included. Or ``context`` has ``summarise``, whose summary is in the journal, and
            ``transcript`` is given, which is not read from there.
        WakeMisuse: the model returned no `ModelReply`.
        Exception: what the model raised.
    """
    if type(max_rounds) is not int or max_rounds < 1:
        raise InvalidOptions(f"max_rounds must be an integer from 1, not {max_rounds!r}")
    if while_waiting not in {"answer", *_NOTICES}:
        raise InvalidOptions(f"while_waiting = {while_waiting!r}: must be 'answer', 'queue' or 'refuse'")
    if transcript is not None and context is not None and context.summarise is not None:
        raise InvalidOptions("summarise is for the transcript that is read from the journal: do not give transcript=")
    prompts = [system] if isinstance(system, str) else list(system)
    named = tools_by_name(tools, builtins)
    before = (
        LoopTranscript([*transcript], []) if transcript is not None else await read_transcript(wake, render, context)
    )
    loop = _Loop(wake, model, named, prompts, before, render=render, window=context)
    return await loop.run(max_rounds, while_waiting)


class _Loop:
    """One run of a loop."""

    def __init__(
        self,
        wake: LoopWake,
        model: Model,
        tools: Mapping[str, Tool],
        system: Sequence[str],
        before: LoopTranscript,
        *,
        render: Render,
        window: ContextWindow | None,
    ) -> None:
        self._render, self._window = render, window
        self._wake, self._model, self._tools, self._system = wake, model, tools, system
        self._events, self._earlier = before
        self._refused: dict[int, ToolResult] = {}  # by the identity of the call among the events
        self._usage: Counter[str] = Counter()
        committed = [each.event for each in wake.committed]
        replies = [each for each in committed if isinstance(each, AgentMessage | ToolUse | CustomToolUse)]
        self._rounds = len({each.message_id for each in replies if self._is_own(each)})
        self._text = ""
        self._finish_reason: str | None = None

    async def run(self, max_rounds: int, while_waiting: WhileWaiting) -> LoopResult:
        self._tell_revisits()
        waiting = await self._run_open_calls()  # of an earlier wake, or attempt
        if (answer := self._committed_answer()) is not None:
            self._text = answer.text
            return self._ended("answer")
        if waiting and not self._goes_on(waiting, while_waiting):
            return self._ended("requires_action")
        while self._rounds < max_rounds:
            reply = await self._ask()
            if (stop := self._append_reply(reply)) is not None:
                return self._ended(stop)
            await self._wake.commit()
            if not all(each.is_told for each in await self._run_open_calls()):
                return self._ended("requires_action")
        self._wake.note_truncated()
        return self._ended("truncated")

    def _goes_on(self, waiting: Sequence[OpenCall], while_waiting: WhileWaiting) -> bool:
        """Whether the model is asked while calls wait: if it knows of them; else for what it reads as new, unless this
        wake has made them.
        """
        untold = [each for each in waiting if not each.is_told]
        has_news = bool(self._wake.due) or any(is_read(each.event, self._render) for each in self._wake.pending)
        if untold and (not has_news or any(self._is_own(each.call) for each in untold)):
            return False
        for each in untold:
            self._tell(each)
        if while_waiting == "answer" or not has_news:
            return True
        self._append_message(_NOTICES[while_waiting], {})
        return False

    def _tell(self, waiting: OpenCall) -> None:
        """Append a provisional result; among the events it stands behind its call, before what is new."""
        event = ToolResult(call_id(waiting.call), _WAITS, provisional=True)
        self._wake.append(event)
        events = self._events if any(each is waiting.call for each in self._events) else self._earlier
        places = [
            place
            for place, each in enumerate(events)
            if each is waiting.call or (isinstance(each, ToolConfirmation) and each.request_id == waiting.request_id)
        ]
        events.insert(places[-1] + 1, event)

    def _is_own(self, event: AgentMessage | ToolUse | CustomToolUse) -> bool:
        """Whether it is of this wake, and not of the handler."""
        return event.message_id.startswith(f"{self._wake.id}.")

    def _tell_revisits(self) -> None:
        """Let the model read why it is woken, unless an earlier attempt has."""
        told = [each.event for each in self._wake.committed]
        for each in self._wake.due:
            event = RevisitDue(each.reason, each.note)
            if event not in told:
                self._append(event)

    def _committed_answer(self) -> AgentMessage | None:
        """The answer of the model that an earlier attempt has committed, if nothing has come since."""
        committed = self._wake.committed
        last = next((each for each in reversed(self._events) if not str(each.kind).startswith(TRACE_KINDS)), None)
        if not (isinstance(last, AgentMessage) and self._is_own(last)):
            return None
        return last if committed and committed[-1].event == last else None

    async def _ask(self) -> ModelReply:
        self._rounds += 1
        request = ModelRequest(
            system=self._system,
            events=self._shown(),
            tools=tuple(self._tools.values()),
            round=self._rounds,
            stream=self._wake.stream,
            render=self._render,
        )
        with self._wake.span("model"):
            reply = await call_any(self._model, request)
            if inspect.isawaitable(reply):  # of a function that returns the call of an async one
                reply = await reply
        if not isinstance(reply, ModelReply):
            raise WakeMisuse(
                f"the model returned {type(reply).__name__}, not ModelReply: return ModelReply(content=text), or what "
                "ModelReply.from_openai or ModelReply.from_anthropic makes of a response"
            )
        self._usage.update(reply.usage)
        self._finish_reason = reply.finish_reason
        return reply

    def _shown(self) -> tuple[JournalEvent, ...]:
        """The events that the model is given."""
        first = 0 if self._window is None else self._window.first_kept(self._events, self._render)
        return tuple(name_late(self._events[first:], [*self._earlier, *self._events]))

    def _open_calls(self) -> list[OpenCall]:
        return open_calls([*self._earlier, *self._events])

    def _append_reply(self, reply: ModelReply) -> LoopStop | None:
        """Append what the model has answered; returns why the loop ends; None: it calls tools. A reply that ended for
        an unknown reason may be cut off in the middle of a call: its calls are not run.
        """
        message_id, usage = self._message_id, dict(reply.usage)
        is_whole = reply.finish_reason in FINAL_REASONS | CALL_REASONS
        calls = list(reply.calls) if is_whole else []
        if reply.content or not calls:
            try:
                self._append_message(reply.content or "", usage)
            except (PayloadTooLarge, NotSerializable, ValidationError) as error:
                self._append_cut(reply, error)
                return "invalid_reply"
            usage = {}
        for number, call in enumerate(calls):
            self._append_call(call, message_id, usage if number == 0 else {})
        if calls:
            return None
        return "answer" if is_whole else "unknown_finish_reason"

    def _append_cut(self, reply: ModelReply, error: Exception) -> None:
        """Append what a reader and the model can know of a reply that no journal takes."""
        text = truncate(_text_of(reply.content), CUT_BYTES)
        notice = f"{text}\n[the reply of the model cannot be kept: {truncate(problem_of(error))}]"
        self._append_message(notice, _numbers(reply.usage))

    def _append_message(self, content: Content, usage: Mapping[str, int]) -> None:
        message = AgentMessage(content, dict(usage), message_id=self._message_id)
        self._append(message)
        self._text = message.text

    @property
    def _message_id(self) -> str:
        return f"{self._wake.id}.{self._wake.attempt}.{self._rounds}"

    def _append_call(self, call: ToolCall, message_id: str, usage: dict[str, int]) -> None:
        """Append a call. Of one that no journal takes the beginning is appended, and its result is the error."""
        try:
            made = call_of(call.tool, call.arguments, call.tool_use_id, message_id).model_copy(update={"usage": usage})
            if not self._require_result(made):
                self._append(made)
        except (PayloadTooLarge, NotSerializable, ValidationError) as error:
            tool, tool_use_id, raw = (
                truncate(str(each), MAX_ID_BYTES) for each in (call.tool, call.tool_use_id, call[2])
            )
            cut = ToolUse(tool, {}, tool_use_id, usage=usage, message_id=message_id, raw_arguments=raw)
            self._append(cut)
            kind: ToolErrorKind = "invalid_tool_arguments" if call.tool in self._tools else "unknown_tool"
            self._refused[id(cut)] = _error(cut, kind, problem_of(error))

    def _require_result(self, call: ToolUse) -> bool:
        """Request the result of a tool that the client runs; returns whether the call is one."""
        known = self._tools.get(call.tool)
        if known is None or not known.runs_on_client or call.raw_arguments is not None:
            return False
        request = CustomToolUse(
            call.tool, call.arguments, call.tool_use_id, message_id=call.message_id, usage=call.usage
        )
        if not isinstance(checked_arguments(self._tools, request), BaseModel):
            return False
        if self._waits_already(call):
            self._refused[id(call)] = _error(call, "refused", _WAITS_ALREADY)
            return False
        try:
            self._require(request, known)
        except (PayloadTooLarge, NotSerializable):
            raise
        except InvalidInput as error:  # there are as many requests as there may be
            self._refused[id(call)] = _exception(call, error)
            return False
        return True

    # -- calls

    async def _run_open_calls(self) -> Sequence[OpenCall]:
        """Run the calls that may run now, and append their results; returns the others, which wait."""
        pending = {each.request_id for each in self._wake.requests}
        ready: list[_Ready] = []
        waiting: list[OpenCall] = []
        for opened in self._open_calls():
            decided = self._decide(opened, pending)
            if isinstance(decided, ToolResult):
                self._append_result(opened.call, decided)
            elif decided is not None:
                ready.append(decided)
            else:
                waiting.append(opened)
        if waiting and ready:  # a person may answer while the others run
            await self._wake.commit()
        await self._run_chains(ready)
        return waiting

    def _waits_already(self, call: ToolUse | CustomToolUse) -> bool:
        """Whether the same call waits for an answer, and the model knows that."""
        told = [each.call for each in self._open_calls() if each.is_told]
        return any((each.tool, each.arguments) == (call.tool, call.arguments) for each in told)

    def _decide(self, opened: OpenCall, pending: Collection[str]) -> _Ready | ToolResult | None:
        """A call that may run; its result, if it may not; None while it waits for an answer."""
        call, request_id, answer = opened.call, opened.request_id, opened.answer
        if answer is None and request_id is not None and request_id in pending:
            return None
        return self._refused.get(id(call)) or self._judge(opened)

    def _judge(self, opened: OpenCall) -> _Ready | ToolResult | None:
        """The same of a call that waits for no answer."""
        call, request_id, answer = opened.call, opened.request_id, opened.answer
        if isinstance(call, CustomToolUse):
            return _error(call, "refused", _NOT_READ if opened.is_interrupted else "it was not answered")
        if opened.is_interrupted and (request_id is None or self._wake.has_begun(opened.key)):
            return _error(call, "outcome_unknown", _INTERRUPTED)
        arguments = checked_arguments(self._tools, call)
        if not isinstance(arguments, BaseModel):
            return ToolResult(call.tool_use_id, arguments, is_error=True)
        if opened.is_interrupted or (request_id is not None and (answer is None or not answer.allowed)):
            return _error(call, "refused", _NOT_RUN if opened.is_interrupted else _refusal(answer))
        return self._prepare(opened, call, arguments, is_allowed=answer is not None)

    def _prepare(
        self, opened: OpenCall, call: ToolUse, arguments: BaseModel, *, is_allowed: bool
    ) -> _Ready | ToolResult | None:
        known = self._tools[call.tool]
        try:  # what the tool is asked here is what it runs with: with defaults, and of the types that it declares
            is_read = callable(known.confirm) or callable(known.resource)
            given = arguments.model_dump(mode="json", by_alias=True) if is_read else {}
            if is_allowed or not known.needs_confirmation(given):
                once = opened.key if known.runs_once(is_allowed=is_allowed) else None
                return _Ready(call, arguments, known.resource_key(given), opened.key, once)
            if self._waits_already(call):
                return _error(call, "refused", _WAITS_ALREADY)
            self._require(ToolConfirmation(call.tool, call.arguments, call.tool_use_id), known)
        except Exception as error:  # of the application, or there are as many requests as there may be
            return _exception(call, error)
        return None

    def _require(self, request: R, known: Tool) -> R:
        """Append a request; returns it with its id."""
        required = self._wake.require(request, expires_in=known.confirm_within)
        self._events.append(required)
        return required

    async def _run_chains(self, ready: Sequence[_Ready]) -> None:
        """Run the calls, and commit each result when it is there: if the wake goes on, at the latest with the next."""

        async def run(chain: Sequence[int]) -> None:
            for each in chain:
                self._append_result(ready[each].call, await self._result(ready[each]))
                await self._wake.commit()

        try:
            async with anyio.create_task_group() as tasks:
                for chain in in_chains([each.call for each in ready], [each.resource for each in ready]):
                    tasks.start_soon(run, chain)
        except ExceptionGroup as group:  # of commits; a conflict means that the wake is to be repeated
            conflicts = [each for each in group.exceptions if isinstance(each, SessionWriteConflict)]
            raise (conflicts or group.exceptions)[0] from group

    async def _result(self, ready: _Ready) -> ToolResult:
        """The result of one call; an exception of the tool is one, and fails its span."""
        call = ready.call
        if ready.once is not None and not await self._wake.begin_once(ready.once):
            return _error(call, "outcome_unknown", _UNKNOWN)
        try:
            shown = self._wake.stream_tool(call.tool, call.tool_use_id, call.arguments)
            with self._wake.span(call.tool), shown:
                result = await self._tools[call.tool].run(ready.arguments, self._context(ready))
            return ToolResult(call.tool_use_id, result)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two would end the worker
            return _exception(call, error)

    def _context(self, ready: _Ready) -> ToolContext:
        wake = self._wake
        about = {**(wake.logger.extra or {}), "tool": ready.call.tool, "tool_use_id": ready.call.tool_use_id}
        return ToolContext(
            wake=wake,
            tool_use_id=ready.call.tool_use_id,
            idempotency_key=sha256(f"{wake.conversation_id}\n{ready.key}".encode()).hexdigest(),
            logger=logging.LoggerAdapter(wake.logger.logger, about),
        )

    # --

    def _append(self, event: JournalEvent) -> None:
        self._wake.append(event)
        self._events.append(event)

    def _append_result(self, call: ToolUse | CustomToolUse, result: ToolResult) -> None:
        """A result that no journal takes is an error of the tool, which the model may mend."""
        try:
            self._append(result)
        except (PayloadTooLarge, NotSerializable) as error:
            self._append(_error(call, "tool_execution_exception", str(error), type=type(error).__name__))

    def _ended(self, stop: LoopStop) -> LoopResult:
        return LoopResult(
            stop=stop, text=self._text, finish_reason=self._finish_reason, rounds=self._rounds, usage=dict(self._usage)
        )


def _error(call: ToolUse | CustomToolUse, kind: ToolErrorKind, message: str, **fields: JsonValue) -> ToolResult:
    return ToolResult(call_id(call), error_value(kind, message, **fields), is_error=True)


def _exception(call: ToolUse, error: BaseException) -> ToolResult:
    name, message = describe_error(error)
    return _error(call, "tool_execution_exception", message, type=name)


class _Ready(NamedTuple):
    """A call that may run."""

    call: ToolUse
    arguments: BaseModel
    resource: str | None  # key of its resource
    key: str  # of the call
    once: str | None  # the same, if it may not begin a second time


def _refusal(answer: ConfirmationAnswer | None) -> str:
    if answer is None:
        return _NOT_RUN
    return answer.reason or ("it was not answered in time" if answer.expired else "a person has refused it")


def _text_of(content: Any) -> str:
    """The text of a content, which may be none."""
    try:
        return text_of(content)
    except (AttributeError, TypeError):
        return ""


def _numbers(usage: Any) -> dict[str, int]:
    found = usage if isinstance(usage, Mapping) else {}
    return {name: value for name, value in found.items() if type(value) is int}
