"""select, gather and coroutine branches: who wins, who is cancelled, in which order."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from affinity import BranchCancelledSignal, OrchestrationContext
from affinity.errors import ActivityCancelled, ActivityError, ErrorDetails, OrchestrationCancelled, OrchestrationMisuse
from affinity.orchestration import events as ev

from .harness import Live, new_events, run


async def race(ctx: OrchestrationContext) -> list[Any]:
    work = ctx.schedule_activity("work")
    timer = ctx.schedule_timer(5)
    child = ctx.schedule_sub_orchestration("child")
    event = ctx.schedule_wait("e")
    won = await ctx.select(work, timer, child, event)
    index, value = won
    assert won.future is (work, timer, child, event)[won.index]
    return [index, value]


@pytest.mark.parametrize(
    ("winner", "result", "cancelled"),
    [
        (ev.ActivityCompleted(2, "7"), "[0,7]", {3, 4, 5}),
        (ev.TimerFired(3), "[1,null]", {2, 4, 5}),
        (ev.SubOrchestrationCompleted(4, "7"), "[2,7]", {2, 3, 5}),
        (ev.EventRaised("e", "7"), "[3,7]", {2, 3, 4}),
    ],
)
def test_losers_are_cancelled(winner: ev.Event, result: str, cancelled: set[int]) -> None:
    live = Live(race)
    live.start()
    step = live.feed(winner)
    cancellations: dict[int, ev.Event] = {
        2: ev.ActivityCancelled(2),
        3: ev.TimerCancelled(3),
        4: ev.SubOrchestrationCancelled(4),
        5: ev.EventAwaitCancelled(5),
    }
    expected = [event for event_id, event in cancellations.items() if event_id in cancelled]
    assert new_events(step) == [winner, *expected, ev.OrchestrationCompleted(result)]


def test_the_error_of_the_first_is_raised() -> None:
    async def careful(ctx: OrchestrationContext) -> str:
        try:
            await ctx.select(ctx.schedule_activity("a"), ctx.schedule_timer(1))
        except ActivityError as error:
            return error.activity
        return ""

    live = Live(careful)
    live.start()
    step = live.feed(ev.ActivityFailed(2, "failed", "E", "m"))
    assert new_events(step)[1:] == [ev.TimerCancelled(3), ev.OrchestrationCompleted('"a"')]


def test_what_is_there_already_wins_and_nothing_else_is_scheduled() -> None:
    async def settled(ctx: OrchestrationContext) -> list[Any]:
        work = ctx.schedule_activity("work")
        await work
        started = []

        async def branch() -> None:
            started.append(1)

        index, value = await ctx.select(ctx.schedule_timer(5), work, branch())
        return [index, value, started]

    live = Live(settled)
    live.start()
    step = live.feed(ev.ActivityCompleted(2, "7"))
    assert new_events(step)[1:] == [ev.OrchestrationCompleted("[1,7,[]]")]


def test_losers_can_not_be_awaited_again() -> None:
    async def again(ctx: OrchestrationContext) -> list[str]:
        work, timer = ctx.schedule_activity("work"), ctx.schedule_timer(5)
        child, event = ctx.schedule_sub_orchestration("child"), ctx.schedule_wait("e")
        await ctx.select(ctx.schedule_wait("go"), work, timer, child, event)
        seen = []
        for future in (work, timer, child, event):
            try:
                await future
            except (ActivityCancelled, OrchestrationCancelled, OrchestrationMisuse) as error:
                seen.append(f"{type(error).__name__}: {error}")
        return seen

    live = run(again, ev.EventRaised("go", "1"))
    assert isinstance(live.outcome, ev.OrchestrationCompleted)
    for text in (
        "ActivityCancelled",
        "OrchestrationCancelled",
        "timer of 5 s was cancelled",
        "event 'e' was cancelled",
    ):
        assert text in live.outcome.result


def test_gather_gives_results_in_order() -> None:
    async def all_of(ctx: OrchestrationContext) -> list[Any]:
        futures = [ctx.schedule_activity("work", n) for n in range(3)]
        assert await ctx.gather() == []
        return await ctx.gather(*futures, futures[0])

    live = run(all_of, ev.ActivityCompleted(4, "2"), ev.ActivityCompleted(2, "0"), ev.ActivityCompleted(3, "1"))
    assert live.outcome == ev.OrchestrationCompleted("[0,1,2,0]")


def test_gather_cancels_the_others_when_one_fails() -> None:
    async def all_of(ctx: OrchestrationContext) -> None:
        await ctx.gather(*(ctx.schedule_activity(name) for name in "abc"))

    live = Live(all_of)
    live.start()
    live.complete(2)
    step = live.feed(ev.ActivityFailed(3, "failed", "ValueError", "boom"))
    bases = ErrorDetails(bases=("ActivityError", "AffinityError", "ValueError"))
    assert new_events(step)[1:] == [
        ev.ActivityCancelled(4),
        ev.OrchestrationFailed("ActivityFailed", "activity 'b': ValueError: boom", bases),
    ]


def test_gather_can_return_errors() -> None:
    async def all_of(ctx: OrchestrationContext) -> list[str]:
        async def bad() -> None:
            raise LookupError("x")

        results = await ctx.gather(
            ctx.schedule_activity("a"), ctx.schedule_activity("b"), bad(), return_exceptions=True
        )
        return [type(result).__name__ for result in results]

    live = run(all_of, ev.ActivityFailed(2, "failed", "ValueError", "boom"), ev.ActivityCompleted(3, "1"))
    assert live.outcome == ev.OrchestrationCompleted('["ActivityFailed","int","LookupError"]')


def test_branches_run_first_in_first_out() -> None:
    order: list[str] = []

    async def branches(ctx: OrchestrationContext) -> tuple[str, str]:
        async def branch(name: str) -> str:
            order.append(name)
            first = await ctx.schedule_activity(name + "1")
            order.append(name)
            return str(first + await ctx.schedule_activity(name + "2"))

        return await ctx.gather(branch("a"), branch("b"))

    live = Live(branches)
    step = live.start()
    assert new_events(step)[1:] == [ev.ActivityScheduled("a1", "null"), ev.ActivityScheduled("b1", "null")]
    live.complete(3, '"b1"')
    live.complete(2, '"a1"')
    order.clear()
    live.feed(ev.ActivityCompleted(5, '"b2"'), ev.ActivityCompleted(7, '"a2"'))
    assert live.outcome == ev.OrchestrationCompleted('["a1a2","b1b2"]')


# --- a bound of what runs at the same time ----------------------------------------------------------------------------


def scheduled(live: Live) -> list[str]:
    return [event.name for event in live.history if isinstance(event, ev.ActivityScheduled)]


def test_gather_runs_so_many_activities_at_the_same_time() -> None:
    """The next one begins when one ends, whichever; the results are in the order of the arguments."""

    async def all_of(ctx: OrchestrationContext) -> list[Any]:
        return await ctx.gather(*(ctx.schedule_activity(name) for name in "abcd"), limit=2)

    live = Live(all_of)
    live.start()
    assert scheduled(live) == ["a", "b"]
    live.complete(3, "2")
    assert scheduled(live) == ["a", "b", "c"]
    live.complete(2, "1")
    live.complete(7, "4")
    live.complete(5, "3")
    assert live.outcome == ev.OrchestrationCompleted("[1,2,3,4]")


def test_gather_runs_so_many_coroutines_at_the_same_time() -> None:
    """A branch is one, with all that it awaits, one after the other."""
    begun: list[int] = []

    async def all_of(ctx: OrchestrationContext) -> list[int]:
        async def branch(n: int) -> int:
            begun.append(n)
            return int(await ctx.schedule_activity("one")) + int(await ctx.schedule_activity("two"))

        return await ctx.gather(*(branch(n) for n in range(3)), limit=1)

    live = Live(all_of)
    live.start()
    for n in range(3):
        assert scheduled(live) == ["one", "two"] * n + ["one"]
        live.complete(len(live.history), "1")
        live.complete(len(live.history), "2")
    assert live.outcome == ev.OrchestrationCompleted("[3,3,3]")
    assert list(dict.fromkeys(begun)) == [0, 1, 2]


def test_a_limit_counts_what_runs_already_and_each_future_once() -> None:
    async def all_of(ctx: OrchestrationContext) -> list[Any]:
        first = ctx.schedule_activity("first")
        await ctx.schedule_timer(1)
        later = [ctx.schedule_activity(name) for name in "ab"]
        return await ctx.gather(first, *later, later[0], limit=2)

    live = Live(all_of)
    live.start()
    live.feed(ev.TimerFired(3))
    assert scheduled(live) == ["first", "a"]
    live.complete(2, "0")
    assert scheduled(live) == ["first", "a", "b"]
    live.complete(5, "1")
    live.complete(7, "2")
    assert live.outcome == ev.OrchestrationCompleted("[0,1,2,1]")


def test_what_waits_for_its_turn_never_begins_once_one_has_failed() -> None:
    async def all_of(ctx: OrchestrationContext) -> str:
        async def branch() -> None:
            raise AssertionError("it must not begin")

        try:
            await ctx.gather(ctx.schedule_activity("a"), branch(), ctx.schedule_activity("b"), limit=1)
        except ActivityError as error:
            return error.activity
        return ""

    live = Live(all_of)
    live.start()
    live.feed(ev.ActivityFailed(2, "failed", "ValueError", "boom"))
    assert live.outcome == ev.OrchestrationCompleted('"a"')
    assert scheduled(live) == ["a"]


def test_with_errors_as_results_all_of_them_run() -> None:
    async def all_of(ctx: OrchestrationContext) -> list[str]:
        async def bad() -> None:
            raise LookupError("x")

        found = await ctx.gather(bad(), bad(), ctx.schedule_activity("a"), bad(), return_exceptions=True, limit=1)
        return [type(each).__name__ for each in found]

    live = run(all_of, ev.ActivityCompleted(2, "1"))
    assert live.outcome == ev.OrchestrationCompleted('["LookupError","LookupError","int","LookupError"]')


def test_what_waits_for_its_turn_may_get_a_session_and_may_be_cancelled() -> None:
    async def all_of(ctx: OrchestrationContext) -> list[str]:
        calls = [ctx.schedule_activity(name) for name in "abc"]
        everything = ctx.gather(*calls, return_exceptions=True, limit=1)
        calls[1].cancel()
        calls[2].on_session("s")
        return [type(each).__name__ for each in await everything]

    live = run(all_of, ev.ActivityCompleted(2, "1"), ev.ActivityCompleted(4, "1"))
    assert live.outcome == ev.OrchestrationCompleted('["int","ActivityCancelled","int"]')
    assert [event.session_id for event in live.history if isinstance(event, ev.ActivityScheduled)] == [None, "s"]


def test_a_future_that_two_gathers_hold_back_begins_once() -> None:
    async def all_of(ctx: OrchestrationContext) -> list[int]:
        calls = [ctx.schedule_activity(name) for name in "abc"]
        one, two = ctx.gather(*calls, limit=1), ctx.gather(*reversed(calls), limit=1)
        return [*await one, *await two]

    live = run(all_of, *(ev.ActivityCompleted(2 * n, str(n)) for n in (1, 2, 3)))
    assert live.outcome == ev.OrchestrationCompleted("[1,2,3,3,2,1]")
    assert scheduled(live) == ["a", "b", "c"]


@pytest.mark.parametrize("way", ["await", "select", "gather", "wait_any"])
def test_what_is_awaited_by_itself_begins_whatever_the_limit(way: str) -> None:
    """Else a branch would wait for what waits for its end."""

    async def all_of(ctx: OrchestrationContext) -> tuple[Any, ...]:
        one, two = ctx.schedule_activity("one"), ctx.schedule_activity("two")

        async def branch() -> str:
            await (two if way == "await" else getattr(ctx, way)(two))
            return "branch"

        return await ctx.gather(branch(), one, two, limit=1)

    live = Live(all_of)
    live.start()
    assert scheduled(live) == ["two"]
    live.complete(2, "2")
    assert scheduled(live) == ["two", "one"]
    live.complete(4, "1")
    assert live.outcome == ev.OrchestrationCompleted('["branch",1,2]')


def test_a_cancelled_gather_begins_nothing_more() -> None:
    async def all_of(ctx: OrchestrationContext) -> Any:
        calls = (ctx.schedule_activity(name) for name in "ab")
        index, _ = await ctx.select(ctx.gather(*calls, limit=1), ctx.schedule_timer(1))
        return index

    live = run(all_of, ev.TimerFired(3))
    assert live.outcome == ev.OrchestrationCompleted("1")
    assert scheduled(live) == ["a"]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    async def all_of(ctx: OrchestrationContext) -> None:
        await ctx.gather(ctx.schedule_timer(1), limit=limit)

    live = run(all_of)
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert "limit is a number from 1" in live.outcome.message


def test_nesting() -> None:
    async def nested(ctx: OrchestrationContext) -> list[Any]:
        async def pair(name: str) -> tuple[Any, Any]:
            return await ctx.gather(ctx.schedule_activity(name), ctx.schedule_wait(name))

        index, value = await ctx.select(ctx.gather(pair("a"), pair("b")), ctx.schedule_timer(60))
        return [index, value]

    live = run(nested, ev.EventRaised("b", "4"), ev.EventRaised("a", "2"))
    scheduled = {event.name: event_id for event_id, event in live.execution.pending_activities.items()}
    live.complete(scheduled["a"], "1")
    live.complete(scheduled["b"], "3")
    assert live.outcome == ev.OrchestrationCompleted("[0,[[1,2],[3,4]]]")
    assert live.history[-2] == ev.TimerCancelled(live.history.index(ev.TimerCreated(60.0)) + 1)


def test_a_losing_branch_cleans_up_and_takes_its_work_with_it() -> None:
    seen: list[str] = []

    async def loser(ctx: OrchestrationContext) -> None:
        background = ctx.schedule_activity("background")
        try:
            await ctx.gather(ctx.schedule_timer(60), ctx.schedule_wait("e"))
        except BranchCancelledSignal:
            seen.append("cancelled")
            raise
        finally:
            await ctx.schedule_activity("cleanup")
            seen.append("clean")
        await background

    async def main(ctx: OrchestrationContext) -> str:
        await ctx.select(loser(ctx), ctx.schedule_wait("go"))
        return "done"

    live = Live(main)
    live.start()
    step = live.feed(ev.EventRaised("go", "1"))
    assert not live.execution.finished  # the end waits for the cleanup
    background, timer, event = (
        live.history.index(each) + 1
        for each in (ev.ActivityScheduled("background", "null"), ev.TimerCreated(60.0), ev.EventAwaited("e"))
    )
    cancellations = [ev.ActivityCancelled(background), ev.TimerCancelled(timer), ev.EventAwaitCancelled(event)]
    assert all(each in new_events(step) for each in cancellations)
    assert new_events(step)[-1] == ev.ActivityScheduled("cleanup", "null")
    assert live.feed(ev.CancelRequested("too late")).events == []
    seen.clear()
    live.complete(live.execution.event_count)
    assert live.outcome == ev.OrchestrationCompleted('"done"')
    assert seen[0] == "clean"


def test_a_shared_future_survives_the_branch_that_awaits_it() -> None:
    async def main(ctx: OrchestrationContext) -> Any:
        work = ctx.schedule_activity("work")

        async def watch() -> Any:
            return await work

        won = await ctx.select(watch(), ctx.schedule_timer(1))
        return [won.index, await work]

    live = run(main, ev.TimerFired(3), ev.ActivityCompleted(2, "7"))
    assert live.outcome == ev.OrchestrationCompleted("[1,7]")


def test_a_future_may_outlive_the_branch_that_made_it() -> None:
    async def main(ctx: OrchestrationContext) -> Any:
        async def make() -> Any:
            return ctx.schedule_activity("work")

        (future,) = await ctx.gather(make())
        return await future

    live = run(main, ev.ActivityCompleted(2, "7"))
    assert live.outcome == ev.OrchestrationCompleted("7")


def test_an_error_in_the_cleanup_of_a_loser_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def loser() -> None:
            try:
                await ctx.schedule_timer(60)
            finally:
                raise LookupError("in cleanup")

        await ctx.select(loser(), ctx.schedule_activity("a"))

    with caplog.at_level(logging.WARNING):
        live = Live(main)
        live.start()
        activity = next(iter(live.execution.pending_activities))
        live.complete(activity)
    assert live.outcome == ev.OrchestrationCompleted("null")
    assert [record.message for record in caplog.records] == [
        "coroutine 'loser' failed in its cleanup after cancellation"
    ]


def test_a_branch_can_continue_as_new() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def branch() -> None:
            await ctx.schedule_wait("e")
            ctx.continue_as_new()

        await ctx.gather(branch(), ctx.schedule_timer(5), return_exceptions=True)

    live = run(main, ev.EventRaised("e", "1"))
    assert live.outcome == ev.ContinuedAsNew("null")
    assert ev.TimerCancelled(2) in live.history


def test_background_branches_end_with_the_orchestration() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def branch() -> None:
            await ctx.schedule_activity("work")

        ctx.gather(branch())
        await ctx.schedule_timer(1)
        raise ValueError("stop")

    live = Live(main)
    live.start()
    timer = next(i for i, e in enumerate(live.history, 1) if isinstance(e, ev.TimerCreated))
    step = live.feed(ev.TimerFired(timer))
    assert [type(event) for event in new_events(step)[1:]] == [ev.ActivityCancelled, ev.OrchestrationFailed]


def test_helper_generators_work() -> None:
    async def main(ctx: OrchestrationContext) -> list[int]:
        async def pages() -> Any:
            for n in range(3):
                yield await ctx.schedule_activity("page", n)

        return [page async for page in pages()]

    live = run(main, ev.ActivityCompleted(2, "10"), ev.ActivityCompleted(4, "11"), ev.ActivityCompleted(6, "12"))
    assert live.outcome == ev.OrchestrationCompleted("[10,11,12]")


async def receive(ctx: OrchestrationContext) -> list[Any]:
    """Notes of events while an activity runs: the wait and the activity go on as the other one is settled."""
    work = ctx.schedule_activity("work")
    received: list[Any] = []
    event = ctx.schedule_wait("e")
    while True:
        await ctx.wait_any(work, event)
        if work.settled:
            return [await work, received]
        received.append(await event)
        event = ctx.schedule_wait("e")


def test_wait_any_cancels_nothing() -> None:
    live = Live(receive)
    live.start()
    assert new_events(live.feed(ev.EventRaised("e", "1"))) == [ev.EventRaised("e", "1"), ev.EventAwaited("e")]
    assert new_events(live.feed(ev.EventRaised("e", "2"))) == [ev.EventRaised("e", "2"), ev.EventAwaited("e")]
    done = ev.ActivityCompleted(2, "7")
    step = live.feed(done)
    assert new_events(step)[0] == done
    assert step.outcome == ev.OrchestrationCompleted("[7,[1,2]]")


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_what_wait_any_waits_for_goes_on_when_it_loses_a_race(in_a_branch: bool) -> None:
    async def patient(ctx: OrchestrationContext) -> Any:
        work = ctx.schedule_activity("work")

        async def branch() -> None:
            await ctx.wait_any(work)

        await ctx.select(branch() if in_a_branch else ctx.wait_any(work), ctx.schedule_timer(1))
        return await work

    live = Live(patient)
    live.start()
    assert new_events(live.feed(ev.TimerFired(3))) == [ev.TimerFired(3)]
    assert new_events(live.feed(ev.ActivityCompleted(2, "7")))[1:] == [ev.OrchestrationCompleted("7")]


def test_an_interrupted_task_cancels_what_wait_any_waits_for_in_the_order_of_scheduling() -> None:
    async def cleans(ctx: OrchestrationContext) -> None:
        other, event, work = ctx.schedule_timer(9), ctx.schedule_wait("e"), ctx.schedule_activity("work")
        try:
            await ctx.wait_any(work, event)
        finally:
            await ctx.schedule_activity("clean")
            await other

    live = Live(cleans)
    live.start()
    assert new_events(live.feed(ev.CancelRequested("stop")))[1:4] == [
        ev.TimerCancelled(2),
        ev.EventAwaitCancelled(3),
        ev.ActivityCancelled(4),
    ]


def test_an_event_that_wait_any_saw_and_no_code_read_is_carried_over() -> None:
    async def leaves(ctx: OrchestrationContext) -> None:
        await ctx.wait_any(ctx.schedule_wait("e"))
        ctx.continue_as_new()

    live = Live(leaves)
    live.start()
    step = live.feed(ev.EventRaised("e", "1"))
    assert isinstance(step.outcome, ev.ContinuedAsNew)
    assert step.outcome.carried == (ev.CarriedEvent("e", "1"),)


def test_the_error_of_a_future_is_not_raised_by_wait_any() -> None:
    async def careful(ctx: OrchestrationContext) -> str:
        work = ctx.schedule_activity("work")
        await ctx.wait_any(work)
        try:
            await work
        except ActivityError as error:
            return error.error_type
        return ""

    live = Live(careful)
    live.start()
    step = live.feed(ev.ActivityFailed(2, "failed", "E", "m"))
    assert new_events(step)[1:] == [ev.OrchestrationCompleted('"E"')]


async def waits_for_nothing(ctx: OrchestrationContext) -> None:
    await ctx.wait_any()


async def waits_for_a_name(ctx: OrchestrationContext) -> None:
    await ctx.wait_any("work")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [waits_for_nothing, waits_for_a_name])
def test_wait_any_takes_futures(wrong: Any) -> None:
    live = Live(wrong)
    step = live.start()
    assert isinstance(step.outcome, ev.OrchestrationFailed)
    assert "wait_any takes durable futures" in step.outcome.message
