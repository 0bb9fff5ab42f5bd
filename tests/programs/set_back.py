"""Random programs whose database is set back to an earlier moment, as by a failover that loses commits, or a backup.

Clients end there: what they have seen is not what the database knows. Workers go on, with what they remember. All comes
to rest, and then the rules of every table hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any, Final

import anyio
import anyio.to_thread
import psycopg
from psycopg import sql

from affinity.errors import AffinityError
from affinity.testing import Env
from affinity.testing.env.waiting import EnvDatabase
from tests.programs import payments, rest, rollouts
from tests.programs.areas import AREAS
from tests.programs.areas.conversations.handler import calls_of
from tests.programs.calls import used
from tests.programs.databases import END_OTHERS, Copies, GatedCopy
from tests.programs.faults import Faults
from tests.programs.gate import Gate
from tests.programs.play import Play
from tests.programs.program import Program, Size, over_outages
from tests.programs.run import PATIENCE, Totals, describe
from tests.programs.slots import open_all
from tests.servers import PostgresServer


class SetBack(Copies):
    """Databases of which a copy is kept, which takes their place later."""

    has_outages = True

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        self.done = 0
        """Databases that were set back."""

    async def create(self) -> EnvDatabase:
        """A new one."""
        self._url = await self._copy()
        self._gate = Gate()
        database = GatedCopy(self._url, "affinity", await GatedCopy._connect(self._url))
        database.server, database.gate = self._server, self._gate
        await database.begin()
        return database

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Calls of clients wait."""
        async with self._gate.shut():
            yield

    def keep(self) -> None:
        """Keep a copy of the newest one, as of one moment; all goes on."""
        with self._connected() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("CREATE SCHEMA kept")
            for table, _ in _tables(connection):
                connection.execute(sql.SQL("CREATE TABLE kept.{0} AS TABLE {0}").format(table))
            connection.execute(
                "CREATE TABLE kept.sequences AS SELECT sequencename, last_value FROM pg_sequences "
                "WHERE schemaname = current_schema AND last_value IS NOT NULL AND sequencename NOT LIKE '%clock%'"
            )

    def set_back(self) -> None:
        """Put the copy in its place. All connections end; new ones wait meanwhile, since each reads the timeline."""
        with self._connected() as connection, connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")  # no triggers
            connection.execute("LOCK TABLE timeline IN ACCESS EXCLUSIVE MODE")
            connection.execute(END_OTHERS, [connection.info.dbname])
            tables = _tables(connection)
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(table for table, _ in tables)))
            for table, columns in tables:
                text = "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM kept.{table}"
                connection.execute(sql.SQL(text).format(table=table, columns=sql.SQL(", ").join(columns)))
            connection.execute("SELECT setval(quote_ident(sequencename)::regclass, last_value) FROM kept.sequences")
            connection.execute("UPDATE timeline SET place = 'elsewhere'")
            connection.execute("DROP SCHEMA kept CASCADE")
        self.done += 1

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        options = "-c search_path=affinity"
        with closing(psycopg.connect(self._url, autocommit=True, options=options)) as connection:
            yield connection


def _tables(connection: psycopg.Connection[Any]) -> Sequence[tuple[sql.Identifier, Sequence[sql.Identifier]]]:
    """The tables, with the columns that are not computed from others."""
    found = connection.execute("""
        SELECT c.relname, array_agg(a.attname::text) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'affinity'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        GROUP BY c.relname ORDER BY c.relname""").fetchall()
    return [(sql.Identifier(name), [*map(sql.Identifier, columns)]) for name, columns in found]


AT: Final = ((2, 3), (5, 30), (15, 4), (30, 100), (1, 60), (60, 15))
"""Ticks to the moment that is kept, and from there to the one at which it comes back."""


async def run_set_back(program: Program, where: SetBack, totals: Totals, size: Size = "any") -> None:
    """Run a program, and set its database back.

    Raises:
        AssertionError: a rule is broken.
    """
    program = over_outages(program)
    env = Env(rollouts.GOOD, workers=program.workers, options=program.options.runtime())
    env._create_database = where.create  # type: ignore[method-assign]
    with payments.used():
        async with env:
            play = Play(env, calls_of(env.client), has_faults=True, size=size)
            play.calls.on_repeated = play.tick_often
            play.calls.now = lambda: env.now().timestamp()
            faults = Faults(play, program.faults, program.rollout)
            env._traffic.on_commit = faults.on_commit
            try:
                with anyio.fail_after(PATIENCE[size]), used(play.calls):
                    await _play(play, program, where, AT[totals.programs % len(AT)])
                    faults.end()
                    await play.end()
                    with env.freeze():
                        await _take_back(env)
                    await env.run_until_idle()
                    await rollouts.go_on(play, program.rollout)
                    with contextlib.suppress(AffinityError):  # of clients, whose work is lost
                        await play.end_calls()
                    await rest.check(env)
            except TimeoutError as error:
                error.add_note(describe(env))
                raise
            finally:
                await play.close()
                totals.add(env, faults)


async def _take_back(env: Env) -> None:
    """What operators had begun, and would have ended."""
    for worker in await env.client.workers():
        await env.client.resume_worker(worker.worker_id)
    await open_all(env.client.limits)


async def _play(play: Play, program: Program, where: SetBack, at: tuple[int, int]) -> None:
    """Clients end when the database is set back. Those that end before have nothing more to do."""

    async def set_back(clients: anyio.CancelScope) -> None:
        await play.pause(at[0])
        await anyio.to_thread.run_sync(where.keep)
        await play.pause(at[1])
        with play.env.freeze(), anyio.CancelScope(shield=True):
            async with where.shut():
                await anyio.to_thread.run_sync(where.set_back)
                clients.cancel()

    async with anyio.create_task_group() as driver:
        driver.start_soon(play.drive)  # also while threads of clients end, which nothing cancels
        async with anyio.create_task_group() as clients:
            clients.start_soon(set_back, clients.cancel_scope)
            for name, part in program.parts.items():
                clients.start_soon(AREAS[name].run, play, part)
        play.stop()
