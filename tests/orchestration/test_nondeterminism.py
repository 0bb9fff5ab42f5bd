"""Code that asks for something else than its history records: what was expected, and what came."""

from __future__ import annotations

from typing import Any

import pytest

from affinity import OrchestrationContext
from affinity.errors import Nondeterminism
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution

from .harness import Orchestration, define

STARTED = ev.OrchestrationStarted("main", "1.0.0", "null")
A = ev.ActivityScheduled("a", "null")


def replay(function: Orchestration, *history: ev.Event) -> Execution:
    execution = Execution(define(function), "i", 1)
    execution.replay([STARTED, *history])
    return execution


async def calls_a(ctx: OrchestrationContext) -> Any:
    return await ctx.schedule_activity("a")


async def a_on_s(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("a").on_session("s")


async def a_in_order(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("a").on_session("s", ordered=True)


async def sleeps(ctx: OrchestrationContext) -> None:
    await ctx.schedule_timer(5)


async def ends(ctx: OrchestrationContext) -> None: ...


async def waits(ctx: OrchestrationContext) -> None:
    await ctx.schedule_wait("e")


async def has_child(ctx: OrchestrationContext) -> None:
    await ctx.schedule_sub_orchestration("c", instance_id="one")


async def races(ctx: OrchestrationContext) -> None:
    await ctx.select(ctx.schedule_activity("a"), ctx.schedule_timer(5))
    await ctx.schedule_wait("e")


async def guid(ctx: OrchestrationContext) -> str:
    return await ctx.new_guid()


@pytest.mark.parametrize(
    ("function", "history", "expected", "actual"),
    [
        (calls_a, [ev.ActivityScheduled("b", "1")], "ActivityScheduled('b') as event 2", "ActivityScheduled('a')"),
        (calls_a, [ev.TimerCreated(1.0)], "TimerCreated(1 s) as event 2", "ActivityScheduled('a')"),
        (
            calls_a,
            [ev.ActivityScheduled("a", "null", "s")],
            "ActivityScheduled('a', session_id='s') as event 2",
            "ActivityScheduled('a')",
        ),
        (a_on_s, [A], "ActivityScheduled('a') as event 2", "ActivityScheduled('a', session_id='s')"),
        (
            a_on_s,
            [ev.ActivityScheduled("a", "null", "t")],
            "ActivityScheduled('a', session_id='t') as event 2",
            "ActivityScheduled('a', session_id='s')",
        ),
        (
            a_on_s,
            [ev.ActivityScheduled("a", "null", "s", ordered=True)],
            "ActivityScheduled('a', session_id='s', ordered=True) as event 2",
            "ActivityScheduled('a', session_id='s')",
        ),
        (
            a_in_order,
            [ev.ActivityScheduled("a", "null", "s")],
            "ActivityScheduled('a', session_id='s') as event 2",
            "ActivityScheduled('a', session_id='s', ordered=True)",
        ),
        (
            calls_a,
            [ev.ActivityScheduled("a", "null", tag="gpu")],
            "ActivityScheduled('a', tag='gpu') as event 2",
            "ActivityScheduled('a')",
        ),
        (sleeps, [ev.TimerCreated(6.0)], "TimerCreated(6 s) as event 2", "TimerCreated(5 s)"),
        (waits, [ev.EventAwaited("f")], "EventAwaited('f') as event 2", "EventAwaited('e')"),
        (
            has_child,
            [ev.SubOrchestrationScheduled("c", None, "two", "null")],
            "SubOrchestrationScheduled('c', instance_id='two') as event 2",
            "SubOrchestrationScheduled('c', instance_id='one')",
        ),
        (calls_a, [], "no event after 1", "ActivityScheduled('a')"),
        (calls_a, [ev.EventRaised("e", "1")], "EventRaised('e') as event 2", "ActivityScheduled('a')"),
        (
            calls_a,
            [A, ev.TimerCreated(1.0)],
            "TimerCreated(1 s) as event 3",
            "nothing but wait for activity 'a'",
        ),
        (
            calls_a,
            [A, ev.TimerFired(2)],
            "TimerFired(of event 2) as event 3",
            "nothing but wait for activity 'a'",
        ),
        (
            calls_a,
            [A, ev.ActivityCompleted(2, "1"), ev.TimerCreated(1.0)],
            "TimerCreated(1 s) as event 4",
            "OrchestrationCompleted",
        ),
        (ends, [A], "ActivityScheduled('a') as event 2", "OrchestrationCompleted"),
        (ends, [ev.OrchestrationCompleted("1"), ev.EventRaised("e", "1")], "EventRaised('e') as event 3", "end: Orch"),
        (ends, [ev.ContinuedAsNew("null")], "ContinuedAsNew as event 2", "OrchestrationCompleted"),
        (guid, [ev.TimeRead(1.0)], "TimeRead as event 2", "GuidCreated"),
        (
            races,
            [A, ev.TimerCreated(5.0), ev.ActivityCompleted(2, "1"), ev.TimerCancelled(9)],
            "TimerCancelled(of event 9) as event 5",
            "TimerCancelled(of event 3)",
        ),
        (
            races,
            [A, ev.TimerCreated(5.0), ev.ActivityCompleted(2, "1"), ev.EventAwaited("e")],
            "EventAwaited('e') as event 5",
            "TimerCancelled(of event 3)",
        ),
    ],
)
def test_mismatches(function: Orchestration, history: list[ev.Event], expected: str, actual: str) -> None:
    with pytest.raises(Nondeterminism) as caught:
        replay(function, *history)
    assert caught.value.expected == expected
    assert caught.value.actual.startswith(actual)


def test_a_history_that_does_not_start() -> None:
    execution = Execution(define(ends), "i", 1)
    with pytest.raises(Nondeterminism, match="the code now does not start"):
        execution.replay([A])


def test_inputs_may_change() -> None:
    async def formats(ctx: OrchestrationContext) -> Any:
        return await ctx.schedule_activity("a", {"new": "form"})

    recorded = ev.ActivityScheduled("a", '{"old":"form"}', None, None, 5.0)
    execution = replay(formats, recorded)
    assert execution.pending_activities == {2: recorded}  # what was recorded stands


def test_recorded_values_stand() -> None:
    execution = replay(guid, ev.GuidCreated("recorded"), ev.OrchestrationCompleted('"recorded"'))
    assert execution.outcome == ev.OrchestrationCompleted('"recorded"')
