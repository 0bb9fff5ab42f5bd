"""Agents of ADK whose tools are those of an MCP server, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams

from affinity.conversation import ToolConfirmation, ToolResult, UserMessage
from affinity.testing import Env
from tests.integrations.adk.shop import Shop, app_of
from tests.integrations.mcp_shop import McpShop, served_shop

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def remote() -> Iterator[McpShop]:
    """A server that runs."""
    with served_shop() as shop:
        yield shop


async def test_a_call_of_a_server_is_a_step_and_may_need_a_confirmation(remote: McpShop) -> None:
    """It is made once, after a person has confirmed it, though the model fails behind it and the worker ends."""
    shop = Shop([["refund"], "{0}"])
    shop.model.failures[1] = 1
    toolset = McpToolset(connection_params=StreamableHTTPConnectionParams(url=remote.url), require_confirmation=True)
    shop.agent.tools = [toolset]
    kind = shop.conversations()
    async with Env(app_of(kind)) as env:
        talk = env.client.conversation(kind, "c")
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        assert (request.event.tool, request.event.arguments) == ("refund", {"cents": 5})
        assert not remote.effects
        await env.crash()
        seq = await talk.answer(request.request_id, allowed=True)
        assert "refunded 5" in (await talk.reply(seq)).text
        (result,) = [entry.event for entry in await talk.history(kinds=[ToolResult])]
    await toolset.close()
    assert "refunded 5" in str(result)
    assert remote.effects == {"refund 5": 1}
    assert shop.model.calls == {0: 1, 1: 2}
