"""Conversations and orchestrations as tools, and servers as resources of sessions."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import mcp
import pytest
from mcp import StdioServerParameters
from mcp.server import MCPServer
from pydantic import BaseModel

import affinity
from affinity import RuntimeOptions, Wake
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import ConnectionLost, InvalidOptions
from affinity.integrations.mcp import add_conversation, add_orchestration, server_resource
from tests.conversation.application import Chat, stage

pytestmark = pytest.mark.anyio

PATIENCE = 60.0

SERVER = """
import os
from mcp.server import MCPServer

server = MCPServer("counter")
calls = []

@server.tool()
def count(by: int) -> str:
    calls.append(by)
    return f"{os.getpid()} {sum(calls)}"

server.run("stdio")
"""


class Order(BaseModel):
    """An input."""

    name: str
    amount: int


app = affinity.App("tools")
runs: Counter[str] = Counter()


@app.orchestration
async def order(ctx: affinity.OrchestrationContext, wanted: Order) -> dict[str, int]:
    """Order something."""
    ctx.set_custom_status("ordered")
    runs[ctx.instance_id] += not ctx.is_replaying
    await ctx.schedule_timer(0.3)
    ctx.set_custom_status("paid")
    if wanted.amount > 100:
        raise ValueError("too much")
    return {wanted.name: wanted.amount}


@app.orchestration
async def nightly(ctx: affinity.OrchestrationContext) -> str:
    """Do what is due."""
    return "done"


@app.orchestration
async def endless(ctx: affinity.OrchestrationContext) -> None:
    """Wait."""
    await ctx.schedule_wait("never")


async def handler(wake: Wake, chat: Chat) -> None:
    """Answer in words; the first attempt fails."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            for word in ("you", "said", event.text):
                wake.stream(f"{word} ")
                await anyio.sleep(0.1)
            if event.text == "fail once" and wake.attempt == 1:
                raise ConnectionError("away")
            chat.received.append(event.text)
            wake.append(AgentMessage(f"you said {', '.join(chat.received)}"))


def text_of(result: Any) -> str:
    return "".join(each.text for each in result.content if each.type == "text")


async def test_a_conversation_is_a_tool_and_what_it_streams_is_its_progress(url: str) -> None:
    heard: list[str] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async with stage(url, handler) as on:
        server = MCPServer("chat")
        add_conversation(server, on.client, on.conversations, name="chat", description="Chat with us.")
        async with mcp.Client(server) as client:
            given = {"conversation_id": "c", "message": "fail once"}
            result = await client.call_tool("chat", given, progress_callback=progress)
            assert (text_of(result), result.is_error) == ("you said fail once", False)
            assert any(each.startswith("you said") for each in heard), heard
            assert all(each.count("you") <= 1 for each in heard), heard  # a retracted text does not come back
            result = await client.call_tool("chat", {"conversation_id": "c", "message": "more"})
            assert text_of(result) == "you said fail once, more"
            result = await client.call_tool("chat", {"conversation_id": "c", "message": ""})
            assert result.is_error


async def test_a_message_that_is_repeated_with_its_id_is_said_once(url: str) -> None:
    """The error of a call that has waited long enough names the id. Without one, it is another message."""
    is_ready = anyio.Event()

    async def slow(wake: Wake, chat: Chat) -> None:
        await is_ready.wait()
        await handler(wake, chat)

    async with stage(url, slow) as on:
        server = MCPServer("chat")
        add_conversation(server, on.client, on.conversations, name="chat", description="Chat.", timeout=0.5)
        async with mcp.Client(server) as client:
            given = {"conversation_id": "c", "message": "pay"}
            late = await client.call_tool("chat", given)
            assert late.is_error
            assert "'c' has not answered in 0.5 s, and goes on: call again with the same message" in text_of(late)
            (message_id,) = re.findall(r"message_id '(\w+)'", text_of(late))
            is_ready.set()
            for _ in range(2):
                with anyio.fail_after(PATIENCE):
                    while (found := await client.call_tool("chat", {**given, "message_id": message_id})).is_error:
                        assert "has not answered" in text_of(found)
                assert text_of(found) == "you said pay"
            other = await client.call_tool("chat", {**given, "message": "more", "message_id": message_id})
            assert other.is_error
            assert "EventIdConflict" in text_of(other)
            for wrong in ("", "a\0b", "x" * 257):
                assert (await client.call_tool("chat", {**given, "message_id": wrong})).is_error
                assert (await client.call_tool("chat", {**given, "conversation_id": wrong})).is_error
        (entry,) = await on.talk("c").history(kinds=[UserMessage])
        assert entry.event_id == message_id


async def test_an_orchestration_is_a_tool_with_the_schema_of_its_input(url: str) -> None:
    heard: list[str] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    runs.clear()
    async with stage(url, handler, app) as on:
        server = MCPServer("orders")
        for each in (order, nightly):
            add_orchestration(server, on.client, each)
        async with mcp.Client(server) as client:
            tools = {each.name: each for each in (await client.list_tools()).tools}
            assert tools["order"].description == "Order something."
            assert {*tools["order"].input_schema["properties"]} == {"input", "instance_id"}
            assert "amount" in json.dumps(tools["order"].input_schema)
            assert {*tools["nightly"].input_schema["properties"]} == {"instance_id"}
            given = {"input": {"name": "tea", "amount": 2}, "instance_id": "o-1"}
            result = await client.call_tool("order", given, progress_callback=progress)
            assert json.loads(text_of(result)) == {"tea": 2}
            assert heard[-1] == "paid"
            assert json.loads(text_of(await client.call_tool("order", given))) == {"tea": 2}
            assert runs["o-1"] == 1
            assert text_of(await client.call_tool("nightly", {})) == "done"
            dear = await client.call_tool("order", {"input": {"name": "gold", "amount": 200}})
            assert dear.is_error
            assert "too much" in text_of(dear)
            wrong = await client.call_tool("order", {"input": {"name": "tea", "amount": "much"}})
            assert wrong.is_error
            assert "amount" in text_of(wrong)


