"""Opening an instance again at an earlier event, with workers that go on with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.client.resets import build_reset, cut_history
from affinity.errors import InvalidInput, NotSerializable, OrchestrationFailed, UnknownInstance
from affinity.orchestration import events as ev
from affinity.orchestration.wire import encode_event
from affinity.provider.contract import HistoryCursor
from affinity.testing import Env
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

OPTIONS = RuntimeOptions.make(poll_interval=0.2)


class FailingShop:
    """An app whose activities note that they run, and fail while a test asks for it."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.broken = True
        self.app = App("shop")

        @self.app.activity
        async def work(ctx: ActivityContext, what: str) -> str:
            self.runs.append(what)
            if what == "pack" and self.broken:
                raise ValueError("no box")
            return what.upper()

        @self.app.orchestration
        async def order(ctx: OrchestrationContext, n: int) -> list[str]:
            done = [await ctx.schedule_activity(work, "pay")]
            done.append(await ctx.schedule_wait("address", str))
            done.append(await ctx.schedule_activity(work, "pack"))
            return [*done, await ctx.schedule_wait("note", str)]

        @self.app.orchestration
        async def parcel(ctx: OrchestrationContext, n: int) -> str:
            return await ctx.schedule_wait("delivered", str)

        @self.app.orchestration
        async def with_parcel(ctx: OrchestrationContext, n: int) -> list[str]:
            sent = ctx.schedule_sub_orchestration(parcel, n)
            packed = await ctx.schedule_activity(work, "pack")
            return [packed, await sent]

        @self.app.orchestration
        async def staged(ctx: OrchestrationContext, n: int) -> list[str]:
            if ctx.execution_id == 1:
                ctx.set_custom_status("first")
                ctx.continue_as_new(n)
            before, went = ctx.custom_status, await ctx.schedule_wait("go", str)
            ctx.set_custom_status("second")
            return [before, went, ctx.custom_status]

        @self.app.orchestration
        async def marked(ctx: OrchestrationContext, n: int) -> str:
            await ctx.schedule_wait("go", str)
            if ctx.execution_id == 1:
                ctx.set_custom_status("once")
            return await ctx.schedule_wait("end", str)


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.fixture
async def shop(kept_url: str) -> AsyncIterator[FailingShop]:
    shop = FailingShop()
    async with Worker(shop.app, kept_url, OPTIONS):
        yield shop


async def number_of(client: Client, instance_id: str, kind: str) -> int:
    """The number of the last event of that kind."""
    return [event.event_id for event in await client.history(instance_id) if event.type == kind][-1]


async def exists(client: Client, instance_id: str) -> None:
    """Until the instance is there."""

    async def look() -> bool:
        return bool([i async for i in client.list_instances(prefix=instance_id)])

    await until(look)


async def test_a_failed_instance_goes_on(shop: FailingShop, client: Client) -> None:
    """From the activity that failed: what came before is not done again, an event that came later is not lost, and the
    history of the failure stays.
    """
    run = await client.start("order", 1, instance_id="order")
    await run.raise_event("note", "thanks")  # it is in the history when the address is
    await run.raise_event("address", "here")
    with pytest.raises(OrchestrationFailed, match="no box"):
        await run.wait(30)
    before = await client.history("order")
    shop.broken = False
    assert await client.reset("order", to_event=await number_of(client, "order", "activity_scheduled")) == 2
    assert await run.wait(30) == ["PAY", "here", "PACK", "thanks"]
    assert shop.runs == ["pay", "pack", "pack"]
    assert list(await client.history("order", execution_id=1)) == list(before)
    assert (await client.status("order")).execution_id == 2


async def test_a_preview_says_what_a_reset_does(shop: FailingShop, client: Client) -> None:
    """And changes nothing."""
    run = await client.start("order", 1, instance_id="i")

    async def waits() -> bool:
        return "event_awaited" in [event.type for event in await client.history("i")]

    await until(waits)
    await run.raise_event("address", "here")
    with pytest.raises(OrchestrationFailed):
        await run.wait(20)
    names = [event.type for event in await client.history("i")]
    before = await client.status("i")
    paid = names.index("activity_completed")
    found = await client.preview_reset("i", to_event=paid + 1)
    assert (found.execution_id, found.event_count, found.kept) == (2, len(names), paid)
    assert (found.activities, found.repeated, found.events, found.children) == ([], ["work"], ["address"], [])
    found = await client.preview_reset("i", to_event=paid)
    assert (found.kept, found.activities, found.repeated) == (paid, ["work"], ["work"])
    assert await client.status("i") == before
    assert shop.runs == ["pay", "pack"]


