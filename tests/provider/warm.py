"""Connections to PostgreSQL that outlive the provider object that made them, and the test that made that.

A new connection costs the server a process, its caches and the preparation of each statement: some 15 ms, more than
what a test of the contract does with it. A test opens ten of them. So the providers of `PostgresHarness` get
connections that providers of an earlier test have closed, in autocommit and outside any transaction, with the
statements that are prepared on them. All else is as on a new connection: the provider checks the timeline, for one.
So do workers and clients, whose URL says that they are `APPLICATION`.
"""

from __future__ import annotations

import select
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Outcome, Row, ServerConnection, WireProtocol

APPLICATION: Final = "affinity conformance"
"""Whose connections are kept: ``application_name`` of `PostgresProvider.open`."""

MOST: Final = 6
"""Idle connections kept for each role of a provider on a database; a few tests have more provider objects than that."""

_connect = connections.connect


class KeptWireProtocol(WireProtocol):
    """On a connection that may have been used before: it knows the prepared statements."""

    def __init__(
        self,
        connection: ServerConnection,
        ended: Callable[[Outcome], None],
        answered: Callable[[list[list[Row]]], None],
    ) -> None:
        super().__init__(connection, ended, answered)
        if (before := _prepared.get(connection)) is not None:
            self._shapes, self._names, self._numbers = before
        elif connection in _origins:
            _prepared[connection] = (self._shapes, self._names, self._numbers)
        self._changed: set[str] = set()

    def change(self, settings: Mapping[str, str], then: Callable[[], None]) -> None:
        self._changed.update(settings)
        super().change(settings, then)

    def close(self) -> None:
        if self._connection not in _origins:
            super().close()
            return
        undone = [f"RESET {name}" for name in self._changed]
        if self._notified is not None:
            undone.append("UNLISTEN *")
        if undone and _is_usable(self._connection):
            self._pgconn.exec_(";".join(undone).encode())
            while self._pgconn.notifies() is not None:
                pass
        keep(self._connection)


async def connect(target: Target, conninfo: str) -> AsyncConnection[Any]:
    """As `connections.connect`. What has `APPLICATION` in its ``application_name`` can be kept."""
    idle = _idle[conninfo]
    while idle:
        if _is_usable(connection := idle.pop()):
            return connection
        _forget(connection)
    connection = await _connect(target, conninfo)
    if APPLICATION in conninfo:
        _origins[connection] = conninfo
    return connection


def keep(connection: AsyncConnection[Any]) -> None:
    """For the next one who connects; to be called instead of closing what `connect` returned."""
    idle = _idle[_origins[connection]]
    if _is_usable(connection) and len(idle) < MOST:
        idle.append(connection)
    else:
        _forget(connection)


def idle_backends() -> list[int]:
    """Process ids, at the server, of connections that no provider uses."""
    return [connection.info.backend_pid for idle in _idle.values() for connection in idle]


def close_idle() -> None:
    """End all that no provider uses."""
    for idle in _idle.values():
        while idle:
            _forget(idle.pop())


def _is_usable(connection: AsyncConnection[Any]) -> bool:
    """Open, not in the middle of anything, and without news: an idle server says only that it ends."""
    pgconn = connection.pgconn
    if pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    return not select.select([pgconn.socket], [], [], 0)[0]


def _forget(connection: AsyncConnection[Any]) -> None:
    connection.pgconn.finish()
    _origins.pop(connection, None)
    _prepared.pop(connection, None)


_idle: Final[defaultdict[str, list[AsyncConnection[Any]]]] = defaultdict(list)
_origins: Final[dict[AsyncConnection[Any], str]] = {}
_prepared: Final[dict[AsyncConnection[Any], tuple[Any, Any, Any]]] = {}

vars(connections).update(connect=connect, WireProtocol=KeptWireProtocol)
