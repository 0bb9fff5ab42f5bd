"""What a run records of agents of ADK: calls of models and of tools, as steps."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol

from google.adk.events import EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions import Session
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from affinity.conversation import AgentMessage, ToolResult, Wake, WakeRun
from affinity.errors import NotSerializable, PayloadTooLarge, StepInterrupted
from affinity.integrations.agent_runs import (
    Operation,
    RecordedRun,
    StepOptions,
    ToolCall,
    current_call,
    current_number,
    current_run,
    current_unit,
    put,
    shown,
)

_RESPONSES: Final[TypeAdapter[list[LlmResponse]]] = TypeAdapter(list[LlmResponse])

_MODEL: Final = "model"
"""Name of the steps of model calls. Those of tools are ``tool:NAME``."""

_AGENT: Final = "adk_agent_name"
"""Label of a request of the model: the agent that makes it."""

_ID: Final = "adk-"
"""Beginning of the ids of calls that no model has made: ADK does not show them to a model."""


class HasEvents(Protocol):
    """A state that keeps the session of an agent: pydantic fields, which are JSON."""

    events: list[dict[str, JsonValue]]
    values: dict[str, JsonValue]


@dataclass
class AgentSession:
    """The session of an agent that runs, and what the journal has of it."""

    session: Session
    results_read: int
    """Events in which the results of calls were looked for."""
    answers_read: int
    """Events in which the answers of agents were looked for."""
    is_of_wake: bool = True
    """Whether the last response of a model was made in this wake."""


class StepsOfRun(RecordedRun):
    """A run whose model calls and tools are steps: the base of `ADKRun`."""

    def __init__(self, wake: Wake, run: WakeRun, *, transcript: bool) -> None:
        """Called by `adk_run`."""
        super().__init__(wake, run, transcript=transcript)
        self._streams = False
        self._sessions: dict[int, AgentSession] = {}
        """Those of the agents that run in the block, by `current_number`."""
        self._kept: dict[int, tuple[HasEvents, Session]] = {}
        """Sessions that are put into a state when the block has ended, by the id of the state."""
        self._used: set[int] = set()
        """Ids of the states with which agents run."""
        self._fatal: Exception | None = None
        """An error of a step, or of a list of tools, that ends the run whatever ADK makes of it."""

    async def _ask_model(self, request: LlmRequest, ask: Callable[[], AsyncIterator[LlmResponse]]) -> list[LlmResponse]:
        """Return the response. It is known by the agent and the contents that the model reads: so neither a failure
        that the agent survives, and repeats, nor an agent that runs beside it shifts the others.

        Raises:
            Exception: the tools cannot be listed, or an earlier step cannot be recorded.
        """
        if self._fatal is not None:
            raise self._fatal

        agent = (request.config.labels or {}).get(_AGENT, "")

        async def body() -> Any:
            found = [response async for response in (_shown_to_readers(ask()) if agent else _whole(ask()))]
            for response in found:
                for call in response.get_function_calls():
                    call.id = call.id or f"{_ID}{secrets.token_hex(16)}"
            return _RESPONSES.dump_python(found, mode="json", by_alias=True, exclude_none=True)

        contents = "".join(content.model_dump_json(exclude_none=True) for content in request.contents)
        digest = sha256(contents.encode()).hexdigest()
        operation = Operation(_MODEL, [str(current_number.get()), agent, digest], {}, is_model=True)
        value, has_run, is_of_wake = await self._record(operation, body, "a response of the model")
        if (found := self._sessions.get(current_number.get())) is not None:
            found.is_of_wake = is_of_wake
        responses = _RESPONSES.validate_python(value)
        if not agent:
            return responses  # a summary of earlier events, which is for no reader
        text = "".join(map(text_of, responses))
        if is_of_wake and self._streams and not has_run and text:
            self.wake.stream(text)  # an earlier attempt has streamed it, and it was retracted
        made = [call for response in responses for call in response.get_function_calls()]
        calls = [
            ToolCall(call.name or "", call.id or "", dict(call.args or {}))
            for call in made
            if is_recorded(request.tools_dict.get(call.name or ""))
        ]
        self._note_answers()
        self._note_turn(self._new_results(), text, calls, is_of_wake=is_of_wake, hands_over=len(made) > len(calls))
        return responses

    async def _call_tool(
        self,
        tool: BaseTool,
        context: ToolContext,
        arguments: Mapping[str, Any],
        options: StepOptions,
        body: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Return the result of a tool, and bring what it has done to the context: changes of the state, artifacts."""
        call = ToolCall(tool.name, context.function_call_id or "", dict(arguments))

        async def recorded() -> Any:
            result = await body()
            context.state.has_delta()  # notes what was changed within values of the state
            actions = context.actions.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            return {"result": _to_json(result), "actions": actions}

        identity = [str(current_number.get()), call.tool_use_id]
        with put(current_call, call):
            try:
                found, has_run, _ = await self._record(
                    Operation(f"tool:{call.tool}", identity, options), recorded, f"the result of tool {call.tool!r}"
                )
            except StepInterrupted:
                text = f"The process ended while {call.tool!r} ran: it may have had its effect or not."
                self._note_error(call.tool_use_id, "outcome_unknown", text)
                return {"error": text}
        if not has_run:
            _restore(context, EventActions.model_validate(found["actions"]))
        is_asking = call.tool_use_id in (context.actions.requested_tool_confirmations or {})
        if not is_asking and not (tool.is_long_running and not found["result"]):
            self._note_result(call, found["result"], is_error=False)
        return found["result"]

    async def _record(
        self, operation: Operation, body: Callable[[], Awaitable[object]], what: str
    ) -> tuple[Any, bool, bool]:
        """See `_operate`. An error of the step, and not of its function, ends the run, whatever ADK makes of it."""
        try:
            return await self._operate(operation, body)
        except (NotSerializable, PayloadTooLarge) as error:
            self._fatal = type(error)(f"{what} cannot be recorded: {error}")
            raise self._fatal from error

    def _note_answers(self) -> None:
        """Append what agents have answered since the last look, if it is not the last answer: another agent goes on, or
        the run waits.
        """
        if (found := self._sessions.get(current_number.get())) is None:
            return
        events = found.session.events
        new, found.answers_read = events[found.answers_read :], len(events)
        for event in new if found.is_of_wake else []:
            is_answer = event.author != "user" and event.is_final_response() and not event.get_function_calls()
            if is_answer and (text := text_of(event)):
                self._append(AgentMessage(text))

    def _new_results(self) -> list[ToolResult]:
        """Return the results of calls that came to the session since the last look."""
        if (found := self._sessions.get(current_number.get())) is None:
            return []
        events = found.session.events
        new, found.results_read = events[found.results_read :], len(events)
        return [
            ToolResult(response.id or "", shown(response.response))
            for event in new
            if not event.actions.requested_tool_confirmations
            for response in event.get_function_responses()
        ]


