"""Revisits: later wakes that a wake asks for."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

import affinity
from affinity import RetryPolicy
from affinity.conversation import AgentMessage, SpanStarted, UserMessage
from affinity.errors import InvalidId, InvalidInput, InvalidOptions, PayloadTooLarge
from tests.conversation.application import Chat, stage, status, until

pytestmark = pytest.mark.anyio


async def test_a_revisit_runs_when_it_is_due_with_its_arguments(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.pending:
            wake.revisit(timedelta(milliseconds=300), key="nudge", priority="low", reason="no reply", note={"n": 1})
        for each in wake.due:
            wake.append(AgentMessage(f"{each.key} {each.reason} {each.note} {each.priority}"))

    async with stage(url, handler) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("one"), timeout=30)
        assert reply.stop_reason == "revisit"
        assert await talk.status() == "waiting"
        (pending,) = await talk.revisits()
        assert (pending.key, pending.reason, pending.note) == ("nudge", "no reply", {"n": 1})
        (said,) = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said.event == AgentMessage("nudge no reply {'n': 1} -10")
        assert said.wake_id != reply.wake_id
        assert await talk.revisits() == []
        (begun,) = [
            each.event
            for each in await talk.history(kinds=["span.started"])
            if isinstance(each.event, SpanStarted) and each.event.revisits
        ]
        assert begun.revisits == ["nudge"]


async def test_a_key_deduplicates_while_it_is_pending(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for _ in wake.pending:
            wake.revisit(60, key="nudge", reason=str(chat.wakes))
            wake.revisit(30, key="nudge", reason="again")
        chat.wakes += 1

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        await talk.ask(UserMessage("two"), timeout=30)
        (pending,) = await talk.revisits()
        assert pending.reason == "0"


async def test_revisits_that_are_due_together_come_by_priority_and_then_by_time(url: str) -> None:
    orders: list[list[str]] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.pending:
            wake.revisit(0.02, key="low", priority="low")
            wake.revisit(0.03, key="late")
            wake.revisit(0.0, key="early")
            wake.revisit(0.01, key="high", priority="high")
            wake.revisit(0.01, key="highest", priority=99)
            await anyio.sleep(0.2)
        else:
            orders.append([each.key for each in wake.due])

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        assert await until(lambda: _none(talk))
        seen = [key for order in orders for key in order]
        assert sorted(seen) == ["early", "high", "highest", "late", "low"]
        for order in orders:
            assert order == sorted(order, key=["highest", "high", "early", "late", "low"].index)


async def test_a_failed_run_keeps_them(url: str) -> None:
    broken = True

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.pending and not wake.due:
            return wake.revisit(0.05, key="nudge")
        if broken:
            raise ValueError("broken")
        wake.append(AgentMessage(",".join(each.key for each in wake.due)))

    async with stage(url, handler, retry=RetryPolicy(max_attempts=2, initial_interval=0.01)) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        assert await until(lambda: status(talk, "failed"))
        assert [each.key for each in await talk.revisits()] == ["nudge"]
        before = await talk.history(last=1)
        await anyio.sleep(0.3)
        assert await talk.history(last=1) == before  # no hot loop
        broken = False
        await talk.resume()
        (said,) = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said.event == AgentMessage("nudge")


async def test_a_revisit_may_ask_for_the_next_of_its_key(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        chat.wakes += 1
        if chat.wakes <= 3:
            wake.revisit(0.01, key="tick")

    async with stage(url, handler) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)

        async def ticked() -> bool:
            return (await on.state()).wakes == 4

        assert await until(ticked)


async def test_an_event_before_it_is_due_does_not_lose_it(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if "first" in [event.text for event in wake.events if isinstance(event, UserMessage)]:
            wake.revisit(0.6, key="nudge")
        chat.received += [each.key for each in wake.due]

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("first"), timeout=30)
        await talk.ask(UserMessage("second"), timeout=30)

        async def nudged() -> bool:
            return (await on.state()).received == ["nudge"]

        assert await until(nudged)


async def test_revisits_are_bounded_and_checked(sqlite_url: str) -> None:
    refused: list[type[Exception]] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.revisit(60)
        wake.revisit(60)
        with pytest.raises(InvalidInput, match="limit"):
            wake.revisit(60)
        refused.append(InvalidInput)

    async with stage(sqlite_url, handler, limits=affinity.ConversationLimits(revisits=2)) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert len(await on.talk().revisits()) == 2
        assert refused == [InvalidInput]


async def test_the_bound_of_revisits_counts_pending_ones(url: str) -> None:
    """Not of each wake: with fresh keys they would be without bound. A key that is pending counts once, and one that is
    due makes room.
    """
    refused: list[str] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        keys = [event.text for event in wake.events if isinstance(event, UserMessage)] or ["d", "e"]
        for key in keys:
            try:
                wake.revisit(0.01 if key == "b" else 600, key=key)
            except InvalidInput as error:
                refused.append(f"{key}: {error}")

    async with stage(url, handler, limits=affinity.ConversationLimits(revisits=2)) as on:
        talk = on.talk()
        for key in ("a", "a", "b"):
            await talk.ask(UserMessage(key), timeout=30)

        async def has_run() -> bool:
            return len(refused) == 1

        assert await until(has_run)
        assert refused == ["e: 2 revisits are pending, the limit of 2 (ConversationLimits)"]
        await talk.ask(UserMessage("a"), timeout=30)
        await talk.ask(UserMessage("f"), timeout=30)
        assert sorted([each.key for each in await talk.revisits()]) == ["a", "d"]
        assert [each[0] for each in refused] == ["e", "f"]


async def test_notes_count_for_the_bytes_of_a_wake(sqlite_url: str) -> None:
    """One transaction writes them, and each later wake reads them."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for _ in range(4):
            wake.revisit(60, note="x" * 2_000_000)
        with pytest.raises(PayloadTooLarge, match="over the limit"):
            wake.revisit(60, note="x" * 2_000_000)

    async with stage(sqlite_url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert len(await on.talk().revisits()) == 4


@pytest.mark.parametrize("reason", ["a\0b", "a\ud800"])
async def test_a_reason_that_no_store_takes_is_refused(url: str, reason: str) -> None:
    """The commit would be refused for good, and the instance suspended."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        with pytest.raises(InvalidId, match="reason of a revisit"):
            wake.revisit(60, reason=reason)

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)


async def test_a_priority_is_a_word_or_a_small_number(sqlite_url: str) -> None:
    refused: list[Exception] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for priority in (10_000, "urgent", True):
            try:
                wake.revisit(60, priority=priority)  # type: ignore[arg-type]
            except InvalidOptions as error:
                refused.append(error)

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert len(refused) == 3


async def _none(talk: affinity.ConversationHandle) -> bool:
    return not await talk.revisits() and await talk.status() == "idle"