async def test_work_that_takes_longer_goes_on_and_the_error_says_how_to_wait(url: str) -> None:
    async with stage(url, handler, app) as on:
        server = MCPServer("slow")
        add_orchestration(server, on.client, endless, timeout=0.5)
        async with mcp.Client(server) as client:
            result = await client.call_tool("endless", {"instance_id": "e"})
        assert result.is_error
        assert "'e' has not answered in 0.5 s, and goes on: call again with instance_id 'e'" in text_of(result)
        assert (await on.client.status("e")).status == "running"


async def test_a_call_whose_database_is_away_names_the_id_to_call_again_with(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have begun before the connection was lost."""
    async with stage(url, handler, app) as on:
        server = MCPServer("lost")
        add_orchestration(server, on.client, nightly)
        add_conversation(server, on.client, on.conversations, name="chat", description="Chat.")

        async def lose(*_: Any, **__: Any) -> Any:
            raise ConnectionLost("gone")

        async with mcp.Client(server) as client:
            with monkeypatch.context() as patch:
                patch.setattr(affinity.Client, "wait", lose)
                lost = text_of(await client.call_tool("nightly", {}))
            (instance_id,) = re.findall(r"ConnectionLost: gone; call again with instance_id '(.+)'", lost)
            assert text_of(await client.call_tool("nightly", {"instance_id": instance_id})) == "done"
            assert (await on.client.status(instance_id)).status == "completed"
            with monkeypatch.context() as patch:
                patch.setattr(affinity.conversation.ConversationHandle, "stream_reply", _losing)
                lost = text_of(await client.call_tool("chat", {"conversation_id": "c", "message": "hello"}))
            assert re.search(r"ConnectionLost: gone; call again .* message_id '\w+'", lost)


async def _losing(*_: Any, **__: Any) -> AsyncIterator[Any]:
    for error in [ConnectionLost("gone")]:
        raise error
    yield


@pytest.mark.parametrize("timeout", [0, -1, True, "1", float("nan")])
async def test_a_timeout_is_a_positive_number(sqlite_url: str, timeout: Any) -> None:
    async with affinity.Client(sqlite_url) as client:
        with pytest.raises(InvalidOptions, match="timeout"):
            add_orchestration(MCPServer("x"), client, nightly, timeout=timeout)


async def test_what_is_no_orchestration_is_refused(sqlite_url: str) -> None:
    async with affinity.Client(sqlite_url) as client:
        with pytest.raises(InvalidOptions, match="no orchestration"):
            add_orchestration(MCPServer("x"), client, lambda: None)


@pytest.mark.slow_cases(r"\[new")
async def test_a_server_is_kept_with_its_session_and_ends_with_its_stay(url: str, tmp_path: Path) -> None:
    """Each session has a process of its own, which its calls share; a release, and a failure, end it."""
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    sessions = affinity.Sessions(Chat, kind="counting")
    counters = server_resource(StdioServerParameters(command=sys.executable, args=[str(program)]), name="counter")
    work = affinity.App("work")
    work.include(sessions)

    @work.activity
    async def count(ctx: affinity.ActivityContext, by: int) -> str:
        opening = sessions.open(ctx)
        async with opening:
            client = await opening.resource(counters)
            found = text_of(await client.call_tool("count", {"by": by}))
            if by == 0:
                raise ValueError("failed")
            return found

    @work.orchestration
    async def counts(ctx: affinity.OrchestrationContext, numbers: list[int]) -> list[str]:
        found = []
        for each in numbers:
            try:
                found.append(await ctx.schedule_activity(count, each).on_session(ctx.instance_id))
            except affinity.errors.ActivityFailed as error:
                found.append(error.error_type)
        return found

    async with stage(url, handler, work, options=RuntimeOptions(worker_node_id="w0")) as on:
        handles = [await on.client.start(counts, [1, 2], instance_id=name) for name in ("a", "b")]
        first, second = [[each.split() for each in await handle.wait(60)] for handle in handles]
        assert [total for _, total in first] == ["1", "3"]
        assert len({pid for pid, _ in first}) == 1
        assert {pid for pid, _ in first}.isdisjoint(pid for pid, _ in second)
        assert len(counters) == 2
        found = await (await on.client.start(counts, [1, 0, 5], instance_id="c")).wait(60)
        assert found[1] == "ValueError"
        assert found[2].split()[1] == "5"  # another process
        for name in ("a", "b", "c"):
            await on.client.release_session(name)
        with anyio.fail_after(60):
            while len(counters):
                await anyio.sleep(0.02)


async def test_a_server_that_does_not_start_is_the_error_of_the_activity(sqlite_url: str) -> None:
    sessions = affinity.Sessions(Chat, kind="broken")
    broken = server_resource(lambda session: StdioServerParameters(command=sys.executable, args=["-c", ""]))
    work = affinity.App("work")
    work.include(sessions)

    @work.activity
    async def use(ctx: affinity.ActivityContext) -> None:
        opening = sessions.open(ctx)
        async with opening:
            await opening.resource(broken)

    @work.orchestration
    async def uses(ctx: affinity.OrchestrationContext) -> None:
        await ctx.schedule_activity(use).on_session("s")

    async with stage(sqlite_url, handler, work) as on:
        with pytest.raises(affinity.errors.OrchestrationFailed):
            await (await on.client.start(uses)).wait(60)
        assert len(broken) == 0
