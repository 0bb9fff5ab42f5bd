"""A database that has lost what it had committed: nothing of the lost past is served, trusted or written any more, and
no process needs a restart.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from affinity import Client, RuntimeOptions, Sessions, Worker, migrate
from affinity.errors import ConnectionLost, ReadOnly
from affinity.provider import open_provider
from affinity.provider.timeline import Timeline
from tests.servers.lost_tail import Pair, copy
from tests.servers.programs import LocalServer, programs
from tests.support.word_list_app import make_app
from tests.support.worker_processes import open_workers

pytestmark = pytest.mark.anyio

OPTIONS = {
    "worker_node_id": "w",
    "worker_lease_timeout": 3.0,
    "work_item_lock_timeout": 6.0,
    "session_lock_timeout": 60.0,
    "poll_interval": 0.3,
    "drain_timeout": 3.0,
}


APP = "tests.support.word_list_app:app"

LOGGED_AHEAD = 40
"""More values than a sequence writes ahead: from then on the standby's is behind."""

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE '%commit'"

MESSAGE = "SELECT id FROM affinity.orchestrator_queue WHERE instance_id = 'i'"


@pytest.fixture(params=["old", "new"])
def primary(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    """A server of this test's own."""
    offers = sorted(programs(), key=lambda offer: offer.major)
    with offers[0 if request.param == "old" else -1].open() as server:
        assert isinstance(server, LocalServer)
        yield server


@pytest.fixture
async def pair(primary: LocalServer) -> AsyncIterator[Pair]:
    with primary.standby() as standby:
        pair = Pair(primary, standby)
        await migrate(pair.url)
        yield pair


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[Worker]:
    """A worker of this process, with a cache of its own."""
    app = make_app(Sessions(list[str], kind="notes", initial=lambda _: []))
    async with Worker(app, url, RuntimeOptions.make(**OPTIONS | options)) as worker:
        yield worker


async def write(client: Client, word: str, session_id: str = "s") -> Any:
    started = await client.start("write", (session_id, word))
    return await client.wait(started.instance_id, timeout=60)


async def read(client: Client, session_id: str = "s") -> Any:
    started = await client.start("read", session_id)
    return await client.wait(started.instance_id, timeout=60)


async def test_state_of_a_lost_tail_is_not_served(pair: Pair) -> None:
    """The same worker holds the session before and after, in a row that was replicated."""
    async with serving(pair.url) as worker, Client(pair.url) as client:
        await write(client, "kept")
        pair.standby.cut()
        incarnation = worker.identity.incarnation
        lost = await write(client, "lost")
        assert lost["words"] == ["kept", "lost"]
        pair.fail_over()
        async with Client(pair.url) as client_of_the_new:
            seen = await read(client_of_the_new)
            assert seen["words"] == ["kept"]
            assert seen["epoch"] > lost["epoch"]
            assert (await write(client_of_the_new, "next"))["words"] == ["kept", "next"]
        assert worker.identity.incarnation != incarnation


async def test_an_epoch_of_a_lost_tail_is_not_issued_again(pair: Pair) -> None:
    """A worker that stood still meanwhile has a copy under an epoch that is about to be drawn once more."""
    with open_workers(pair.url) as workers:
        one = workers.start("one", APP)
        async with Client(pair.url) as client:
            await write(client, "-", "warm")
            pair.standby.cut()
            for n in range(LOGGED_AHEAD):
                await write(client, "-", f"drawn-{n}")
            lost = await write(client, "lost")
        one.pause()
        pair.fail_over()
        two = workers.start("two", APP)
        async with Client(pair.url) as client:
            assert (await write(client, "kept"))["words"] == ["kept"]
            two.send(signal.SIGTERM)
            assert two.wait() == 0
            pair.draw("epochs", lost["epoch"] - 2)
            one.send(signal.SIGCONT)
            seen = await write(client, "next")
            assert seen["words"] == ["kept", "next"]
            assert seen["epoch"] > lost["epoch"]
            assert (await read(client))["words"] == ["kept", "next"]
        one.wait_log("starting again as a new incarnation")


@pytest.mark.slow
async def test_a_turn_of_a_lost_tail_takes_no_event_of_another_instance(pair: Pair) -> None:
    """It waits in the worker's commit queue while its message's id is given to an event that a client has received."""
    with open_workers(pair.url) as workers:
        worker = workers.start("w", APP, worker_lease_timeout=15.0, work_item_lock_timeout=30.0, stall_timeout=60.0)
        async with Client(pair.url) as client:
            for name in "ijk":
                await client.start("listen", instance_id=name)
            for name in "ijk":
                while (await client.status(name)).custom_status != "listening":
                    await anyio.sleep(0.01)
            pair.standby.cut()
            await client.start("of no worker", instance_id="x")
            for _ in range(LOGGED_AHEAD):
                await client.raise_event("x", "said")
            with closing(psycopg.connect(pair.primary.url(pair.database))) as locker:
                locker.execute("LOCK TABLE affinity.history IN ACCESS EXCLUSIVE MODE")
                await client.raise_event("k", "said", "lost")
                while pair.run(pair.primary, WAITING) == [(0,)]:
                    await anyio.sleep(0.01)
                await client.raise_event("i", "said", "lost")
                await anyio.sleep(1.0)  # fetched, and queued behind the turn of k: no table shows it
                ((lost,),) = pair.run(
                    pair.primary, "SELECT id FROM affinity.orchestrator_queue WHERE instance_id = 'i'"
                )
                worker.pause()
                pair.fail_over()
        pair.draw("orchestrator_queue_id_seq", lost - 1)
        async with Client(pair.url) as client:
            await client.raise_event("j", "said", "kept")
            worker.send(signal.SIGCONT)
            assert await client.wait("j", timeout=60) == "kept"
            for name in "ik":
                await client.raise_event(name, "said", "anew")
                assert await client.wait(name, timeout=60) == "anew"


async def test_a_worker_that_restarted_in_the_lost_tail_is_not_fenced(pair: Pair) -> None:
    """The row of its name has the incarnation before."""
    async with serving(pair.url), Client(pair.url) as client:
        await write(client, "kept")
    pair.standby.cut()
    async with serving(pair.url):
        async with Client(pair.url) as client:
            await write(client, "lost")
        pair.fail_over()
        async with Client(pair.url) as client:
            assert (await read(client))["words"] == ["kept"]


async def test_a_standby_is_for_clients_that_read(pair: Pair) -> None:
    """A worker's connection to it would outlast its promotion, unasked on which timeline it is then."""
    async with Client(pair.url) as client:
        await client.start("read", "s", instance_id="there")
    pair.standby.catch_up()
    async with Client(pair.standby.url(pair.database)) as client:
        assert (await client.status("there")).status == "pending"
    with pytest.raises(ReadOnly):
        await open_provider(pair.standby.url(pair.database), timeline=Timeline())


async def test_rows_that_came_without_their_sequences(primary: LocalServer) -> None:
    """As after an upgrade by logical replication: the ids of the sequences are in use."""
    before = primary.create_database()
    await migrate(primary.url(before))
    async with serving(primary.url(before)), Client(primary.url(before)) as client:
        for n in range(5):
            last = await write(client, "kept", f"s-{n}")
            await client.start("sleep", 3600.0, instance_id=f"before-{n}")
        while await timers(client) < 5:
            await anyio.sleep(0.01)
    after = primary.create_database(before)
    with psycopg.connect(primary.url(after), autocommit=True) as connection:
        connection.execute("DELETE FROM affinity.sessions")
        connection.execute("ALTER SEQUENCE affinity.epochs RESTART")
        connection.execute("ALTER TABLE affinity.orchestrator_queue ALTER id RESTART")
    async with serving(primary.url(after)), Client(primary.url(after)) as client:
        for n in range(5):
            await client.start("sleep", 3600.0, instance_id=f"after-{n}")
        seen = await write(client, "next", "s-4")
        assert seen["words"] == ["kept", "next"]
        assert seen["epoch"] > last["epoch"]
        while await timers(client) < 10:
            await anyio.sleep(0.01)


async def test_a_schema_that_was_dropped_and_made_again(primary: LocalServer) -> None:
    """The first session of either schema has epoch 1."""
    url = primary.url(primary.create_database())
    await migrate(url)
    with open_workers(url) as workers:
        worker = workers.start("w", APP)
        async with Client(url) as client:
            await write(client, "of the other")
        worker.pause()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA affinity CASCADE")
        await migrate(url)
        worker.send(signal.SIGCONT)
        async with Client(url) as client:
            assert (await read(client))["words"] == []
        worker.wait_log("starting again as a new incarnation")


@pytest.mark.slow
async def test_a_snapshot_of_the_disk_that_is_restored(primary: LocalServer) -> None:
    """The server, its timeline and all tables are the same ones; only it is behind."""
    url = primary.url(primary.create_database())
    await migrate(url)
    async with serving(url) as worker:
        async with Client(url) as client:
            await write(client, "kept")
        incarnation = worker.identity.incarnation
        with primary.rewound():
            async with Client(url) as client:
                assert (await write(client, "lost"))["words"] == ["kept", "lost"]
                await renewed(client)
        async with Client(url) as client:
            assert (await read(client))["words"] == ["kept"]
        assert worker.identity.incarnation != incarnation


@pytest.mark.parametrize("into", ["the same file", "a new file"])
async def test_a_backup_of_sqlite_that_is_restored(sqlite_url: str, into: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    backup = path.with_name("backup.db")
    async with serving(sqlite_url) as worker, Client(sqlite_url) as client:
        await write(client, "kept")
        copy(path, backup)
        incarnation = worker.identity.incarnation
        assert (await write(client, "lost"))["words"] == ["kept", "lost"]
        await renewed(client)
        if into == "the same file":
            copy(backup, path)
        else:
            for suffix in ("-wal", "-shm"):
                os.unlink(f"{path}{suffix}")
            backup.replace(path)
        async with Client(sqlite_url) as client_of_the_new:
            assert (await read(client_of_the_new))["words"] == ["kept"]
            assert (await write(client_of_the_new, "next"))["words"] == ["kept", "next"]
        assert worker.identity.incarnation != incarnation


async def test_a_worker_may_leave_while_it_starts_again(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the database does not answer then."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    copy(path, backup := path.with_name("backup.db"))
    tried = anyio.Event()

    async def refuse(*_: Any, **__: Any) -> Any:
        tried.set()
        raise ConnectionLost("not now")

    with anyio.fail_after(60):
        async with serving(sqlite_url), Client(sqlite_url) as client:
            await renewed(client)
            monkeypatch.setattr("affinity.worker.worker.open_provider", refuse)
            copy(backup, path)
            await tried.wait()


async def timers(client: Client) -> int:
    return sum((await client.statistics()).messages.values())


async def renewed(client: Client) -> None:
    """Return when the worker has renewed its lease twice."""
    left, renewals = math.inf, 0
    while renewals < 2:
        (worker,) = await client.workers()
        renewals += worker.expires_in > left
        left = worker.expires_in
        await anyio.sleep(0.01)
