"""Transactions of several calls, on a connection of their own: what a user does, with its entry in the audit log.

All else is one message (see `affinity.provider.postgres.driver.connections`). Here the caller looks at the result of
one call before it makes the next: of the verb, to write what it has done. The entry and the COMMIT are one message. A
caller that is paused in between, or whose link is cut, holds what it has locked for `SHORT_TRANSACTION` at most: then
the server ends its session, and nothing is done.

Invariants
    * The connection is made when it is first needed, and closed when it was idle for `IDLE_SECONDS`.
    * One transaction at a time. One that does not come to its end ends with its connection: nothing is committed.
    * A call that is silent is asked about, as on other connections: a session that waits for us is ended.
    * After an error nothing more is sent in a transaction: a further call raises `Contention`, so that it is repeated
      as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, LiteralString, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection

from affinity.errors import ConnectionLost, Contention
from affinity.provider.postgres.driver.attempts import first_connection
from affinity.provider.postgres.driver.calls import CALL_TIMEOUT, Calls
from affinity.provider.postgres.driver.errors import translate, translated
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Outcome, Params, Row, Statement, WireProtocol

T = TypeVar("T")

IsDead: TypeAlias = Callable[[WireProtocol, Callable[[], bool]], Awaitable[bool]]
"""Whether no answer will come to a call of a connection, while a condition holds."""

SHORT_TRANSACTION: Final = {"idle_in_transaction_session_timeout": "1s"}
"""Setting of these connections."""

IDLE_SECONDS: Final = 30.0
"""Without a transaction, after which the connection is closed."""


class Transaction(Calls):
    """The calls of a transaction: an open connection, for one transaction after another."""

    is_free = True
    is_over: bool = False
    """The last call has committed it."""

    def __init__(
        self,
        connection: AsyncConnection[Row],
        target: Target,
        settings: Mapping[str, str],
        is_dead: IsDead,
        probe_after: float,
    ) -> None:
        self._is_dead, self._probe_after = is_dead, probe_after
        self._protocol = WireProtocol(connection, self._ended, self._answered)
        self._target = target
        self._settings = settings
        self._reply: asyncio.Future[list[list[Row]]] | None = None
        self._first: list[list[Row]] | None = None  # the reply to a statement with a hint behind it
        self._has_failed = False

    async def _call(
        self,
        ask: Callable[[WireProtocol], None],
        settings: Mapping[str, str] | None = None,
        behind: Statement | None = None,
        *,
        is_short: bool = True,
    ) -> list[list[Row]]:
        if self._has_failed:
            raise Contention(f"{self._target.name}: the transaction was given up after an error: repeat it")
        reply: asyncio.Future[list[list[Row]]] = asyncio.get_running_loop().create_future()
        self._reply, self._first = reply, None
        self._has_failed = True  # unless it has a reply
        try:
            self._ask(ask, settings or self._settings)
            async with asyncio.timeout(CALL_TIMEOUT):
                await self._watch(reply)
                rows = await reply
        except TimeoutError:
            raise ConnectionLost(f"{self._target.name}: no answer within {CALL_TIMEOUT:g} s") from None
        except psycopg.Error as error:
            raise translate(error, self._target) from error
        finally:
            self._reply = None
        self._has_failed = False
        return rows

    async def _watch(self, reply: asyncio.Future[list[list[Row]]]) -> None:
        """Wait until a call has its reply, however long the server works on it.

        Raises:
            ConnectionLost: no reply will come.
        """
        loop, protocol = asyncio.get_running_loop(), self._protocol
        began = loop.time()
        while not reply.done():
            silent_from = max(began, protocol.moved_at)
            await asyncio.wait({reply}, timeout=max(0.05, silent_from + self._probe_after - loop.time()))
            if reply.done() or loop.time() - max(began, protocol.moved_at) < self._probe_after:
                continue
            at = protocol.moved_at
            if await self._is_dead(protocol, lambda at=at: not reply.done() and protocol.moved_at == at):  # type: ignore[misc]
                server, silence = self._target.name, loop.time() - max(began, at)
                raise ConnectionLost(
                    f"{server}: no answer for {silence:.1f} s, while a new connection is answered: this connection is"
                    " dead, and it is unknown whether the call took effect"
                )
            await asyncio.wait({reply}, timeout=self._probe_after)

    def _ask(self, ask: Callable[[WireProtocol], None], settings: Mapping[str, str]) -> None:
        if settings is self._settings:
            ask(self._protocol)
        else:
            self._settings = settings
            self._protocol.change(settings, then=partial(ask, self._protocol))

    def _answered(self, rows: list[list[Row]]) -> None:
        self._first = rows

    def _ended(self, outcome: Outcome) -> None:
        if self._reply is None or self._reply.done():  # no caller waits
            return
        if isinstance(outcome, Exception):
            self._reply.set_exception(outcome)
        else:
            self._reply.set_result(outcome if self._first is None else self._first)

    async def begin(self) -> None:
        """Begin a transaction."""
        await self.simple_query("BEGIN")
        self.is_over = False

    async def commit_with(self, last: LiteralString, params: Params) -> None:
        """Make the last call of the transaction and commit it, in one message."""
        await self.simple_query(f"{last}; COMMIT", params)
        self.is_over = True

    def close(self) -> None:
        """Close the connection, whatever the server is doing."""
        self._protocol.detach()
        self._protocol.close()
        self._ended(ConnectionLost(f"{self._target.name}: the provider was closed"))


async def _run(connect: Callable[[], Awaitable[AsyncConnection[Row]]]) -> AsyncConnection[Row]:
    return await connect()


class Transactions:
    """Runs transactions, one at a time.

    Args:
        connect: makes a connection that was checked.
        target: the database.
        settings: of a new connection.
        is_dead: whether no answer will come to a call that is silent.
        probe_after: seconds of silence after which that is asked.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection[Row]]],
        target: Target,
        settings: Mapping[str, str],
        is_dead: IsDead,
        probe_after: float,
    ) -> None:
        self._connect, self._target, self._settings = connect, target, settings
        self._is_dead, self._probe_after = is_dead, probe_after
        self._lock = asyncio.Lock()
        self._open: Transaction | None = None
        self._idle_alarm: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Do ``work`` in a transaction; it is undone when ``work`` raises, or is cancelled before `commit_with`.

        Raises:
            ConnectionLost: it may or may not have been committed.
        """
        async with self._lock:
            try:
                transaction = await self._begin()
                result = await work(transaction)
                if not transaction.is_over:
                    await transaction.simple_query("COMMIT")
            except BaseException:
                self.close()
                raise
            self._idle_alarm = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)
            return result

    async def _begin(self) -> Transaction:
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
        if self._open is not None:
            with suppress(ConnectionLost):  # it broke while it was idle
                await self._open.begin()
                return self._open
            self.close()
        loop = asyncio.get_running_loop()
        with translated(self._target):
            connection = await first_connection(lambda: loop.create_task(_run(self._connect)), self._probe_after)
        self._open = Transaction(connection, self._target, self._settings, self._is_dead, self._probe_after)
        await self._open.begin()
        return self._open

    def close(self) -> None:
        """Close the connection, until the next transaction."""
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
        transaction, self._open = self._open, None
        if transaction is not None:
            transaction.close()
