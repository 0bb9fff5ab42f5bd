"""A worker whose lease has lapsed and come back: what was begun before ends by itself, and touches nothing of what runs
now.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager

import anyio
import psycopg
import pytest

from affinity import ActivityContext, App, OrchestrationContext, RuntimeOptions, Worker
from affinity.client import Client
from tests.provider.postgres_stage import administrator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SHORT = RuntimeOptions.make(worker_lease_timeout=1, poll_interval=0.2)


@pytest.fixture
async def client(any_url: str) -> AsyncIterator[Client]:
    async with Client(any_url) as client:
        yield client


@contextmanager
def silenced(url: str) -> Iterator[None]:
    """The database answers no worker."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute("BEGIN EXCLUSIVE")
            yield
            file.execute("ROLLBACK")
    else:
        with administrator(url) as admin, admin.transaction():
            admin.execute("LOCK TABLE workers, worker_queue IN ACCESS EXCLUSIVE MODE")
            yield
            raise psycopg.Rollback


async def test_a_run_that_ends_after_its_successor_has_begun_takes_nothing_from_it(
    any_url: str, client: Client
) -> None:
    """Two runs of one work item on one worker: the older one is still cleaning up when the item is fetched again."""
    app = App("twice")
    begun, cancelled, cleaned, ended, over = [anyio.Event(), anyio.Event()], *(anyio.Event() for _ in range(4))
    runs = iter(begun)

    @app.activity
    async def work(context: ActivityContext) -> int:
        run = next(runs)
        run.set()
        try:
            await (anyio.sleep_forever() if run is begun[0] else over.wait())
        except BaseException:
            cancelled.set()
            with anyio.CancelScope(shield=True):
                await cleaned.wait()
            ended.set()
            raise
        return begun.index(run)

    @app.orchestration
    async def once(context: OrchestrationContext) -> int:
        return await context.schedule_activity(work).on_session("s")

    async with Worker(app, any_url, SHORT) as worker:
        run = await client.start("once")
        with anyio.fail_after(30):
            await begun[0].wait()
            with silenced(any_url):
                await cancelled.wait()
            await begun[1].wait()
            cleaned.set()
            await ended.wait()
        over.set()
        assert await client.wait(run.instance_id, timeout=10) == 1
        assert len(worker.runtime.activities) == 0
