"""The environment fails under load, in real ways: nothing is lost, no instance fails, and the worker goes on."""

from __future__ import annotations

import random
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, get_args

import anyio
import psycopg
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Start, Worker
from affinity.errors import AccessDenied
from affinity.provider.sqlite import SqliteProvider
from affinity.provider.sqlite.driver import database
from affinity_conformance.providers import Fault
from tests.provider.fault_proxy import FaultProxy
from tests.provider.harnesses import SQLITE_FAULTS, FaultySqlite
from tests.provider.postgres_stage import administrator, until
from tests.support.activity_calls import ActivityCalls, open_calls
from tests.support.apps import app
from tests.support.worker_processes import Workers, open_workers

pytestmark = pytest.mark.anyio

RUNS = 10

STATES = (
    "53100",  # disk full
    "53200",  # out of memory
    "53300",  # too many connections
    "53400",  # a limit of the configuration
    "58000",  # system error
    "58030",  # I/O error
    "XX000",  # internal error
    "XX001",  # data corrupted
    "25006",  # read only
    "40001",  # serialization failure
    "40P01",  # deadlock
    "55006",  # object in use
    "55P03",  # lock not available
    "57014",  # statement timeout
    "42501",  # a right is missing
    "42P01",  # a table is missing
    "P0001",  # whatever a trigger of somebody else's raises
)
"""Errors of a server's environment, and one unlisted code."""

FAIL = """
    CREATE TABLE fault (state text);
    CREATE SEQUENCE faults;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE code text;
    BEGIN
        SELECT state INTO code FROM fault;
        IF code IS NOT NULL AND current_setting('application_name') ~ 'affinity (lease )?worker' THEN
            IF current_setting('application_name') ~ 'commit$' THEN
                PERFORM nextval('faults');  -- counts turns, though everything else is undone
            END IF;
            RAISE EXCEPTION 'injected' USING ERRCODE = code;
        END IF;
        RETURN NULL;
    END $$;
    DO $$
    DECLARE name regclass;
    BEGIN
        FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'affinity'::regnamespace AND relkind = 'r'
                       AND relname <> 'fault' LOOP
            EXECUTE format('CREATE TRIGGER fail AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT'
                           ' EXECUTE FUNCTION fail()', name);
        END LOOP;
    END $$"""
"""While there is a row in ``fault``, every write of a worker fails with its code, after it was made."""


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def calls() -> AsyncIterator[ActivityCalls]:
    async with open_calls() as calls:
        yield calls


@pytest.fixture
def workers(postgres_migrated: str, calls: ActivityCalls) -> Iterator[Workers]:
    with open_workers(postgres_migrated, calls) as workers:
        yield workers


@pytest.fixture
async def client(postgres_migrated: str) -> AsyncIterator[Client]:
    async with Client(postgres_migrated) as client:
        yield client


@pytest.mark.slow_cases(r"\[old")
async def test_no_error_of_the_server_fails_an_instance(
    workers: Workers, client: Client, calls: ActivityCalls, admin: psycopg.Connection[Any]
) -> None:
    """Every write of a worker fails while all its activities end, with one code after the other. Their results wait,
    and no activity runs twice.
    """
    admin.execute(FAIL)
    worker = workers.start("worker", worker_lease_timeout=60, work_item_lock_timeout=60, stall_timeout=60)
    for number in range(RUNS):
        await client.start("held_walk", len(STATES), instance_id=f"run {number}")
    for state in STATES:
        waiting = [await calls.next() for _ in range(RUNS)]
        with _failing(admin, state):
            for call in waiting:
                await call.answer()
            await until(admin, "SELECT last_value > 3 FROM faults")
    for number in range(RUNS):
        result = await client.wait(f"run {number}", timeout=60)
        assert [(one["n"], one["attempt"]) for one in result] == [(n, 1) for n in range(len(STATES))]
    worker.wait_log("database is back")
    assert "Traceback" not in "".join(worker.log)


async def test_an_outage_of_writes_that_outlasts_the_lease_has_two_log_lines(
    workers: Workers, client: Client, admin: psycopg.Connection[Any]
) -> None:
    """The disk is full; reads go on. Fetch, sweep, renewal and the listener go on afterwards."""
    admin.execute(FAIL)
    worker = workers.start("worker")
    for number in range(RUNS):
        await client.start("relay", 2, instance_id=f"run {number}")
        await client.raise_event(f"run {number}", "item", 0)
    with _failing(admin, "53100"):
        for number in range(RUNS):
            await client.raise_event(f"run {number}", "item", 1)
        worker.wait_log("database lost .*53100")
        worker.wait_log("lease lost")
    for number in range(RUNS):
        assert await client.wait(f"run {number}", timeout=60) == [2, 1]
    worker.wait_log("database is back")
    changes = [line for line in worker.log if "database lost" in line or "database is back" in line]
    assert len(changes) == 2, changes


