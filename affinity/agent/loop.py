"""`run_loop`: a model and its tools, round after round, until the model answers, as part of a wake.

The model's answer with its calls commits before a tool runs, and each result when it is there (`Wake.commit`). A wake
that is repeated goes on at the call without a result. A call that was running when its process ended runs again, or the
model reads that its outcome is not known: see `Tool.repeat`.

A call that a person has to allow, or that the client runs, is a request (`Wake.require`). The loop ends with
``requires_action``. The loop of the wake that has the answer goes on from there, before it asks the model again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pydantic import ValidationError

from affinity.agent.formats import Render, call_id, call_of, render_input
from affinity.agent.models import Model, ModelReply, ModelRequest, ToolCall, numbers_of
from affinity.agent.purse import Cost, Purse
from affinity.agent.tool_calls import ToolCalls, error_result
from affinity.agent.tools import Tool, ToolErrorKind, tools_by_name
from affinity.agent.transcript import (
    ContextWindow,
    LoopTranscript,
    OpenCall,
    is_read,
    is_trace,
    name_late,
    read_transcript,
)
from affinity.conversation.events import (
    AgentMessage,
    Content,
    CustomToolUse,
    JournalEvent,
    RevisitDue,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserMessage,
    text_of,
)
from affinity.conversation.sections import Section
from affinity.conversation.wake import Wake
from affinity.errors import InvalidOptions, NotSerializable, PayloadTooLarge, WakeMisuse, problem_of
from affinity.flow.limit import Limit, LimitKey
from affinity.limits import MAX_ID_BYTES, check_choice, check_items, truncate
from affinity.tasks import call_any, call_here
from affinity.tracing import annotate, rename, usage_attributes
from affinity.user_code import check_function

MAX_ROUNDS: Final = 64
"""Default of ``max_rounds``."""

CUT_BYTES: Final = 64 * 1024
"""UTF-8 bytes that are kept of the text of an answer that no event has room for."""

_WAITS: Final = "the call waits for an answer: its result comes later, as a message. Do not make it again"
_NOTICES: Final = {
    "queue": "An answer to a request is needed first: your message is read after it.",
    "refuse": "An answer to a request is needed first: send your message again after it.",
}

WhileWaiting: TypeAlias = Literal["answer", "queue", "refuse"]
"""How the loop treats a message that comes while a call waits for an answer. ``answer``: the model answers it; the call
has a provisional result, and its real one comes as a message. ``queue`` and ``refuse``: the agent appends a notice; the
model reads the user's message with the real result, and the notice behind it.
"""

FINAL_REASONS: Final = frozenset({None, "stop", "end_turn", "stop_sequence"})
CALL_REASONS: Final = frozenset({"tool_calls", "tool_use", "function_call"})

LoopStop: TypeAlias = Literal[
    "answer", "requires_action", "truncated", "unknown_finish_reason", "invalid_reply", "budget"
]
"""Why a loop has ended: the model answered; a request is pending; ``max_rounds`` were used up; the model ended for a
reason that is neither an answer nor a call, such as ``length`` (see `LoopResult.finish_reason`).

``invalid_reply``: no event has room for the answer (`limits.MAX_EVENT_BYTES`), or it has no JSON form. Its calls are
not run. The appended message has the beginning of its text, and the reason.

