"""The capability that makes an agent of pydantic-ai durable: its operations are steps of a run of wakes."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.exceptions import ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDefinition
from pydantic_ai.toolsets import ToolsetTool

from affinity.errors import NotSerializable, PayloadTooLarge, StepInterrupted
from affinity.integrations.agent_runs import Operation, StepOptions, current_call, current_number, current_unit, put
from affinity.integrations.pydantic_ai.requests import answer_requests
from affinity.integrations.pydantic_ai.runs import call_of, run_here

Deps = TypeVar("Deps")

CONFIG_KEY: Final = "affinity"
"""Key of `StepOptions` in the metadata of a tool."""


@dataclass(init=False)
class AffinityDurability(BaseDurabilityCapability[Deps]):
    """Makes the runs of an agent durable that are in a block of `agent_run`, or in `agent_conversations`.

    Each model request, tool and call of an MCP server is a step, which is not repeated once its result is recorded. A
    tool that needs an approval, or whose result the client gives, is a request of the conversation. Outside such a
    block, and in an agent that a tool runs, the capability does nothing.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="affinity",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        serialization_failure=lambda error: NotSerializable(str(error)),
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=CONFIG_KEY,
    )

    def __init__(
        self,
        *,
        stream: bool = False,
        requests: bool = True,
        expires_in: float | timedelta | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[Deps] | None = None,
        name: str | None = None,
    ) -> None:
        """Define the durability of one agent.

        Args:
            stream: readers see the model's text as it comes (`affinity.Wake.stream`). The model has to stream.
            requests: deferred tools are requests of the conversation. False: another capability, such as
                `pydantic_ai.capabilities.RequestInput`, or the output of the run has them.
            expires_in: seconds, or a timedelta, after which such a request counts as refused. None: it waits forever.
            models: further models of runs, by the name under which results are recorded.
            event_stream_handler: is given the events of the agent. It runs in steps: those of a model in the step of
                the request, each other one in a step of its own.
            name: begins the names of all steps. By default the name of the agent.
        """
        self._stream, self._user_handler = stream, event_stream_handler
        self._has_requests, self._expires_in = requests, expires_in
        handler = self._show if stream else event_stream_handler
        super().__init__(models=models, event_stream_handler=handler, name=name)

    @property
    def in_durable_context(self) -> bool:
        """Whether the agent runs in a block of `agent_run`, outside of a step."""
        return run_here() is not None

    def get_durable_operation_backend(self) -> _Backend:
        """Return what runs an operation as a step."""
        return _Backend(self.name, self.default_model_id, stream=self._stream, events=self._user_handler is not None)

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same in each wake and attempt."""
        run = run_here()
        return None if run is None else f"{run.id}:{run._next('run_id')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of the conversation in which it runs."""
        run = run_here()
        return None if run is None else run.wake.conversation_id

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when the run began, in whichever wake."""
        run = run_here()
        return None if run is None else await run._start_time(run_id)

    # -- hooks

    async def wrap_run(self, ctx: RunContext[Deps], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Number the run: agents that run at the same time have steps of the same names."""
        run = run_here()
        if run is None:
            return await super().wrap_run(ctx, handler=handler)
        with put(current_number, run._next(f"run of {self.name}")):
            return await super().wrap_run(ctx, handler=handler)

    async def after_model_request(
        self, ctx: RunContext[Deps], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Append the calls of a response that is of this wake to the journal, and what it has read."""
        response = await super().after_model_request(ctx, request_context=request_context, response=response)
        run = run_here()
        if run is not None:
            tools = request_context.model_request_parameters.function_tools
            names = {tool.name for tool in tools if tool.kind != "external"}
            run._note_response(request_context.messages, response, names)
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Deps],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Show the call while it runs, and append its result to the journal of the wake in which it has run."""
        run = run_here()
        if run is None:
            return await handler(args)
        running = call_of(call)
        with put(current_call, running):
            try:
                result = await _run_tool(handler, args, call.tool_name)
            except (ToolFailed, ModelRetry) as error:
                run._note_result(running, error.message, is_error=True)
                raise
        run._note_result(running, result, is_error=False)
        return result

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Deps], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask by requests of the conversation. Without an answer, the run waits for another wake."""
        run = run_here()
        if run is None or not self._has_requests:
            return None
        return await answer_requests(run._run, requests, self._expires_in)

    # -- the stream

    async def _show(self, ctx: RunContext[Deps], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Stream the text of a model, and give all events to the application's handler."""
        if self._user_handler is not None:
            await self._user_handler(ctx, _shown(events))
        async for _ in _shown(events):
            pass


