"""Connections: a few, by role, so that a slow listing never delays a commit.

States of one `Link`::

    closed ──first call──► open ──call──► busy ──reply, or an error that the database reports──► open
    busy ──the connection broke──► closed                 ConnectionLost; the next call connects again
    busy ──nobody waits any more──► abandoned ──reply within `GRACE`──► open
    abandoned ──no reply──► closed

Invariants
    * One call at a time on a connection; calls wait for each other in order.
    * A call is a task of the link, not of whoever awaits it. Whoever awaits may be cancelled, and then goes at once;
      the call comes to its end by itself, so that no connection is left in the middle of a conversation, and a silent
      network cannot hold up somebody who has a deadline to keep.
    * A call is one message to the server, in autocommit. A client that is paused at any moment holds no lock.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, LiteralString, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncRawCursor

from affinity.errors import ConnectionLost
from affinity.provider.postgres.arrays import register_arrays
from affinity.provider.postgres.errors import translated
from affinity.provider.postgres.target import COLD, HOT, Target

Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

_PLACEHOLDER: Final = re.compile(r"%\((?P<name>\w+)\)s|%%")

DEADLINE: Final = 40.0
"""Seconds for one call, above the server's own statement_timeout: past it the network must be gone."""

GRACE: Final = 2.0
"""Seconds that a call is given to end after nobody waits for it any more."""

CLOSING: Final = 1.0
"""Seconds for a polite goodbye."""


class Link:
    """One connection, made when it is first needed and again after it broke."""

    def __init__(self, target: Target, application_name: str, settings: dict[str, str]) -> None:
        self._target = target
        self._conninfo = target.connect(application_name, settings)
        self._connection: AsyncConnection[Row] | None = None
        self._turn = asyncio.Lock()
        self._serving: asyncio.Task[Any] | None = None  # the call that has the connection
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(self, statement: LiteralString, params: Params | None = None) -> list[Row]:
        """One prepared statement; its rows."""
        return await self.use(lambda connection: _prepared(connection, statement, params))

    async def script(self, statements: LiteralString, params: Params | None = None) -> list[list[Row]]:
        """Several statements in one message and one transaction, each with a snapshot of its own; the rows of each.

        The server gets all of them before it begins: it never waits for us in the middle.
        """
        return await self.use(lambda connection: _script(connection, statements, params))

    async def aclose(self) -> None:
        """Close for good. Calls that are under way are given up."""
        self._closed = True
        for call in list(self._calls):
            _end(call)
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSING)
        await self._drop()

    # -- one call

    async def use(self, work: Callable[[AsyncConnection[Row]], Awaitable[T]]) -> T:
        """Whatever else is to be done with the connection."""
        task = asyncio.ensure_future(self._serve(work))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandon(task)
            elif task.cancelled() and self._closed:
                raise ConnectionLost(f"{self._target.name}: the provider was closed") from None
            raise

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Nobody waits for it. If it has begun it may end, in a while; its outcome is no news."""
        task.add_done_callback(_ignore)
        if task is self._serving:
            asyncio.get_running_loop().call_later(GRACE, _end, task)
        else:
            task.cancel()

    async def _serve(self, work: Callable[[AsyncConnection[Row]], Awaitable[T]]) -> T:
        async with self._turn:
            self._serving = asyncio.current_task()
            try:
                async with asyncio.timeout(DEADLINE):
                    with translated(self._target):
                        return await work(await self._open())
            except TimeoutError:
                raise ConnectionLost(f"{self._target.name}: no answer within {DEADLINE:.0f} s") from None
            except ConnectionLost:
                await self._drop()  # though it may still be open: to a server that is now a standby, for one
                raise
            finally:
                self._serving = None
                await self._check()

    async def _open(self) -> AsyncConnection[Row]:
        if self._closed:
            raise ConnectionLost(f"{self._target.name}: the provider is closed")
        if self._connection is None:
            self._connection = await connect(self._conninfo)
        return self._connection

    async def _check(self) -> None:
        """Keep a connection only if it is idle: anything else is the middle of a conversation."""
        connection = self._connection
        if connection is not None and connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()  # closes the socket at once, where close() would first wait to be polite
            await connection.close()


class Links:
    """The connections of one provider."""

    def __init__(self, target: Target, application_name: str) -> None:
        def link(role: str, settings: dict[str, str]) -> Link:
            return Link(target, f"{application_name} {role}", settings)

        self.target = target
        self.application_name = application_name
        self.commit = link("commit", HOT)  # turns and acks
        self.fetch = link("fetch", HOT)
        self.quick = link("quick", HOT)  # leases, renewals, give-backs, histories, what clients ask of an instance
        self.states = link("states", HOT)  # session states on their own: one of them may take seconds
        self.misc = link("misc", COLD)  # listings, the sweep, hints

    async def aclose(self) -> None:
        """Close all. Idempotent."""
        for link in (self.commit, self.fetch, self.quick, self.states, self.misc):
            await link.aclose()


async def connect(conninfo: str) -> AsyncConnection[Row]:
    """A connection in autocommit that prepares every statement at once and receives binary values."""
    connection = await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=0)
    connection.prepared_max = None
    register_arrays(connection)
    return connection


async def _prepared(connection: AsyncConnection[Row], statement: LiteralString, params: Params | None) -> list[Row]:
    query, names = numbered(statement)
    values = [params[name] for name in names] if params is not None else None
    async with AsyncRawCursor(connection) as cursor:
        await cursor.execute(query, values, prepare=True, binary=True)
        # Not `description`, which would describe every column at every call.
        return await cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []


@cache
def numbered(statement: LiteralString) -> tuple[bytes, tuple[str, ...]]:
    """The statement with the server's own placeholders, and the names that they stand for.

    psycopg would do this at every call for a statement of this length: a third of a millisecond for a commit. Bytes,
    because it would encode and hash a string at every call too, to find out that it is prepared already.
    """
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found["name"]
        return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    return _PLACEHOLDER.sub(number, statement).encode(), tuple(names)


async def _script(connection: AsyncConnection[Row], text: LiteralString, params: Params | None) -> list[list[Row]]:
    # Client-side binding: only PostgreSQL's simple protocol takes several statements in one message.
    async with AsyncClientCursor(connection) as cursor:
        await cursor.execute(text, params)
        found = [await _rows(cursor)]
        while cursor.nextset():
            found.append(await _rows(cursor))
        return found


async def _rows(cursor: AsyncClientCursor[Row]) -> list[Row]:
    return await cursor.fetchall() if cursor.description else []


def _end(task: asyncio.Task[Any]) -> None:
    """Cancel, and again: psycopg answers the first by asking the server to stop, which a silent server never does."""
    if task.cancel():
        asyncio.get_running_loop().call_later(GRACE / 4, _end, task)


def _ignore(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
