"""Conversations, requests, streams and asks in `affinity.testing.Env`: hours and days of them pass without a wait."""

from __future__ import annotations

import gc
from datetime import timedelta
from itertools import count
from weakref import ref

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity.conversation import (
    AgentMessage,
    JournalEntry,
    Retracted,
    Streamed,
    ToolConfirmation,
    UserMessage,
    shown_trace,
)
from affinity.errors import NothingWillHappen, WaitTimeout
from affinity.testing import Env

DAY = timedelta(days=1)

SLACK = timedelta(seconds=1)
"""A timer of a conversation fires a little later than its revisit is due."""


class Chat(BaseModel):
    nudges: int = 0


support = affinity.Conversations(Chat, kind="support")
attempts = count(1)


@support.on_wake(retry=affinity.RetryPolicy(max_attempts=3, initial_interval=3600, max_interval=3600))
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    for due in wake.due:
        chat.nudges += 1
        wake.append(AgentMessage(f"still there? {chat.nudges} {due.reason}"))
    for event in wake.events:
        match event:
            case UserMessage(text="nudge me"):
                wake.append(AgentMessage("yes"))
            case UserMessage(text="ask me"):
                wake.require(ToolConfirmation(tool="refund", arguments={}), expires_in=2 * DAY)
            case UserMessage(text="fail twice"):
                wake.stream("try ")
                await anyio.sleep(0.05)  # until readers have it
                if next(attempts) <= 2:
                    raise OSError("the model is down")
                wake.append(AgentMessage("at last"))
            case UserMessage():
                wake.append(AgentMessage("hello"))
            case _:
                wake.append(AgentMessage(f"{event.kind} {getattr(event, 'allowed', None)}"))
    if any(isinstance(event, UserMessage) and event.text == "nudge me" for event in wake.events) or 0 < chat.nudges < 3:
        wake.revisit(DAY, key="nudge", reason="daily")


app = affinity.App("conversations")
app.include(support)


Price = affinity.Event("price", str, reply=int)


@app.orchestration
async def prices(ctx: affinity.OrchestrationContext) -> None:
    event = await ctx.schedule_wait(Price)
    await ctx.schedule_timer(3600)
    event.reply(len(event.data))


async def test_revisits_come_a_day_later_each() -> None:
    async with Env(app) as env:
        talk = env.client.conversation(support, "c-1")
        assert (await talk.ask(UserMessage("nudge me"))).text == "yes"
        assert env.now() == env.started
        said = []
        async with talk.events(after=0, follow=True) as feed:
            async for item in feed:
                if isinstance(item, JournalEntry) and isinstance(item.event, AgentMessage):
                    said.append(item.event.text)
                    if len(said) == 4:
                        break
        assert said == ["yes", "still there? 1 daily", "still there? 2 daily", "still there? 3 daily"]
        assert 3 * DAY <= env.now() - env.started <= 3 * DAY + SLACK
        assert env.jumps == 3


async def test_a_request_expires() -> None:
    async with Env(app) as env:
        talk = env.client.conversation(support, "c-1")
        reply = await talk.ask(UserMessage("ask me"))
        assert reply.stop_reason == "requires_action"
        await env.advance(2 * DAY - SLACK)
        assert len(await talk.requests()) == 1
        await env.advance(2 * SLACK)
        assert not await talk.requests()
        said = [entry.event.text for entry in await talk.history() if isinstance(entry.event, AgentMessage)]
        assert said == ["user.tool_confirmation False"]


async def test_a_wake_that_fails_is_repeated_and_its_stream_retracted() -> None:
    async with Env(app) as env:
        talk = env.client.conversation(support, "c-1")
        seq = await talk.send(UserMessage("fail twice"))
        found: list[object] = []
        async with talk.events(after=seq, follow=True) as feed:
            async for item in feed:
                found.append(item)
                if isinstance(item, JournalEntry) and isinstance(item.event, AgentMessage):
                    break
        assert (await talk.reply(seq)).text == "at last"
        assert env.now() - env.started == timedelta(hours=2)
        shown = [item for item in found if isinstance(item, Streamed | Retracted)]
        assert [type(item) for item in shown[:2]] == [Streamed, Retracted]


async def test_an_ask_is_answered_after_an_hour() -> None:
    async with Env(app) as env:
        run = await env.client.start(prices)
        assert await run.ask(Price("tea")) == 3
        assert env.now() - env.started == timedelta(hours=1)


async def test_a_conversation_from_which_nothing_will_come_says_so() -> None:
    async with Env(app) as env:
        talk = env.client.conversation(support, "c-1")
        seq = (await talk.ask(UserMessage("hello"))).seq
        async with talk.events(after=seq, follow=True) as feed:
            with pytest.raises(NothingWillHappen, match="'c-1' waits for"):
                _ = [item async for item in feed]


async def test_an_ask_that_nothing_can_answer_says_so() -> None:
    """With the sentence of `affinity.explain`, once; a time-out has it in a field, too."""
    async with Env(app, workers=0) as env:
        talk = env.client.conversation(support, "c-1")
        expected = "'c-1' waits for a worker: none is alive; start one"
        with pytest.raises(NothingWillHappen) as raised:
            await talk.ask(UserMessage("hello"))
        assert str(raised.value) == f"nothing will ever happen: {expected}"
        with pytest.raises(WaitTimeout) as late, env.freeze():
            await talk.ask(UserMessage("hello"), timeout=0.05)
        assert str(late.value).count(expected) == 1
        assert late.value.waits_for is not None
        with pytest.raises(WaitTimeout) as late, env.freeze():
            await env.client.wait("c-1", 0.05)
        assert str(late.value).count(expected) == 1
        assert late.value.waits_for is not None


@pytest.mark.slow
async def test_an_env_that_has_ended_leaves_nothing_behind(env_url: str | None) -> None:
    """The app outlives it."""
    async with Env(app, url=env_url) as env:
        worker = ref(env._find_worker("worker-0"))
        await env.client.conversation(support, "c").ask(UserMessage("hi"))
    del env
    await anyio.sleep(0)
    gc.collect()
    assert worker() is None


async def test_the_trace_of_a_running_wake_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a worker, after some real time: the clock of the database need not move."""
    monkeypatch.setattr(shown_trace, "SHOWN_AFTER", 0.02)
    free = anyio.Event()
    chats = affinity.Conversations(Chat, kind="traced")

    @chats.on_wake
    async def handle(wake: affinity.Wake, chat: Chat) -> None:
        with wake.span("search"):
            await free.wait()

    app = affinity.App("traced")
    app.include(chats)
    async with Env(app) as env:
        talk = env.client.conversation(chats, "c")
        seq = await talk.send(affinity.conversation.UserMessage("x"))
        with anyio.fail_after(30):
            while not (spans := await talk.history(kinds=["span.started"])):
                await anyio.sleep(0.01)
        assert [each.event.name for each in spans] == ["traced.wake", "search"]  # type: ignore[attr-defined]
        free.set()
        await talk.reply(seq)
        assert len(await talk.history(kinds=["span.started", "span.completed"])) == 4