@contextmanager
def _failing(admin: psycopg.Connection[Any], state: str) -> Iterator[None]:
    """Within, every write of a worker raises this."""
    admin.execute("SELECT setval('faults', 1)")
    admin.execute("INSERT INTO fault VALUES (%s)", [state])
    yield
    admin.execute("DELETE FROM fault")


@pytest.mark.slow
@pytest.mark.nightly_cases("old")
async def test_a_batch_that_takes_too_long_is_split(
    postgres_migrated: str, client: Client, admin: psycopg.Connection[Any]
) -> None:
    """Each turn alone has time enough; together they do not."""
    admin.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$"
    )
    admin.execute("CREATE TRIGGER slow BEFORE INSERT ON history FOR EACH ROW EXECUTE FUNCTION slow()")
    url = f"{postgres_migrated}?options=-c%20statement_timeout%3D800ms"
    sizes: list[int] = []
    worker = Worker(app, url, RuntimeOptions.make(poll_interval=0.2))
    async with worker:
        worker.runtime.commits.turns.observe = sizes.append
        await client.start_many(Start("walk", 2, f"run {number}") for number in range(16))
        for number in range(16):
            assert len(await client.wait(f"run {number}", timeout=60)) == 2
        assert worker.runtime.lease.error is None
    assert max(sizes) > 4
    assert len(sizes) > 16


@pytest.mark.slow_cases(r"\[old")
async def test_a_refused_login_ends_a_start_but_no_running_worker(
    postgres_migrated: str, client: Client, admin: psycopg.Connection[Any]
) -> None:
    """The role may log in no more, for a while; its connections are ended."""
    admin.execute("DROP ROLE IF EXISTS affinity_worker")
    admin.execute("CREATE ROLE affinity_worker LOGIN SUPERUSER")
    url = postgres_migrated.replace("postgres@", "affinity_worker@")
    try:
        with open_workers(url) as workers:
            worker = workers.start("worker")
            await client.start("relay", 2, instance_id="run")
            admin.execute("ALTER ROLE affinity_worker NOLOGIN")
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'affinity_worker'")
            worker.wait_log("database lost")
            worker.wait_log("lease lost")
            for number in range(2):
                await client.raise_event("run", "item", number)
            late = workers.launch("late")
            assert late.wait() == 3
            assert "not permitted to log in" in late.log[-2]
            with pytest.raises(AccessDenied):
                async with Client(url):
                    pass
            admin.execute("ALTER ROLE affinity_worker LOGIN")
            assert await client.wait("run", timeout=60) == [2, 1]
            worker.wait_log("database is back")
    finally:
        admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'affinity_worker'")
        admin.execute("DROP ROLE affinity_worker")


async def test_a_disk_that_takes_no_writes_fails_no_instance_of_sqlite(sqlite_url: str) -> None:
    """A real I/O error: the worker may not make its files any longer, for longer than its lease."""
    async with Client(sqlite_url) as client:
        with open_workers(sqlite_url) as workers:
            worker = workers.start("worker")
            for number in range(RUNS):
                await client.start("relay", 3, instance_id=f"run {number}")
                await client.raise_event(f"run {number}", "item", 0)
            soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (1, hard))
            for number in range(RUNS):
                await client.raise_event(f"run {number}", "item", 1)
            worker.wait_log("database lost .*SQLITE_IOERR_WRITE")
            worker.wait_log("lease lost")
            resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (soft, hard))
            for number in range(RUNS):
                await client.raise_event(f"run {number}", "item", 2)
            for number in range(RUNS):
                assert await client.wait(f"run {number}", timeout=60) == [3, 2]
            worker.wait_log("database is back")
            changes = [line for line in worker.log if "database lost" in line or "database is back" in line]
            assert len(changes) == 2, changes
            assert "Traceback" not in "".join(worker.log)


large = App("large")


@large.activity
async def write(context: ActivityContext, size: int) -> str:
    return "x" * size


@large.orchestration
async def pages(context: OrchestrationContext, count: int) -> int:
    """Results that need new pages of the file."""
    for _ in range(count):
        await context.schedule_wait("go", int)
        await context.schedule_activity(write, 20_000)
    return count