``budget``: the budget could not pay for another call of the model. The appended message says so, and when it can.
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
    wake: Wake,
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
    budget: Limit | LimitKey | None = None,
    cost: Cost | None = None,
    steer: bool = False,
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
            last summary, from the beginning of a turn on, which costs two reads; an application that keeps its
            transcript in the state gives that, with the events of `Wake.pending`.
        max_rounds: calls of the model at most, in all attempts of the wake.
        builtins: what `builtin_tools` gave, or some of it.
        render: gives the text of an input that is no message, such as the end of a child, an interrupt, or an event of
            the application; None: the model does not read it.
        context: how much of the transcript the model is given, in bytes or in tokens, and who summarises the rest.
        while_waiting: what a message gets that comes while a call waits for an answer; see `WhileWaiting`.
        budget: a limit whose rate is a budget, such as ``tokens.key(owner)``. Each answer of the model is charged when
            it is there (`Wake.consume`), and before each call the loop ends if nothing is left. So the last answer may
            exceed it. An answer that `Wake.step` has from an earlier attempt is not charged again.
        cost: of an answer. None: its tokens, of input and output.
        steer: between two rounds, the model reads the messages that have come since the wake began. They are inputs of
            this wake then, which answers them, and are in `Wake.pending`. What is no message stays for a later wake,
            with all that came behind it. False: all of them do.

    Raises:
        InvalidOptions: ``max_rounds`` is below 1, ``while_waiting`` is none of its words, or two tools have one name,
            built-in tools included. Or ``context`` has ``summarise``, whose summary is in the journal, and
            ``transcript`` is given, which is not read from there.
        WakeMisuse: the model returned no `ModelReply`; or there is a budget, and the usage of an answer has no tokens.
        InvalidLimit: ``budget`` is no limit, has keys and none is named, has no rate, or no app declares it.
        Exception: what the model raised.
    """
    if type(max_rounds) is not int or max_rounds < 1:
        raise InvalidOptions(f"max_rounds must be an integer from 1, not {max_rounds!r}")
    check_choice("while_waiting", while_waiting, WhileWaiting, InvalidOptions)
    if transcript is not None and context is not None and context.summarise is not None:
        raise InvalidOptions("summarise is for the transcript that is read from the journal: do not give transcript=")
    if cost is not None and budget is None:
        raise InvalidOptions("cost is of a budget: give budget=, such as tokens.key(owner)")
    check_function(model, "model", "request")
    purse = None if budget is None else Purse(wake, budget, cost)
    prompts = [system] if isinstance(system, str) else list(system)
    named = tools_by_name(check_items(tools, "tools"), check_items(builtins, "builtins"))
    section = wake.section("loop")
    if transcript is None:
        before = await read_transcript(wake, section, render, context)
    else:
        before = LoopTranscript([each for each in transcript if not is_trace(each)], [])
    loop = _Loop(wake, model, named, prompts, before, section=section, render=render, window=context, purse=purse)
    return await loop.run(max_rounds, while_waiting, steer)


class _Loop(ToolCalls):
    """One run of a loop."""

    def __init__(
        self,
        wake: Wake,
        model: Model,
        tools: Mapping[str, Tool],
        system: Sequence[str],
        before: LoopTranscript,
        *,
        section: Section,
        render: Render,
        window: ContextWindow | None,
        purse: Purse | None,
    ) -> None:
        super().__init__(wake, section, tools, before)
        self._render, self._window = render, window
        self._model, self._system = model, system
        self._purse = purse
        self._usage: Counter[str] = Counter()
        committed = [each.event for each in section.committed]
        replies = [each for each in committed if isinstance(each, AgentMessage | ToolUse | CustomToolUse)]
        self._rounds = len({each.message_id for each in replies if self._is_own(each)})
        self._text = ""
        self._finish_reason: str | None = None

    async def run(self, max_rounds: int, while_waiting: WhileWaiting, steer: bool) -> LoopResult:
        self._tell_revisits()
        waiting = await self._run_open_calls()  # of an earlier wake, or attempt
        if (answer := self._committed_answer()) is not None:
            self._text = answer.text
            return self._ended("answer")
        if waiting and not self._goes_on(waiting, while_waiting):
            return self._ended("requires_action")
        while self._rounds < max_rounds:
            if self._purse is not None and (refusal := await self._purse.find_refusal()) is not None:
                self._append(AgentMessage(refusal))  # not an answer of the model: another attempt may have one
                self._text = refusal
                return self._ended("budget")
            if steer and self._rounds:
                self._events += [each.event for each in await self._section.take_arrived(_is_message)]
            reply = await self._ask()
            if (stop := self._append_reply(reply)) is not None:
                return self._ended(stop)
            await self._section.commit()
            if not all(each.is_announced for each in await self._run_open_calls()):
                return self._ended("requires_action")
        self._wake.note_truncated()
        return self._ended("truncated")

    def _goes_on(self, waiting: Sequence[OpenCall], while_waiting: WhileWaiting) -> bool:
        """Whether to ask the model while calls wait. If it knows of them: yes. Else only if it has something new to
        read, unless this wake has made the calls.
        """
        unannounced = [each for each in waiting if not each.is_announced]
        has_news = bool(self._wake.due) or any(is_read(each.event, self._render) for each in self._wake.pending)
        if unannounced and (not has_news or any(self._is_own(each.call) for each in unannounced)):
            return False
        for each in unannounced:
            self._announce(each)
        if while_waiting == "answer" or not has_news:
            return True
        self._append_message(_NOTICES[while_waiting], {})
        return False

    def _announce(self, waiting: OpenCall) -> None:
        """Append a provisional result. Among the events it stands behind its call, before newer events."""
        event = ToolResult(call_id(waiting.call), _WAITS, provisional=True, call_key=waiting.call.call_key)
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
        known = [each.event for each in self._section.committed]
        for each in self._wake.due:
            event = RevisitDue(each.reason, each.note)
            if event not in known:
                self._append(event)

    def _committed_answer(self) -> AgentMessage | None:
        """The answer of the model that an earlier attempt has committed, if nothing has come since."""
        committed = self._section.committed
        last = next(reversed(self._events), None)
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
        is_recorded = None if self._purse is None else self._section.watch_steps()
        with self._wake.span("model", calls=True):
            _describe(self._model, None)
            reply = await call_any(self._model, request)
            reply = await call_here(lambda: reply)  # of a function that returns the call of an async one
            if isinstance(reply, ModelReply):
                _describe(self._model, reply)
        if not isinstance(reply, ModelReply):
            raise WakeMisuse(
                f"the model returned {type(reply).__name__}, not ModelReply: return ModelReply(content=text), or what "
                "ModelReply.from_openai or ModelReply.from_anthropic makes of a response"
            )
        if self._purse is not None and is_recorded is not None and not is_recorded():
            await self._purse.charge(reply.usage)
        self._usage.update(reply.usage)
        self._finish_reason = reply.finish_reason
        return reply

    def _shown(self) -> tuple[JournalEvent, ...]:
        """The events that the model is given."""
        first = 0 if self._window is None else self._window.first_kept(self._events, self._render)
        return tuple(name_late(self._events[first:], [*self._earlier, *self._events]))

    def _append_reply(self, reply: ModelReply) -> LoopStop | None:
        """Append the answer of the model. Returns why the loop ends; None: the model calls tools. A reply that ended
        for an unknown reason may be cut off in the middle of a call, so its calls are not run.
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
            self._append_call(call, message_id, f"{message_id}.{number}", usage if number == 0 else {})
        if calls:
            return None
        return "answer" if is_whole else "unknown_finish_reason"

    def _append_cut(self, reply: ModelReply, error: Exception) -> None:
        """Append the beginning of a reply that the journal cannot keep, with the reason."""
        text = truncate(_text_of(reply.content), CUT_BYTES)
        notice = f"{text}\n[the reply of the model cannot be kept: {truncate(problem_of(error))}]"
        self._append_message(notice, numbers_of(reply.usage))

    def _append_message(self, content: Content, usage: Mapping[str, int]) -> None:
        message = AgentMessage(content, dict(usage), message_id=self._message_id)
        self._append(message)
        self._text = message.text

    @property
    def _message_id(self) -> str:
        return f"{self._wake.id}.{self._wake.attempt}.{self._rounds}"

    def _append_call(self, call: ToolCall, message_id: str, key: str, usage: dict[str, int]) -> None:
        """Append a call. Of one that no journal takes the beginning is appended, and its result is the error."""
        tool_use_id = call.tool_use_id or ""
        try:
            made = call_of(call.tool, call.arguments, tool_use_id, message_id, key).model_copy(update={"usage": usage})
            if not self._require_result(made):
                self._append(made)
        except (PayloadTooLarge, NotSerializable, ValidationError) as error:
            tool, short_id, raw = (truncate(str(each), MAX_ID_BYTES) for each in (call.tool, tool_use_id, call[2]))
            cut = ToolUse(tool, {}, short_id, usage=usage, message_id=message_id, raw_arguments=raw, call_key=key)
            self._append(cut)
            kind: ToolErrorKind = "invalid_tool_arguments" if call.tool in self._tools else "unknown_tool"
            self._refused[id(cut)] = error_result(cut, kind, problem_of(error))

    def _ended(self, stop: LoopStop) -> LoopResult:
        return LoopResult(
            stop=stop, text=self._text, finish_reason=self._finish_reason, rounds=self._rounds, usage=dict(self._usage)
        )


def _is_message(event: JournalEvent) -> bool:
    return isinstance(event, UserMessage)


def _text_of(content: Any) -> str:
    """The text of a content, which may be none."""
    try:
        return text_of(content)
    except (AttributeError, TypeError):
        return ""


def _describe(model: Model, reply: ModelReply | None) -> None:
    """Name the model of the current span, as the conventions ask: by its answer, or else by the function that asks it.
    ``reply``: None while there is none.
    """
    name, provider = None if reply is None else reply.model, None if reply is None else reply.provider
    name = name or str(getattr(model, "__name__", type(model).__name__))
    annotate(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider or "unknown",
            "gen_ai.request.model": name,
            **({} if reply is None else usage_attributes(reply.usage)),
        }
    )
    rename(f"chat {name}")