def run_here() -> StepsOfRun | None:
    """Return the run whose agent runs in this task, outside of the functions of its steps."""
    run = current_run.get()
    return run if isinstance(run, StepsOfRun) else None


def is_recorded(tool: BaseTool | None) -> bool:
    """Return whether the calls of a tool are steps: see `copies`."""
    return tool is not None and "run_async" in vars(tool)


def text_of(response: LlmResponse) -> str:
    """Return what a response says, without its thoughts."""
    parts = (response.content.parts if response.content else None) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


async def _shown_to_readers(responses: AsyncIterator[LlmResponse]) -> AsyncIterator[LlmResponse]:
    """Yield the responses that are whole. Stream the text of the others to readers."""
    unit = current_unit.get()
    async for response in responses:
        if not response.partial:
            yield response
        elif unit is not None and (text := text_of(response)):
            unit.wake.stream(text)


async def _whole(responses: AsyncIterator[LlmResponse]) -> AsyncIterator[LlmResponse]:
    """Yield the responses that are whole."""
    async for response in responses:
        if not response.partial:
            yield response


def _to_json(result: Any) -> Any:
    """Return the result of a tool as it is recorded: what ADK gives to the model is made of it.

    Raises:
        NotSerializable: it has no JSON form.
    """
    try:
        return to_jsonable_python(result)
    except ValueError as error:
        raise NotSerializable(str(error)) from error


def _restore(context: ToolContext, actions: EventActions) -> None:
    """Have a context say what a tool has done in an earlier attempt."""
    for name in actions.model_fields_set:
        if name != "state_delta":
            setattr(context.actions, name, getattr(actions, name))
    context.state.update(actions.state_delta)
