"""Readers of a conversation see which tools of a loop run."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import affinity
from affinity import Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop
from affinity.conversation import (
    JournalEntry,
    ReplyItem,
    Retracted,
    ToolEnded,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from affinity.testing import Env
from tests.conversation.application import Chat, make, stage

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


def shown(items: list[ReplyItem]) -> list[Any]:
    """Calls, retractions and results, in order."""
    forms: list[Any] = []
    for item in items:
        match item:
            case ToolStarted():
                forms.append(("started", item.tool_use_id))
            case ToolEnded():
                forms.append(("ended", item.tool_use_id, item.is_error))
            case Retracted():
                forms.append("retracted")
            case JournalEntry(event=ToolUse() | ToolResult() as event):
                forms.append((type(event).__name__, event.tool_use_id))
            case _:
                pass
    return forms


async def test_a_call_is_shown_as_it_begins_and_as_it_ends(url: str) -> None:
    """Behind the entry of the call. A call that runs on while another one ends is shown again."""
    may_end = {"1": anyio.Event(), "2": anyio.Event()}
    may_answer = anyio.Event()

    async def look(place: str) -> str:
        await may_end[place].wait()
        if place == "2":
            raise OSError("no")
        return "found"

    async def model(request: ModelRequest) -> ModelReply:
        if isinstance(request.events[-1], ToolResult):
            await may_answer.wait()
            return ModelReply(content="done")
        return ModelReply(calls=[ToolCall(place, "look", {"place": place}) for place in ("1", "2")])

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[look])

    async with stage(url, handler) as on:
        found: list[ReplyItem] = []
        with anyio.fail_after(PATIENCE):
            async for item in on.talk().stream_reply(UserMessage("go")):
                found.append(item)
                forms = shown(found)
                if forms.count(("started", "2")) == 1:
                    may_end["1"].set()
                if ("ended", "1", False) in forms and forms.count(("started", "2")) == 2:
                    may_end["2"].set()
                if ("ended", "2", True) in forms:
                    may_answer.set()
        started = next(item for item in found if isinstance(item, ToolStarted))
        assert (started.tool, started.arguments, started.kind) == ("look", {"place": "1"}, "stream.tool_started")
        assert shown(found) == [
            ("ToolUse", "1"),
            ("ToolUse", "2"),
            ("started", "1"),
            ("started", "2"),
            "retracted",
            ("ToolResult", "1"),
            ("ended", "1", False),
            ("started", "2"),
            "retracted",
            ("ToolResult", "2"),
            ("ended", "2", True),
            "retracted",
        ]


async def test_a_call_that_a_later_attempt_repeats_is_shown_again(server: str | None) -> None:
    runs: list[int] = []
    is_shown = anyio.Event()

    async def look() -> str:
        runs.append(1)
        if len(runs) == 1:
            await anyio.sleep_forever()
        else:
            await is_shown.wait()
        return "found"

    async def model(request: ModelRequest) -> ModelReply:
        has_result = isinstance(request.events[-1], ToolResult)
        return ModelReply(content="done") if has_result else ModelReply(calls=[ToolCall("1", "look", {})])

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[look])

    chats, app, found = make(handler), affinity.App("agents"), list[ReplyItem]()
    app.include(chats)
    async with Env(app, url=server) as env:
        with anyio.fail_after(PATIENCE):
            async for item in env.client.conversation(chats, "c").stream_reply(UserMessage("go")):
                found.append(item)
                await _crash_once(env, found)
                if shown(found).count(("started", "1")) == 2:
                    is_shown.set()
    starts = [item for item in found if isinstance(item, ToolStarted)]
    assert starts[0].attempt < starts[1].attempt
    assert [each for each in shown(found) if each[0] != "ended"][:5] == [  # its commit may come before
        ("ToolUse", "1"),
        ("started", "1"),
        "retracted",
        ("started", "1"),
        "retracted",
    ]


async def _crash_once(env: Env, found: list[ReplyItem]) -> None:
    if isinstance(found[-1], ToolStarted) and len(shown(found)) == 2:
        await env.crash()
