"""Wakes: one at a time, repeated after failures, retried by a policy, cancelled by interrupts."""

from __future__ import annotations

import anyio
import pytest

import affinity
from affinity import AgentMessage, RetryPolicy, UserMessage, Wake
from affinity.errors import InvalidApp, InvalidOptions, WakeFailed
from tests.conversation.application import Chat, echo, kinds, make, stage, status, until

pytestmark = pytest.mark.anyio


async def test_a_wake_processes_what_has_arrived(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        second = await talk.ask(UserMessage("two"), event_id="m-2", timeout=30)
        assert (first.text, second.text) == ("re: one", "re: two")
        assert kinds(second.entries) == ["span.started", "agent.message", "span.completed", "session.idle"]
        assert second.stop_reason == "end_turn"
        assert (await on.state()).heard == ["one", "two"]


async def test_the_same_event_id_is_one_event_and_wakes_nothing(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        again = await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        assert (again.seq, again.wake_id, again.text) == (first.seq, first.wake_id, first.text)
        assert (await on.state()).wakes == 1


async def test_what_arrives_during_a_wake_goes_to_the_next(url: str) -> None:
    entered, go = anyio.Event(), anyio.Event()
    batches: list[list[str]] = []

    async def slow(wake: Wake, chat: Chat) -> None:
        batches.append([event.text for event in wake.events if isinstance(event, UserMessage)])
        entered.set()
        await go.wait()
        wake.append(AgentMessage("done"))

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        await entered.wait()
        await talk.send(UserMessage("two"))
        last = await talk.send(UserMessage("three"))
        await anyio.sleep(0.1)
        assert len(batches) == 1
        go.set()
        reply = await talk.reply(last, timeout=30)
        assert batches == [["one"], ["two", "three"]]
        assert reply.processed == last


async def test_a_handler_that_raises_is_retried_by_its_policy(url: str) -> None:
    attempts: list[int] = []

    async def flaky(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        chat.heard.append("half")
        wake.append(AgentMessage("half"))
        if len(attempts) < 3:
            raise ValueError("not yet")

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01)
    async with stage(url, flaky, retry=policy) as on:
        reply = await on.talk().ask(UserMessage("one"), timeout=30)
        assert attempts == [1, 2, 3]
        assert (await on.state()).heard == ["half"]
        entries = [*(await on.talk().trace(reply.wake_id))]
        assert kinds(entries).count("agent.message") == 1
        assert [each.event.result for each in entries if isinstance(each.event, affinity.SpanCompleted)] == [
            "error",
            "error",
            "ok",
        ]


async def test_a_handler_that_fails_for_good_keeps_its_inputs_and_the_next_event_tries_again(url: str) -> None:
    broken = True
    seen: list[list[str]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        seen.append([event.text for event in wake.events if isinstance(event, UserMessage)])
        if broken:
            raise ValueError("broken")
        wake.append(AgentMessage("mended"))

    policy = RetryPolicy(max_attempts=2, initial_interval=0.01)
    async with stage(url, handler, retry=policy) as on:
        talk = on.talk()
        with pytest.raises(WakeFailed, match="ValueError: broken") as caught:
            await talk.ask(UserMessage("one"), timeout=30)
        assert caught.value.error_type == "ValueError"
        assert await until(lambda: status(talk, "failed"))
        await anyio.sleep(0.3)
        assert seen == [["one"], ["one"]]  # no hot loop
        broken = False
        reply = await talk.ask(UserMessage("two"), timeout=30)
        assert reply.text == "mended"
        assert seen[-1] == ["one", "two"]
        assert await until(lambda: status(talk, "idle"))


async def test_resume_tries_again(url: str) -> None:
    broken = True

    async def handler(wake: Wake, chat: Chat) -> None:
        if broken:
            raise ValueError("broken")
        wake.append(AgentMessage("mended"))

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("one"))
        assert await until(lambda: status(talk, "failed"))
        broken = False
        await talk.resume()
        assert await until(lambda: status(talk, "idle"))
        assert (await talk.reply(seq, timeout=30)).text == "mended"


async def test_resume_of_a_conversation_with_nothing_to_do_runs_nothing(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        before = await talk.history(last=1)
        await talk.resume()
        await anyio.sleep(0.3)
        assert await talk.history(last=1) == before
        assert (await on.state()).wakes == 1


def test_conversations_need_a_handler_and_options_that_fit() -> None:
    conversations = affinity.Conversations(Chat, kind="chat")
    with pytest.raises(InvalidApp, match="on_wake"):
        affinity.App("a").include(conversations)
    with pytest.raises(InvalidApp, match="async def"):
        conversations.on_wake(lambda wake, chat: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidOptions, match="max_cycles"):
        conversations.on_wake(max_cycles=0)
    with pytest.raises(InvalidOptions, match="commits with its journal"):
        affinity.Conversations(Chat, store=affinity.MemorySessionStore())
    with pytest.raises(InvalidApp, match="already"):
        make().on_wake(echo)
