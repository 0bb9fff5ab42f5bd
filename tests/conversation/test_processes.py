"""Wakes survive their processes: killed, paused, drained, or ended by the handler itself."""

from __future__ import annotations

import signal
from collections import Counter

import anyio
import pytest

from affinity import Client
from affinity.conversation import SpanCompleted, Streamed, UserMessage
from affinity.errors import WakeFailed
from tests.conversation.application import kinds, status, until
from tests.conversation.process_app import conversations
from tests.support.activity_calls import ActivityCalls
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

pytestmark = pytest.mark.anyio

APP = "tests.conversation.process_app:app"


async def state_of(client: Client, name: str) -> list[str]:
    async with conversations.open(name, store=client.session_store) as chat:
        return [*chat.received]


@on_all_databases
async def test_a_killed_worker_s_wake_is_repeated_from_the_committed_watermark(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """Nothing is lost, and nothing is in the journal or in the state twice: no torn tail."""
    first = workers.start("first", APP)
    talk = client.conversation(conversations, "c")
    one = await talk.send(UserMessage("one"), event_id="m-1")
    call = await calls.next()
    two = await talk.send(UserMessage("two"), event_id="m-2")
    first.send(signal.SIGKILL)
    workers.start("second", APP)
    again = await calls.next()
    assert (again["received"], again["wakes"]) == (["one", "two"], 1)
    assert again["wake"] == call["wake"]  # the same wake, another attempt
    await again.answer("ok")
    reply = await talk.reply(two, timeout=60)
    assert reply.text == "one,two: ok"
    assert (await talk.reply(one, timeout=60)).wake_id == reply.wake_id
    history = await talk.history()
    assert Counter(kinds(history)) == {
        "user.message": 2,
        "span.started": 1,
        "agent.message": 1,
        "span.completed": 1,
        "conversation.idle": 1,
    }
    assert [each.seq for each in history] == list(range(1, 7))
    assert await state_of(client, "c") == ["one", "two"]


@on_all_databases
async def test_a_paused_worker_cannot_commit_what_another_one_has_done(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    """Its lease is over: the wake runs elsewhere, and its own result is refused."""
    first = workers.start("first", APP)
    talk = client.conversation(conversations, "c")
    seq = await talk.send(UserMessage("one"))
    stale = await calls.next()
    first.pause()
    workers.start("second", APP)
    again = await calls.next()
    await again.answer("second")
    assert (await talk.reply(seq, timeout=60)).text == "one: second"
    first.send(signal.SIGCONT)
    await stale.answer("first")
    await talk.ask(UserMessage("quick"), timeout=60)
    assert [each.event.text for each in await talk.history(kinds=["agent.message"])] == [  # type: ignore[attr-defined]
        "one: second",
        "re: quick",
    ]
    assert await state_of(client, "c") == ["one", "quick"]


@on_all_databases
async def test_a_drained_worker_hands_its_wake_over_and_that_is_no_attempt(
    workers: Workers, client: Client, calls: ActivityCalls
) -> None:
    first = workers.start("first", APP, drain_timeout=0.2)
    talk = client.conversation(conversations, "c")
    seq = await talk.send(UserMessage("one"))
    await calls.next()
    workers.start("second", APP)
    first.send(signal.SIGTERM)
    again = await calls.next()
    assert again["worker"] == "second"
    streamed = anyio.Event()

    async def watch() -> None:
        async with talk.events(after=seq, follow=True) as feed:
            async for item in feed:
                if isinstance(item, Streamed):
                    return streamed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with anyio.fail_after(30):
            await streamed.wait()  # the new attempt streams, although it has the number of the one before
    await again.answer("ok")
    reply = await talk.reply(seq, timeout=60)
    (span,) = [each.event for each in reply.entries if isinstance(each.event, SpanCompleted)]
    assert (span.attempt, span.worker) == (1, "second")


@pytest.mark.slow
@on_all_databases
async def test_a_handler_that_ends_its_worker_is_poison_and_not_a_loop(workers: Workers, client: Client) -> None:
    """After `max_attempts` deliveries the conversation has failed, with a closed trace and its input kept."""
    for number in range(4):
        workers.start(f"w{number}", APP, max_attempts=3)
    talk = client.conversation(conversations, "c")
    with pytest.raises(WakeFailed, match="ActivityPoisoned"):
        await talk.ask(UserMessage("die"), timeout=150)
    assert await until(lambda: status(talk, "failed"))
    history = await talk.history()
    assert kinds(history) == ["user.message", "span.started", "span.completed", "conversation.idle"]
    closed = history[2].event
    assert isinstance(closed, SpanCompleted)
    assert closed.result == "error"
    assert [each.processed for each in await talk.wakes()] == [0]
    before = await talk.history(last=1)
    await anyio.sleep(1.0)
    assert await talk.history(last=1) == before
    reply = await talk.ask(UserMessage("quick"), timeout=60)
    assert reply.processed == reply.seq
