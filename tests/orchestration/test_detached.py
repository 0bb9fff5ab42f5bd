"""Instances that an orchestration starts and that are no children of it, and events that it sends."""

from __future__ import annotations

from zlib import crc32

import pytest

from affinity import OrchestrationContext
from affinity.errors import InvalidId, InvalidInput, Nondeterminism, OrchestrationMisuse
from affinity.limits import MAX_ID_BYTES
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution
from affinity.orchestration.wire import ANY_EXECUTION
from affinity.provider.contract import Generation
from affinity.worker.turns import build_turn
from tests.support.messages import decode_message

from .harness import Live, define, new_events

FIRST = f"i/{crc32(b'g1')}:2"
SECOND = f"i/{crc32(b'g2')}:6"


async def starts(ctx: OrchestrationContext) -> list[str]:
    first = await ctx.start_detached("archive", {"n": 1}, version="2.0.0")
    ctx.raise_event(first, "hello", [1])
    await ctx.schedule_timer(1)
    ctx.start_detached("archive")
    return [first, await ctx.start_detached("archive", instance_id="mine")]


def test_instances_and_events_are_recorded_where_the_code_asks_for_them() -> None:
    """Also in the step with which the execution ends."""
    live = Live(starts)
    assert new_events(live.start())[1:] == [
        ev.DetachedStarted("archive", "2.0.0", FIRST, '{"n":1}'),
        ev.EventSent(FIRST, "hello", "[1]"),
        ev.TimerCreated(1.0),
    ]
    assert new_events(live.feed(ev.TimerFired(4)))[1:] == [
        ev.DetachedStarted("archive", None, SECOND, "null"),
        ev.DetachedStarted("archive", None, "mine", "null"),
        ev.OrchestrationCompleted(f'["{FIRST}","mine"]'),
    ]


@pytest.mark.parametrize("end", ["return", "raise", "lose"])
def test_an_instance_starts_also_when_it_is_not_awaited(end: str) -> None:
    async def forgets(ctx: OrchestrationContext) -> None:
        async def branch() -> None:
            ctx.start_detached("archive")
            if end == "lose":
                await ctx.schedule_timer(9)

        await ctx.select(branch(), ctx.schedule_timer(1))
        ctx.start_detached("last")
        if end == "raise":
            raise ValueError

    live = Live(forgets)
    live.start()
    if end == "lose":
        live.feed(ev.TimerFired(2))
    assert [event.name for event in live.history if isinstance(event, ev.DetachedStarted)] == ["archive", "last"]
    assert isinstance(live.outcome, ev.OrchestrationFailed if end == "raise" else ev.OrchestrationCompleted)


def test_they_are_rows_of_the_turn_without_a_parent() -> None:
    live = Live(starts)
    step = live.start()
    turn = build_turn(
        live.execution, step, generation=Generation("first"), first_version=None, consumed=[], acks=[], lock_here=0
    ).turn
    (started,) = turn.instances
    assert (started.instance_id, started.name, started.version) == (FIRST, "archive", "2.0.0")
    assert (started.parent_id, started.parent_generation, started.on_exists, started.on_deleted) == (None,) * 4
    assert decode_message(started.start) == (ANY_EXECUTION, ev.OrchestrationStarted("archive", "2.0.0", '{"n":1}'))
    sent, _ = turn.messages
    assert sent.instance_id == FIRST
    assert decode_message(sent.payload) == (ANY_EXECUTION, ev.EventRaised("hello", "[1]"))


