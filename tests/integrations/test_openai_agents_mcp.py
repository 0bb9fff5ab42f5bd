"""Agents of the OpenAI Agents SDK whose tools are those of an MCP server, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from agents import Agent, function_tool
from agents.mcp import MCPServerStreamableHttp

import affinity
from affinity.conversation import AgentMessage, ToolConfirmation, ToolResult, ToolUse, UserMessage
from affinity.integrations.openai_agents import openai_conversations
from affinity.testing import Env, crash_matrix
from tests.integrations.mcp_shop import McpShop, served_shop
from tests.integrations.openai_agents_app import (
    MCP_URL,
    RETRY,
    Script,
    Scripted,
    app_of,
    call,
    mcp_app,
    mcp_conversations,
)
from tests.support.worker_processes import PATIENCE

pytestmark = pytest.mark.anyio

SHIP = call("ship", '{"parcel": 7}')
REFUND = call("refund")


@pytest.fixture(scope="module")
def _served() -> Iterator[McpShop]:
    with served_shop() as shop:
        yield shop


@pytest.fixture
def shop(_served: McpShop) -> McpShop:
    """The server, whose tools have done nothing yet."""
    _served.effects.clear()
    return _served


class Server(MCPServerStreamableHttp):
    """A server that counts its listings and connections, the first of which may fail."""

    def __init__(self, shop: McpShop, **options: Any) -> None:
        super().__init__({"url": shop.url}, **options)
        self.listings = self.connections = self.failures = 0

    async def connect(self) -> None:
        self.connections += 1
        if self.connections <= self.failures:
            raise ConnectionRefusedError
        await super().connect()  # type: ignore[no-untyped-call]

    async def list_tools(self, *given: Any) -> Any:
        self.listings += 1
        return await super().list_tools(*given)


class Talk:
    """A conversation with an agent of a script, and the steps of its runs."""

    def __init__(self, server: Server, script: Script) -> None:
        self.model = Scripted(script)
        self.agent: Agent[Any] = Agent(name="clerk", model=self.model, mcp_servers=[server])
        self.steps: list[str] = []
        self.kind = openai_conversations(self.agent, retry=RETRY)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
        """Run a worker."""
        app = app_of(self.kind)

        @app.middleware
        async def note(step: affinity.MiddlewareCall, next: affinity.Next) -> Any:
            if step.kind == "step":
                self.steps.append(step.name)
            return await next()

        async with Env(app) as env:
            yield env, env.client.conversation(self.kind, "c")


async def transcript(talk: affinity.ConversationHandle) -> list[Any]:
    """The agent's entries: texts, calls, and what the results show."""
    found: list[Any] = []
    for entry in await talk.history(kinds=[AgentMessage, ToolUse, ToolConfirmation, ToolResult]):
        match event := entry.event:
            case AgentMessage():
                found.append(event.text)
            case ToolUse() | ToolConfirmation():
                found.append(f"{type(event).__name__} {event.tool_use_id}")
            case ToolResult():
                found.append(event.result)
    return found


async def test_a_call_of_a_server_is_a_step(shop: McpShop) -> None:
    """The model fails after it, and then once more: the call and the listings are not made again."""
    server = Server(shop)
    chat = Talk(server, [[SHIP], "shipped"])
    chat.model.failures[1] = 2
    async with chat.open() as (_, talk):
        assert (await talk.ask(UserMessage("go"))).text == "shipped"
        assert [each.outcome for each in await talk.wakes()] == ["retried", "retried", "done"]
        assert await transcript(talk) == ["0 ", "ToolUse ship", "shipped 7", "shipped"]
    assert shop.effects == {"ship 7": 1}
    assert (server.listings, server.connections) == (2, 1)
    assert chat.steps == ["prompt", "tools", "model", "tool:ship", "tools", "model", "model", "model"]


