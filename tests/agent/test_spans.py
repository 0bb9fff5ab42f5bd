"""The spans of a loop: models and tools, with the attributes of the conventions for generative AI."""

from __future__ import annotations

from typing import Any

import pytest

import affinity
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import UserMessage
from affinity.testing import Env
from tests.conversation.application import Chat, make
from tests.support.span_exporter import traced

pytestmark = pytest.mark.anyio


@tool
async def weigh(parcel: str) -> int:
    """Weigh a parcel."""
    return len(parcel)


async def model(request: ModelRequest) -> ModelReply:
    if request.round == 1:
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "cached": 9}
        return ModelReply(
            calls=[ToolCall("t-1", "weigh", {"parcel": "p"})],
            usage=usage,
            finish_reason="tool_calls",
            model="small-1",
            provider="openai",
        )
    return ModelReply(content="done", usage={"input_tokens": 7})


async def handler(wake: affinity.Wake, chat: Chat) -> None:
    await run_loop(wake, model=model, tools=[weigh])


async def test_models_and_tools_have_their_attributes() -> None:
    app = affinity.App("agents")
    app.include(conversations := make(handler))
    with traced() as spans:
        async with Env(app) as env:
            await env.client.conversation(conversations, "c").ask(UserMessage("one"))
        kinds = {span.name: span.kind.name for span in spans.get_finished_spans()}
        assert (kinds["chat small-1"], kinds["chat model"], kinds["execute_tool weigh"]) == (
            "CLIENT",
            "CLIENT",
            "INTERNAL",
        )
        found: list[dict[str, Any]] = [
            {name: value for name, value in (span.attributes or {}).items() if name.startswith("gen_ai.")}
            for span in spans.get_finished_spans()
            if span.name in {"chat small-1", "chat model", "execute_tool weigh", "invoke_agent chat"}
        ]
    agent = {"gen_ai.agent.name": "chat", "gen_ai.conversation.id": "c"}
    assert found == [
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "small-1",
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 2,
        },
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weigh", "gen_ai.tool.call.id": "t-1"},
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "unknown",
            "gen_ai.request.model": "model",
            "gen_ai.usage.input_tokens": 7,
        },
        {
            "gen_ai.operation.name": "invoke_agent",
            **agent,
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.usage.output_tokens": 2,
        },
    ]
