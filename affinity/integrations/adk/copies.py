"""Copies of agents whose models and tools are steps of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext

from affinity.integrations.adk.models import DurableLlm
from affinity.integrations.adk.recording import StepsOfRun
from affinity.integrations.agent_runs import StepOptions


def durable_copy(agent: BaseAgent, run: StepsOfRun, steps: Mapping[str, StepOptions]) -> BaseAgent:
    """Return a copy of an agent, and of the agents below it, whose models and tools are steps of the run."""
    copied = agent.clone()
    _make_durable(copied, run, steps)
    return copied


def durable_compaction(app: App) -> EventsCompactionConfig | None:
    """Return the settings by which an app summarises earlier events, with a model whose calls are steps."""
    config = app.events_compaction_config
    if config is None or not isinstance(config.summarizer, LlmEventSummarizer):
        return config  # without one, ADK takes the model of the root
    summarizer = copy.copy(config.summarizer)
    if not isinstance(summarizer._llm, DurableLlm):
        summarizer._llm = DurableLlm(summarizer._llm)
    return config.model_copy(update={"summarizer": summarizer})


def _make_durable(agent: BaseAgent, run: StepsOfRun, steps: Mapping[str, StepOptions]) -> None:
    if isinstance(agent, LlmAgent):
        model = agent.canonical_model
        agent.model = model if isinstance(model, DurableLlm) else DurableLlm(model)
        agent.tools = [_durable(tool, run, steps) for tool in agent.tools]
    for below in agent.sub_agents:
        _make_durable(below, run, steps)


def _durable(
    tool: Callable[..., Any] | BaseTool | BaseToolset, run: StepsOfRun, steps: Mapping[str, StepOptions]
) -> BaseTool | BaseToolset:
    if isinstance(tool, BaseToolset):
        return _toolset(tool, run, steps)
    return _tool(tool if isinstance(tool, BaseTool) else FunctionTool(tool), run, steps)


def _toolset(toolset: BaseToolset, run: StepsOfRun, steps: Mapping[str, StepOptions]) -> BaseToolset:
    """Return a copy of a toolset, such as of an MCP server, with the same connection.

    If tools cannot be listed, the run ends: ADK would run the agent without them, and not find those of recorded calls.
    """
    copied = copy.copy(toolset)

    async def get_tools(readonly_context: Any = None) -> Sequence[BaseTool]:
        try:
            found = await toolset.get_tools(readonly_context)
        except Exception as error:
            run._fatal = error
            raise
        return [_tool(tool, run, steps) for tool in found]

    vars(copied)["get_tools"] = get_tools
    return copied


def _tool(tool: BaseTool, run: StepsOfRun, steps: Mapping[str, StepOptions]) -> BaseTool:
    copied = copy.copy(tool)

    async def run_async(*, args: dict[str, Any], tool_context: ToolContext) -> Any:
        if tool_context.tool_confirmation is None and await tool.check_require_confirmation(args, tool_context) is True:
            return await tool.run_async(args=args, tool_context=tool_context)  # which asks, and does nothing else
        options = steps.get(copied.name, StepOptions())
        return await run._call_tool(
            copied, tool_context, args, options, lambda: tool.run_async(args=args, tool_context=tool_context)
        )

    vars(copied)["run_async"] = run_async
    return copied