async def test_a_person_approves_a_call(shop: McpShop) -> None:
    """The wake that has the answer connects to the server, for the call alone."""
    server = Server(shop, require_approval={"refund": "always"}, cache_tools_list=True)
    chat = Talk(server, [[SHIP], [REFUND], "done"])
    async with chat.open() as (env, talk):
        assert (await talk.ask(UserMessage("go"))).requires_action
        assert shop.effects == {"ship 7": 1}
        await env.crash()
        (request,) = await talk.requests()
        assert (await talk.reply(await talk.answer(request.request_id, allowed=True))).text == "done"
        calls = ["0 ", "ToolUse ship", "shipped 7", "1 ", "ToolUse refund", "ToolConfirmation refund", "refunded 5"]
        assert await transcript(talk) == [*calls, "done"]
    assert shop.effects == {"ship 7": 1, "refund 5": 1}
    assert (server.listings, server.connections) == (1, 2)


async def test_a_refused_call_needs_no_server(shop: McpShop) -> None:
    server = Server(shop, require_approval="always", cache_tools_list=True)
    async with Talk(server, [[REFUND], "{0}"]).open() as (_, talk):
        await talk.ask(UserMessage("go"))
        (request,) = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=False, reason="too much"))
        assert reply.text == "too much"
    assert shop.effects == {}
    assert (server.listings, server.connections) == (1, 1)


async def test_a_server_that_is_not_there_is_an_error_of_the_wake(shop: McpShop) -> None:
    """It is retried, and the model is not told."""
    server = Server(shop, cache_tools_list=True)
    chat = Talk(server, [[REFUND], "{0}"])
    server.failures = 1
    async with chat.open() as (_, talk):
        await talk.ask(UserMessage("go"))
        outcomes = [each.outcome for each in await talk.wakes()]
    assert outcomes == ["retried", "done"]
    assert (server.connections, chat.model.calls, shop.effects) == (2, {0: 1, 1: 1}, {"refund 5": 1})


async def test_a_server_that_the_application_has_connected_stays_so(shop: McpShop) -> None:
    async with Server(shop) as server, Talk(server, [[SHIP], "done"]).open() as (_, talk):
        for _ in range(2):
            await talk.ask(UserMessage("go"))
        assert server.session is not None
        assert (server.connections, shop.effects) == (1, {"ship 7": 2})


async def test_runs_share_a_connection(shop: McpShop) -> None:
    """It is there until the last of them has ended."""
    server, is_held, may_go_on = Server(shop), anyio.Event(), anyio.Event()
    chat = Talk(server, [[SHIP], [call("hold", "{}")], [call("ship", '{"parcel": 8}', "again")], "done"])

    @function_tool
    async def hold() -> None:
        if not is_held.is_set():
            is_held.set()
            await may_go_on.wait()

    chat.agent.tools = [hold]
    async with chat.open() as (env, talk):
        seq = await talk.send(UserMessage("go"))
        with anyio.fail_after(PATIENCE):
            await is_held.wait()
            await env.client.conversation(chat.kind, "other").ask(UserMessage("go"))
        may_go_on.set()
        await talk.reply(seq)
    assert (server.connections, shop.effects) == (1, {"ship 7": 2, "ship 8": 2})


# -- a crash at each commit


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("any_url", ["sqlite", "new"], indirect=True)
async def test_calls_over_a_crash_at_each_commit(any_url: str, shop: McpShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one that was cut off before its result was recorded, which is made again."""
    monkeypatch.setenv(MCP_URL, shop.url)
    url = None if any_url.startswith("sqlite") else any_url

    async def work(env: Env) -> list[Any]:
        shop.effects.clear()
        talk = env.client.conversation(mcp_conversations, "c")
        await talk.ask(UserMessage("go"), event_id="ask")
        (request,) = await talk.requests()
        await talk.reply(await talk.answer(request.request_id, allowed=True, event_id="answer"))
        return await transcript(talk)

    async def check(env: Env, found: list[Any]) -> None:
        calls = ["0 ", "ToolUse ship", "shipped 7", "1 ", "ToolUse refund", "ToolConfirmation refund", "refunded 5"]
        assert found == [*calls, "shipped 7, refunded 5"]
        assert set(shop.effects) == {"ship 7", "refund 5"}
        assert sum(shop.effects.values()) <= 3

    matrix = await crash_matrix(mcp_app, work, check, url=url, workers=2, kills=3)
    assert matrix.commits >= 8
