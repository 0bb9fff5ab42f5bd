"""Traces of wakes, and races that lose or repeat nothing; one test for each promise."""

from __future__ import annotations

import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.conversation import (
    AgentMessage,
    ConversationIdle,
    SpanCompleted,
    SpanStarted,
    ToolConfirmation,
    UserMessage,
)
from affinity.errors import (
    WakeFailed,
)
from tests.conversation.application import Chat, Stage, echo, stage, status, until
from tests.conversation.request_handler import ONCE, said

pytestmark = pytest.mark.anyio


# -- traces


async def test_entries_name_their_wake_which_is_read_as_a_trace(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), timeout=30)
        second = await talk.ask(UserMessage("two"), timeout=30)
        trace = await talk.trace(second.wake_id)
        assert {each.wake_id for each in trace} == {second.wake_id} != {first.wake_id}
        assert trace == second.entries


async def test_the_whole_trace_is_given(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        for number in range(250):
            wake.append(AgentMessage(str(number)))

    async with stage(sqlite_url, handler) as on:
        reply = await on.talk().ask(UserMessage("x"), timeout=30)
        trace = await on.talk().trace(reply.wake_id)
        assert len(trace) == 253
        assert len(reply.entries) == 253


async def test_traces_have_spans_of_the_wake_and_of_tools(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        with wake.span("tool"):
            pass

    async with stage(sqlite_url, handler) as on:
        reply = await on.talk().ask(UserMessage("x"), timeout=30)
        begun = [each.event.name for each in reply.entries if isinstance(each.event, SpanStarted)]
        ended = [each.event.name for each in reply.entries if isinstance(each.event, SpanCompleted)]
        assert begun == ["chat.wake", "tool"]
        assert ended == ["tool", "chat.wake"]


async def failed(on: Stage) -> affinity.ConversationHandle:
    with pytest.raises(WakeFailed):
        await on.talk().ask(UserMessage("x"), timeout=30)
    return on.talk()


async def breaks(wake: Wake, chat: Chat) -> None:
    raise ValueError("broken")


async def test_a_run_that_fails_closes_its_trace_with_an_error(sqlite_url: str) -> None:
    async with stage(sqlite_url, breaks, retry=ONCE) as on:
        (ended,) = [each.event for each in await (await failed(on)).history(kinds=["span.completed"])]
        assert isinstance(ended, SpanCompleted)
        assert ended.error is not None
        assert (ended.result, ended.error.type) == ("error", "ValueError")


async def test_a_run_that_fails_leaves_a_summary_that_says_so(sqlite_url: str) -> None:
    async with stage(sqlite_url, breaks, retry=ONCE) as on:
        (idle,) = [each.event for each in await (await failed(on)).history(kinds=["conversation.idle"])]
        assert isinstance(idle, ConversationIdle)
        assert idle.stop_reason == "failed"
        assert idle.error is not None
        assert idle.error.message == "broken"


async def test_a_run_that_fails_does_not_leave_the_session_running(sqlite_url: str) -> None:
    async with stage(sqlite_url, breaks, retry=ONCE) as on:
        talk = await failed(on)
        assert await until(lambda: status(talk, "failed"))
        assert len(await talk.history(pending=True)) == 1  # kept


# -- races and failures


async def test_no_tail_of_a_journal_is_torn(sqlite_url: str) -> None:
    """A run that fails after it has appended leaves none of that, and no part of its state."""

    async def handler(wake: Wake, chat: Chat) -> None:
        chat.received.append("half")
        wake.append(AgentMessage("half"))
        wake.require(ToolConfirmation("half"))
        wake.revisit(0.01)
        if wake.attempt == 1:
            raise ValueError("torn")

    async with stage(sqlite_url, handler, retry=RetryPolicy(initial_interval=0.01)) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)
        assert await said(on.talk()) == ["half"]
        assert len(await on.talk().requests()) == 1
        assert (await on.state()).received[:1] == ["half"]


async def test_no_wake_up_is_lost_that_comes_while_a_run_ends(sqlite_url: str) -> None:
    """It comes behind what the run has read, and nothing comes afterwards."""
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()
        await echo(wake, chat)

    async with stage(sqlite_url, handler) as on:
        await on.talk().send(UserMessage("one"))
        await entered.wait()
        seq = await on.talk().send(UserMessage("two"))
        await anyio.sleep(0.3)  # its signal is there too
        go.set()
        assert (await on.talk().reply(seq, timeout=30)).text == "re: two"


async def test_racing_senders_and_wakes_lose_nothing_and_do_nothing_twice(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        seqs: list[int] = []

        async def send(number: int) -> None:
            for part in range(10):
                seqs.append(await on.talk().send(UserMessage(f"{number}.{part}")))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(send, number)
        await on.talk().reply(max(seqs), timeout=60)
        received = (await on.state()).received
        assert len(received) == len(set(received)) == 50
        assert await until(lambda: status(on.talk(), "idle"))


async def test_no_wake_up_is_lost_of_a_session_that_is_recreated(sqlite_url: str) -> None:
    """The journal is deleted under its instance, and its numbers begin again, below the processed ones."""
    async with stage(sqlite_url) as on:
        talk = on.talk()
        for text in ("one", "two", "three"):
            await talk.ask(UserMessage(text), timeout=30)
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        reply = await talk.ask(UserMessage("anew"), timeout=30)
        assert (reply.seq, reply.text) == (1, "re: anew")


async def test_a_poisonous_event_is_no_endless_loop(sqlite_url: str) -> None:
    runs = 0

    async def handler(wake: Wake, chat: Chat) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("poison")

    async with stage(sqlite_url, handler, retry=RetryPolicy(max_attempts=3, initial_interval=0.01)) as on:
        await failed(on)
        await anyio.sleep(0.5)
        assert runs == 3
        await failed(on)
        assert runs == 6


async def test_an_interrupt_is_not_undone_by_a_run_that_began_before_it(sqlite_url: str) -> None:
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.interrupt is None:
            entered.set()
            await go.wait()
            wake.require(ToolConfirmation("refund"))
            wake.revisit(0.01)

    async with stage(sqlite_url, handler) as on:
        talk = on.talk()
        first = await talk.send(UserMessage("x"))
        await entered.wait()
        seq = await talk.interrupt()
        go.set()
        await talk.reply(first, timeout=30)
        assert await talk.requests() == []
        await talk.reply(seq, timeout=30)
        assert await talk.requests() == []
        assert await talk.revisits() == []


async def test_racing_senders_of_one_event_make_one(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        seqs: list[int] = []

        async def send() -> None:
            seqs.append(await on.talk().send(UserMessage("x"), event_id="m-1"))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(send)
        assert set(seqs) == {1}
        await on.talk().reply(1, timeout=30)
        assert (await on.state()).received == ["x"]


async def test_racing_revisits_of_one_key_are_one(sqlite_url: str) -> None:
    """Also when it is requested again in the run for which it is due."""

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.due:
            chat.received.append(" ".join(each.key for each in wake.due))
        if wake.pending or len(chat.received) < 2:
            wake.revisit(0.05, key="only")
            wake.revisit(0.01, key="only")

    async with stage(sqlite_url, handler) as on:
        for _ in range(3):
            await on.talk().ask(UserMessage("x"), timeout=30)

        async def done() -> bool:
            received, revisits = (await on.state()).received, await on.talk().revisits()
            assert len(revisits) <= 1
            assert set(received) <= {"only"}
            assert len(received) <= 4  # one for each message, and one more: fewer where messages come before it is due
            return len(received) >= 2 and not revisits

        assert await until(done)
