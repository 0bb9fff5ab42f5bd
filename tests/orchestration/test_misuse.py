"""Mistakes in orchestrations, and the messages that name them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from affinity import ActivityContext, App, DurableFuture, OrchestrationContext
from affinity.errors import InvalidId, OrchestrationMisuse
from affinity.orchestration import events as ev

from .harness import Live, run

app = App("misuse")


@app.activity
async def work(ctx: ActivityContext, n: int) -> int:
    return n


@app.orchestration
async def child(ctx: OrchestrationContext) -> None: ...


def failure(function: Callable[[OrchestrationContext], Awaitable[Any]], *inputs: ev.Event) -> str:
    """Run to the failure that is expected, and return its message."""

    async def main(ctx: OrchestrationContext) -> Any:
        return await function(ctx)

    live = run(main, *inputs)
    assert isinstance(live.outcome, ev.OrchestrationFailed)
    assert live.outcome.error_type == "OrchestrationMisuse"
    return live.outcome.message


def test_awaiting_an_asyncio_future() -> None:
    loop = asyncio.new_event_loop()

    async def main(ctx: OrchestrationContext) -> None:
        await loop.create_future()

    message = failure(main)
    loop.close()
    assert "cannot await a Future of asyncio" in message
    assert "activity" in message
    assert "schedule_timer" in message


def test_sleeping_while_a_loop_runs() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        await asyncio.sleep(60)

    async def worker() -> str:
        return failure(main)

    assert "ctx.schedule_timer" in asyncio.run(worker())


def test_yielding_to_the_loop() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        await asyncio.sleep(0)

    assert "asyncio.sleep(0)" in failure(main)


def test_awaiting_something_else() -> None:
    class Thing:
        def __await__(self) -> Any:
            yield self

    class Pool:
        def __await__(self) -> Any:
            yield Future[int]()

    async def thing(ctx: OrchestrationContext) -> None:
        await Thing()

    async def pool(ctx: OrchestrationContext) -> None:
        await Pool()

    assert "Thing" in failure(thing)
    assert "Future of concurrent" in failure(pool)


def test_a_foreign_await_can_be_survived() -> None:
    async def main(ctx: OrchestrationContext) -> str:
        try:
            await asyncio.sleep(0)
        except OrchestrationMisuse:
            await ctx.schedule_timer(1)
        return "fine"

    assert run(main, ev.TimerFired(2)).outcome == ev.OrchestrationCompleted('"fine"')


@pytest.mark.parametrize(
    ("create", "title"),
    [
        (lambda ctx: ctx.schedule_activity("x"), "activity 'x'"),
        (lambda ctx: ctx.schedule_timer(3), "timer of 3 s"),
        (lambda ctx: ctx.schedule_sub_orchestration("c"), "sub-orchestration 'c'"),
        (lambda ctx: ctx.new_guid(), "new_guid()"),
        (lambda ctx: ctx.gather(ctx.schedule_activity("x")), "gather(...)"),
        (lambda ctx: ctx.select(ctx.schedule_activity("x")), "select(...)"),
    ],
)
def test_a_forgotten_await(create: Callable[[OrchestrationContext], object], title: str) -> None:
    async def at_the_end(ctx: OrchestrationContext) -> None:
        create(ctx)

    async def before(ctx: OrchestrationContext) -> None:
        create(ctx)
        await ctx.schedule_wait("go")

    message = f"{title} was scheduled and never awaited; write await"
    assert message in failure(at_the_end)
    assert message in failure(before, ev.EventRaised("go", "1"))


def test_nothing_that_was_forgotten_at_the_end_is_scheduled() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        ctx.schedule_activity("x")

    assert [type(event) for event in run(main).history] == [ev.OrchestrationStarted, ev.OrchestrationFailed]


def test_waits_and_cut_short_branches_may_leave_things() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        ctx.schedule_wait("e")

        async def branch() -> None:
            ctx.schedule_activity("x")
            raise LookupError

        async def loser() -> None:
            ctx.schedule_activity("y")
            await ctx.schedule_timer(9)

        with pytest.raises(LookupError):
            await ctx.gather(branch())
        await ctx.select(loser(), ctx.schedule_wait("go"))

    assert run(main, ev.EventRaised("go", "1")).outcome == ev.OrchestrationCompleted("null")


def test_returning_what_was_not_awaited() -> None:
    async def future(ctx: OrchestrationContext) -> Any:
        return ctx.schedule_activity("x")

    async def coroutine(ctx: OrchestrationContext) -> Any:
        async def helper() -> None: ...

        return helper()

    assert "returned activity 'x' itself: await it first" in failure(future)
    assert "returned the coroutine 'helper': await it first" in failure(coroutine)


def test_passing_what_was_not_awaited() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def helper() -> None: ...

        for forgotten in (ctx.new_guid(), helper()):
            with pytest.raises(OrchestrationMisuse, match="await it first"):
                ctx.schedule_activity("x", forgotten)
            if isinstance(forgotten, DurableFuture):
                with pytest.raises(OrchestrationMisuse, match="await it first"):
                    ctx.set_custom_status(forgotten)
                with pytest.raises(OrchestrationMisuse, match="await it first"):
                    ctx.continue_as_new(forgotten)
                await forgotten

    assert run(main).outcome == ev.OrchestrationCompleted("null")


def test_references_must_be_registered_and_of_the_right_kind() -> None:
    async def stranger(ctx: ActivityContext) -> None: ...

    async def main(ctx: OrchestrationContext) -> None:
        anything: Any = ctx
        with pytest.raises(OrchestrationMisuse, match=r"register .*stranger with @app.activity"):
            ctx.schedule_activity(stranger)
        with pytest.raises(OrchestrationMisuse, match="pass work, without calling it"):
            ctx.schedule_activity(work(anything, 1))  # type: ignore[call-overload]
        with pytest.raises(OrchestrationMisuse, match=r"orchestration 'child@1.0.0' is none"):
            ctx.schedule_activity(child)  # type: ignore[arg-type]
        with pytest.raises(OrchestrationMisuse, match="activity 'work' is none"):
            ctx.schedule_sub_orchestration(work, 1)  # type: ignore[arg-type]
        with pytest.raises(OrchestrationMisuse, match="takes an input"):
            ctx.schedule_activity(work)  # type: ignore[arg-type]
        with pytest.raises(OrchestrationMisuse, match="takes no input"):
            ctx.schedule_sub_orchestration(child, 5)  # type: ignore[arg-type]

    assert run(main).outcome == ev.OrchestrationCompleted("null")


def test_combining_what_cannot_be_awaited() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def helper() -> None: ...

        event = ctx.schedule_wait("e")
        anything: Any = helper
        with pytest.raises(OrchestrationMisuse, match="the function 'helper': call it"):
            ctx.gather(anything)
        collections: list[Any] = [[event], (event,), {event}, (each for each in [event])]
        for anything in collections:
            for combine in (ctx.select, ctx.gather, ctx.wait_any):
                with pytest.raises(OrchestrationMisuse, match=rf"unpack it, as in ctx.{combine.__name__}\(\*futures\)"):
                    combine(anything)
        for wrong in (5, None):
            anything = wrong
            with pytest.raises(OrchestrationMisuse, match="select takes durable futures and coroutines"):
                ctx.select(anything)
        with pytest.raises(OrchestrationMisuse, match="something to wait for"):
            ctx.select()

    assert run(main).outcome == ev.OrchestrationCompleted("null")


def test_on_session_after_the_await() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        future = ctx.schedule_activity("x")
        await ctx.schedule_timer(1)
        with pytest.raises(OrchestrationMisuse, match="activity 'x' is scheduled already"):
            future.on_session("s")
        await future
        with pytest.raises(OrchestrationMisuse, match="scheduled already"):
            future.on_session("s")

    live = run(main, ev.TimerFired(3), ev.ActivityCompleted(2, "1"))
    assert live.outcome == ev.OrchestrationCompleted("null")


def test_an_activity_is_parked_on_a_session_without_options_before_it_is_scheduled() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        work = ctx.schedule_activity
        refused = [
            work("no session"),
            work("tag").on_session("s").with_tag("t"),
            work("ordered").on_session("s", ordered=True),
            work("wait").on_session("s", wait=1),
            work("fail_after").on_session("s", fail_after=1),
        ]
        for future in refused:
            with pytest.raises(OrchestrationMisuse, match="cannot be parked: it must be on a session, without a tag"):
                future._park()
        parked = work("x").on_session("s")._park()
        with pytest.raises(OrchestrationMisuse, match="activity 'x' is parked already"):
            parked.with_tag("t")
        with pytest.raises(OrchestrationMisuse, match="activity 'x' is parked already"):
            parked._park()
        plain = work("y").on_session("s")
        await ctx.wait_any(parked, plain, *refused)
        with pytest.raises(OrchestrationMisuse, match="activity 'y' is scheduled already"):
            plain._park()

    live = run(main)
    scheduled = {each.name: each.parked for each in live.history if isinstance(each, ev.ActivityScheduled)}
    assert (scheduled["x"], scheduled["y"]) == (True, False)
    (number,) = [n for n, each in enumerate(live.history, 1) if getattr(each, "name", "") == "x"]
    live.feed(ev.ActivityCompleted(number, "null"))  # checks that the history replays
    assert isinstance(live.outcome, ev.OrchestrationCompleted)


def test_on_session_where_there_is_no_activity() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        async def helper() -> None: ...

        futures: list[DurableFuture[Any]] = [
            ctx.schedule_timer(1),
            ctx.schedule_wait("e"),
            ctx.schedule_session_moved("s"),
            ctx.schedule_sub_orchestration("c"),
            ctx.new_guid(),
            ctx.gather(helper()),
        ]
        for future in futures:
            with pytest.raises(OrchestrationMisuse, match="cannot run on a session"):
                future.on_session("s", ordered=True)
        raise ValueError("end")

    assert run(main).outcome == ev.OrchestrationFailed("ValueError", "end")


@pytest.mark.parametrize("session_id", ["", "a\x00b", "a\nb", "é" * 129, "\ud800", None, 5, b"s"])
def test_on_session_with_a_bad_id(session_id: Any) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        future = ctx.schedule_activity("x")
        with pytest.raises(InvalidId, match="session id"):
            future.on_session(session_id)
        await future.on_session("é" * 128)

    assert run(main).history[-1] == ev.ActivityScheduled("x", "null", "é" * 128)


def test_an_id_that_was_not_awaited() -> None:
    """The id is in the future; the message names the remedy wherever an id is taken."""

    async def main(ctx: OrchestrationContext) -> None:
        guid: Any = ctx.new_guid()
        for take in (
            ctx.schedule_activity("x").on_session,
            lambda one: ctx.schedule_sub_orchestration("y", instance_id=one),
            lambda one: ctx.start_detached("y", instance_id=one),
            lambda one: ctx.raise_event(one, "e"),
            ctx.schedule_session_moved,
            ctx.release_session,
        ):
            with pytest.raises(InvalidId, match="must be a string, not GuidFuture: await it first"):
                take(guid)
        raise ValueError("end")

    assert run(main).outcome == ev.OrchestrationFailed("ValueError", "end")


def test_an_activity_that_is_called() -> None:
    """It would run in the orchestration, unrecorded, and again in each replay."""
    app, ran = App(), []

    @app.activity
    async def pay(ctx: ActivityContext, amount: int) -> int:
        ran.append(amount)
        return amount

    @app.activity
    def pay_in_a_thread(ctx: ActivityContext, amount: int) -> int:
        ran.append(amount)
        return amount

    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(OrchestrationMisuse, match=r"ctx.schedule_activity\(pay, \.\.\.\)"):
            await pay(ctx, 1)  # type: ignore[arg-type]
        with pytest.raises(OrchestrationMisuse, match="activity 'pay_in_a_thread' is called within an orchestration"):
            pay_in_a_thread(ctx, 2)  # type: ignore[arg-type]
        await ctx.schedule_activity(pay, 3)

    live = run(main)
    assert live.history[-1] == ev.ActivityScheduled("pay", "3")
    other: Any = object()  # a context that a test makes
    assert asyncio.run(pay(other, 4)) == pay_in_a_thread(other, 4) == 4
    assert ran == [4, 4]


def test_an_order_that_is_no_bool() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        future = ctx.schedule_activity("x")
        wrong: Any = "yes"
        with pytest.raises(OrchestrationMisuse, match="ordered is True or False, not 'yes'"):
            future.on_session("s", ordered=wrong)
        await future.on_session("s", ordered=True)

    assert run(main).history[-1] == ev.ActivityScheduled("x", "null", "s", ordered=True)


def test_on_session_twice() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(OrchestrationMisuse, match="on session 'a' already"):
            ctx.schedule_activity("x").on_session("a").on_session("b")
        raise ValueError("end")

    assert run(main).outcome == ev.OrchestrationFailed("ValueError", "end")


def test_with_tag_after_the_await_and_twice() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        future = ctx.schedule_activity("x").with_tag("gpu").on_session("s")
        with pytest.raises(OrchestrationMisuse, match="has the tag 'gpu' already"):
            future.with_tag("gpu")
        await ctx.schedule_timer(1)
        await ctx.wait_any(future)  # begins it: it was held back when the call was refused
        with pytest.raises(OrchestrationMisuse, match="with_tag, limited and with_priority before the next await"):
            future.with_tag("eu")
        await future

    live = run(main, ev.TimerFired(2), ev.ActivityCompleted(4, "1"))
    assert live.outcome == ev.OrchestrationCompleted("null")
    assert live.history[3] == ev.ActivityScheduled("x", "null", "s", tag="gpu")


def test_with_tag_where_there_is_no_activity() -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(OrchestrationMisuse, match="cannot have a tag"):
            ctx.schedule_timer(1).with_tag("gpu")
        raise ValueError("end")

    assert run(main).outcome == ev.OrchestrationFailed("ValueError", "end")


@pytest.mark.parametrize("tag", ["", "a\nb", "é" * 33, "a#b", "a:b", "a,b", "a b", None, 5])
def test_with_tag_with_a_bad_tag(tag: Any) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        future = ctx.schedule_activity("x")
        with pytest.raises(InvalidId, match="tag"):
            future.with_tag(tag)
        await future.with_tag("é" * 32)

    assert run(main).history[-1] == ev.ActivityScheduled("x", "null", tag="é" * 32)


@pytest.mark.parametrize("seconds", [0, -1.0, True, "2", float("nan"), float("inf")])
def test_on_session_with_a_wrong_wait(seconds: Any) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        with pytest.raises(OrchestrationMisuse, match="wait is a number of seconds"):
            ctx.schedule_activity("x").on_session("s", wait=seconds)
        with pytest.raises(OrchestrationMisuse, match="fail_after is a number of seconds"):
            ctx.schedule_activity("x").on_session("s", fail_after=seconds)
        for wait, fail_after in ((5, 1), (2, 2)):
            with pytest.raises(OrchestrationMisuse, match=f"wait={wait} is not below fail_after={fail_after}"):
                ctx.schedule_activity("x").on_session("s", wait=wait, fail_after=fail_after)
        await ctx.schedule_activity("y").on_session("s", wait=2, fail_after=5)

    assert ev.ActivityScheduled("y", "null", "s", wait=2.0, fail_after=5.0) in run(main).history


def test_a_context_is_used_by_its_own_code_only() -> None:
    kept: list[OrchestrationContext] = []
    futures: list[DurableFuture[Any]] = []

    async def first(ctx: OrchestrationContext) -> None:
        kept.append(ctx)
        futures.append(ctx.schedule_wait("e"))
        await futures[-1]

    async def second(ctx: OrchestrationContext) -> None:
        with pytest.raises(OrchestrationMisuse, match="own code"):
            kept[0].schedule_timer(1)
        with pytest.raises(OrchestrationMisuse, match="event 'e' of another orchestration"):
            ctx.gather(futures[0])
        await futures[0]

    live = Live(first)
    live.start()
    message = run(second).outcome
    assert isinstance(message, ev.OrchestrationFailed)
    assert message.error_type == "OrchestrationMisuse"
    with pytest.raises(OrchestrationMisuse, match="own code"):
        kept[0].new_guid()
    live.execution.close()


def test_futures_say_what_they_are() -> None:
    async def main(ctx: OrchestrationContext) -> list[str]:
        future = ctx.schedule_wait("e")
        before = repr(future)
        await future
        return [before, repr(future)]

    live = run(main, ev.EventRaised("e", "1"))
    assert live.outcome == ev.OrchestrationCompleted("[\"<event 'e', pending>\",\"<event 'e', settled>\"]")
