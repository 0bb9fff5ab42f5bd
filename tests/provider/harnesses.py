"""Our two providers as the conformance suite wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, LiteralString, Self

import anyio
from psycopg import AsyncConnection

from affinity.provider.conformance import Trouble
from affinity.provider.conformance.builders import TIMEOUTS, new_instance, turn, work_item
from affinity.provider.contract import FetchOptions, Incarnation, Provider, WorkerIdentity
from affinity.provider.postgres import PostgresProvider
from affinity.provider.sqlite import Clock, SqliteProvider, fetching
from affinity.provider.sqlite.database import Database, connect
from affinity.provider.sqlite.tokens import Tokens

VICTIM: Final = WorkerIdentity(worker_id="victim", incarnation=Incarnation("victim"))
PATIENCE: Final = 30.0
"""Seconds of real time; a wait ends as soon as the database is where it should be."""


async def queue_an_activity_twice(provider: Provider) -> None:
    """A row that must be new is there: what an engine gone wrong would do."""
    await provider.register_worker(VICTIM, PATIENCE, {})
    await provider.create_instance([new_instance("victim")])
    fetched = await provider.fetch_orchestration_item(VICTIM, limit=10, names=(), unknown_after=0.0)
    at = next(item for item in fetched.items if item.instance_id == "victim")
    for event_count in (0, 1):
        step = turn(replace(at, event_count=event_count), work_items=[work_item(at, 1)])
        await provider.commit_turn(VICTIM, [step], TIMEOUTS)


# --- SQLite -----------------------------------------------------------------------------------------------------------


class SqliteHarness:
    """A migrated file in a directory that pytest removes. All provider objects on it look at one clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = Clock()

    @classmethod
    async def create(cls, directory: Path) -> Self:
        """A file in that directory."""
        path = directory / "affinity.db"
        await SqliteProvider.migrate(path)
        return cls(path)

    async def open(self) -> Provider:
        return await SqliteProvider.open(self._path, clock=self._clock)

    async def advance(self, seconds: float) -> None:
        self._clock.offset += seconds

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """Instructions of SQLite's virtual machine."""
        steps = count()
        with closing(connect(self._path)) as connection:
            database = Database(connection, self._clock)
            connection.set_progress_handler(lambda: next(steps) < 0, 1)  # a true answer would end the statement
            fetching.fetch(database, Tokens(), identity, options)
        return next(steps)

    async def provoke(self, trouble: Trouble) -> None:
        path = self._path if trouble != "connection_lost" else self._path.parent / "missing" / self._path.name
        provider = await SqliteProvider.open(path, clock=self._clock, max_wait=0.01)
        try:
            if trouble == "duplicate":
                await queue_an_activity_twice(provider)
            with closing(connect(path)) as rival:
                rival.execute("BEGIN IMMEDIATE")
                await provider.register_worker(VICTIM, PATIENCE, {})
        finally:
            await provider.aclose()

    async def aclose(self) -> None:
        """Leave the file to pytest."""


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

BACKENDS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

TERMINATE: Final = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name LIKE 'victim%'"

WAITING: Final = BACKENDS + " AND wait_event_type = 'Lock'"

WORK: Final = """
    SELECT (SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables)
         + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)
         + (SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))
            FROM pg_statio_user_tables)"""

REPEATABLE_READ: Final = "options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"


SCHEMA: Final = "conformance"
"""Not the default one, so that a statement that names a schema is found out."""

OTHERS: Final = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"

DISCONNECT: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE " + OTHERS

CONNECTED: Final = "SELECT count(*) FROM pg_stat_activity WHERE " + OTHERS

# A schema that lives long would meet the autovacuum, and what it learned of one test's rows would plan another's.
UNDISTURBED: Final[LiteralString] = """
DO $do$
DECLARE name regclass;
BEGIN
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = current_schema::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', name);
    END LOOP;
END $do$"""

