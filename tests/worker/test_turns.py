"""The rows that a turn makes of children, held waits and watched sessions."""

from __future__ import annotations

import pytest

from affinity import OrchestrationContext
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution, Step
from affinity.orchestration.wire import ANY_EXECUTION
from affinity.provider.contract import Generation, SessionHold, SessionWatch, Turn
from affinity.worker.turns import build_turn
from tests.orchestration.harness import Live, moved
from tests.support.messages import decode_message


async def companion(ctx: OrchestrationContext) -> int:
    moves = 0
    while True:
        message, moved = ctx.schedule_wait("e", str, hold_session="s", hold_for=60), ctx.schedule_session_moved("s")
        won = await ctx.select(message, moved)
        if won.value == "again":
            ctx.continue_as_new()
        if won.value == "end":
            return moves
        moves += won.index


def turn_of(live: Live, step: Step) -> Turn:
    return build_turn(
        live.execution, step, generation=Generation("first"), first_version=None, consumed=[], acks=[], lock_here=0
    ).turn


@pytest.mark.parametrize("session_id", ["s", None])
def test_a_child_has_the_session_of_its_parent(session_id: str | None) -> None:
    async def parent(ctx: OrchestrationContext) -> None:
        await ctx.schedule_sub_orchestration("child")

    live = Live(parent)
    live.execution = Execution(live.definition, "i", 1, session_id)
    (child,) = turn_of(live, live.start()).instances
    assert (child.parent_id, child.session_id) == ("i", session_id)


def test_a_held_wait_makes_a_hold_and_a_watch() -> None:
    live = Live(companion)
    turn = turn_of(live, live.start())
    assert turn.holds == [SessionHold("s", 2, 60.0)]
    assert turn.ended_holds == []
    (watch,) = turn.watches
    assert watch.session_id == "s"


def test_what_a_watch_sends_is_what_the_wait_waits_for() -> None:
    live = Live(companion)
    (watch,) = turn_of(live, live.start()).watches
    added = watch.payload[:-1] + ',"move":{"worker_id":"w","epoch":7,"reason":"drained"}}'  # as the provider does
    execution_id, event = decode_message(added)
    assert (execution_id, event) == (ANY_EXECUTION, moved("s"))
    step = live.feed(event)
    assert ev.EventAwaitCancelled(2) in [event for _, event in step.events]
    live.feed(ev.EventRaised("e", '"end"'))
    assert live.outcome == ev.OrchestrationCompleted("1")


def test_the_turn_that_ends_a_wait_ends_its_hold() -> None:
    live = Live(companion)
    live.start()
    step = live.feed(ev.EventRaised("e", '"more"'))
    turn = turn_of(live, step)
    assert turn.ended_holds == [2]
    assert turn.holds == [SessionHold("s", turn.event_count + 3, 60.0)]  # behind the event and the loser's end
    assert list(turn.watches) == []


def test_an_unanswered_turn_repeats_no_hold_or_watch_after_replay() -> None:
    live = Live(companion)
    live.start()
    live.execution = live.replayed()
    turn = turn_of(live, live.feed(ev.EventRaised("other", "1")))
    assert [*turn.holds, *turn.ended_holds, *turn.watches] == []


def test_a_watch_outlives_its_execution_and_not_its_instance() -> None:
    async def asks(ctx: OrchestrationContext, again: bool) -> None:
        ctx.schedule_session_moved("s")
        if again:
            ctx.continue_as_new(False)

    continued, ended = Live(asks), Live(asks, instance_id="j")
    (watch,) = turn_of(continued, continued.start("true")).watches
    assert isinstance(watch, SessionWatch)
    assert turn_of(ended, ended.start("false")).watches == []
