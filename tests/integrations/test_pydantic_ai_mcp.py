"""Agents of pydantic-ai whose tools are those of an MCP server: a process over standard input and output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

import affinity
from affinity.conversation import ToolResult, ToolUse, UserMessage
from affinity.integrations.pydantic_ai import AffinityDurability, agent_conversations
from affinity.testing import Env
from tests.integrations.pydantic_ai_app import RETRY, Scripted, call

pytestmark = pytest.mark.anyio

SERVER = """
import sys
from mcp.server import MCPServer

server = MCPServer("shop")


@server.tool()
def ship(parcel: int) -> str:
    with open(sys.argv[1], "a") as log:
        log.write(f"{parcel} ")
    return f"shipped {parcel}"


server.run("stdio")
"""


async def test_a_call_of_a_server_is_a_step(tmp_path: Path) -> None:
    """The model fails after it, and then once more; the call is not made again."""
    script, log = tmp_path / "server.py", tmp_path / "log"
    script.write_text(SERVER)
    shop = Scripted([[call("ship", parcel=7)], "{0}"])
    shop.failures[1] = 2
    server = MCPToolset[None](StdioTransport(sys.executable, [str(script), str(log)]), id="shop")
    agent = Agent(shop.model(), name="clerk", toolsets=[server], capabilities=[AffinityDurability()])
    kind = agent_conversations(agent, retry=RETRY)
    app = affinity.App("agents")
    app.include(kind)
    async with Env(app) as env:
        talk = env.client.conversation(kind, "c")
        assert (await talk.ask(UserMessage("go"))).text == "shipped 7"
        assert [each.outcome for each in await talk.wakes()] == ["retried", "retried", "done"]
        calls = [each.event for each in await talk.history(kinds=[ToolUse, ToolResult])]
    assert log.read_text() == "7 "
    assert [type(each) for each in calls] == [ToolUse, ToolResult]