async def test_a_full_file_fails_no_instance_of_sqlite(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SQLITE_FULL: the file of the worker's connections may not grow any longer, for a while."""
    connections: list[sqlite3.Connection] = []
    configure = database._configure

    def note(connection: sqlite3.Connection) -> None:
        configure(connection)
        connections.append(connection)

    async with Client(sqlite_url) as client:
        monkeypatch.setattr(database, "_configure", note)
        async with Worker(large, sqlite_url, RuntimeOptions.make(poll_interval=0.2)) as worker:
            for number in range(RUNS):
                await client.start(pages, 3, instance_id=f"run {number}")
                await client.raise_event(f"run {number}", "go", 0)
            commits = worker.runtime.commits.turns
            _set_max_pages(connections, 1)  # what it has by now
            await _until(lambda: commits._backoff._failures > 3)
            _set_max_pages(connections, 1_000_000)
            for number in range(RUNS):
                await client.raise_event(f"run {number}", "go", 0)
                await client.raise_event(f"run {number}", "go", 0)
            for number in range(RUNS):
                assert await client.wait(f"run {number}", timeout=60) == 3
            assert worker.runtime.lease.error is None


def _set_max_pages(connections: Sequence[sqlite3.Connection], count: int) -> None:
    for connection in connections:
        with suppress(sqlite3.ProgrammingError):  # it was the one of the migration, and is closed
            connection.execute(f"PRAGMA max_page_count = {count}").fetchall()


async def _until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.01)


# --- one fault after the other, wherever it strikes -------------------------------------------------------------------


@pytest.mark.slow_cases(r"\[old")
async def test_a_worker_with_traffic_loses_nothing(postgres_migrated: str, client: Client) -> None:
    """Each fault again and again, at a request of any of its connections."""
    async with FaultProxy(postgres_migrated) as proxy, Worker(app, proxy.url, OPTIONS) as worker:
        await _play(worker, client, [proxy], get_args(Fault))


@pytest.mark.slow
async def test_a_worker_with_traffic_loses_nothing_on_sqlite(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault again and again, at a statement of the worker or of its lease renewer."""
    switches: list[FaultySqlite] = []
    really_open = SqliteProvider.open

    async def open_faulty(path: Path, **options: Any) -> SqliteProvider:
        switches.append(FaultySqlite(await really_open(path, **options)))
        return switches[-1].provider

    async with Client(sqlite_url) as client:
        monkeypatch.setattr(SqliteProvider, "open", open_faulty)
        async with Worker(app, sqlite_url, OPTIONS) as worker:
            await _play(worker, client, switches, list(SQLITE_FAULTS))


class Switch(Protocol):
    """Where faults are injected."""

    @property
    def met(self) -> bool: ...
    def inject(self, fault: Fault, after: int) -> None: ...


OPTIONS: Final = RuntimeOptions.make(
    poll_interval=0.2,
    worker_lease_timeout=3,
    work_item_lock_timeout=6,
    stall_timeout=20,
    max_sessions_per_runtime=10_000,
)

STRIKES: Final = 3
"""Of each fault."""


async def _play(worker: Worker, client: Client, switches: Sequence[Switch], faults: Sequence[Fault]) -> None:
    """Run orchestrations, a few at a time, until every fault has struck often; each did everything once."""
    waves = 0
    async with anyio.create_task_group() as tasks:
        struck = anyio.Event()
        tasks.start_soon(_strike, switches, faults, struck)
        while not struck.is_set():
            waves += 1
            await client.start("walk", 10, instance_id=f"walk {waves}")
            await client.start("stroll", 3, instance_id=f"stroll {waves}")
            await client.start("parent", 3, instance_id=f"parent {waves}")
            walked = await client.wait(f"walk {waves}", timeout=60)
            assert [one["n"] for one in walked] == list(range(10))
            assert len(await client.wait(f"stroll {waves}", timeout=60)) == 3
            assert await client.wait(f"parent {waves}", timeout=60) == [0, 0, 1]
            kinds = [event.type for event in await client.history(f"walk {waves}")]
            assert kinds.count("activity_completed") == kinds.count("activity_scheduled") == 10
    assert worker.runtime.lease.error is None


async def _strike(switches: Sequence[Switch], faults: Sequence[Fault], struck: anyio.Event) -> None:
    dice = random.Random(5)
    for fault in [*faults] * STRIKES:
        switch = switches[0] if dice.random() < 0.8 else dice.choice(switches)
        switch.inject(fault, dice.randrange(2 if fault == "too_many_connections" else 15))
        await _until(lambda switch=switch: switch.met)  # type: ignore[misc]
    struck.set()
