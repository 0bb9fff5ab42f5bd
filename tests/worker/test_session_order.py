"""Ordered activities of a session run in the order of their commits, whatever happens to the workers."""

from __future__ import annotations

import signal
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio import to_thread

from affinity import ActivityContext, App, Client, ExternalEvent, OrchestrationContext, RuntimeOptions, Start, Worker
from tests.support.all_databases import on_all_databases
from tests.support.ordered_log_app import check, schedule
from tests.support.worker_processes import WorkerProcess, Workers

pytestmark = pytest.mark.anyio

WRITERS, LINES = 3, 45
APP: Final = "tests.support.ordered_log_app:app"
NAMES: Final = ("red", "green", "blue")
OPTIONS: Final[dict[str, Any]] = {"max_attempts": 100}


@pytest.mark.slow
@on_all_databases
async def test_several_orchestrations_append_to_one_log(workers: Workers, client: Client, tmp_path: Path) -> None:
    """Workers are killed and started again all the time. Each line is scheduled when the one before it is committed. So
    the log has them in order, once each, and none begins before the one before it has ended, though attempts fail and
    are repeated. Work that is not ordered runs between a beginning and an end.
    """
    notes = tmp_path / str(next(_FILES))
    running = {name: workers.start(name, APP, **OPTIONS) for name in NAMES}
    writers = [(await client.start("write_lines", str(notes))).instance_id for _ in range(WRITERS)]
    async with anyio.create_task_group() as group:
        group.start_soon(_kill_one_after_the_other, workers, running)
        for number in range(LINES):
            await schedule(client, writers[number % WRITERS], number)
        await client.raise_events(ExternalEvent(writer, "line", -1) for writer in writers)
        for writer in writers:
            await client.wait(writer, timeout=150)
        group.cancel_scope.cancel()
    await check(client, notes, LINES)


_FILES = count()
"""Names of files: the test runs on several databases at the same time."""


async def _kill_one_after_the_other(workers: Workers, running: dict[str, WorkerProcess]) -> None:
    """Each is started again under its name a little later, mostly before its lease has ended."""
    for name in cycle(NAMES):
        await anyio.sleep(2.5)
        running[name].send(signal.SIGKILL)
        await anyio.sleep(1.0)
        running[name] = await to_thread.run_sync(partial(workers.start, name, APP, **OPTIONS))


# --- in this process --------------------------------------------------------------------------------------------------

line = App("line")
OPTIONS_WITHOUT_POLL: Final[dict[str, Any]] = {
    "poll_interval": 60.0,
    "worker_lease_timeout": 120.0,
    "stall_timeout": 120.0,
}


@line.activity
async def pass_by(context: ActivityContext, seconds: float) -> str:
    await anyio.sleep(seconds)
    return context.worker_id


@line.orchestration
async def walk(context: OrchestrationContext, turns: int) -> int:
    """So many ordered turns on the session of all."""
    for _ in range(turns):
        await context.schedule_activity(pass_by, 0.0).on_session("all", ordered=True)
    return turns


@line.orchestration
async def crowd(context: OrchestrationContext, size: int) -> list[str]:
    """So many together."""
    steps = [context.schedule_activity(pass_by, 0.02).on_session("all", ordered=True) for _ in range(size)]
    return await context.gather(*steps)


@line.orchestration
async def stand(context: OrchestrationContext, seconds: float) -> bool:
    """Stand in line for so long, then leave."""
    place = context.schedule_activity(pass_by, 1_000.0).on_session("all", ordered=True)
    won = await context.select(place, context.schedule_timer(seconds))
    return won.index == 0


async def test_the_next_one_does_not_wait_for_a_poll(kept_url: str) -> None:
    """Twenty orchestrations on two workers share an order: the worker that holds the session learns of each item that
    has become the first, however the one before it was removed.
    """
    one, other = (RuntimeOptions.make(worker_node_id=name, **OPTIONS_WITHOUT_POLL) for name in "ab")
    async with Worker(line, kept_url, one), Worker(line, kept_url, other), Client(kept_url) as client:
        with anyio.fail_after(45):
            runs = await client.start_many([Start(walk, 5) for _ in range(20)])
            assert [await run.wait() for run in runs] == [5] * 20
            assert len(set(await (await client.start(crowd, 10)).wait())) == 1
            stands = await client.start_many([Start(stand, 0.5) for _ in range(4)])
            last = await client.start(walk, 1)
            assert [await run.wait() for run in stands] == [False] * 4
            assert await last.wait() == 1
            blocked = [await client.start(stand, 1_000.0) for _ in range(2)]
            last = await client.start(walk, 1)
            await client.delete(blocked[0].instance_id, force=True)
            await client.cancel(blocked[1].instance_id)
            assert await last.wait() == 1