def test_the_default_id_fits_for_each_id_of_the_instance() -> None:
    live = Live(starts, instance_id="é" * (MAX_ID_BYTES // 2))
    started = new_events(live.start())[1]
    assert isinstance(started, ev.DetachedStarted)
    assert len(started.instance_id.encode()) <= MAX_ID_BYTES


@pytest.mark.parametrize(
    ("recorded", "actual"),
    [
        (ev.DetachedStarted("other", None, "i/1:2", "null"), "DetachedStarted('archive', instance_id='i/0:2')"),
        (ev.SubOrchestrationScheduled("archive", None, "i/1:2", "null"), "DetachedStarted('archive', "),
    ],
)
def test_a_replay_must_start_the_same(recorded: ev.Event, actual: str) -> None:
    execution = Execution(define(starts), "i", 1)
    with pytest.raises(Nondeterminism) as caught:
        execution.replay([ev.OrchestrationStarted("starts", "1.0.0", "null"), recorded])
    assert caught.value.actual.startswith(actual)


def test_a_replay_must_send_to_the_same_receiver() -> None:
    async def sends(ctx: OrchestrationContext) -> None:
        ctx.raise_event("a", "e")

    execution = Execution(define(sends), "i", 1)
    with pytest.raises(Nondeterminism) as caught:
        execution.replay([ev.OrchestrationStarted("sends", "1.0.0", "null"), ev.EventSent("b", "e", "null")])
    assert caught.value.expected == "EventSent('e', instance_id='b') as event 2"
    assert caught.value.actual == "EventSent('e', instance_id='a')"


def test_a_replay_takes_the_recorded_id() -> None:
    recorded = "i/7:2"  # the code would give it another number
    execution = Execution(define(starts), "i", 1)
    execution.replay(
        [
            ev.OrchestrationStarted("starts", "1.0.0", "null"),
            ev.DetachedStarted("archive", "2.0.0", recorded, "null"),
            ev.EventSent(recorded, "hello", "[1]"),
            ev.TimerCreated(1.0),
        ]
    )
    assert execution.event_count == 4


def test_a_reset_keeps_the_default_id_of_an_instance_that_was_started_before_it() -> None:
    live = Live(starts)
    live.start()
    again = Execution(live.definition, "i", 2)
    again.replay([*live.history, ev.ExecutionReset((ev.Ancestor(1, 4),))])
    assert again.event_count == 5


def test_what_is_no_receiver_or_no_event_is_refused() -> None:
    async def misuses(ctx: OrchestrationContext) -> None:
        for instance_id, name in (("", "e"), ("a", ""), ("a", "affinity:session_moved:s")):
            with pytest.raises(InvalidId):
                ctx.raise_event(instance_id, name)
        with pytest.raises(InvalidInput):
            ctx.raise_event("a", "e", object())
        guid = ctx.new_guid()
        with pytest.raises(OrchestrationMisuse, match="await it first"):
            ctx.raise_event("a", "e", guid)
        await guid
        with pytest.raises(InvalidId):
            ctx.start_detached("flow", instance_id="")
        with pytest.raises(OrchestrationMisuse, match="registered orchestration"):
            ctx.start_detached(print)  # type: ignore[arg-type]

    live = Live(misuses)
    live.start()
    assert live.outcome == ev.OrchestrationCompleted("null")


# --- the custom status and the version of the next execution


async def shows(ctx: OrchestrationContext) -> object:
    before = ctx.custom_status
    ctx.set_custom_status({"n": ctx.execution_id})
    if ctx.execution_id == 1:
        ctx.continue_as_new(version="latest")
    return [before, ctx.custom_status]


def test_the_custom_status_is_readable_and_kept() -> None:
    first = Live(shows)
    step = first.start()
    assert new_events(step)[1:] == [ev.CustomStatusSet('{"n":1}'), ev.ContinuedAsNew("null", "latest")]
    turn = build_turn(
        first.execution,
        step,
        generation=Generation("first"),
        first_version="1.0.0",
        consumed=[],
        acks=[],
        lock_here=0,
        latest_version=lambda _: "3.0.0",
    ).turn
    assert turn.update is not None
    assert turn.update.version == "3.0.0"
    _, started = decode_message(turn.messages[0].payload)
    assert started == ev.OrchestrationStarted("shows", "3.0.0", "null", custom_status='{"n":1}', continued=True)
    second = Live(shows, execution_id=2)
    second.start(custom_status='{"n":1}')
    assert second.outcome == ev.OrchestrationCompleted('[{"n":1},{"n":2}]')


def test_a_status_that_was_carried_over_is_recorded_when_it_is_set_again() -> None:
    async def same(ctx: OrchestrationContext) -> None:
        ctx.set_custom_status(1)
        await ctx.schedule_timer(1)

    live = Live(same, execution_id=2)
    step = live.start(custom_status="1")
    assert new_events(step)[1:] == [ev.CustomStatusSet("1"), ev.TimerCreated(1.0)]
