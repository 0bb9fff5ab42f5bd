"""News of a session's moves: one per change, for each session apart, and none lost between two awaits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from affinity import OrchestrationContext, SessionMoved
from affinity.errors import InvalidId, Nondeterminism, NotSerializable
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution
from affinity.orchestration.waits import MOVED as MOVED_CODEC
from affinity.orchestration.waits import RESERVED_PREFIX, moved_event, moved_name
from affinity.orchestration.wire import ANY_EXECUTION, decode_event, encode_event, encode_message, read_message

from .harness import Live, define, moved, new_events, run

MOVED = moved("s")


RESULT = '{"session_id":"s","worker_id":"w","epoch":7,"reason":"drained"}'
"""What an orchestration returns that returns a move."""


async def hears_two(ctx: OrchestrationContext) -> list[SessionMoved]:
    first = await ctx.schedule_session_moved("s")
    await ctx.schedule_timer(1)
    return [first, await ctx.schedule_session_moved("s")]


def test_the_first_wait_of_an_execution_sets_a_watch() -> None:
    live = Live(hears_two)
    assert new_events(live.start())[1:] == [ev.SessionWatched("s"), ev.EventAwaited(moved_name("s"))]
    live.feed(MOVED)
    step = live.feed(ev.TimerFired(5))
    assert new_events(step)[1:] == [ev.EventAwaited(moved_name("s"))]
    live.feed(MOVED)
    assert live.outcome == ev.OrchestrationCompleted(f"[{RESULT},{RESULT}]")


def test_a_move_between_two_waits_is_neither_lost_nor_doubled() -> None:
    async def counts(ctx: OrchestrationContext) -> int:
        moves = 0
        await ctx.schedule_session_moved("s")
        await ctx.schedule_timer(1)
        while (await ctx.select(ctx.schedule_session_moved("s"), ctx.schedule_timer(2))).index == 0:
            moves += 1
        return moves

    live = run(counts, MOVED, MOVED, MOVED, ev.TimerFired(5))
    live.feed(ev.TimerFired(len(live.history)))
    assert live.outcome == ev.OrchestrationCompleted("2")


def test_moves_of_sessions_and_other_events_are_distinct() -> None:
    async def several(ctx: OrchestrationContext) -> tuple[SessionMoved, SessionMoved, int]:
        return await ctx.gather(
            ctx.schedule_session_moved("a"), ctx.schedule_session_moved("b"), ctx.schedule_wait("session_moved", int)
        )

    live = run(several, moved("b"), ev.EventRaised("session_moved", "7"))
    assert not live.execution.finished
    live.feed(moved("a"))
    assert isinstance(live.outcome, ev.OrchestrationCompleted)
    a, b, other = json.loads(live.outcome.result)
    assert (a["session_id"], b["session_id"], other) == ("a", "b", 7)


def test_a_wait_that_was_never_recorded_has_asked_all_the_same() -> None:
    """A select that is decided immediately leaves no trace of its losers; later moves must be delivered."""

    async def main(ctx: OrchestrationContext) -> SessionMoved:
        await ctx.schedule_timer(1)
        assert (await ctx.select(ctx.schedule_wait("e"), ctx.schedule_session_moved("s"))).index == 0
        await ctx.schedule_activity("work").on_session("s")
        return await ctx.schedule_session_moved("s")

    live = run(main, ev.EventRaised("e", "1"))
    step = live.feed(ev.TimerFired(2))
    assert new_events(step)[1:3] == [ev.EventAwaited("e"), ev.SessionWatched("s")]
    assert not any(isinstance(event, ev.EventAwaitCancelled) for event in live.history)
    live.feed(MOVED)
    step = live.complete(len(live.history) - 1)
    assert ev.SessionWatched("s") not in new_events(step)
    assert live.outcome == ev.OrchestrationCompleted(RESULT)


def test_a_wait_that_loses_swallows_no_move() -> None:
    async def patient(ctx: OrchestrationContext) -> Any:
        await ctx.select(ctx.schedule_session_moved("s"), ctx.schedule_timer(1))
        return await ctx.schedule_session_moved("s")

    live = run(patient, ev.TimerFired(4))
    assert live.history[-2:] == [ev.EventAwaitCancelled(3), ev.EventAwaited(moved_name("s"))]
    live.feed(MOVED)
    assert live.outcome == ev.OrchestrationCompleted(RESULT)


def test_moves_are_carried_over() -> None:
    async def again(ctx: OrchestrationContext, once: bool) -> Any:
        if once:
            return await ctx.schedule_session_moved("s")
        await ctx.schedule_session_moved("s")
        await ctx.schedule_timer(1)
        ctx.continue_as_new(True)

    live = Live(again)
    live.start("false")
    for event in (MOVED, MOVED, ev.TimerFired(5)):
        live.feed(event)
    assert isinstance(live.outcome, ev.ContinuedAsNew)
    assert live.outcome.carried == (ev.CarriedEvent(MOVED.name, MOVED.data),)

    following = Live(again, execution_id=2)
    step = following.start(live.outcome.input, carried=live.outcome.carried)
    assert ev.SessionWatched("s") in new_events(step)  # once in each execution
    assert following.outcome == ev.OrchestrationCompleted(RESULT)


def test_asking_right_before_continue_as_new_is_recorded() -> None:
    async def again(ctx: OrchestrationContext) -> None:
        ctx.schedule_session_moved("s")
        ctx.continue_as_new()

    live = run(again)
    assert live.history[1:] == [ev.SessionWatched("s"), ev.ContinuedAsNew("null")]


def test_another_session_than_recorded() -> None:
    execution = Execution(define(hears_two), "i", 1)
    with pytest.raises(Nondeterminism) as caught:
        execution.replay([ev.OrchestrationStarted("hears_two", "1.0.0", "null"), ev.SessionWatched("t")])
    assert caught.value.expected == "SessionWatched('t') as event 2"
    assert caught.value.actual == "SessionWatched('s')"


@pytest.mark.parametrize("session_id", ["", "a\nb", "é" * 129, None, 5])
def test_a_bad_session_id(session_id: Any) -> None:
    async def main(ctx: OrchestrationContext) -> str:
        with pytest.raises(InvalidId, match="session id"):
            ctx.schedule_session_moved(session_id)
        return repr(await ctx.schedule_session_moved("é" * 128))

    live = run(main, moved("é" * 128))
    known = f"session_id='{'é' * 128}', worker_id='w', epoch=7, reason='drained'"
    assert live.outcome == ev.OrchestrationCompleted(f'"SessionMoved({known})"')


@pytest.mark.parametrize("name", [RESERVED_PREFIX, moved_name("s")])
def test_a_reserved_name_cannot_be_awaited(name: str) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(InvalidId, match="reserved"):
            ctx.schedule_wait(name)
        await ctx.schedule_wait("affinity")

    assert run(main).history[-1] == ev.EventAwaited("affinity")


def test_its_future_has_a_description() -> None:
    async def main(ctx: OrchestrationContext) -> str:
        future = ctx.schedule_session_moved("s")
        await future
        return repr(future)

    assert run(main, MOVED).outcome == ev.OrchestrationCompleted("\"<move of session 's', settled>\"")


def test_a_move_says_where_the_session_is_and_why() -> None:
    """The provider adds it to the message; it is recorded with the event, and a replay gives it again."""

    async def main(ctx: OrchestrationContext) -> str:
        move = await ctx.schedule_session_moved("s")
        return f"{move.worker_id} {move.epoch} {move.reason}"

    sent = encode_message(ANY_EXECUTION, moved_event("s"))
    added = sent[:-1] + ',"move":{"worker_id" : "w\\"1", "epoch" : 7, "reason" : "drained"}}'
    event = read_message(added).event
    live = run(main, event)
    assert live.outcome == ev.OrchestrationCompleted('"w\\"1 7 drained"')
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("move", ["5", "null", "[1]", '{"epoch":"x"}'])
def test_a_move_that_cannot_be_read_harms_the_event_only(move: str) -> None:
    """A move that is no object is left out; a wrong value is an error at the wait, as for any event."""
    text = encode_message(ANY_EXECUTION, moved_event("s"))[:-1] + f',"move":{move}}}'
    event = read_message(text).event
    if move.startswith("{"):
        with pytest.raises(NotSerializable, match="data of a session's move"):
            MOVED_CODEC.decode(event.data)  # type: ignore[union-attr]
    else:
        assert event == moved_event("s")
