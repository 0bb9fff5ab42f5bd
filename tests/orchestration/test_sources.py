"""The line of the code in the error of a replay that does not match."""

from __future__ import annotations

from inspect import getsourcelines
from typing import Any

import pytest

from affinity import OrchestrationContext
from affinity.errors import Nondeterminism
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution

from .harness import Orchestration, define

STARTED = ev.OrchestrationStarted("main", "1.0.0", "null")
A = ev.ActivityScheduled("a", "null")


def mismatch(function: Orchestration, *history: ev.Event, traced: bool = True) -> Nondeterminism:
    with pytest.raises(Nondeterminism) as caught:
        Execution(define(function), "i", 7, traced=traced).replay([STARTED, *history])
    assert caught.value.execution_id == 7
    return caught.value


def places(error: Nondeterminism, function: Orchestration) -> list[tuple[int, str]]:
    """The lines of the error, from the first one of the function, with the names of the functions."""
    _, first = getsourcelines(function)
    found = []
    for source in (error.source or "").split("; "):
        where, name = source.split(", in ")
        path, line = where.rsplit(":", 1)
        assert path == __file__
        found.append((int(line) - first, name))
    return found


async def helps(ctx: OrchestrationContext) -> None:
    await ctx.schedule_timer(1)


async def is_helped(ctx: OrchestrationContext) -> None:
    await helps(ctx)


async def creates_early(ctx: OrchestrationContext) -> None:
    timer = ctx.schedule_timer(1)
    activity = ctx.schedule_activity("b")
    await ctx.select(timer, activity)


async def branches(ctx: OrchestrationContext) -> None:
    async def branch() -> None:
        await ctx.schedule_activity("a")

    await ctx.gather(
        branch(),
        ctx.schedule_activity("a"),
    )


async def races(ctx: OrchestrationContext) -> None:
    await ctx.select(ctx.schedule_activity("a"), ctx.schedule_timer(5))
    await ctx.schedule_wait("e")


async def says(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("a")
    ctx.set_custom_status("x")
    await ctx.schedule_activity("a")


async def ends(ctx: OrchestrationContext) -> None: ...


async def raises(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("a")
    int("x")


def test_the_line_of_a_request() -> None:
    """In the function that makes it, also if another line awaits it."""
    assert places(mismatch(is_helped, A), helps) == [(1, "helps")]
    error = mismatch(creates_early, ev.TimerCreated(1.0), A)
    assert (error.event_id, places(error, creates_early)) == (3, [(2, "creates_early")])
    error = mismatch(says, A, ev.ActivityCompleted(2, "1"), A)
    assert (error.event_id, places(error, says)) == (4, [(2, "says")])


def test_the_lines_at_which_code_waits() -> None:
    """Of each branch; and of the race whose loser is cancelled, which no line of the code asks for."""
    error = mismatch(branches, A, A, ev.EventRaised("e", "1"), ev.TimerCreated(1.0))
    assert places(error, branches) == [(4, "branches"), (2, "branch")]
    error = mismatch(races, A, ev.TimerCreated(5.0), ev.ActivityCompleted(2, "1"), ev.EventAwaited("e"))
    assert (error.event_id, places(error, races)) == (5, [(2, "races")])


def test_the_line_at_which_code_ends() -> None:
    """The one that raises, or the last one that waited; of code that never waits its first."""
    history: list[ev.Event] = [A, ev.ActivityCompleted(2, "1"), A]
    error = mismatch(raises, *history)
    assert places(error, raises) == [(2, "raises")]
    assert error.actual.startswith("OrchestrationFailed(ValueError: invalid literal")
    calls_a: Any = helps_twice
    assert places(mismatch(calls_a, ev.TimerCreated(1.0), ev.TimerFired(2), A), helps) == [(1, "helps")]
    assert places(mismatch(ends, A), ends) == [(0, "ends")]


async def helps_twice(ctx: OrchestrationContext) -> None:
    await helps(ctx)


def test_the_last_step_of_a_failed_execution_may_differ() -> None:
    """And no other."""
    failed = ev.OrchestrationFailed("ValueError", "once")
    history: list[ev.Event] = [STARTED, A, ev.ActivityCompleted(2, "1"), failed]
    for page in (1, 2, 4):
        execution = Execution(define(says), "i", 1)
        execution.begin_replay()
        for start in range(0, len(history), page):
            execution.replay_page(history[start : start + page])
        execution.end_replay()
        assert (execution.outcome, execution.event_count) == (failed, 4)
    error = mismatch(says, ev.ActivityScheduled("b", "null"), ev.ActivityCompleted(2, "1"), failed)
    assert error.event_id == 2


def test_a_live_execution_notes_no_lines() -> None:
    """The queue of requests is a plain one again after a replay."""
    execution = Execution(define(says), "i", 1, traced=True)
    execution.replay([STARTED, A])
    requests = execution._scheduler.pending
    assert type(requests).__name__ == "deque"
    step = execution.advance([ev.ActivityCompleted(2, "1")], now=float, new_guid=str)
    assert [type(event) for _, event in step.events] == [ev.ActivityCompleted, ev.CustomStatusSet, ev.ActivityScheduled]


def test_a_worker_names_the_line_that_waits() -> None:
    """Which costs its replays nothing. Code that has ended waits nowhere."""
    error = mismatch(creates_early, ev.TimerCreated(1.0), A, traced=False)
    assert places(error, creates_early) == [(3, "creates_early")]
    error = mismatch(branches, A, ev.TimerCreated(1.0), traced=False)
    assert places(error, branches) == [(2, "branch")]
    assert mismatch(ends, A, traced=False).source is None
