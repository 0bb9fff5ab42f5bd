"""Schedules by a client: the calls, and what each refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from affinity import App, Client, ExternalEvent, OrchestrationContext, RuntimeOptions
from affinity.errors import (
    InstanceFinished,
    InvalidId,
    InvalidSchedule,
    ScheduleDeclared,
    ScheduleExists,
    UnknownInstance,
    UnknownSchedule,
)
from affinity.limits import MAX_BACKFILL
from affinity.testing import Env

pytestmark = pytest.mark.anyio

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

app = App("shop")


@app.orchestration
async def report(ctx: OrchestrationContext, due: datetime) -> str:
    return due.isoformat()


@app.orchestration
async def events(ctx: OrchestrationContext) -> list[Any]:
    return [await ctx.schedule_wait("tick") for _ in range(2)]


async def test_create_and_show(kept_url: str) -> None:
    """What was given comes back; nothing else is needed than a database."""
    async with Client(kept_url) as client:
        end = datetime(2100, 1, 1, tzinfo=UTC)
        made = await client.schedules.create(
            "nightly", "report", cron="0 3 * * *", zone="Europe/Berlin", overlap="queue", end=end
        )
        assert (made.name, made.state, made.target) == ("nightly", "active", "report")
        assert (made.timing, made.zone, made.overlap, made.end) == (
            "cron 0 3 * * * (Europe/Berlin)",
            "Europe/Berlin",
            "queue",
            end,
        )
        assert len(made.next_ticks) == 5
        assert list(made.next_ticks) == sorted(made.next_ticks)
        assert (made.last_tick, made.last_instance, made.is_running, made.skipped, made.app) == (
            None,
            None,
            False,
            0,
            None,
        )
        assert await client.schedules.show("nightly") == made
        with pytest.raises(ScheduleExists):
            await client.schedules.create("nightly", "report", every=60)
        assert await client.schedules.show("nightly") == made


async def test_refused_calls(sqlite_url: str) -> None:
    """With an error for each, before anything is written."""
    async with Client(sqlite_url) as client:
        schedules = client.schedules
        for name in ("", "a\nb"):
            with pytest.raises(InvalidId):
                await schedules.create(name, "report", every=60)
        with pytest.raises(InvalidSchedule):
            await schedules.create("a", "report", cron="often")
        for call in (
            schedules.show,
            schedules.pause,
            schedules.resume,
            schedules.trigger,
            schedules.delete,
            schedules.update,
        ):
            with pytest.raises(UnknownSchedule, match="'a'"):
                await call("a")
        assert await schedules.list() == []


async def test_list_in_pages(kept_url: str) -> None:
    async with Client(kept_url) as client:
        for name in "cab":
            await client.schedules.create(name, "report", every=60)
        assert [each.name for each in await client.schedules.list(limit=2)] == ["a", "b"]
        assert [each.name for each in await client.schedules.list(after="b")] == ["c"]
        assert await client.schedules.list(app="shop") == []


async def test_update(kept_url: str) -> None:
    """Given options replace their own; the schedule goes on from now."""
    async with Client(kept_url) as client:
        made = await client.schedules.create("a", "report", cron="0 3 * * *", zone="Europe/Berlin", overlap="queue")
        changed = await client.schedules.update("a", every=HOUR)
        assert (changed.timing, changed.overlap, changed.generation) == ("every 1:00:00", "queue", made.generation)
        assert changed.next_ticks[1] - changed.next_ticks[0] == HOUR
        assert (await client.schedules.update("a", "other", input=5)).target == "other"
        with pytest.raises(InvalidSchedule, match="give the target too"):
            await client.schedules.update("a", input=6)  # type: ignore[call-overload]
        await client.schedules.pause("a")
        assert (await client.schedules.update("a", every=2 * HOUR)).state == "paused"


async def test_pause_and_resume() -> None:
    """Ticks of the pause are not fired, and not later either."""
    async with Env(app) as env:
        schedules = env.client.schedules
        await schedules.create("a", report, every=HOUR, catch_up=DAY, overlap="allow")
        paused = await schedules.pause("a", "holidays")
        assert (paused.state, paused.note, paused.next_ticks) == ("paused", "holidays", [])
        await env.advance(3 * HOUR)
        assert [each async for each in env.client.list_instances()] == []
        resumed = await schedules.resume("a")
        assert (resumed.state, resumed.note) == ("active", None)
        assert await schedules.resume("a") == resumed
        await env.advance(HOUR)
        assert len([each async for each in env.client.list_instances()]) == 1


async def test_a_pause_drops_the_queued_tick() -> None:
    async with Env(app) as env:
        await env.client.schedules.create("a", events, every=HOUR, overlap="queue")
        await env.advance(2 * HOUR)
        assert (await env.client.schedules.show("a")).queued is not None
        assert (await env.client.schedules.pause("a")).queued is None


async def test_trigger(env_url: str | None) -> None:
    """By hand, also while it is paused; each call starts one, and ticks stay as they are."""
    async with Env(app, url=env_url) as env:
        made = await env.client.schedules.create("a", report, every=HOUR)
        await env.client.schedules.pause("a")
        ids = [await env.client.schedules.trigger("a") for _ in range(2)]
        assert len(set(ids)) == 2
        assert all(each.startswith(f"a/{made.generation}@") for each in ids)
        now = env.now()
        for instance_id in ids:
            due = datetime.fromisoformat(await env.client.wait(instance_id))
            assert abs(due - now) < timedelta(seconds=1)
        shown = await env.client.schedules.show("a")
        assert (shown.last_tick, shown.state) == (None, "paused")


async def test_trigger_sends_an_event() -> None:
    """To the instance, whose state may refuse it."""
    async with Env(app) as env:
        await env.client.schedules.create("e", ExternalEvent("i", "tick", {"n": 1}), every=HOUR, due_as="at")
        with pytest.raises(UnknownInstance):
            await env.client.schedules.trigger("e")
        handle = await env.client.start(events, instance_id="i")
        assert [await env.client.schedules.trigger("e") for _ in range(2)] == ["i", "i"]
        received = await handle.wait()
        assert [set(each) for each in received] == [{"n", "at"}] * 2
        with pytest.raises(InstanceFinished):
            await env.client.schedules.trigger("e")


async def test_backfill(env_url: str | None) -> None:
    """Each tick of the time once, also one that was fired before."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("a", report, every=HOUR)
        await env.advance(2 * HOUR)
        start, end = env.now() - 10 * HOUR, env.now()
        assert await env.client.schedules.backfill("a", start=start, end=end) == 8
        assert await env.client.schedules.backfill("a", start=start, end=end) == 0
        await env.run_until_idle()
        found = [each async for each in env.client.list_instances(prefix="a/")]
        assert {each.status for each in found} == {"completed"}
        assert sorted(each.output for each in found) == sorted(
            each.instance_id.partition("@")[2].replace("Z", "+00:00") for each in found
        )
        assert len(found) == 10


