"""Waits that hold a session: when a hold begins, when it ends, and that replay begins none again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from affinity import OrchestrationContext
from affinity.errors import InvalidId, InvalidOptions, Nondeterminism
from affinity.limits import MAX_HOLD_SECONDS
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution

from .harness import Live, Orchestration, define, new_events, run

HOUR = ev.Hold("s", 3600.0)


async def held(ctx: OrchestrationContext) -> Any:
    return await ctx.schedule_wait("e", int, hold_session="s")


async def held_in_a_race(ctx: OrchestrationContext) -> int:
    won = await ctx.select(ctx.schedule_timer(5), ctx.schedule_wait("e", hold_session="s", hold_for=60))
    await ctx.schedule_timer(1)
    return won.index


async def held_twice(ctx: OrchestrationContext) -> tuple[int, int]:
    return await ctx.gather(
        ctx.schedule_wait("e", int, hold_session="s"), ctx.schedule_wait("e", int, hold_session="t", hold_for=9)
    )


def test_a_hold_begins_with_the_wait_and_ends_with_its_event() -> None:
    live = Live(held)
    step = live.start()
    assert new_events(step)[1:] == [ev.EventAwaited("e", HOUR)]
    assert (step.holds, step.ended_holds) == ({2: HOUR}, [])
    step = live.feed(ev.EventRaised("other", "1"))
    assert (step.holds, step.ended_holds) == ({}, [])
    step = live.feed(ev.EventRaised("e", "1"))
    assert (step.holds, step.ended_holds) == ({}, [2])
    assert live.outcome == ev.OrchestrationCompleted("1")


def test_a_wait_that_loses_ends_its_hold() -> None:
    live = Live(held_in_a_race)
    assert live.start().holds == {3: ev.Hold("s", 60.0)}
    step = live.feed(ev.TimerFired(2))
    assert ev.EventAwaitCancelled(3) in new_events(step)
    assert (step.holds, step.ended_holds) == ({}, [3])


def test_a_wait_whose_event_was_buffered_holds_nothing() -> None:
    live = Live(held)
    live.feed(ev.EventRaised("e", "1"))
    step = live.start()
    assert ev.EventAwaited("e", HOUR) in new_events(step)
    assert (step.holds, step.ended_holds) == ({}, [])
    assert live.outcome == ev.OrchestrationCompleted("1")


def test_a_wait_that_begins_and_ends_in_one_step_holds_nothing() -> None:
    live = Live(held_in_a_race)
    step = live.feed(ev.OrchestrationStarted("held_in_a_race", "1.0.0", "null"), ev.EventRaised("e", "1"))
    assert ev.EventAwaited("e", ev.Hold("s", 60.0)) in new_events(step)
    assert (step.holds, step.ended_holds) == ({}, [])


def test_holds_end_one_by_one() -> None:
    live = Live(held_twice)
    assert live.start().holds == {2: HOUR, 3: ev.Hold("t", 9.0)}
    assert live.feed(ev.EventRaised("e", "1")).ended_holds == [2]
    assert live.feed(ev.EventRaised("e", "2")).ended_holds == [3]


def test_an_event_that_goes_back_to_another_wait_ends_its_hold() -> None:
    async def two(ctx: OrchestrationContext) -> None:
        async def branch() -> None:
            ctx.schedule_wait("e", hold_session="loser")  # in the background of a branch that will lose
            await ctx.schedule_timer(9)

        background = ctx.schedule_wait("e", hold_session="heir")
        first = await ctx.schedule_wait("e")
        await ctx.select(branch(), ctx.schedule_activity("work"))
        await ctx.gather(background, ctx.schedule_timer(first))

    live = Live(two)
    assert live.start().holds == {2: ev.Hold("heir", 3600.0)}
    assert live.feed(ev.EventRaised("e", "1")).ended_holds == [2]
    assert list(live.feed(ev.EventRaised("e", "2")).holds) == [7]
    assert live.feed(ev.EventRaised("e", "3")).ended_holds == [7]


@pytest.mark.parametrize("ending", ["cancel", "continue"])
def test_the_end_of_the_execution_leaves_no_hold(ending: str) -> None:
    async def background(ctx: OrchestrationContext) -> None:
        ctx.schedule_wait("e", hold_session="s")
        await ctx.schedule_timer(1)
        ctx.continue_as_new()

    live = Live(background)
    assert live.start().holds == {2: HOUR}
    step = live.feed(ev.CancelRequested("enough") if ending == "cancel" else ev.TimerFired(3))
    assert step.outcome is not None
    assert (step.holds, step.ended_holds) == ({}, [2])


def test_replay_begins_no_hold_again_and_still_ends_it() -> None:
    live = Live(held_twice)
    live.start()
    live.feed(ev.EventRaised("e", "1"))
    again = live.replayed()
    step = live.advance(again, ev.EventRaised("noise", "1"))
    assert (step.holds, step.ended_holds) == ({}, [])
    step = live.advance(again, ev.EventRaised("e", "2"))
    assert (step.holds, step.ended_holds) == ({}, [3])


@pytest.mark.parametrize(
    ("function", "recorded", "expected", "actual"),
    [
        (held, None, "EventAwaited('e') as event 2", "EventAwaited('e', hold_session='s')"),
        (
            held,
            ev.Hold("t", 3600.0),
            "EventAwaited('e', hold_session='t') as event 2",
            "EventAwaited('e', hold_session='s')",
        ),
    ],
)
def test_another_session_than_recorded(
    function: Orchestration, recorded: ev.Hold | None, expected: str, actual: str
) -> None:
    history: list[ev.Event] = [ev.OrchestrationStarted("held", "1.0.0", "null"), ev.EventAwaited("e", recorded)]
    with pytest.raises(Nondeterminism) as caught:
        Execution(define(function), "i", 1).replay(history)
    assert (caught.value.expected, caught.value.actual) == (expected, actual)


def test_how_long_may_change() -> None:
    started = ev.OrchestrationStarted("held", "1.0.0", "null")
    execution = Execution(define(held), "i", 1)
    execution.replay([started, ev.EventAwaited("e", ev.Hold("s", 5.0))])
    step = Live(held).advance(execution, ev.EventRaised("e", "1"))
    assert step.ended_holds == [2]


@pytest.mark.parametrize("session_id", ["", "a\nb", "é" * 129, 5, b"s"])
def test_a_bad_session_id(session_id: Any) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidId, match="session id"):
            ctx.schedule_wait("e", hold_session=session_id)
        await ctx.schedule_wait("e", hold_session="é" * 128)

    assert run(main).history[-1] == ev.EventAwaited("e", ev.Hold("é" * 128, 3600.0))


@pytest.mark.parametrize("seconds", [0, -1, MAX_HOLD_SECONDS + 1, float("nan"), float("inf"), timedelta(0), "60", True])
def test_a_bad_length(seconds: Any) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidOptions, match="hold_for"):
            ctx.schedule_wait("e", hold_session="s", hold_for=seconds)
        await ctx.schedule_wait("e", hold_session="s", hold_for=timedelta(seconds=MAX_HOLD_SECONDS))

    assert run(main).history[-1] == ev.EventAwaited("e", ev.Hold("s", MAX_HOLD_SECONDS))


def test_a_length_without_a_session() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidOptions, match="without hold_session"):
            ctx.schedule_wait("e", hold_for=3600)
        await ctx.schedule_wait("e")

    assert run(main).history[-1] == ev.EventAwaited("e")
