"""A schema of an `Env` on PostgreSQL. Its function ``clock()``, which every statement calls, reads a sequence."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from typing import Final, LiteralString, TypeVar

import anyio
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.errors import DeadlockDetected
from psycopg.rows import TupleRow

from affinity.errors import ConnectionLost, InvalidOptions, ReadOnly
from affinity.provider.contract import OFFER_SECONDS, Provider
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver.connections import connect
from affinity.provider.postgres.driver.target import DEFAULT_SCHEMA, Target
from affinity.provider.postgres.parts import expressions, parts
from affinity.provider.statements import load_statements, with_columns
from affinity.provider.timeline import Timeline
from affinity.testing.env.waiting import Waiting

SETTINGS: Final = {"plan_cache_mode": "force_generic_plan"}
"""Of its connection."""

SQL: Final = load_statements(__package__, "postgres.sql")

OUTAGE: Final = 120.0
"""Real seconds for which a database that is away, as in a failover, is asked again."""

AGAIN: Final = 0.1
"""Real seconds between two attempts."""

T = TypeVar("T")


class PostgresDatabase:
    """A schema that nothing else uses; made by `create`."""

    puts_later = True

    def __init__(self, url: str, schema: str, connection: AsyncConnection[TupleRow]) -> None:
        self.url = url
        self._schema = schema
        self._connection = connection
        self._time = round(time.time(), 6)
        self._is_kept = False

    @classmethod
    async def create(cls, url: str) -> PostgresDatabase:
        """A new schema in the database at ``url``, with a random name unless the URL has one.

        Raises:
            InvalidOptions: the schema exists: to move its clock would end the leases of all that use it.
            InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
        """
        schema = Target.parse(url).schema
        if schema == DEFAULT_SCHEMA:
            schema = f"affinity_env_{secrets.token_hex(6)}"
            url += ("&" if "?" in url else "?") + f"schema={schema}"
        connection = await cls._connect(url)
        database = cls(url, schema, connection)
        try:
            await database._refuse_existing()
        except BaseException:
            await connection.close()
            raise
        try:
            await PostgresProvider.migrate(url, lambda _: None)
            await database.begin()
        except BaseException:
            await database.aclose()
            raise
        return database

    async def _refuse_existing(self) -> None:
        if (await (await self._connection.execute(SQL["exists"], [self._schema])).fetchone()) is not None:
            raise InvalidOptions(
                f"the schema {self._schema!r} exists: Env makes and drops its own, since to move the clock of another "
                "one would end every lease in it; leave schema= out of the URL"
            )

    def now(self) -> float:
        return self._time

    async def open(
        self, timeline: Timeline | None = None, *, one_connection: bool = False, as_client: bool = False
    ) -> Provider:
        return await PostgresProvider.open(
            self.url,
            application_name="affinity env",
            timeline=timeline,
            one_connection=one_connection,
            as_client=as_client,
        )

    async def next_due(self, waiting: Waiting) -> float | None:
        at = {
            "alive": list(waiting.alive),
            "busy": list(waiting.busy),
            "unknown": waiting.unknown,
            "offer": OFFER_SECONDS,
        }

        async def ask(connection: AsyncConnection[TupleRow]) -> TupleRow | None:
            return await (await connection.execute(_next_due(), at)).fetchone()

        with anyio.CancelScope(shield=True):  # psycopg closes the connection of a call that is cancelled
            found = await self.ask(ask)
        assert found is not None
        guests = ("", *expressions("next_due"))  # the first one is the kernel
        counted = [at for guest, at in zip(guests, found, strict=True) if waiting.endless or not _is_endless(guest)]
        return min((float(at) for at in counted if at is not None), default=None)

    async def jump(self, to: float, alive: Collection[str], busy: Collection[str]) -> None:
        at = {"seconds": to - self._time, "alive": list(alive), "busy": list(busy)}
        with anyio.CancelScope(shield=True):
            while not await self.ask(lambda connection: _move(connection, at)):  # twice: these leases are longer
                pass
            await self._set_clock(to)  # behind the leases: no worker sees one that has not moved along

    async def begin(self) -> None:
        """Stop the clock of a schema that is new."""
        await self._connection.execute(SQL["make_clock"], prepare=False)  # two statements
        await self._set_clock(self._time)

    async def _set_clock(self, to: float) -> None:
        await self.ask(lambda connection: connection.execute(SQL["set_clock"], [round(to * 1e6)]))
        self._time = to

    async def ask(self, what: Callable[[AsyncConnection[TupleRow]], Awaitable[T]]) -> T:
        """Ask the database, of whose connections this one asks nothing that may not be asked twice. A connection that
        is lost is made anew.

        Raises:
            ConnectionLost, ReadOnly, psycopg.OperationalError: for longer than `OUTAGE`.
        """
        end = time.monotonic() + OUTAGE
        while True:
            try:
                if self._connection.closed:
                    self._connection = await self._connect(self.url)
                return await what(self._connection)
            except DeadlockDetected:
                raise
            except (ConnectionLost, ReadOnly, psycopg.OperationalError):
                if self._is_kept or time.monotonic() > end:
                    raise
                await self._connection.close()
                await anyio.sleep(AGAIN)

    @staticmethod
    async def _connect(url: str) -> AsyncConnection[TupleRow]:
        target = Target.parse(url).with_sessions
        return await connect(target, target.connect("affinity env", SETTINGS))

    async def keep(self) -> None:
        """Let one env after another use the schema: `aclose` empties it from now on, which takes a tenth of the time of
        a new one, and `drop` removes it.
        """
        await self._connection.execute(SQL["note_rows"])
        self._is_kept = True

    async def aclose(self) -> None:
        """Remove the schema, or empty it."""
        if self._is_kept:
            await self._past_deadlocks(sql.SQL(SQL["restore_rows"]))
            await self._set_clock(round(time.time(), 6))
        else:
            await self.drop()

    async def drop(self) -> None:
        """Remove the schema."""
        try:
            await self._past_deadlocks(sql.SQL(SQL["drop"]).format(sql.Identifier(self._schema)))
        finally:
            await self._connection.close()

    async def _past_deadlocks(self, statement: sql.SQL | sql.Composed) -> None:
        """Run a statement on all tables, again after a deadlock: the server may still run a call of a worker that has
        crashed.
        """
        while True:
            with contextlib.suppress(DeadlockDetected):
                await self.ask(lambda connection: connection.execute(statement))
                return


async def _move(connection: AsyncConnection[TupleRow], at: Mapping[str, object]) -> bool:
    """Whether it is done: False after a deadlock with a call of a worker, whose locks come in any order."""
    with contextlib.suppress(DeadlockDetected):
        async with connection.transaction():
            for statement in ("move_items", "move_sessions", "move_workers"):
                await connection.execute(SQL[statement], at)
        return True
    return False


def _is_endless(guest: str) -> bool:
    return guest != "" and parts()[guest].is_endless


@cache
def _next_due() -> LiteralString:
    """The statement with the times of the guests."""
    return with_columns(SQL["next_due"], expressions("next_due").values())