async def test_refused_backfills() -> None:
    async with Env(app) as env:
        await env.client.schedules.create("a", report, every=1.0)
        now = env.now()
        seconds = timedelta(seconds=MAX_BACKFILL + 1)
        for start, end in (
            (now, now - HOUR),
            (now, now + HOUR),
            (datetime(2026, 1, 1), now),
            (now - seconds, now),
        ):
            with pytest.raises(InvalidSchedule):
                await env.client.schedules.backfill("a", start=start, end=end)
        assert [each async for each in env.client.list_instances()] == []


async def test_delete(kept_url: str) -> None:
    """The name is free; a new schedule of this name has another generation."""
    async with Client(kept_url) as client:
        made = await client.schedules.create("a", "report", every=60)
        await client.schedules.delete("a")
        with pytest.raises(UnknownSchedule):
            await client.schedules.show("a")
        assert (await client.schedules.create("a", "report", every=60)).generation != made.generation


async def test_a_declared_schedule_is_changed_in_its_code() -> None:
    """Until the code declares it no more; a pause and a trigger need no code."""
    declared = App("shop")
    declared.include(app)
    declared.schedule("a", report, every=HOUR)
    async with Env(declared, options=RuntimeOptions.make(code_version="1")) as env:
        await env.run_until_idle()
        schedules = env.client.schedules
        for call in (schedules.update, schedules.delete):
            with pytest.raises(ScheduleDeclared, match="the app 'shop'"):
                await call("a")
        assert (await schedules.pause("a")).app == "shop"
        await schedules.delete("a")
        await env.advance(HOUR)
        assert (await schedules.show("a")).state == "active"  # the code declares it still
        await schedules.pause("a")
        assert await schedules.trigger("a")
        await schedules.resume("a")
        env._app, env._options = app, RuntimeOptions.make(code_version="2")
        await env._start_worker("new")
        await env.run_until_idle()
        with pytest.raises(ScheduleDeclared, match="no longer declares it"):
            await schedules.resume("a")
        await schedules.delete("a")
