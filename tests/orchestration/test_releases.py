"""Sessions that an orchestration releases: recorded in its order, and the same on replay."""

from __future__ import annotations

import pytest

from affinity import OrchestrationContext
from affinity.errors import InvalidId, Nondeterminism, OrchestrationMisuse
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution

from .harness import Live, define, new_events


async def releases(ctx: OrchestrationContext) -> int:
    await ctx.schedule_timer(1)
    ctx.release_session("s")
    return 1


def test_a_release_is_recorded_where_the_code_asks_for_it() -> None:
    """Also in the step with which the execution ends."""
    live = Live(releases)
    live.start()
    step = live.feed(ev.TimerFired(2))
    assert new_events(step)[1:] == [ev.SessionReleased("s"), ev.OrchestrationCompleted("1")]
    assert live.outcome == ev.OrchestrationCompleted("1")


def test_a_replay_must_release_the_same_session() -> None:
    execution = Execution(define(releases), "i", 1)
    start = ev.OrchestrationStarted("releases", "1.0.0", "null")
    with pytest.raises(Nondeterminism) as caught:
        execution.replay([start, ev.TimerCreated(1.0), ev.TimerFired(2), ev.SessionReleased("t")])
    assert (caught.value.expected, caught.value.actual) == (
        "SessionReleased('t') as event 4",
        "SessionReleased('s')",
    )


def test_a_session_must_be_named_unless_the_instance_has_one() -> None:
    async def unnamed(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidId):
            ctx.release_session("")
        with pytest.raises(OrchestrationMisuse, match="name the session"):
            ctx.release_session()

    live = Live(unnamed)
    live.start()
    assert live.outcome == ev.OrchestrationCompleted("null")
