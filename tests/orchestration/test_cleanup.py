"""Code that goes on when its coroutine is closed: it ends, it is named, and it has no effect."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from affinity import OrchestrationContext
from affinity.errors import ActivityFailed, Nondeterminism
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution

from .harness import Live, define, run

ENOUGH = 10_000

# Python reports a coroutine that it ends itself.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Spins:
    """Counts how often code goes round, and ends it when it would not end by itself."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bool:
        self.count += 1
        return self.count < ENOUGH


again = Spins()


async def waits(ctx: OrchestrationContext) -> None:
    while again():
        with suppress(BaseException):  # as a bare except
            await ctx.schedule_wait("never")


async def awaits_one_future(ctx: OrchestrationContext) -> None:
    never = ctx.schedule_wait("never")
    while again():
        with suppress(BaseException):  # as a bare except
            await never


async def awaits_what_is_settled(ctx: OrchestrationContext) -> None:
    settled, never = ctx.new_guid(), ctx.schedule_wait("never")
    await settled
    while again():
        with suppress(BaseException):  # as a bare except
            await settled
            await never


async def calls_before_it_waits(ctx: OrchestrationContext) -> None:
    while again():
        with suppress(BaseException):  # as a bare except
            ctx.set_custom_status("polling")
            ctx.raise_event("another", "tick")
            await ctx.schedule_timer(60)


async def selects(ctx: OrchestrationContext) -> None:
    while again():
        with suppress(BaseException):  # as a bare except
            await ctx.select(ctx.schedule_timer(60), ctx.schedule_wait("never"))


async def starts_branches(ctx: OrchestrationContext) -> None:
    while again():
        with suppress(BaseException):  # as a bare except
            await ctx.gather(waits(ctx), ctx.schedule_wait("never"))


async def in_a_helper(ctx: OrchestrationContext) -> None:
    try:
        await waits(ctx)
    finally:
        await waits(ctx)


async def in_a_generator(ctx: OrchestrationContext) -> None:
    async def ticks() -> Any:
        while again():
            with suppress(BaseException):  # as a bare except
                yield await ctx.schedule_wait("never")

    async for _ in ticks():
        pass


async def in_a_context_manager(ctx: OrchestrationContext) -> None:
    class Manager:
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *error: object) -> None:
            await waits(ctx)

    async with Manager():
        await ctx.schedule_wait("never")


async def cancels_futures(ctx: OrchestrationContext) -> None:
    timer = ctx.schedule_timer(60)
    never = ctx.schedule_wait("never")
    while again():
        try:
            await ctx.wait_any(timer, never)
        except:  # noqa: E722
            timer.cancel()
            never.cancel()


ENDLESS = [
    waits,
    awaits_one_future,
    awaits_what_is_settled,
    calls_before_it_waits,
    selects,
    starts_branches,
    in_a_helper,
    in_a_generator,
    in_a_context_manager,
    cancels_futures,
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    again.count = 0
    yield
    gc.collect()  # in this test, so that the reports are of this test


@pytest.mark.parametrize("endless", ENDLESS)
@pytest.mark.parametrize("when", ["in memory", "replayed", "nondeterministic", "full"])
def test_an_await_of_a_dropped_execution_does_not_return(
    endless: Any, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    live = Live(endless)
    live.start()
    live.execution.close()
    again.count, before = 0, live.execution.event_count
    caplog.clear()
    if when == "in memory":
        execution = Execution(define(endless), "i", 1)
        live.advance(execution, live.history[0])
        execution.close()
    elif when == "replayed":
        execution = live.replayed()
        execution.close()
    elif when == "nondeterministic":
        execution = Execution(define(endless), "i", 1)
        with pytest.raises(Nondeterminism):
            execution.replay([*live.history, ev.ActivityScheduled("other", "null", None, None, None), live.history[0]])
    else:
        execution = live.replayed()
        execution.close()
        execution.close()
    assert again.count < ENOUGH / 2
    (line,) = caplog.messages
    assert "instance i was dropped from memory" in line
    assert __file__ in line
    assert live.execution.event_count == before


def test_cleanup_that_ends_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    async def tidy(ctx: OrchestrationContext) -> None:
        async def helper() -> None:
            try:
                await ctx.schedule_wait("never")
            finally:
                await ctx.schedule_activity("cleanup")
                ctx.set_custom_status("x")

        try:
            await helper()
        except Exception:
            pytest.fail("the code has not failed")
        finally:
            await ctx.schedule_activity("cleanup")

    live = run(tidy)
    live.execution.close()
    assert not caplog.messages


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, RuntimeError])
def test_what_cleanup_raises_stops_nothing(error: type[BaseException]) -> None:
    closed: list[str] = []

    async def main(ctx: OrchestrationContext) -> None:
        async def branch(name: str) -> None:
            try:
                await ctx.schedule_wait(name)
            finally:
                closed.append(name)
                raise error

        await ctx.gather(branch("a"), branch("b"))

    live = run(main)
    closed.clear()
    live.execution.close()
    assert sorted(closed) == ["a", "b"]


async def awaits_a_foreign_future(ctx: OrchestrationContext) -> None:
    while again():
        with suppress(Exception):
            await asyncio.sleep(0)


async def awaits_a_failed_activity(ctx: OrchestrationContext) -> None:
    work = ctx.schedule_activity("work")
    while again():
        with suppress(BaseException):
            await work
            return


async def awaits_a_cancelled_timer(ctx: OrchestrationContext) -> None:
    timer = ctx.schedule_timer(1)
    timer.cancel()
    while again():
        with suppress(Exception):
            await timer


async def in_a_failing_branch(ctx: OrchestrationContext) -> None:
    await ctx.gather(awaits_a_failed_activity(ctx), ctx.schedule_wait("never"))


@pytest.mark.parametrize(
    ("main", "text"),
    [
        (awaits_a_foreign_future, "asyncio.sleep(0)"),
        (awaits_a_failed_activity, "activity 'work' has failed, and is awaited again and again"),
        (awaits_a_cancelled_timer, "timer of 1 s has failed, and is awaited again and again"),
        (in_a_failing_branch, "activity 'work' has failed, and is awaited again and again"),
    ],
)
def test_code_that_catches_the_same_error_again_and_again_fails(main: Any, text: str) -> None:
    live = Live(main)
    live.start()
    if live.outcome is None:
        (number,) = live.execution.pending_activities
        live.feed(ev.ActivityFailed(number, "failed", "E", "m"))
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert text in live.outcome.message


def test_a_retry_that_waits_may_await_a_failed_future_often() -> None:
    async def main(ctx: OrchestrationContext) -> int:
        work, failures = ctx.schedule_activity("work"), 0
        for n in range(3_000):
            try:
                await work
            except ActivityFailed:
                failures += 1
            if n % 900 == 0:
                await ctx.schedule_timer(0)
        return failures

    live = run(main, ev.ActivityFailed(2, "failed", "E", "m"))
    while live.outcome is None:
        live.feed(ev.TimerFired(live.execution.event_count))
    assert live.outcome == ev.OrchestrationCompleted("3000")
