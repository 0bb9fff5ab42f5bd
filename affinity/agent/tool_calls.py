"""The calls of tools in a loop: which may run, what they need before, and their results."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

import anyio
from pydantic import BaseModel, JsonValue

from affinity.agent.formats import call_id
from affinity.agent.tools import Tool, ToolContext, ToolErrorKind, checked_arguments, error_value, in_chains
from affinity.agent.transcript import LoopTranscript, OpenCall, open_calls
from affinity.conversation.endings import RunningCode
from affinity.conversation.events import (
    ConfirmationAnswer,
    CustomToolUse,
    JournalEvent,
    RequestEvent,
    ToolConfirmation,
    ToolResult,
    ToolUse,
)
from affinity.conversation.sections import Section
from affinity.conversation.wake import Wake
from affinity.errors import InvalidInput, NotSerializable, PayloadTooLarge, SessionWriteConflict
from affinity.tracing import annotate, rename
from affinity.user_code import as_error, describe_error

T = TypeVar("T")
R = TypeVar("R", bound=RequestEvent)

_NOT_RUN: Final = "the call was interrupted and has not run: its request was dropped by an interrupt"
_INTERRUPTED: Final = "an interrupt came while the call ran: it is not known whether it had an effect"
_UNKNOWN: Final = (
    "the call had begun when its process ended, and is not run again: it is not known whether it had an effect. Find "
    "out before you call it again"
)
_NOT_READ: Final = "the call was interrupted: no result of the client was read"
_WAITS_ALREADY: Final = "the same call waits for an answer already: this one has not run"


class _Ready(NamedTuple):
    """A call that may run."""

    call: ToolUse
    arguments: BaseModel
    resource: str | None  # key of its resource
    key: str  # of the call
    once: str | None  # the same, if it may not begin a second time


class ToolCalls:
    """The calls of one run of a loop, with the events that it reads and appends."""

    def __init__(self, wake: Wake, section: Section, tools: Mapping[str, Tool], before: LoopTranscript) -> None:
        self._wake, self._section, self._tools = wake, section, tools
        self._events, self._earlier = before
        self._refused: dict[int, ToolResult] = {}  # by the identity of the call among the events

    def _open_calls(self) -> list[OpenCall]:
        return open_calls([*self._earlier, *self._events])

    def _require_result(self, call: ToolUse) -> bool:
        """Request the result of a tool that the client runs; returns whether the call is one."""
        known = self._tools.get(call.tool)
        if known is None or not known.runs_on_client or call.raw_arguments is not None:
            return False
        request = CustomToolUse(
            call.tool,
            call.arguments,
            call.tool_use_id,
            message_id=call.message_id,
            usage=call.usage,
            call_key=call.call_key,
        )
        arguments = checked_arguments(self._tools, request)
        if not isinstance(arguments, BaseModel):
            return False
        if self._waits_already(call):
            self._refused[id(call)] = error_result(call, "refused", _WAITS_ALREADY)
            return False
        try:
            request = request.model_copy(update={"title": known.title, "summary": known.describe_call(arguments)})
        except BaseException as error:  # of the application
            self._refused[id(call)] = _exception(call, as_error(error))
            return False
        try:
            self._require(request, known)
        except (PayloadTooLarge, NotSerializable):
            raise
        except InvalidInput as error:  # there are as many requests as there may be
            self._refused[id(call)] = _exception(call, error)
            return False
        return True

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
            await self._section.commit()
        await self._run_chains(ready)
        return waiting

    def _waits_already(self, call: ToolUse | CustomToolUse) -> bool:
        """Whether the same call waits for an answer, and the model knows that."""
        announced = [each.call for each in self._open_calls() if each.is_announced]
        return any((each.tool, each.arguments) == (call.tool, call.arguments) for each in announced)

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
            return error_result(call, "refused", _NOT_READ if opened.is_interrupted else "it was not answered")
        if opened.is_interrupted and (request_id is None or self._wake.has_begun(opened.key)):
            return error_result(call, "outcome_unknown", _INTERRUPTED)
        arguments = checked_arguments(self._tools, call)
        if not isinstance(arguments, BaseModel):
            return ToolResult(call.tool_use_id, arguments, is_error=True, call_key=call.call_key)
        if opened.is_interrupted or (request_id is not None and (answer is None or not answer.allowed)):
            return error_result(call, "refused", _NOT_RUN if opened.is_interrupted else _refusal(answer))
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
                return error_result(call, "refused", _WAITS_ALREADY)
            asked = ToolConfirmation(
                call.tool,
                call.arguments,
                call.tool_use_id,
                call_key=call.call_key,
                title=known.title,
                summary=known.describe_call(arguments),
                dangerous=known.dangerous,
            )
            self._require(asked, known)
        except BaseException as error:  # of the application, or there are as many requests as there may be
            return _exception(call, as_error(error))
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
                with self._section.running_code() as code:
                    self._append_result(ready[each].call, await self._result(ready[each], code))
                await self._section.commit()

        try:
            async with anyio.create_task_group() as tasks:
                for chain in in_chains([each.call for each in ready], [each.resource for each in ready]):
                    tasks.start_soon(run, chain)
        except ExceptionGroup as group:  # of commits; a conflict means that the wake is to be repeated
            conflicts = [each for each in group.exceptions if isinstance(each, SessionWriteConflict)]
            raise (conflicts or group.exceptions)[0] from group

    async def _result(self, ready: _Ready, code: RunningCode) -> ToolResult:
        """The result of one call; an exception of the tool is one, and fails its span."""
        call = ready.call
        if ready.once is not None and not await self._wake.begin_once(ready.once):
            return error_result(call, "outcome_unknown", _UNKNOWN)
        try:
            shown = self._wake.stream_tool(call.tool, call.tool_use_id, call.arguments, call_key=call.call_key)
            with self._wake.span(call.tool), shown:
                about = {"gen_ai.tool.name": call.tool, "gen_ai.tool.call.id": call.tool_use_id}
                annotate({"gen_ai.operation.name": "execute_tool", **about})
                rename(f"execute_tool {call.tool}")
                known = self._tools[call.tool]
                assert known.function is not None
                function = self._wake._with_middleware("tool", call.tool, call.arguments, known.function)
                result = await known.call(code.watch(function), ready.arguments, self._context(ready))
            return ToolResult(call.tool_use_id, result, call_key=call.call_key)
        except Exception as error:
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

    def _append(self, event: JournalEvent) -> None:
        self._wake.append(event)
        self._events.append(event)

    def _append_result(self, call: ToolUse | CustomToolUse, result: ToolResult) -> None:
        """A result that no journal takes is an error of the tool, which the model may mend."""
        try:
            self._append(result)
        except (PayloadTooLarge, NotSerializable) as error:
            self._append(error_result(call, "tool_execution_exception", str(error), type=type(error).__name__))


def error_result(call: ToolUse | CustomToolUse, kind: ToolErrorKind, message: str, **fields: JsonValue) -> ToolResult:
    """The result of a call that was not run, or has failed."""
    return ToolResult(call_id(call), error_value(kind, message, **fields), is_error=True, call_key=call.call_key)


def _exception(call: ToolUse, error: BaseException) -> ToolResult:
    name, message = describe_error(error)
    return error_result(call, "tool_execution_exception", message, type=name)


def _refusal(answer: ConfirmationAnswer | None) -> str:
    if answer is None:
        return _NOT_RUN
    return answer.reason or ("it was not answered in time" if answer.expired else "a person has refused it")
