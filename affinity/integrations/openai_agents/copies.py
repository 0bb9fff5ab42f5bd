"""Copies of agents whose models, tools and guardrails are steps of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

from agents import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    Handoff,
    Model,
    OutputGuardrail,
    RunConfig,
    RunResult,
)
from agents.guardrail import InputGuardrail
from agents.mcp import MCPServer
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext
from pydantic_core import from_json

from affinity.integrations.agent_runs import StepOptions, ToolCall
from affinity.integrations.openai_agents.models import DurableModel, DurableProvider
from affinity.integrations.openai_agents.recording import StepsOfRun, arguments_of
from affinity.integrations.openai_agents.servers import RecordedServer, Servers

_HAS_FAILED: Final = "_function_tool_default_failure_handled"
"""Attribute of a tool's context by which the SDK knows a text of its own about an error, which has no schema."""


class AgentCopies:
    """Copies of agents whose tools, guardrails and models are steps of a run."""

    def __init__(self, run: StepsOfRun, steps: Mapping[str, StepOptions], servers: Servers) -> None:
        self._run, self._steps, self._servers = run, steps, servers
        self._known: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def has(self, agent: object) -> bool:
        """Return whether an agent is a copy."""
        return any(known is agent for _, known in self._known.values())

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of an agent. Agents may hand over to each other in a circle."""
        if id(agent) in self._known:
            return self._known[id(agent)][1]
        copy = agent.clone(
            model=DurableModel(agent.model) if isinstance(agent.model, Model) else agent.model,
            model_settings=agent.model_settings,
            tools=[self._tool(tool) if isinstance(tool, FunctionTool) else tool for tool in agent.tools],
            input_guardrails=[self._input_guardrail(each) for each in agent.input_guardrails],
            output_guardrails=[self._output_guardrail(each) for each in agent.output_guardrails],
            mcp_servers=[RecordedServer(server, self._servers) for server in agent.mcp_servers],
        )
        if agent.mcp_servers:
            self._record_calls(copy, agent.mcp_servers)
        self._known[id(agent)] = (agent, copy)
        copy.handoffs = [self.of(each) if isinstance(each, Agent) else self._handoff(each) for each in agent.handoffs]
        return copy

    def restored(self, result: RunResult) -> RunResult:
        """Return a result that names the agents themselves in place of their copies: an application compares them, and
        runs the last one next.
        """
        result._last_agent = self._original(result.last_agent)
        for item in result.new_items:  # changed in place: the SDK knows them by their identity
            for name in ("agent", "source_agent", "target_agent"):
                if hasattr(item, name):
                    setattr(item, name, self._original(getattr(item, name)))
            item.__post_init__()  # makes the weak references, for `RunResult.release_agents`
        for check in result.output_guardrail_results:
            check.agent = self._original(check.agent)
        return result

    def _original(self, agent: Agent[Any]) -> Agent[Any]:
        return next((original for original, known in self._known.values() if known is agent), agent)

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        async def invoke(context: Any, arguments: str) -> Any:
            return self.of(await handoff.on_invoke_handoff(context, arguments))

        return replace(handoff, on_invoke_handoff=invoke)

    def _record_calls(self, copy: Agent[Any], servers: Sequence[MCPServer]) -> None:
        """Have calls of the servers of a copy be steps: the SDK makes their tools anew in each turn."""
        listed = copy.get_mcp_tools

        async def tools(context: Any) -> list[Any]:
            found = await listed(context)
            return [self._tool(tool, servers) if isinstance(tool, FunctionTool) else tool for tool in found]

        vars(copy)["get_mcp_tools"] = tools

    def _tool(self, tool: FunctionTool, servers: Sequence[MCPServer] = ()) -> FunctionTool:
        options = self._steps.get(tool.name, StepOptions())

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            async def body() -> Any:
                await self._servers.connect(servers)  # an error of this is not for the model
                if tool.timeout_seconds is None:
                    return await tool.on_invoke_tool(context, arguments)
                return await invoke_function_tool(function_tool=tool, context=context, arguments=arguments)

            call = ToolCall(tool.name, context.tool_call_id, arguments_of(arguments))
            has_schema = tool.output_json_schema is not None
            found = await self._run._call_tool(call, options, body, has_schema=has_schema)
            if has_schema and not _is_object(found):
                setattr(context, _HAS_FAILED, True)
            return found

        invoker = _invoker_like(tool.on_invoke_tool, invoke)
        return replace(tool, on_invoke_tool=invoker, timeout_seconds=None)  # its timeout is within the step

    def _input_guardrail(self, guardrail: InputGuardrail[Any]) -> InputGuardrail[Any]:
        name = guardrail.get_name()

        async def check(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
            return await self._run._check(name, lambda: called(guardrail.guardrail_function, context, agent, input))

        return replace(guardrail, guardrail_function=check, name=name)

    def _output_guardrail(self, guardrail: OutputGuardrail[Any]) -> OutputGuardrail[Any]:
        name = guardrail.get_name()

        async def check(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            return await self._run._check(name, lambda: called(guardrail.guardrail_function, context, agent, output))

        return replace(guardrail, guardrail_function=check, name=name)


def _invoker_like(inner: Callable[..., Any], invoke: Callable[..., Any]) -> Any:
    """Return an invoker of a tool that is otherwise as the tool's own: the SDK asks that of ``function_tool`` how it
    reads the arguments, before it asks whether a call needs an approval.
    """
    if inspect.isroutine(inner):
        return invoke
    found, kind = copy(inner), type(inner)
    names = {"__call__": staticmethod(invoke), "__agents_bind_function_tool__": lambda self, tool: self}
    found.__class__ = type(kind.__name__, (kind,), names)
    return found


def _is_object(output: Any) -> bool:
    """Return whether a result is a JSON object, or the text of one."""
    try:
        return isinstance(from_json(output) if isinstance(output, str) else output, dict)
    except ValueError:
        return False


def durable_config(config: RunConfig | None) -> RunConfig:
    """Return the settings of a run whose models are steps."""
    config = config or RunConfig()
    model = DurableModel(config.model) if isinstance(config.model, Model) else config.model
    return replace(config, model=model, model_provider=DurableProvider(config.model_provider))


async def called(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, async or sync."""
    found = function(*args)
    return await found if inspect.isawaitable(found) else found
