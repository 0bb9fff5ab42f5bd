"""Our two providers as the conformance suite wants them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any, Final, LiteralString, Self, get_args

import anyio
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import make_conninfo

from affinity.provider.contract import FetchOptions, Provider, WorkerIdentity
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver.target import Target
from affinity.provider.sqlite import Clock, SqliteProvider, fetching
from affinity.provider.sqlite.driver.database import Database, connect
from affinity.provider.timeline import Timeline
from affinity_conformance.providers import Fault
from tests.provider import warm
from tests.provider.fault_proxy import FaultyPostgres
from tests.provider.roles import CLIENT, WORKER, RoleProvider, create_roles
from tests.provider.sqlite_files import create_file

TESTS_PER_TRUNCATION: Final = 20
"""Dead rows of more tests would be dearer than the plans that a truncation ends."""

PATIENCE: Final = 30.0
"""Seconds of real time; a wait ends as soon as the database is where it should be."""


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
        create_file(path)
        return cls(path)

    async def open(self, timeline: Timeline | None = None) -> Provider:
        return await SqliteProvider.open(self._path, clock=self._clock, timeline=timeline)

    async def lose_tail(self) -> None:
        with closing(connect(self._path)) as connection:
            connection.execute("UPDATE timeline SET reached = 0")

    async def lose_counters(self) -> None:
        with closing(connect(self._path)) as connection:
            connection.execute("UPDATE counters SET value = 0 WHERE name = 'epoch'")
            connection.execute("DELETE FROM sqlite_sequence")

    async def migrate(self) -> None:
        await SqliteProvider.migrate(self._path)

    async def advance(self, seconds: float) -> None:
        self._clock.offset += seconds

    async def commit_amid_sweep(
        self, sweep: Callable[[], Awaitable[object]], commit: Callable[[], Awaitable[object]]
    ) -> None:
        """One transaction writes at a time, and a sweep is one."""
        await commit()
        await sweep()

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """Instructions of SQLite's virtual machine."""
        steps = count()
        with closing(connect(self._path)) as connection:
            database = Database(connection, self._clock)
            connection.set_progress_handler(lambda: next(steps) < 0, 1)  # a true answer would end the statement
            fetching.fetch(database, identity, options)
        return next(steps)

    @property
    def faults(self) -> frozenset[Fault]:
        return frozenset(SQLITE_FAULTS)

    async def open_faulty(self) -> FaultySqlite:
        return FaultySqlite(await SqliteProvider.open(self._path, clock=self._clock, max_wait=0.05))

    async def aclose(self) -> None:
        """Leave the file to pytest."""


def sqlite_error(code: int, name: str) -> sqlite3.OperationalError:
    """As Python's module raises it."""
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


