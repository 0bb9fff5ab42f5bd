"""External events: buffered in order, never lost, never swallowed by a wait that was cancelled."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from affinity import App, OrchestrationContext
from affinity.errors import ExecutionLimitReached
from affinity.orchestration import engine
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution

from .harness import Live, define, new_events, run, through_json


def raised(*values: int | str, name: str = "e") -> list[ev.EventRaised]:
    return [ev.EventRaised(name, str(value)) for value in values]


async def collect_three(ctx: OrchestrationContext) -> list[Any]:
    await ctx.schedule_timer(1)
    return [await ctx.schedule_wait("e") for _ in range(3)]


def test_events_before_the_wait_are_buffered_in_order() -> None:
    live = run(collect_three, *raised(1, 2), ev.TimerFired(2), *raised(3))
    assert live.outcome == ev.OrchestrationCompleted("[1,2,3]")


def test_a_wait_is_answered_by_its_own_name() -> None:
    async def named(ctx: OrchestrationContext) -> list[Any]:
        b, a = ctx.schedule_wait("b"), ctx.schedule_wait("a")
        return [await a, await b]

    live = run(named, *raised(1, name="a"), *raised(7, name="c"), *raised(2, name="b"))
    assert live.outcome == ev.OrchestrationCompleted("[1,2]")


def test_events_can_come_before_the_start() -> None:
    live = Live(collect_three)
    step = live.feed(*raised(1))
    assert new_events(step) == raised(1)
    step = live.feed(
        *raised(2), ev.OrchestrationStarted("collect_three", "1.0.0", "null"), *raised(3), ev.TimerFired(4)
    )
    assert step.outcome == ev.OrchestrationCompleted("[1,2,3]")
    assert step.consumed == 4


def test_data_is_typed() -> None:
    class Position(BaseModel):
        x: int

    async def typed(ctx: OrchestrationContext) -> list[Any]:
        point = await ctx.schedule_wait("e", Position)
        numbers = await ctx.schedule_wait("e", list[int])
        return [point.x, numbers]

    live = run(typed, *[ev.EventRaised("e", text) for text in ('{"x":1}', "[2]")])
    assert live.outcome == ev.OrchestrationCompleted("[1,[2]]")


async def counts(ctx: OrchestrationContext) -> list[Any]:
    return [await ctx.schedule_wait("e", int), await ctx.schedule_wait("e", int)]


def test_data_that_does_not_fit_is_refused_to_the_wait_which_goes_on() -> None:
    live = Live(counts)
    live.start()
    refused = live.feed(*raised('"no"'))
    assert new_events(refused) == [
        *raised('"no"'),
        ev.EventRefused(
            2,
            "e",
            "data of event 'e' must be int: value: Input should be a valid integer, unable to parse"
            " string as an integer",
        ),
    ]
    live.feed(*raised(1))
    live.feed(*raised(2))
    assert live.outcome == ev.OrchestrationCompleted("[1,2]")


def test_buffered_data_that_does_not_fit_is_refused_once() -> None:
    """And it is not offered to the next wait of its kind again."""
    live = Live(counts)
    step = live.feed(*raised('"no"', 1), ev.OrchestrationStarted("counts", "1.0.0", "null"), *raised('"nor"', 2))
    kinds = [type(event) for event in new_events(step)]
    assert kinds.count(ev.EventRefused) == 2
    assert live.outcome == ev.OrchestrationCompleted("[1,2]")


def test_data_that_one_wait_refuses_another_may_take() -> None:
    async def either(ctx: OrchestrationContext) -> tuple[int, list[str]]:
        numbers, texts = ctx.schedule_wait("e", int), ctx.schedule_wait("e", list[str])
        return await ctx.gather(numbers, texts)

    live = run(either, *raised('["a"]', "{}", 7))
    assert next(event for event in live.history if isinstance(event, ev.EventRefused)).schedule_id == 2
    assert live.outcome == ev.OrchestrationCompleted('[7,["a"]]')


async def int_then_text(ctx: OrchestrationContext) -> list[Any]:
    return [await ctx.schedule_wait("e", int), await ctx.schedule_wait("e", str)]


async def int_then_any(ctx: OrchestrationContext) -> list[Any]:
    return [await ctx.schedule_wait("e", int), await ctx.schedule_wait("e")]


async def both_at_once(ctx: OrchestrationContext) -> list[Any]:
    return list(await ctx.gather(ctx.schedule_wait("e", int), ctx.schedule_wait("e", str)))


async def a_third_type(ctx: OrchestrationContext) -> list[Any]:
    first = await ctx.schedule_wait("e", int)
    won = await ctx.select(ctx.schedule_wait("e", list[int]), ctx.schedule_timer(1))
    return [first, won.index and await ctx.schedule_wait("e", str)]


async def after_a_cancelled_wait(ctx: OrchestrationContext) -> list[Any]:
    first = await ctx.schedule_wait("e", int)
    taken = ctx.schedule_wait("e", str)
    await ctx.new_guid()
    taken.cancel()  # it has received the event, and no code has read it
    return [first, await ctx.schedule_wait("e", str)]


@pytest.mark.parametrize("main", [int_then_text, int_then_any, both_at_once, a_third_type, after_a_cancelled_wait])
@pytest.mark.parametrize("when", ["buffered", "arriving", "carried"])
def test_an_event_reaches_the_wait_that_it_fits(main: Any, when: str) -> None:
    """Whichever waits have refused it before."""
    live = Live(main)
    if when == "buffered":
        live.feed(*raised('"x"'))
    live.start(carried=(ev.CarriedEvent("e", '"x"'),) if when == "carried" else ())
    if when == "arriving":
        live.feed(*raised('"x"'))
    live.feed(*raised(3))
    if main is a_third_type:
        (timer,) = [i for i, event in enumerate(live.history, 1) if isinstance(event, ev.TimerCreated)]
        live.feed(ev.TimerFired(timer))
    assert live.outcome == ev.OrchestrationCompleted('[3,"x"]')
    assert sum(isinstance(event, ev.EventRefused) for event in live.history) == 1


def test_refused_events_are_received_in_order() -> None:
    async def main(ctx: OrchestrationContext) -> list[Any]:
        await ctx.schedule_wait("e", int)
        return [await ctx.schedule_wait("e", str) for _ in range(3)]

    live = run(main, *raised('"a"', "[]", '"b"', 1, '"c"'))
    assert live.outcome == ev.OrchestrationCompleted('["a","b","c"]')


def test_replay_offers_a_refused_event_to_no_wait_that_has_not_received_it() -> None:
    """The waits of another release may take it."""

    async def main(ctx: OrchestrationContext) -> list[Any]:
        return [await ctx.schedule_wait("e", int), await ctx.schedule_wait("e", list[int])]

    async def takes_anything(ctx: OrchestrationContext) -> list[Any]:
        return [await ctx.schedule_wait("e"), await ctx.schedule_wait("e"), await ctx.schedule_wait("e")]

    live = run(main, *raised('"x"', 1))
    execution = Execution(define(takes_anything), "i", 1)
    execution.replay(through_json(live.history))
    step = live.advance(execution, *raised("[2]"))
    assert step.outcome == ev.OrchestrationCompleted('[1,[2],"x"]')


def test_replay_follows_the_record_whatever_the_type_is_by_now() -> None:
    """A release that takes what the one before refused, or the other way round, must not change what has happened."""
    live = run(counts, *raised('"no"', 1))

    async def takes_anything(ctx: OrchestrationContext) -> list[Any]:
        return [await ctx.schedule_wait("e"), await ctx.schedule_wait("e")]

    execution = Execution(define(takes_anything), "i", 1)
    execution.replay(through_json(live.history))
    step = live.advance(execution, *raised(2))
    assert step.outcome == ev.OrchestrationCompleted("[1,2]")


def test_an_event_that_was_refused_is_carried_over() -> None:
    """The next execution may know it: code and types are chosen anew there."""

    async def again(ctx: OrchestrationContext) -> None:
        await ctx.schedule_wait("e", int)
        ctx.continue_as_new(None)

    live = run(again, *raised('"no"'), ev.EventRaised("x", "1"), *raised(1))
    assert live.outcome == ev.ContinuedAsNew("null", None, (ev.CarriedEvent("e", '"no"'), ev.CarriedEvent("x", "1")))


def test_a_cancelled_wait_swallows_nothing() -> None:
    async def patient(ctx: OrchestrationContext) -> Any:
        first = await ctx.select(ctx.schedule_wait("e"), ctx.schedule_timer(1))
        assert first.index == 1
        return await ctx.schedule_wait("e")

    live = Live(patient)
    live.start()
    step = live.feed(ev.TimerFired(3))
    assert new_events(step)[1:] == [ev.EventAwaitCancelled(2), ev.EventAwaited("e")]
    live.feed(*raised(5))
    assert live.outcome == ev.OrchestrationCompleted("5")


def test_an_event_of_a_gather_that_failed_goes_back_to_its_place() -> None:
    async def retries(ctx: OrchestrationContext) -> list[Any]:
        try:
            await ctx.gather(ctx.schedule_wait("e"), ctx.schedule_wait("e"), ctx.schedule_activity("work"))
        except Exception:
            await ctx.schedule_timer(1)
        return [await ctx.schedule_wait("e") for _ in range(3)]

    live = run(retries, *raised(1, 2, 3), ev.ActivityFailed(4, "failed", "E", "m"), ev.TimerFired(9))
    assert live.outcome == ev.OrchestrationCompleted("[1,2,3]")


def test_an_event_that_goes_back_reaches_another_wait() -> None:
    async def two(ctx: OrchestrationContext) -> Any:
        kept = None

        async def branch() -> None:
            ctx.schedule_wait("e")  # in the background of a branch that will lose
            await ctx.schedule_timer(9)

        async def other() -> None:
            nonlocal kept
            kept = ctx.schedule_wait("e")
            await ctx.schedule_activity("work")

        await ctx.select(branch(), other())
        assert kept is not None
        return await kept

    live = run(two, *raised(1))
    assert not live.execution.finished
    live.feed(ev.ActivityCompleted(5, "null"))
    assert live.outcome == ev.OrchestrationCompleted("1")


def test_unread_events_are_carried_over_in_order() -> None:
    async def again(ctx: OrchestrationContext) -> None:
        ctx.schedule_wait("e")  # answered, and never read
        await ctx.schedule_timer(1)
        ctx.continue_as_new()

    live = run(again, *raised(1), *raised(2, name="other"), *raised(3), ev.TimerFired(3))
    assert live.outcome == ev.ContinuedAsNew(
        "null",
        None,
        (ev.CarriedEvent("e", "1"), ev.CarriedEvent("other", "2"), ev.CarriedEvent("e", "3")),
    )


def test_carried_events_are_there_from_the_start() -> None:
    live = Live(collect_three, execution_id=2)
    live.start(carried=(ev.CarriedEvent("e", "1"), ev.CarriedEvent("x", "9"), ev.CarriedEvent("e", "2")))
    live.feed(ev.TimerFired(2))
    live.feed(*raised(3))
    assert live.outcome == ev.OrchestrationCompleted("[1,2,3]")


def test_too_many_unread_events_are_not_for_the_code_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_BUFFERED_EVENTS", 3)
    live = run(collect_three, *raised(1, 2, 3))
    with pytest.raises(ExecutionLimitReached, match="external events"):
        live.feed(*raised(4), *raised(5))
    assert live.replayed().outcome is None


def test_carried_events_come_before_events_that_arrive_ahead_of_the_start() -> None:
    """After ``continue_as_new`` the queue may hold younger events before the message that starts the next execution."""
    app = App("tests")

    @app.orchestration
    async def collect(ctx: OrchestrationContext) -> list[Any]:
        return [await ctx.schedule_wait("item", int) for _ in range(4)]

    definition = app.find_orchestration("collect")
    assert definition is not None
    carried = (ev.CarriedEvent("item", "1"), ev.CarriedEvent("item", "2"))
    started = ev.OrchestrationStarted("collect", "1.0.0", "null", carried=carried)
    inputs: list[ev.Event] = [ev.EventRaised("item", "3"), started, ev.EventRaised("item", "4")]
    step = engine.Execution(definition, "i", 2).advance(inputs, now=lambda: 0.0, new_guid=str)
    assert step.outcome == ev.OrchestrationCompleted("[1,2,3,4]")
