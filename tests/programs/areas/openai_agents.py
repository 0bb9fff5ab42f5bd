"""Agents of the OpenAI Agents SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any, Final

from agents import Agent, Model, ModelResponse, RunConfig, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import affinity
from affinity.integrations.openai_agents import openai_conversations
from tests.programs.areas.plugged import RETRY, Plugged, look, pay, respond

NAME: Final = "openai"


class _Scripted(Model):
    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        """What the last message of a user says, and the results since then."""
        prompt, has_asked, results = "", set[str](), dict[str, str]()
        for item in [{"role": "user", "content": input}] if isinstance(input, str) else input:
            if item.get("role") == "user":
                prompt = str(item["content"])
                has_asked.clear()
                results.clear()
            elif item.get("type") == "function_call":
                has_asked.add(item["call_id"])
            elif item.get("type") == "function_call_output":
                results[item["call_id"]] = str(item["output"])
        found = respond(prompt, has_asked, results)
        if isinstance(found, str):
            part = ResponseOutputText(type="output_text", text=found, annotations=[])
            output: list[Any] = [
                ResponseOutputMessage(id="m", role="assistant", status="completed", type="message", content=[part])
            ]
        else:
            output = [
                ResponseFunctionToolCall(
                    id=f"fc_{each.label}",
                    call_id=each.label,
                    type="function_call",
                    name=each.tool,
                    arguments=json.dumps(each.arguments),
                )
                for each in found
            ]
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Nothing is streamed."""
        raise NotImplementedError


@cache
def _agent() -> Agent[Any]:
    tools: list[Any] = [function_tool(look), function_tool(pay, needs_approval=True)]
    return Agent(name=NAME, model=_Scripted(), tools=tools)


class OpenAIAgents(Plugged):
    """Of the OpenAI Agents SDK."""

    name = NAME
    refusal = "Tool execution was not approved."

    def conversations(self) -> affinity.Conversations[Any]:
        return openai_conversations(_agent(), retry=RETRY, run_config=RunConfig(tracing_disabled=True))


OPENAI_AGENTS: Final = OpenAIAgents()
