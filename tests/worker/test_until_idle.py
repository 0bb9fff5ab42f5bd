"""`affinity worker --until-idle`: processes that run what is due, and end."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.cli.help import INTERRUPTED
from tests.support.activity_calls import ActivityCalls
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

IDLE = ["--until-idle"]


@on_all_databases
async def test_it_runs_what_is_due_and_ends(workers: Workers, client: Client) -> None:
    assert workers.launch("none", flags=IDLE).wait() == 0
    for n in range(20):
        await client.start("walk", 3, instance_id=f"walk-{n}")
    await client.start("fan_out", 30, instance_id="fan")
    await client.start("nap", 0.6, instance_id="soon")
    await client.start("nap", 3600.0, instance_id="late")
    assert workers.launch("one", flags=IDLE).wait() == 0
    statuses = {one.instance_id: one.status async for one in client.list_instances()}
    assert statuses.pop("late") == "running"
    assert set(statuses.values()) == {"completed"}


@on_all_databases
async def test_with_a_time_it_waits_for_what_is_due_within_it(workers: Workers, client: Client) -> None:
    await client.start("nap", 3.0, instance_id="within")
    await client.start("nap", 600.0, instance_id="behind")
    began = time.monotonic()
    assert workers.launch("one", flags=[*IDLE, "--for", "2m"]).wait() == 0
    assert time.monotonic() - began < 60.0
    assert (await client.status("within")).status == "completed"
    assert (await client.status("behind")).status == "running"


@on_all_databases
async def test_when_the_time_is_over_it_drains_and_ends(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    await client.start("held_walk", 1, instance_id="long")
    worker = workers.launch("one", flags=[*IDLE, "--for", "2s"], drain_timeout=0.5)
    await calls.next()
    assert worker.wait() == 0
    worker.wait_log("something is left to do")
    assert (await client.status("long")).status == "running"


@on_all_databases
async def test_a_signal_ends_it_as_it_ends_any_worker(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    await client.start("held_walk", 1, instance_id="long")
    worker = workers.launch("one", flags=IDLE, drain_timeout=0.5)
    await calls.next()
    worker.send(signal.SIGINT)
    assert worker.wait() == INTERRUPTED
    other = workers.launch("two", flags=IDLE, drain_timeout=0.5)
    await calls.next()
    other.send(signal.SIGTERM)
    assert other.wait() == 0


async def test_schedules_that_are_due_are_fired_first(any_url: str) -> None:
    app = App("ticking")

    @app.orchestration
    async def tick(context: OrchestrationContext) -> None:
        await context.schedule_timer(timedelta(seconds=0.3))

    app.schedule("soon", tick, at=[datetime.now(UTC) + timedelta(seconds=2)])
    async with Worker(app, any_url, RuntimeOptions(worker_node_id="one", poll_interval=5.0)) as worker:
        assert await worker.wait_idle(60.0)
    async with Client(any_url) as client:
        ticks = [one.status async for one in client.list_instances()]
    assert ticks == ["completed"]


@pytest.mark.parametrize("most", [None, 0.2])
async def test_an_activity_that_runs_is_waited_for(sqlite_url: str, most: float | None) -> None:
    app = App("busy")
    ended = anyio.Event()

    @app.activity
    async def work(context: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.6)
        ended.set()

    @app.orchestration
    async def run(context: OrchestrationContext) -> None:
        await context.schedule_activity(work)

    async with Client(sqlite_url) as client, Worker(app, sqlite_url, RuntimeOptions(worker_node_id="one")) as worker:
        await client.start(run)
        assert await worker.wait_idle(most) == (most is None)
        assert ended.is_set() == (most is None)