async def test_a_step_is_taken_as_a_whole(shop: FailingShop, client: Client) -> None:
    """Reset to the end of a step that failed: its input comes again, and no activity runs for it."""
    run = await client.start("order", 1, instance_id="order")
    await run.raise_event("address", "here")
    with pytest.raises(OrchestrationFailed):
        await run.wait(30)
    await client.reset("order", to_event=len(await client.history("order")))
    with pytest.raises(OrchestrationFailed):
        await run.wait(30)
    assert (await client.status("order")).execution_id == 2
    assert shop.runs == ["pay", "pack"]


async def test_an_instance_is_reset_to_its_beginning_and_again(shop: FailingShop, client: Client) -> None:
    """Everything is done again, in an execution of its own, with the events that came."""
    shop.broken = False
    run = await client.start("order", 1, instance_id="order")
    await run.raise_event("address", "here")
    await run.raise_event("note", "thanks")
    for execution in (2, 3):
        assert await run.wait(30) == ["PAY", "here", "PACK", "thanks"]
        assert await run.reset(to_event=1) == execution
    assert await run.wait(30) == ["PAY", "here", "PACK", "thanks"]
    assert shop.runs == ["pay", "pack"] * 3


@pytest.mark.parametrize("to_event", [1, 4])
async def test_a_reset_before_the_last_one_is_read_loses_nothing(kept_url: str, client: Client, to_event: int) -> None:
    """The start, and events from outside, are in the queue then."""
    shop = FailingShop()
    shop.broken = False
    async with Worker(shop.app, kept_url, OPTIONS):
        run = await client.start("order", 1, instance_id="order")
        await run.raise_event("address", "here")
        await run.raise_event("note", "thanks")
        await run.wait(30)
    await client.reset("order", to_event=to_event)
    for _ in range(2):
        await client.reset("order", to_event=len(await client.history("order")))
    async with Worker(shop.app, kept_url, OPTIONS):
        assert await run.wait(30) == ["PAY", "here", "PACK", "thanks"]


@pytest.mark.parametrize("to_event", [2, 4])
async def test_a_timer_that_has_fired_does_not_wait_again_however_often(to_event: int) -> None:
    """Where its step is taken again, and where it comes later; the second reset is before the first one is read."""
    app = App("reminders")

    @app.orchestration
    async def remind(ctx: OrchestrationContext, n: int) -> str:
        await ctx.schedule_timer(timedelta(days=1))
        ctx.set_custom_status("due")
        return await ctx.schedule_wait("note", str)

    async with Env(app) as env:
        run = await env.client.start(remind, 1)
        await env.run_until_idle()
        assert [event.type for event in await env.client.history(run.instance_id)][:4] == [
            "orchestration_started",
            "timer_created",
            "timer_fired",
            "custom_status_set",
        ]
        env.pause()
        assert [await run.reset(to_event=to_event), await run.reset(to_event=2)] == [2, 3]
        await env.resume()
        await env.run_until_idle()
        assert env.now() - env.started < timedelta(days=2)
        await run.raise_event("note", "thanks")
        assert await run.wait(20) == "thanks"


async def test_a_child_answers_its_parent_after_resets(kept_url: str, client: Client) -> None:
    """It was scheduled before them, and ends after them; its default id stays what it was."""
    async with Worker(FailingShop().app, kept_url, OPTIONS):
        run = await client.start("with_parcel", 1, instance_id="order")
        with pytest.raises(OrchestrationFailed, match="no box"):
            await run.wait(30)
        child = await number_of(client, "order", "sub_orchestration_scheduled")
        name = f"order/1:{child}"

        async def cancelled() -> bool:  # with its parent; the reset is of a parent whose child has ended
            return (await client.status(name)).finished

        await until(cancelled)
    shop = FailingShop()
    shop.broken = False
    await client.reset(name, to_event=2)
    await client.reset("order", to_event=child + 1)
    await client.reset("order", to_event=child + 1)
    async with Worker(shop.app, kept_url, OPTIONS):
        await client.raise_event(name, "delivered", "at last")
        assert await run.wait(30) == ["PACK", "at last"]


async def test_a_child_that_has_ended_answers_again(shop: FailingShop, client: Client) -> None:
    """With what its own row says, or what the history says when it is gone."""
    shop.broken = False
    run = await client.start("with_parcel", 1, instance_id="order")
    child = "order/1:2"
    await exists(client, child)
    await client.raise_event(child, "delivered", "at once")
    assert await run.wait(30) == ["PACK", "at once"]
    await client.reset("order", to_event=3)
    assert await run.wait(30) == ["PACK", "at once"]
    await client.delete(child)
    await client.reset("order", to_event=3)
    assert await run.wait(30) == ["PACK", "at once"]