# A tenth of the time that a new schema takes. A table without pages never had a row, and is left alone.
AS_NEW: Final[LiteralString] = """
DO $do$
BEGIN
    DROP TABLE IF EXISTS clock_offset;
    EXECUTE (
        SELECT 'TRUNCATE ' || string_agg(oid::regclass::text, ', ') FROM pg_class
        WHERE relnamespace = current_schema::regnamespace AND relkind = 'r'
          AND relname <> 'schema_versions' AND pg_relation_size(oid) > 0);
    PERFORM setval(oid, seqstart, false) FROM pg_sequence JOIN pg_class ON oid = seqrelid
    WHERE relnamespace = current_schema::regnamespace;
    INSERT INTO sweeps VALUES ('-infinity');
    CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp()';
END $do$"""


class PostgresHarness:
    """A schema that the tests use one after another: each finds it as a migration leaves it."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._url = f"{database}{'&' if '?' in database else '?'}schema={SCHEMA}"

    @classmethod
    async def prepare(cls, database: str) -> None:
        """Migrate the schema, once for all tests."""
        harness = cls(database)
        await PostgresProvider.migrate(harness._url)
        async with harness._monitor() as monitor:
            await monitor.execute(UNDISTURBED)

    @classmethod
    async def create(cls, database: str) -> Self:
        """The schema without a trace of the test before, however that ended. Whoever is still connected is cut off."""
        harness = cls(database)
        async with harness._monitor() as monitor:
            await monitor.execute(DISCONNECT)
            await harness._until(monitor, CONNECTED, 0)
            await monitor.execute(AS_NEW)
        return harness

    async def open(self) -> Provider:
        return await PostgresProvider.open(self._url)

    async def advance(self, seconds: float) -> None:
        async with self._provider() as provider:
            await provider.advance_clock(seconds)

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """Rows and index entries read, and blocks looked at: a connection has told of all of them when it has ended."""
        async with self._monitor() as monitor:
            await self._until(monitor, BACKENDS, 0)
            before = await self._scalar(monitor, WORK)
            async with self._provider() as provider:
                await provider.fetch_work_item(identity, options)
            await self._until(monitor, BACKENDS, 0)
            return int(await self._scalar(monitor, WORK) - before)

    async def provoke(self, trouble: Trouble) -> None:
        if trouble == "contention":
            await self._lose_to_a_concurrent_update()
        elif trouble == "connection_lost":
            await self._lose_the_connections()
        else:
            async with self._provider() as provider:
                await queue_an_activity_twice(provider)

    async def aclose(self) -> None:
        """Leave the schema to the next test."""

    async def _lose_to_a_concurrent_update(self) -> None:
        """With repeatable reads, who waits for a row and finds it changed has failed to serialize."""
        async with self._provider(REPEATABLE_READ) as provider, self._monitor() as monitor, self._monitor() as rival:
            await provider.register_worker(VICTIM, PATIENCE, {})
            async with rival.transaction():
                await rival.execute("UPDATE workers SET draining = draining")
                loser = asyncio.create_task(provider.renew_worker(VICTIM, PATIENCE))
                await self._until(monitor, WAITING, 1)
            await loser

    async def _lose_the_connections(self) -> None:
        async with self._provider() as provider, self._monitor() as monitor:
            await provider.list_workers()
            await monitor.execute(TERMINATE)
            await provider.list_workers()

    @asynccontextmanager
    async def _provider(self, *parameters: str) -> AsyncIterator[PostgresProvider]:
        url = "&".join([self._url, *parameters])
        provider = await PostgresProvider.open(url, application_name=VICTIM.worker_id)
        try:
            yield provider
        finally:
            await provider.aclose()

    @asynccontextmanager
    async def _monitor(self) -> AsyncIterator[AsyncConnection[Any]]:
        options = f"-c search_path={SCHEMA}"
        async with await AsyncConnection.connect(self._database, autocommit=True, options=options) as connection:
            yield connection

    async def _until(self, monitor: AsyncConnection[Any], query: LiteralString, wanted: int) -> None:
        with anyio.fail_after(PATIENCE):
            while await self._scalar(monitor, query) != wanted:
                await anyio.sleep(0.005)  # the server has no way to call us

    @staticmethod
    async def _scalar(monitor: AsyncConnection[Any], query: LiteralString) -> Any:
        await monitor.execute("SELECT pg_stat_clear_snapshot()")
        row = await (await monitor.execute(query)).fetchone()
        assert row is not None
        return row[0]
