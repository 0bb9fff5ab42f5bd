"""Databases whose clock only the plan moves, and which can be set back to an earlier state of their own."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final, LiteralString, Protocol, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, sql

from affinity.provider.contract import Provider
from affinity.provider.postgres import PostgresProvider
from affinity.provider.sqlite import Clock, SqliteProvider
from affinity.provider.sqlite.driver.database import connect
from affinity.provider.timeline import Timeline

T = TypeVar("T")

EPOCH: Final = 1_000_000_000
"""Unix seconds at which the clock of every database begins."""

TICK_MICROSECONDS: Final = 20
"""By which the clock moves when it is read: no two readings are the same, and a whole plan takes far below a second."""


class ModelDatabase(Protocol):
    """One database, emptied for each plan."""

    async def begin(self) -> None:
        """Empty it, and set its clock back to the start."""
        ...

    async def provider(self, timeline: Timeline | None = None) -> Provider:
        """A provider object as another process would have; closed by `end`. ``timeline``: what it follows."""
        ...

    async def advance(self, seconds: float) -> None:
        """Move the clock."""
        ...

    async def remember(self) -> None:
        """Keep the present contents of the database; one such state is kept."""
        ...

    async def lose_tail(self) -> None:
        """Set the database back to the state that was kept. The clock goes on."""
        ...

    async def show_loss(self) -> None:
        """Make that known by what makes it known of a real database."""
        ...

    async def rows(self) -> dict[str, int]:
        """The number of rows of each table that stores something for a user of the contract."""
        ...

    async def pause_writes(self, session_id: str) -> None:
        """Hold up every write of the session's record until `resume_writes`, where the database has such a thing."""
        ...

    async def resume_writes(self) -> None:
        """Let calls go on that wait for `pause_writes`."""
        ...

    async def settle(self, call: Awaitable[T]) -> asyncio.Task[T]:
        """Start a call; returns when it has ended or waits for a lock."""
        ...

    async def end(self) -> None:
        """Close what the plan has opened."""
        ...

    async def aclose(self) -> None:
        """Close everything."""
        ...


