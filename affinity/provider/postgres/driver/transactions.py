"""Transactions of several calls, on a connection of their own: what a user does, with its entry in the audit log.

All else is one message (see `affinity.provider.postgres.driver.connections`). Here the caller looks at the result of
one call before it makes the next. A caller that is paused in between holds what it has locked, until the server ends
it by ``idle_in_transaction_session_timeout``.

Invariants
    * The connection is made when it is first needed, and closed when it was idle for `IDLE_SECONDS`.
    * One transaction at a time. One that does not come to its end ends with its connection: nothing is committed.
    * After an error nothing more is sent in a transaction: a further call raises `Contention`, so that it is repeated
      as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import psycopg
from psycopg import AsyncConnection

from affinity.errors import ConnectionLost, Contention
from affinity.provider.postgres.driver.calls import CALL_TIMEOUT, Calls
from affinity.provider.postgres.driver.errors import translate, translated
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Outcome, Row, Statement, WireProtocol

T = TypeVar("T")

IDLE_SECONDS: Final = 30.0
"""Without a transaction, after which the connection is closed."""


class Transaction(Calls):
    """The calls of a transaction: an open connection, for one transaction after another."""

    is_free = True

    def __init__(self, connection: AsyncConnection[Row], target: Target, settings: Mapping[str, str]) -> None:
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
                rows = await reply
        except TimeoutError:
            raise ConnectionLost(f"{self._target.name}: no answer within {CALL_TIMEOUT:g} s") from None
        except psycopg.Error as error:
            raise translate(error, self._target) from error
        finally:
            self._reply = None
        self._has_failed = False
        return rows

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

    def close(self) -> None:
        """Close the connection, whatever the server is doing."""
        self._protocol.detach()
        self._protocol.close()
        self._ended(ConnectionLost(f"{self._target.name}: the provider was closed"))


class Transactions:
    """Runs transactions, one at a time.

    Args:
        connect: makes a connection that was checked.
        target: the database.
        settings: of a new connection.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection[Row]]], target: Target, settings: Mapping[str, str]
    ) -> None:
        self._connect, self._target, self._settings = connect, target, settings
        self._lock = asyncio.Lock()
        self._open: Transaction | None = None
        self._idle_alarm: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Do ``work`` in a transaction; it is undone when ``work`` raises, or is cancelled.

        Raises:
            ConnectionLost: it may or may not have been committed.
        """
        async with self._lock:
            try:
                transaction = await self._begin()
                result = await work(transaction)
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
                await self._open.simple_query("BEGIN")
                return self._open
            self.close()
        with translated(self._target):
            connection = await self._connect()
        self._open = Transaction(connection, self._target, self._settings)
        await self._open.simple_query("BEGIN")
        return self._open

    def close(self) -> None:
        """Close the connection, until the next transaction."""
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
        transaction, self._open = self._open, None
        if transaction is not None:
            transaction.close()