async def test_the_custom_status_is_the_one_that_was_there(shop: FailingShop, client: Client) -> None:
    """Also where a former execution has set it."""
    run = await client.start("staged", 1, instance_id="i")

    async def waits() -> bool:
        status = await run.status()
        return (status.execution_id, status.event_count) == (2, 2)

    await until(waits)
    await run.raise_event("go", "on")
    assert await run.wait(30) == ["first", "on", "second"]
    (info,) = await client._provider.get_instance(["i"])
    assert info is not None
    (page,) = await client._provider.read_history([HistoryCursor("i", 2)])
    reset = build_reset(info, cut_history(page.events, 2, 2), {})
    assert reset.custom_status == '"first"'
    await client.reset("i", to_event=2)
    assert await run.wait(30) == ["first", "on", "second"]


async def test_a_custom_status_stays_while_the_start_after_a_reset_waits(kept_url: str, client: Client) -> None:
    shop = FailingShop()
    async with Worker(shop.app, kept_url, OPTIONS):
        run = await client.start("staged", 1, instance_id="i")
        await run.raise_event("go", "on")
        await run.wait(30)
    for _ in range(2):
        await client.reset("i", to_event=1)
        assert (await run.status()).custom_status == "first"
    async with Worker(shop.app, kept_url, OPTIONS):
        assert await run.wait(30) == ["first", "on", "second"]


async def test_a_custom_status_that_was_set_later_is_gone(shop: FailingShop, client: Client) -> None:
    run = await client.start("marked", 1, instance_id="i")
    await run.raise_event("go", "on")

    async def is_marked() -> bool:
        return bool((await run.status()).custom_status == "once")

    await until(is_marked)
    await client.reset("i", to_event=2)
    await run.raise_event("end", "over")
    assert await run.wait(30) == "over"
    assert (await run.status()).custom_status is None


async def test_what_cannot_be_reset_is_refused(client: Client) -> None:
    await client.start("order", 1, instance_id="order")
    with pytest.raises(UnknownInstance):
        await client.reset("missing", to_event=1)
    for to_event in (0, 1_000):
        with pytest.raises(InvalidInput, match="has the events 1 to"):
            await client.reset("order", to_event=to_event)


STEPS = [
    encode_event(event)
    for event in (
        ev.OrchestrationStarted("f", "1", "null"),
        ev.ActivityScheduled("a", "1"),
        ev.TimerCreated(5.0),
        ev.ActivityCompleted(2, "1"),
        ev.ActivityScheduled("b", "1"),
        ev.TimerFired(3),
        ev.EventRaised("e", "1"),
        ev.OrchestrationFailed("E", "m"),
    )
]


@pytest.mark.parametrize(
    ("to_event", "kept", "again"),
    [(1, 0, 1), (2, 0, 1), (3, 3, None), (4, 3, 4), (5, 5, None), (6, 6, None), (8, 6, 7)],
)
def test_a_history_is_cut_between_steps(to_event: int, kept: int, again: int | None) -> None:
    cut = cut_history(STEPS, to_event, 1)
    assert len(cut.kept) == kept
    assert (None if cut.again is None else encode_event(cut.again)) == (None if again is None else STEPS[again - 1])
    assert len(cut.kept) + (cut.again is not None) + len(cut.rest) == len(STEPS)


def test_what_is_outstanding_at_a_cut() -> None:
    assert set(cut_history(STEPS, 3, 1).outstanding) == {2, 3}
    assert set(cut_history(STEPS, 4, 1).outstanding) == {3}  # the result comes again
    assert set(cut_history(STEPS, 6, 1).outstanding) == {5}


def test_what_cannot_be_read_does_not_stand_in_the_way_behind_the_cut() -> None:
    sick = [*STEPS[:4], '{"type":"from_the_future"}', *STEPS[5:]]
    assert len(cut_history(sick, 3, 1).kept) == 3
    assert len(cut_history(sick, 4, 1).kept) == 3
    with pytest.raises(NotSerializable):
        cut_history(sick, 6, 1)


def test_answers_are_taken_for_what_a_former_execution_scheduled() -> None:
    """As far as it counts, over several resets."""
    reset = encode_event(ev.ExecutionReset((ev.Ancestor(1, 5),)))
    twice = [*STEPS[:5], reset, *STEPS[5:]]
    assert cut_history(twice, 3, 2).lineage == (ev.Ancestor(1, 3), ev.Ancestor(2, 3))
    assert cut_history(twice, 7, 2).lineage == (ev.Ancestor(1, 5), ev.Ancestor(2, 7))