class TickingClock(Clock):
    """Moves by one tick when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks = count(1)

    def now(self) -> float:
        return round(EPOCH + self.offset + next(self._ticks) * TICK_MICROSECONDS / 1e6, 6)


class SqliteModelDatabase:
    """A file of its own for each plan, copied from one that is migrated."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "template.db"
        self._directory = directory
        self._numbers = count(1)
        self._clock = TickingClock()
        self._path = self._template
        self._open: list[SqliteProvider] = []

    @classmethod
    async def create(cls, directory: Path) -> Self:
        database = cls(directory)
        await SqliteProvider.migrate(database._template)
        return database

    async def begin(self) -> None:
        self._clock = TickingClock()
        self._path = self._directory / f"{next(self._numbers)}.db"
        shutil.copy(self._template, self._path)

    async def provider(self, timeline: Timeline | None = None) -> Provider:
        provider = await SqliteProvider.open(self._path, clock=self._clock, timeline=timeline)
        self._open.append(provider)
        return provider

    async def advance(self, seconds: float) -> None:
        self._clock.offset += seconds

    async def remember(self) -> None:
        with closing(connect(self._path)) as connection, closing(sqlite3.connect(self._kept)) as copy:
            connection.backup(copy)

    async def lose_tail(self) -> None:
        with closing(sqlite3.connect(self._kept)) as copy, closing(connect(self._path)) as connection:
            copy.backup(connection)

    async def show_loss(self) -> None:
        with closing(connect(self._path)) as connection:
            connection.execute("UPDATE timeline SET reached = 0")

    async def rows(self) -> dict[str, int]:
        with closing(connect(self._path)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            return {
                name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
                for (name,) in names
                if not name.startswith("sqlite_") and name not in BOOKKEEPING
            }

    async def pause_writes(self, session_id: str) -> None:
        """A write is one uninterrupted transaction here."""

    async def resume_writes(self) -> None:
        """See `pause_writes`."""

    async def settle(self, call: Awaitable[T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(call)
        assert isinstance(task, asyncio.Task)
        await asyncio.wait([task])
        return task

    async def end(self) -> None:
        for provider in self._open:
            await provider.aclose()
        self._open.clear()
        for path in self._directory.glob(f"{self._path.name}*"):
            path.unlink()

    async def aclose(self) -> None:
        """The directory is pytest's."""

    @property
    def _kept(self) -> Path:
        return self._path.with_name(f"{self._path.name}.kept")


BOOKKEEPING: Final = frozenset(
    {"counters", "database_identity", "limit_admissions", "sweeps", "migrations", "timeline", "session_moves"}
)
"""Tables whose rows are the provider's own: there from the start; and the log of moves, which retention bounds."""

# The clock is a sequence, so that every reading moves it, whichever transaction reads.
PREPARE: Final[LiteralString] = """
DO $do$
DECLARE name text;
BEGIN
    CREATE SEQUENCE IF NOT EXISTS model_clock MINVALUE 0;
    EXECUTE format($f$CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS 'SELECT to_timestamp(nextval(%s) / 1e6)'$f$, 'model_clock'::regclass::oid);
    FOR name IN SELECT relname FROM pg_class
        WHERE relnamespace = current_schema::regnamespace AND relkind = 'r' AND relname NOT LIKE 'kept\\_%'
    LOOP
        EXECUTE format('ALTER TABLE %I SET (autovacuum_enabled = off)', name);
        EXECUTE format('CREATE UNLOGGED TABLE IF NOT EXISTS %I AS TABLE %I WITH NO DATA', 'kept_' || name, name);
    END LOOP;
    CREATE UNLOGGED TABLE IF NOT EXISTS kept_sequences (name text, last bigint, called boolean);
END $do$"""

# Sessions are truncated: a trigger keeps rows of watched sessions from being deleted one by one.
EMPTY: Final[LiteralString] = """
DO $do$
DECLARE name text;
BEGIN
    FOR name IN SELECT relname FROM pg_class
        WHERE relnamespace = current_schema::regnamespace AND relkind = 'r'
          AND relname NOT IN ('migrations', 'timeline')
    LOOP
        EXECUTE format(CASE name WHEN 'sessions' THEN 'TRUNCATE %I' ELSE 'DELETE FROM %I' END, name);
    END LOOP;
    PERFORM setval(oid, seqstart, false) FROM pg_sequence JOIN pg_class ON oid = seqrelid
    WHERE relnamespace = current_schema::regnamespace;
    PERFORM setval('model_clock', {start});
    ALTER SEQUENCE model_clock INCREMENT {tick};
    INSERT INTO sweeps VALUES ('-infinity');
    INSERT INTO limit_admissions VALUES ('-infinity');
END $do$"""

# The columns by name, since generated ones cannot be written.
COPY: Final[LiteralString] = """
DO $do$
DECLARE name text; columns text; last bigint; called boolean;
BEGIN
    FOR name, columns IN
        SELECT c.relname, string_agg(quote_ident(a.attname), ', ')
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = current_schema::regnamespace AND c.relkind = 'r' AND c.relname NOT LIKE 'kept\\_%'
          AND c.relname NOT IN ('migrations')
          AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        GROUP BY c.relname
    LOOP
        EXECUTE format(CASE name WHEN 'sessions' THEN 'TRUNCATE %I' ELSE 'DELETE FROM %I' END, {to});
        EXECUTE format('INSERT INTO %I (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %I',
                       {to}, columns, columns, {source});
    END LOOP;
    {sequences}
END $do$"""

KEEP_SEQUENCES: Final[LiteralString] = """
    DELETE FROM kept_sequences;
    FOR name IN SELECT sequencename FROM pg_sequences
        WHERE schemaname = current_schema AND sequencename <> 'model_clock'
    LOOP
        EXECUTE format('SELECT last_value, is_called FROM %I', name) INTO last, called;
        INSERT INTO kept_sequences VALUES (name, last, called);
    END LOOP;"""

RESTORE_SEQUENCES: Final[LiteralString] = """
    PERFORM setval(quote_ident(k.name)::regclass, k.last, k.called) FROM kept_sequences k;"""

WAITING: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted"


class PostgresModelDatabase:
    """A schema that the plans use one after another, by the same connections."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = f"{url}{'&' if '?' in url else '?'}schema={schema}"
        self._conninfo = url
        self._schema = schema
        self._pool: list[PostgresProvider] = []
        self._handed_out = 0
        self._monitor: AsyncConnection[Any] | None = None
        self._pause: AsyncConnection[Any] | None = None

    @classmethod
    async def create(cls, url: str, schema: str = "model") -> Self:
        database = cls(url, schema)
        await PostgresProvider.migrate(database._url)
        database._monitor = await database._connect()
        database._pause = await database._connect()
        await database._monitor.execute(PREPARE)
        return database

    async def begin(self) -> None:
        self._handed_out = 0
        values = {"start": sql.Literal(EPOCH * 1_000_000), "tick": sql.Literal(TICK_MICROSECONDS)}
        await self._sql.execute(sql.SQL(EMPTY).format(**values))

    async def provider(self, timeline: Timeline | None = None) -> Provider:
        """By connections that stay; what an object remembers is gone with it."""
        if self._handed_out == len(self._pool):
            self._pool.append(await PostgresProvider.open(self._url, application_name="model"))
        connections = self._pool[self._handed_out].connections
        self._handed_out += 1
        await connections.follow(timeline)
        return PostgresProvider(connections)

    async def advance(self, seconds: float) -> None:
        await self._sql.execute(
            "SELECT setval('model_clock', last_value + %s::bigint) FROM model_clock", [round(seconds * 1e6)]
        )

    async def remember(self) -> None:
        await self._copy("'kept_' || name", "name", KEEP_SEQUENCES)

    async def lose_tail(self) -> None:
        await self._copy("name", "'kept_' || name", RESTORE_SEQUENCES)

    async def show_loss(self) -> None:
        await self._sql.execute("UPDATE timeline SET place = 'elsewhere'")

    async def rows(self) -> dict[str, int]:
        names = await (await self._sql.execute(TABLES)).fetchall()
        found: dict[str, int] = {}
        for (name,) in names:
            if name not in BOOKKEEPING and not name.startswith("kept_"):
                query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))
                row = await (await self._sql.execute(query)).fetchone()
                assert row is not None
                found[name] = row[0]
        return found

    async def pause_writes(self, session_id: str) -> None:
        assert self._pause is not None
        await self._pause.execute("BEGIN")
        found = await self._pause.execute("SELECT FROM session_states WHERE session_id = %s FOR UPDATE", [session_id])
        if found.rowcount == 0:
            await self._pause.execute(BLOCK_INSERT, [session_id])

    async def resume_writes(self) -> None:
        assert self._pause is not None
        await self._pause.execute("ROLLBACK")

    async def settle(self, call: Awaitable[T]) -> asyncio.Task[T]:
        before = await self._waiting()
        task = asyncio.ensure_future(call)
        assert isinstance(task, asyncio.Task)
        while not task.done() and await self._waiting() <= before:
            await asyncio.wait([task], timeout=0.001)  # the server has no way to call us
        return task

    async def end(self) -> None:
        if self._pause is not None and self._pause.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            await self._pause.execute("ROLLBACK")

    async def aclose(self) -> None:
        for provider in self._pool:
            await provider.aclose()
        for connection in (self._monitor, self._pause):
            if connection is not None:
                await connection.close()

    @property
    def _sql(self) -> AsyncConnection[Any]:
        assert self._monitor is not None
        return self._monitor

    async def _connect(self) -> AsyncConnection[Any]:
        options = f"-c search_path={self._schema}"
        return await AsyncConnection.connect(self._conninfo, autocommit=True, options=options, prepare_threshold=None)

    async def _waiting(self) -> int:
        row = await (await self._sql.execute(WAITING)).fetchone()
        assert row is not None
        return int(row[0])

    async def _copy(self, to: LiteralString, source: LiteralString, sequences: LiteralString) -> None:
        parts = {"to": sql.SQL(to), "source": sql.SQL(source), "sequences": sql.SQL(sequences)}
        await self._sql.execute(sql.SQL(COPY).format(**parts))


TABLES: Final = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema"

BLOCK_INSERT: Final[LiteralString] = """
INSERT INTO session_states (session_id, state, encoding, schema_version, kind, labels, participants, version,
    created_at, updated_at)
VALUES (%s, '', 'plain', 1, '', '{}', '[]', 1, clock_timestamp(), clock_timestamp())"""
