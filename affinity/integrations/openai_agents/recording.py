"""What a run records of agents of the SDK: model calls, tools and guardrails, as steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from hashlib import sha256
from typing import Any, Final, Protocol

from agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    ModelResponse,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    TResponseInputItem,
)
from openai.types.responses import Response
from pydantic import JsonValue, TypeAdapter
from pydantic_core import from_json, to_json, to_jsonable_python

from affinity.conversation import ToolResult, Wake, WakeRun
from affinity.errors import NotSerializable, PayloadTooLarge, StepInterrupted
from affinity.integrations.agent_runs import (
    Operation,
    RecordedRun,
    StepOptions,
    ToolCall,
    current_call,
    current_number,
    current_run,
    put,
    shown,
    shown_arguments,
)

_RESPONSES: Final[TypeAdapter[ModelResponse]] = TypeAdapter(ModelResponse)

_Part = ToolOutputText | ToolOutputImage | ToolOutputFileContent
_PARTS: Final[TypeAdapter[_Part | list[_Part]]] = TypeAdapter(_Part | list[_Part])

_MODEL: Final = "model"
"""Name of the steps of model calls. Those of tools are ``tool:NAME``, those of guardrails ``guardrail:NAME``."""


class HasItems(Protocol):
    """A state that keeps the items of a `StateSession`: pydantic fields, which are JSON."""

    items: list[dict[str, JsonValue]]


class StepsOfRun(RecordedRun):
    """A run whose model calls, tools and guardrails are steps: the base of `OpenAIRun`."""

    def __init__(self, wake: Wake, run: WakeRun, *, transcript: bool) -> None:
        """Called by `openai_run`."""
        super().__init__(wake, run, transcript=transcript)
        self._streams = False
        self._fatal: Exception | None = None
        """An error of a step, which the SDK may have shown to the model."""
        self._sessions: dict[int, tuple[HasItems, list[dict[str, JsonValue]]]] = {}

    async def _ask_model(
        self, input: str | list[TResponseInputItem], tools: list[Tool], ask: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Return a response. It is known by the input of the model, so that a failure which the SDK survives, and
        repeats, does not shift the others.
        """

        async def body() -> Any:
            return _RESPONSES.dump_python(await ask(), mode="json", by_alias=True, exclude_unset=True, warnings=False)

        digest = sha256(to_json(input, fallback=str)).hexdigest()
        operation = Operation(_MODEL, [str(current_number.get()), digest], {}, is_model=True)
        value, has_run, is_of_wake = await self._record(operation, body, "a response of the model")
        response = _RESPONSES.validate_python(value | {"output": []})
        # As the library reads answers of the API: without a check, so that what it does not know yet is no error.
        response.output = Response.construct(output=value["output"]).output
        text, made = _said(response)
        names = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
        calls = [call for call in made if call.tool in names]
        if is_of_wake and self._streams and not has_run and text:
            self.wake.stream(text)  # an earlier attempt has streamed it, and it was retracted
        hands_over = len(made) > len(calls)
        self._note_turn(_results_in(input), text, calls, is_of_wake=is_of_wake, hands_over=hands_over)
        return response

    async def _call_tool(
        self, call: ToolCall, options: StepOptions, body: Callable[[], Awaitable[Any]], *, has_schema: bool
    ) -> object:
        async def recorded() -> Any:
            try:
                return _output_to_json(await body(), has_schema=has_schema)
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                return {"cancelled": str(error)}  # by the tool, or something that it awaited

        identity = [str(current_number.get()), call.tool_use_id]
        with put(current_call, call):
            try:
                found, *_ = await self._record(
                    Operation(f"tool:{call.tool}", identity, options), recorded, f"the result of tool {call.tool!r}"
                )
            except StepInterrupted:
                text = f"The process ended while {call.tool!r} ran: it may have had its effect or not."
                self._note_error(call.tool_use_id, "outcome_unknown", text)
                return text
        if "cancelled" in found:
            raise asyncio.CancelledError(found["cancelled"])  # of which the SDK makes a text for the model
        self._note_result(call, _for_readers(found["output"]), is_error=False)
        return _PARTS.validate_python(found["output"]) if found["is_parts"] else found["output"]

    async def _check(
        self, name: str, body: Callable[[], Awaitable[GuardrailFunctionOutput]]
    ) -> GuardrailFunctionOutput:
        async def recorded() -> Any:
            found = await body()
            return {"info": found.output_info, "tripwire": found.tripwire_triggered}

        operation = Operation(f"guardrail:{name}", [str(current_number.get())], {})
        found, *_ = await self._record(operation, recorded, f"the output of guardrail {name!r}")
        return GuardrailFunctionOutput(output_info=found["info"], tripwire_triggered=found["tripwire"])

    async def _record(
        self, operation: Operation, body: Callable[[], Awaitable[object]], what: str
    ) -> tuple[Any, bool, bool]:
        """See `_operate`. An error of the step, and not of its function, ends the run, whatever the SDK makes of it."""
        try:
            return await self._operate(operation, body)
        except (NotSerializable, PayloadTooLarge) as error:
            self._fatal = type(error)(f"{what} cannot be recorded: {error}")
            raise self._fatal from error

    def _items_of(self, state: HasItems) -> list[dict[str, JsonValue]]:
        """Return the items of a session, as this run has changed them."""
        return self._sessions.setdefault(id(state), (state, deepcopy(state.items)))[1]

    def _keep_sessions(self) -> None:
        for state, items in self._sessions.values():
            state.items = items


