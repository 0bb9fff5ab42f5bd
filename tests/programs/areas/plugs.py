"""Agents of pydantic-ai."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import affinity
from affinity.integrations.pydantic_ai import AffinityDurability, agent_conversations
from tests.programs.areas.plugged import RETRY, Plugged, look, pay, respond

NAME: Final = "plugs"


def _respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    prompt, has_asked, results = "", set[str](), dict[str, str]()
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                prompt = str(part.content)
                has_asked.clear()
                results.clear()
            elif isinstance(part, ToolReturnPart):
                results[part.tool_call_id] = str(part.content)
            elif isinstance(part, ToolCallPart):
                has_asked.add(part.tool_call_id)
    found = respond(prompt, has_asked, results)
    if isinstance(found, str):
        return ModelResponse(parts=[TextPart(found)])
    return ModelResponse(parts=[ToolCallPart(each.tool, each.arguments, tool_call_id=each.label) for each in found])


@cache
def _agent() -> Agent[None, str]:
    agent = Agent(FunctionModel(_respond), name=NAME, capabilities=[AffinityDurability()])
    agent.tool_plain(look)
    agent.tool_plain(requires_approval=True)(pay)
    return agent


class Plugs(Plugged):
    """Of pydantic-ai."""

    name = NAME

    def conversations(self) -> affinity.Conversations[Any]:
        return agent_conversations(_agent(), retry=RETRY)


PLUGS: Final = Plugs()
