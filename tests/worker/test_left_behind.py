"""Code that ignores its time limit, or another cancellation: its attempt has ended, and it touches nothing any more."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import ClassVar

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity import Client, RuntimeOptions, SessionCache, Sessions, Wake, Worker
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import ActivityTimeout, WakeFailed
from affinity.provider.contract import LEFT_BEHIND

LIMIT = 0.2
ENOUGH = 30.0
"""Within these seconds the end of an attempt is seen."""

ends: list[str] = []


class _Code:
    """The code that is left behind goes on until the event is set."""

    let_go: ClassVar[anyio.Event]


@pytest.fixture(autouse=True)
async def _released() -> AsyncIterator[None]:
    _Code.let_go = anyio.Event()
    ends.clear()
    yield
    _Code.let_go.set()


async def stubborn() -> str:
    """As many loops do that catch all errors."""
    while not _Code.let_go.is_set():
        with suppress(BaseException):
            await _Code.let_go.wait()
    ends.append("gone")
    return "a result from after the limit"


class Count(BaseModel):
    n: int = 0


counts = Sessions(Count, kind="count")
disposed: list[int] = []
cache = SessionCache[Count](hydrate=lambda _: Count(), dispose=lambda _, count: disposed.append(count.n))
app = affinity.App("stubborn")
app.include(counts)
app.include(cache)


@app.activity
async def loops(ctx: affinity.ActivityContext) -> str:
    return await stubborn()


@app.activity
async def returns_late(ctx: affinity.ActivityContext) -> str:
    with suppress(BaseException):
        await anyio.sleep_forever()
    return "a result from after the limit"


@app.activity
async def fails_late(ctx: affinity.ActivityContext) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        raise OSError("while it cleans up")


@app.activity
async def changes(ctx: affinity.ActivityContext) -> str:
    async with counts.open(ctx) as count:
        count.n += 100
        await stubborn()
        count.n += 100
    raise AssertionError("its change was saved")


@app.activity
async def changes_in_cache(ctx: affinity.ActivityContext) -> str:
    async with cache.use(ctx) as count:
        count.n += 100
        return await stubborn()


@app.activity
async def adds(ctx: affinity.ActivityContext) -> int:
    async with counts.open(ctx) as count, cache.use(ctx) as cached:
        count.n += 1
        cached.n += 1
        return count.n * 1000 + cached.n


@app.orchestration
async def limited(ctx: affinity.OrchestrationContext, activity: str) -> str:
    try:
        return str(await ctx.schedule_activity(activity, timeout=LIMIT))
    except ActivityTimeout as error:
        return error.message


@app.orchestration
async def then_adds(ctx: affinity.OrchestrationContext, activity: str) -> list[int]:
    with pytest.raises(ActivityTimeout):
        await ctx.schedule_activity(activity, timeout=LIMIT).on_session("s")
    return [await ctx.schedule_activity(adds).on_session("s") for _ in range(2)]


@app.orchestration
async def endless(ctx: affinity.OrchestrationContext) -> str:
    return await ctx.schedule_activity(loops).on_session("s")


@pytest.mark.parametrize("activity", ["loops", "returns_late", "fails_late"])
async def test_an_attempt_ends_at_its_limit(any_url: str, activity: str) -> None:
    async with Worker(app, any_url), Client(any_url) as client:
        with anyio.fail_after(ENOUGH):
            assert "longer than its timeout" in await (await client.start(limited, activity)).wait()
        _Code.let_go.set()


@pytest.mark.parametrize("activity", ["changes", "changes_in_cache"])
async def test_what_it_does_to_the_state_of_its_session_is_dropped(any_url: str, activity: str) -> None:
    """The next activity of the session does not wait for it, and sees nothing of it, then and after its end."""
    disposed.clear()
    async with Worker(app, any_url), Client(any_url) as client:
        with anyio.fail_after(2 * ENOUGH):
            assert await (await client.start(then_adds, activity)).wait() == [1001, 2002]
        _Code.let_go.set()
        while not ends:
            await anyio.sleep(0.01)
        run = await client.start("adds_once", instance_id="later")
        assert await run.wait() == 3003
    if activity == "changes_in_cache":
        assert sorted(disposed) == [3, 100]


@app.orchestration
async def adds_once(ctx: affinity.OrchestrationContext) -> int:
    return await ctx.schedule_activity(adds).on_session("s")


async def test_its_slot_is_taken_until_it_is_gone_and_a_worker_without_slots_says_so(
    any_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Worker(app, any_url, RuntimeOptions.make(worker_concurrency=2, worker_lease_timeout=3)) as worker,
        Client(any_url) as client,
    ):
        runs = [await client.start(limited, "loops") for _ in range(2)]
        with anyio.fail_after(ENOUGH):
            for run in runs:
                await run.wait()
        activities = worker.runtime.activities
        assert (len(activities), activities.left_behind, activities.free_slots) == (0, 2, 0)
        assert (
            worker.metrics.registry.get_sample_value(
                "affinity_left_behind_activities", {"worker": worker.identity.worker_id}
            )
            == 2
        )
        assert "has all 2 slots (worker_concurrency): loops" in caplog.text
        assert caplog.text.count(f"is left behind: it is at {__file__}:") == 2  # in `stubborn`, and not what awaits it
        waiting = await client.start(limited, "returns_late")
        with anyio.fail_after(3 * ENOUGH):
            while [one.labels.get(LEFT_BEHIND) for one in await client.workers()] != ["2"]:
                await anyio.sleep(0.05)
        assert "code that ignores its cancellation has all their slots" in str(await waiting.explain())
        _Code.let_go.set()
        with anyio.fail_after(ENOUGH):
            await waiting.wait()
        assert (activities.left_behind, activities.free_slots) == (0, 2)


async def test_a_cancellation_of_an_operator_does_not_wait_for_it(any_url: str) -> None:
    async with Worker(app, any_url) as worker, Client(any_url) as client:
        run = await client.start(endless)
        while not len(worker.runtime.activities):
            await anyio.sleep(0.01)
        await run.cancel("enough")
        with anyio.fail_after(ENOUGH):
            while len(worker.runtime.activities):
                await anyio.sleep(0.01)
            other = await client.start(adds_once)
            assert await other.wait() == 1001
        assert worker.runtime.activities.left_behind == 1
        _Code.let_go.set()


async def test_a_drain_gives_it_back(any_url: str) -> None:
    began = time.monotonic()
    async with Client(any_url) as client:
        async with Worker(app, any_url, RuntimeOptions.make(drain_timeout=0.2)) as worker:
            run = await client.start(endless)
            while not len(worker.runtime.activities):
                await anyio.sleep(0.01)
            await worker.drain()
            _Code.let_go.set()
        assert time.monotonic() - began < 2 * ENOUGH
        async with Worker(app, any_url):
            with anyio.fail_after(ENOUGH):
                assert await run.wait() == "a result from after the limit"


CLEANUP = 1.8
"""Seconds: longer than an activity has before it is left behind, and shorter than a worker that ends waits for it."""

cleanups = affinity.App("cleanups")
cleaning = affinity.Conversations(Count, kind="cleaning")


async def cleans_up() -> str:
    ends.append("begun")
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(CLEANUP)
            ends.append("cleaned")
    return ""


def cleans_up_in_a_thread() -> str:
    ends.append("begun")
    while not STOP.is_set():
        time.sleep(0.01)
    time.sleep(CLEANUP)
    ends.append("cleaned")
    return ""


STOP = threading.Event()


@cleanups.activity
async def cleans(ctx: affinity.ActivityContext) -> str:
    return await cleans_up()


@cleanups.activity
def cleans_in_a_thread(ctx: affinity.ActivityContext) -> str:
    ends.append("begun")
    while not ctx.cancelled:
        time.sleep(0.01)
    time.sleep(CLEANUP)
    ends.append("cleaned")
    return ""


@cleaning.on_wake
async def clean(wake: Wake, count: Count) -> None:
    await wake.step("clean", cleans_up if count.n else cleans_up_in_a_thread)


@cleanups.orchestration
async def run_one(ctx: affinity.OrchestrationContext, activity: str) -> str:
    return str(await ctx.schedule_activity(activity))


cleanups.include(cleaning)


@pytest.mark.parametrize("form", ["cleans", "cleans_in_a_thread", "step"])
async def test_a_worker_that_ends_waits_for_the_cleanup_of_each_form_of_code(sqlite_url: str, form: str) -> None:
    """An ``async def``, a plain ``def`` in a thread, and one that a step has called."""
    STOP.clear()
    async with Client(sqlite_url) as client:
        async with Worker(cleanups, sqlite_url, RuntimeOptions.make(drain_timeout=0.1)) as worker:
            if form == "step":
                await client.conversation(cleaning, "c").send(UserMessage("go"))
            else:
                await client.start(run_one, form)
            while not ends:
                await anyio.sleep(0.01)
            if form == "step":
                STOP.set()
        assert ends == ["begun", "cleaned"]
        assert worker.stuck == []


# --- conversations ----------------------------------------------------------------------------------------------------

late: list[str] = []


def conversations(*, timeout: float | None = None) -> affinity.Conversations[Count]:
    desk = affinity.Conversations(Count, kind="desk")

    @desk.on_wake(retry=affinity.RetryPolicy(max_attempts=1), timeout=timeout)
    async def answer(wake: Wake, count: Count) -> None:
        if not isinstance(wake.events[-1], UserMessage):  # an interrupt alone
            return
        count.n += 1
        text = wake.events[-1].text
        if text == "step":
            try:
                await wake.step("slow", stubborn, timeout=LIMIT)
            except TimeoutError as error:
                wake.append(AgentMessage(str(error)))
        elif text == "handler":
            await stubborn()
            for add in (wake.commit, lambda: wake.step("late", stubborn)):
                try:
                    await add()
                except affinity.errors.SessionError as error:
                    late.append(str(error))
        else:
            wake.append(AgentMessage(f"{count.n}"))

    return desk


async def test_a_step_ends_at_its_limit(any_url: str) -> None:
    app, desk = affinity.App("desk"), conversations()
    app.include(desk)
    async with Worker(app, any_url) as worker, Client(any_url) as client:
        talk = client.conversation(desk, "c")
        with anyio.fail_after(ENOUGH):
            assert "longer than its limit of 0.2 s" in (await talk.ask(UserMessage("step"))).text
        assert worker.runtime.activities.left_behind == 1
        with anyio.fail_after(ENOUGH):
            assert (await talk.ask(UserMessage("and"))).text == "2"
        _Code.let_go.set()


async def test_a_wake_ends_at_its_limit_and_its_handler_adds_nothing_later(any_url: str) -> None:
    late.clear()
    app, desk = affinity.App("desk"), conversations(timeout=LIMIT)
    app.include(desk)
    async with Worker(app, any_url), Client(any_url) as client:
        talk = client.conversation(desk, "c")
        with anyio.fail_after(ENOUGH):
            with pytest.raises(WakeFailed, match="TimeoutError"):
                await talk.ask(UserMessage("handler"))
            assert (await talk.ask(UserMessage("and"))).text == "1"
        _Code.let_go.set()
        with anyio.fail_after(ENOUGH):
            while len(late) < 2:
                await anyio.sleep(0.01)
            assert (await talk.ask(UserMessage("and"))).text == "2"
    assert ["has ended" in text for text in late] == [True, True]


async def test_an_interrupt_does_not_wait_for_the_handler(any_url: str) -> None:
    app, desk = affinity.App("desk"), conversations()
    app.include(desk)
    async with Worker(app, any_url) as worker, Client(any_url) as client:
        talk = client.conversation(desk, "c")
        await talk.send(UserMessage("handler"))
        while not len(worker.runtime.activities):
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        await talk.interrupt(cancel_running=True)
        with anyio.fail_after(2 * ENOUGH):
            assert (await talk.ask(UserMessage("and"))).text == "1"
        _Code.let_go.set()


async def test_a_hydrate_that_ignores_its_cancellation_keeps_no_other_waiting() -> None:
    """The state that it loads later is disposed."""
    freed: list[str] = []
    calls: list[str] = []

    async def hydrate(session_id: str) -> str:
        calls.append(session_id)
        if len(calls) == 1:
            await stubborn()
        return f"state {len(calls)}"

    states = SessionCache[str](hydrate=hydrate, dispose=lambda _, state: freed.append(state))

    class Lease(BaseModel):
        session_id: str = "s"
        session_epoch: int = 1

    async def use() -> str:
        async with states.use(Lease()) as state:
            return state

    first = asyncio.ensure_future(use())
    await anyio.sleep(0.01)
    first.cancel()
    with anyio.fail_after(ENOUGH):
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await use() == "state 2"
    _Code.let_go.set()
    with anyio.fail_after(ENOUGH):
        while not freed:
            await anyio.sleep(0.01)
    assert len(freed) == 1
    assert await use() == "state 2"
