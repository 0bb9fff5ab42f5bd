"""How an execution ends: cancelled, continued as new, failed from outside, full, or dropped from memory."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from affinity import OrchestrationCancelledSignal, OrchestrationContext
from affinity.errors import ExecutionLimitReached, NotSerializable
from affinity.orchestration import events as ev
from affinity.orchestration import history
from affinity.orchestration.engine import Execution

from .harness import Live, define, new_events, run

CANCEL = ev.CancelRequested("enough")


async def waits(ctx: OrchestrationContext) -> None:
    ctx.schedule_sub_orchestration("child")
    await ctx.gather(ctx.schedule_activity("a"), ctx.schedule_timer(5), ctx.schedule_wait("e"))


def test_cancelling_cancels_what_is_outstanding() -> None:
    live = Live(waits)
    live.start()
    step = live.feed(CANCEL)
    assert new_events(step) == [
        CANCEL,
        ev.ActivityCancelled(3),
        ev.TimerCancelled(4),
        ev.EventAwaitCancelled(5),
        ev.SubOrchestrationCancelled(2),
        ev.OrchestrationCancelled("enough"),
    ]


def test_cleanup_may_await_and_a_second_request_is_ignored() -> None:
    async def careful(ctx: OrchestrationContext) -> None:
        try:
            await ctx.schedule_wait("never")
        finally:
            await ctx.schedule_activity("cleanup")

    live = run(careful, CANCEL)
    assert live.feed(ev.CancelRequested("again")).events == []
    (cleanup,) = live.execution.pending_activities
    live.complete(cleanup)
    assert live.outcome == ev.OrchestrationCancelled("enough")


def test_except_exception_does_not_swallow_a_cancellation() -> None:
    async def greedy(ctx: OrchestrationContext) -> None:
        while True:
            try:
                await ctx.schedule_wait("never")
            except Exception:  # noqa: S112 - the point of the test
                continue

    assert run(greedy, CANCEL).outcome == ev.OrchestrationCancelled("enough")


def test_an_orchestration_may_catch_its_cancellation_and_complete() -> None:
    async def stubborn(ctx: OrchestrationContext) -> str:
        ctx.schedule_activity("background")
        try:
            await ctx.schedule_wait("never")
        except OrchestrationCancelledSignal as signal:
            return signal.reason
        return ""

    assert run(stubborn, CANCEL).outcome == ev.OrchestrationCompleted('"enough"')


def test_an_error_in_cleanup_fails_the_orchestration() -> None:
    async def clumsy(ctx: OrchestrationContext) -> None:
        try:
            await ctx.schedule_wait("never")
        finally:
            raise ValueError("boom")

    assert run(clumsy, CANCEL).outcome == ev.OrchestrationFailed("ValueError", "boom")


def test_a_request_in_the_first_batch() -> None:
    live = Live(waits)
    step = live.feed(ev.OrchestrationStarted("waits", "1.0.0", "null"), CANCEL)
    assert step.outcome == ev.OrchestrationCancelled("enough")


def test_a_request_before_the_start_spares_the_code() -> None:
    async def never(ctx: OrchestrationContext) -> None:
        raise AssertionError("ran")

    live = Live(never)
    live.feed(CANCEL)
    assert live.start().outcome == ev.OrchestrationCancelled("enough")


def test_cancelling_reaches_every_branch() -> None:
    seen: list[str] = []

    async def main(ctx: OrchestrationContext) -> None:
        async def branch(name: str) -> None:
            try:
                await ctx.schedule_timer(5)
            finally:
                await ctx.schedule_activity(name)
                seen.append(name)

        await ctx.gather(branch("a"), branch("b"))

    live = Live(main)
    live.start()
    live.feed(CANCEL)
    names = {event.name: i for i, event in live.execution.pending_activities.items()}
    live.complete(names["b"])
    assert not live.execution.finished
    live.complete(names["a"])
    assert live.outcome == ev.OrchestrationCancelled("enough")
    assert {"a", "b"} == set(seen)


async def again(ctx: OrchestrationContext, n: int) -> None:
    ctx.schedule_activity("background")
    await ctx.schedule_wait("go")
    ctx.continue_as_new(n + 1)


def test_continue_as_new() -> None:
    live = Live(again)
    live.start("1")
    step = live.feed(ev.EventRaised("x", "1"), ev.EventRaised("go", "1"), ev.EventRaised("y", "1"), CANCEL)
    assert step.outcome == ev.ContinuedAsNew("2", None, (ev.CarriedEvent("x", "1"),))
    assert step.consumed == 2  # the rest is for the next execution
    assert new_events(step)[-2:] == [ev.ActivityCancelled(2), step.outcome]
    assert live.feed(ev.EventRaised("y", "1")).consumed == 0


def test_continue_as_new_checks_its_input() -> None:
    async def careless(ctx: OrchestrationContext, n: int) -> str:
        with pytest.raises(NotSerializable, match=r"input of orchestration 'careless@1.0.0'"):
            ctx.continue_as_new("x")
        ctx.continue_as_new({"for": "another"}, version="2.0.0")

    assert run(careless, input="1").outcome == ev.ContinuedAsNew('{"for":"another"}', "2.0.0")


def test_a_full_history_is_not_for_the_code_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_HISTORY_EVENTS", 20)

    async def endless(ctx: OrchestrationContext) -> None:
        while True:
            await ctx.new_guid()

    async def turns(ctx: OrchestrationContext) -> None:
        while True:
            await ctx.schedule_wait("e")

    with pytest.raises(ExecutionLimitReached, match="continue_as_new"):
        Live(endless).start()
    live = Live(turns)
    live.start()
    for _ in range(9):
        live.feed(ev.EventRaised("e", "1"))
    with pytest.raises(ExecutionLimitReached):
        live.feed(ev.EventRaised("e", "1"))
    assert live.replayed().event_count == len(live.history) == 20
    assert live.replayed().outcome is None


def test_closing_runs_no_commands() -> None:
    seen: list[str] = []

    async def untidy(ctx: OrchestrationContext) -> None:
        async def branch() -> None:
            try:
                await ctx.schedule_timer(5)
            except BaseException:
                seen.append("branch")
                await ctx.schedule_timer(6)

        try:
            await ctx.gather(branch(), ctx.schedule_wait("e"))
        finally:
            ctx.logger.error("must not be seen")
            seen.append("main")
            ctx.set_custom_status("x")
            seen.append("never")

    live = Live(untidy)
    live.start()
    seen.clear()
    before = live.execution.event_count
    live.execution.close()
    live.execution.close()
    assert sorted(seen) == ["branch", "main"]
    assert live.execution.event_count == before


def test_closing_makes_no_noise(recwarn: pytest.WarningsRecorder) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def generator() -> Any:
            try:
                yield await ctx.schedule_activity("page")
            finally:
                await ctx.schedule_timer(2)

        class Foreign:
            def __await__(self) -> Any:
                yield None

        try:
            async for _ in generator():
                pass
        finally:
            await Foreign()

    execution = Execution(define(main), "i", 1)
    execution.advance([ev.OrchestrationStarted("main", "1.0.0", "null")], now=float, new_guid=str)
    execution.close()
    del execution
    gc.collect()
    assert not recwarn.list


def test_a_running_loop_does_not_adopt_generators() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def ticks() -> Any:
            while True:
                yield await ctx.schedule_activity("page")

        async for _ in ticks():
            pass

    async def worker() -> None:
        live = run(main)
        live.execution.close()
        await asyncio.get_running_loop().shutdown_asyncgens()

    asyncio.run(worker())
