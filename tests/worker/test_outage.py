"""The database goes away under load, and comes back: nothing is lost, nothing is done twice, and no worker crashes."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from affinity import Client, migrate
from tests.servers import PostgresServer, StopMode, old_and_new
from tests.support.activity_calls import ActivityCalls, open_calls
from tests.support.worker_processes import open_workers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUNS, TURNS = 12, 60

CHANGES = 4
"""Log lines about the database in one outage: lost and back, and little more while its connections come back one by
one.
"""


@pytest.fixture(params=["old", "new"])
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A durable server that this test may stop."""
    offer = dict(zip(("old", "new"), old_and_new(), strict=True))[request.param]
    with offer.open(fsync=True) as server:
        yield server


@pytest.fixture
async def calls() -> AsyncIterator[ActivityCalls]:
    async with open_calls() as calls:
        yield calls


@pytest.mark.nightly_cases("old-immediate|new-fast")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_postgresql_under_load(
    own_server: PostgresServer, calls: ActivityCalls, mode: StopMode
) -> None:
    """``immediate`` is a crash of the server. The same processes go on; each changes its mind in the log just twice."""
    url = own_server.url(own_server.create_database())
    await migrate(url)
    with open_workers(url) as workers:
        processes = [workers.start(f"worker-{n}") for n in range(3)]
        async with Client(url) as client:
            runs = [await client.start("marked_walk", TURNS) for _ in range(RUNS)]
            first = await calls.next()  # one is half-way, the others are under way
            own_server.stop(mode)
            for process in processes:
                process.wait_log("database lost")
            own_server.start()
            await first.answer()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_answer_all, calls)
                for run in runs:
                    result = await client.wait(run.instance_id, timeout=120)
                    assert [one["n"] for one in result] == list(range(TURNS))
                    kinds = [event.type for event in await client.history(run.instance_id)]
                    assert kinds.count("activity_completed") == kinds.count("activity_scheduled") == TURNS
                tasks.cancel_scope.cancel()
        for process in processes:
            process.wait_log("database is back")
            process.send(signal.SIGTERM)
            assert process.wait() == 0
            said = [line for line in process.log if "database lost" in line or "database is back" in line]
            assert len(said) <= CHANGES, said


async def _answer_all(calls: ActivityCalls) -> None:
    while True:
        await (await calls.next(timeout=120)).answer()