SQLITE_FAULTS: Final[dict[Fault, Callable[[], Exception]]] = {
    "disk_full": lambda: sqlite_error(sqlite3.SQLITE_FULL, "SQLITE_FULL"),
    "io_error": lambda: sqlite_error(sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE"),
    "out_of_memory": MemoryError,
    "read_only": lambda: sqlite_error(sqlite3.SQLITE_READONLY, "SQLITE_READONLY"),
    "too_many_connections": lambda: sqlite_error(sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"),  # no file is left to open
    "statement_timeout": lambda: sqlite_error(sqlite3.SQLITE_INTERRUPT, "SQLITE_INTERRUPT"),
    "serialization_failure": lambda: sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT, "SQLITE_BUSY_SNAPSHOT"),
    "deadlock": lambda: sqlite_error(sqlite3.SQLITE_LOCKED, "SQLITE_LOCKED"),
}


class FaultySqlite:
    """A provider whose statements fail on demand; the real ones are in tests/provider/test_sqlite.py."""

    def __init__(self, provider: SqliteProvider) -> None:
        self.provider = provider
        self.met = True
        self._fault: Fault = "disk_full"
        self._after = 0
        for thread in (provider._writer, provider._reader):
            database: Any = thread._database
            database._connection = FaultyConnection(database._connection, self._meet)

    def inject(self, fault: Fault, after: int) -> None:
        self._fault, self._after, self.met = fault, after, False

    async def aclose(self) -> None:
        await self.provider.aclose()

    def _meet(self) -> None:
        """Before each statement."""
        self._after -= 1
        if not self.met and self._after < 0:
            self.met = True
            raise SQLITE_FAULTS[self._fault]()


class FaultyConnection:
    """A connection of SQLite; whatever is not a statement of a verb passes."""

    def __init__(self, connection: sqlite3.Connection, meet: Callable[[], None]) -> None:
        self._connection = connection
        self._meet = meet

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if not statement.startswith(("ROLLBACK", "PRAGMA")):
            self._meet()
        return self._connection.execute(statement, *arguments)

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        self._meet()
        return self._connection.executemany(statement, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

BACKENDS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

WORK: Final = """
    SELECT (SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables)
         + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)
         + (SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))
            FROM pg_statio_user_tables)"""


SCHEMA: Final = "conformance"
"""Not the default one, so that a statement that names a schema is found out."""

DISCONNECT: Final[LiteralString] = """
    SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND pid <> ALL(%s)"""

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
    DROP SEQUENCE IF EXISTS clock_offset;
    PERFORM set_quotas(NULL, NULL, NULL) FROM quotas WHERE instances IS NOT NULL;
    EXECUTE (
        SELECT 'TRUNCATE ' || string_agg(oid::regclass::text, ', ') FROM pg_class
        WHERE relnamespace = current_schema::regnamespace AND relkind = 'r'
          AND relname NOT IN ('migrations', 'timeline', 'database_identity', 'granted_roles')
          AND pg_relation_size(oid) > 0);
    PERFORM setval(oid, seqstart, false) FROM pg_sequence JOIN pg_class ON oid = seqrelid
    WHERE relnamespace = current_schema::regnamespace;
    INSERT INTO sweeps VALUES ('-infinity');
    INSERT INTO limit_admissions VALUES ('-infinity');
    UPDATE database_identity SET encoded = false, offloaded = false, check_value = NULL;
    UPDATE timeline SET place = timeline_place();
    CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp()';
END $do$"""

# A third of the time of `AS_NEW` and of the test after it, whose connections keep their plans. Dead rows stay. Neither
# triggers nor foreign keys look at what is deleted.
EMPTY: Final[LiteralString] = """
DO $do$
DECLARE name regclass;
BEGIN
    SET LOCAL session_replication_role = replica;
    IF (SELECT prosrc FROM pg_proc WHERE oid = 'clock()'::regprocedure) NOT LIKE 'SELECT clock_timestamp()%' THEN
        CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
        AS 'SELECT clock_timestamp()';
    END IF;
    PERFORM set_quotas(NULL, NULL, NULL) FROM quotas WHERE instances IS NOT NULL;
    FOR name IN
        SELECT oid FROM pg_class
        WHERE relnamespace = current_schema::regnamespace AND relkind = 'r'
          AND relname NOT IN ('migrations', 'timeline', 'database_identity', 'granted_roles')
          AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('DELETE FROM %s', name);
    END LOOP;
    PERFORM setval(oid, seqstart, false) FROM pg_sequence JOIN pg_class ON oid = seqrelid
    WHERE relnamespace = current_schema::regnamespace;
    INSERT INTO sweeps VALUES ('-infinity');
    INSERT INTO limit_admissions VALUES ('-infinity');
    UPDATE database_identity SET encoded = false, offloaded = false, check_value = NULL;
    UPDATE timeline SET place = timeline_place();
END $do$"""


SWEEP_WAITS: Final[LiteralString] = """
DO $do$
BEGIN
    EXECUTE (
        SELECT format(
            $f$CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $clock$
            BEGIN
                -- The sweep is prepared by name, and its statement is the one that has come to the watches.
                IF current_query() LIKE '%%EXECUTE%%' AND EXISTS (
                    SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'session_watches'::regclass)
                THEN
                    PERFORM pg_advisory_xact_lock_shared(1);
                END IF;
                RETURN (%s);
            END $clock$ $f$, prosrc)
        FROM pg_proc WHERE oid = 'clock()'::regprocedure);
END $do$"""

WAITING: Final[LiteralString] = """
    SELECT count(*) > 0 FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event = 'advisory'"""

SET_BACK: Final = """
    SELECT setval(oid, seqstart, false) FROM pg_sequence JOIN pg_class ON oid = seqrelid
    WHERE relnamespace = current_schema::regnamespace AND relname <> 'clock_offset'"""


_cleared: Final = count(1)


def emptying(*, as_new: bool = False) -> LiteralString:
    """The statement that removes all rows, with the sizes of tables and indexes when it is to be as new, and now and
    then in any case.
    """
    return AS_NEW if as_new or next(_cleared) % TESTS_PER_TRUNCATION == 0 else EMPTY


def clear(connection: Connection[Any]) -> None:
    """Make the schema of the connection as a migration leaves it, but for sizes. Other connections are cut off."""
    connection.execute(DISCONNECT, [warm.idle_backends()])
    connection.execute(emptying())


class PostgresHarness:
    """A schema that the tests use one after another: each finds it as a migration leaves it."""

    def __init__(self, database: str, *, with_roles: bool = False) -> None:
        """``with_roles``: clients and workers are roles of their own, with the rights that they need and no others."""
        self._url = f"{database}{'&' if '?' in database else '?'}schema={SCHEMA}"
        self._with_roles = with_roles
        options = f"-c search_path={SCHEMA}"
        self._conninfo = make_conninfo(database, options=options, application_name=f"{warm.APPLICATION} monitor")

    @classmethod
    async def prepare(cls, database: str) -> None:
        """Migrate the schema, once for all tests."""
        harness = cls(database)
        await PostgresProvider.migrate(harness._url)
        async with harness._monitor() as monitor:
            await monitor.execute(UNDISTURBED)
            await create_roles(monitor)
        await PostgresProvider.change_rights(harness._url, clients=[CLIENT], workers=[WORKER])

    @classmethod
    async def create(cls, database: str, *, with_roles: bool = False, as_new: bool = False) -> Self:
        """The schema without a row of the test before, however that ended; ``as_new``: without any trace of it.
        Connections that are left are cut off.
        """
        harness = cls(database, with_roles=with_roles)
        async with harness._monitor() as monitor:
            await monitor.execute(DISCONNECT, [warm.idle_backends()])
            await monitor.execute(emptying(as_new=as_new))
        return harness

    async def open(self, timeline: Timeline | None = None) -> Provider:
        if self._with_roles:
            return await RoleProvider.open(self._url, timeline)
        return await PostgresProvider.open(self._url, application_name=warm.APPLICATION, timeline=timeline)

    async def lose_tail(self) -> None:
        async with self._monitor() as monitor:
            await monitor.execute("UPDATE timeline SET place = 'elsewhere'")

    async def lose_counters(self) -> None:
        async with self._monitor() as monitor:
            await monitor.execute(SET_BACK)

    async def migrate(self) -> None:
        await PostgresProvider.migrate(self._url)

    async def advance(self, seconds: float) -> None:
        async with aclosing(await PostgresProvider.open(self._url, application_name=warm.APPLICATION)) as provider:
            await provider.advance_clock(seconds)

    async def commit_amid_sweep(
        self, sweep: Callable[[], Awaitable[object]], commit: Callable[[], Awaitable[object]]
    ) -> None:
        """The statement of the sweep waits in its first call of the clock."""
        async with self._monitor() as monitor:
            await monitor.execute(SWEEP_WAITS)
            async with monitor.transaction():
                await monitor.execute("SELECT pg_advisory_xact_lock(1)")
                swept = asyncio.ensure_future(sweep())
                await self._until(monitor, WAITING, True)
                await commit()
            await swept

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """Rows and index entries read, and blocks looked at: a connection has reported all of them when it ends."""
        warm.close_idle()
        async with self._monitor() as monitor:
            await self._until(monitor, BACKENDS, 0)
            before = await self._scalar(monitor, WORK)
            async with aclosing(await PostgresProvider.open(self._url)) as provider:
                await provider.fetch_work_item(identity, options)
            await self._until(monitor, BACKENDS, 0)
            return int(await self._scalar(monitor, WORK) - before)

    @property
    def faults(self) -> frozenset[Fault]:
        return frozenset(get_args(Fault))

    async def open_faulty(self) -> FaultyPostgres:
        return await FaultyPostgres.open(self._url)

    async def aclose(self) -> None:
        """Leave the schema to the next test."""

    @asynccontextmanager
    async def _monitor(self) -> AsyncIterator[AsyncConnection[Any]]:
        connection = await warm.connect(Target.parse(self._url), self._conninfo)
        try:
            yield connection
        finally:
            warm.keep(connection)

    async def _until(self, monitor: AsyncConnection[Any], query: LiteralString, wanted: object) -> None:
        with anyio.fail_after(PATIENCE):
            while await self._scalar(monitor, query) != wanted:
                await anyio.sleep(0.005)  # the server has no way to call us

    @staticmethod
    async def _scalar(monitor: AsyncConnection[Any], query: LiteralString) -> Any:
        await monitor.execute("SELECT pg_stat_clear_snapshot()")
        row = await (await monitor.execute(query)).fetchone()
        assert row is not None
        return row[0]