async def _shown(events: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
    unit = current_unit.get()
    async for event in events:
        if unit is not None and unit.is_model and (text := _text_of(event)):
            unit.wake.stream(text)
        yield event


def _text_of(event: AgentStreamEvent) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""


async def _run_tool(handler: WrapToolExecuteHandler, args: dict[str, Any], tool: str) -> Any:
    try:
        return await handler(args)
    except StepInterrupted:
        raise ToolFailed(
            f"The process ended while {tool!r} ran: it may have had its effect or not, and is not run again."
        ) from None


class _Backend(JournalCallableOperationBackend[Any]):
    """Runs each operation as a step of the current run."""

    def __init__(self, agent: str, default_model_id: str | None, *, stream: bool, events: bool) -> None:
        config = RoleBasedOperationConfig[Any](model={}, event={}, capability={}, tool={}, resolve_tool=_options_of)
        super().__init__(agent_name=agent, default_model_id=default_model_id, config=config)
        self._agent, self._stream, self._has_handler = agent, stream, events

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Any,
    ) -> object:
        """Run it, or return the result that is recorded.

        Raises:
            NotSerializable, PayloadTooLarge: the result has no JSON form, or is too large. The wake is not retried.
            Exception: see `affinity.Wake.step`.
        """
        run = run_here()
        if run is None or (isinstance(operation_id, EventStreamHandlerId) and not self._has_handler):
            return await body()
        operation = self._operation(operation_id, name, cache_key, config)
        streams = self._stream and isinstance(operation_id, ModelRequestId) and operation_id.streaming
        try:
            return await run._execute(operation, body, streams=streams)
        except (NotSerializable, PayloadTooLarge) as error:
            is_call = isinstance(operation_id, ToolsetCallToolId)
            what = f"tool {cache_key[0]!r}" if is_call else f"operation {name!r}"
            raise type(error)(f"the result of {what} of agent {self._agent!r} cannot be recorded: {error}") from error

    def _operation(
        self, operation_id: DurableOperationId, name: str, cache_key: tuple[object, ...], config: Any
    ) -> Operation:
        """A call of a tool is known by its id, and a request of the model by its round: of what follows in a round, a
        failure that the agent survives leaves out a number. Agents and tools may run at the same time, in any order.
        """
        context = next((each for each in cache_key if isinstance(each, RunContext)), None)
        identity = [str(current_number.get()), "" if context is None else str(context.run_step)]
        match operation_id:
            case ToolsetCallToolId() | ToolsetValidateToolArgumentsId():
                call = ["", ""] if context is None else [str(cache_key[0]), str(context.tool_call_id)]
                options = config if isinstance(operation_id, ToolsetCallToolId) else {}
                return Operation(name, [*identity, *call], options)
            case ModelRequestId():
                return Operation(name, identity, {}, is_model=True)
            case _:
                return Operation(name, identity, {})


def _options_of(operation_id: DurableOperationId, tool: object | None, name: str) -> Any:
    """Return the `StepOptions` of a tool; False: it is no step."""
    metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
    options = (metadata or {}).get(CONFIG_KEY, {})
    if options is False:
        return False
    if not isinstance(options, dict) or not options.keys() <= StepOptions.__annotations__.keys():
        known = ", ".join(StepOptions.__annotations__)
        raise UserError(f"tool {name!r}: metadata[{CONFIG_KEY!r}] is False or a dict with {known}, not {options!r:.80}")
    return options