def run_here() -> StepsOfRun | None:
    """Return the run whose agent runs in this task, outside of the functions of its steps."""
    run = current_run.get()
    return run if isinstance(run, StepsOfRun) else None


def _output_to_json(output: Any, *, has_schema: bool) -> dict[str, Any]:
    """Return the form in which the result of a tool is recorded: parts of several kinds, a JSON value, or else its
    text, which is what the SDK gives to the model. A result with a schema is given to it as JSON.
    """
    parts = list(output) if isinstance(output, list | tuple) and output else [output]
    if all(isinstance(part, _Part) for part in parts):
        output = parts if isinstance(output, tuple) else output
        return {"is_parts": True, "output": _PARTS.dump_python(output, mode="json", by_alias=True)}
    if has_schema and not isinstance(output, str):
        try:
            return {"is_parts": False, "output": to_jsonable_python(output, by_alias=True)}
        except ValueError as error:
            raise NotSerializable(str(error)) from error
    is_json = isinstance(output, str | int | float | bool | list | dict) or output is None
    return {"is_parts": False, "output": output if is_json else str(output)}


def _for_readers(output: Any) -> Any:
    """Return a recorded result as the journal shows it: of a part that is text, the text."""
    match output:
        case {"type": "text", "text": str(text), **rest} if not rest:
            return text
        case _:
            return output


def _said(response: ModelResponse) -> tuple[str, list[ToolCall]]:
    """Return the text of a response, and its calls of tools and handoffs."""
    texts, calls = [], []
    for item in response.output:
        if item.type == "message":
            texts += [part.text for part in item.content if part.type == "output_text"]
        elif item.type == "function_call":
            calls.append(ToolCall(item.name, item.call_id, arguments_of(item.arguments)))
    return "".join(texts), calls


def _results_in(input: Any) -> list[ToolResult]:
    """Return the results of calls that stand behind the last message."""
    found: list[ToolResult] = []
    for item in reversed(input if isinstance(input, list) else []):
        if item.get("role"):
            break
        if item.get("type") == "function_call_output":
            found.append(ToolResult(str(item["call_id"]), shown(_for_readers(item["output"]))))
    return found[::-1]


def arguments_of(text: str | None) -> dict[str, Any]:
    """Return the arguments of a call, for readers; empty if the model gave no JSON object."""
    try:
        found = from_json(text or "{}")
    except ValueError:
        return {}
    return shown_arguments(found) if isinstance(found, dict) else {}
