"""Connections through a pooler: those that have a server session of their own are used, as PgBouncer's in session mode.
On others a client makes each call a transaction with settings of its own (`driver.shared`).

A pooler does not pass on the settings that travel with the request to connect: it refuses the request, or ignores
them. And the process id that it gives to a client is none of the server's. Where either is found, the connection shows
that it has a server session of its own before it changes anything: while it is idle, it receives what another
connection sends. A pooler in transaction or statement mode has given the server session away by then. After that the
connection gets its settings, with one more message. Where the URL names a direct one, nothing is shown: the pooler is
taken for one that shares.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Final, LiteralString

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from affinity.errors import ConnectionLost, PoolerRefused
from affinity.provider.postgres.driver.attempts import connect_to_a_host
from affinity.provider.postgres.driver.errors import WITHOUT_POOLER, translate, translate_refusal
from affinity.provider.postgres.driver.target import PINNED, Target
from affinity.provider.postgres.driver.wire import Row, ServerConnection

PROOF_TIMEOUT: Final = 10.0
"""Seconds for a second connection and for what it sends. A pooler without room has the second one wait for minutes."""

NOTIFIED_WITHIN: Final = 5.0
"""Seconds for a notification to arrive."""

_LOOKS: Final = 3
"""At the sessions of two connections to a pooler, before one listens. Each takes two round trips."""

_FORGETTING: Final = 10
"""Calls of each of two connections that end a subscription which one of many sessions may have."""

_LASTING: Final = ("idle_", "tcp_", "default_transaction_")
"""How settings begin that have no effect on the transaction that sets them."""

_SETTLE: Final[LiteralString] = """
SELECT count(set_config(name, value, false))
FROM unnest(%(names)s::text[], %(values)s::text[]) AS wanted (name, value)
WHERE name LIKE '%%.%%' OR value <> current_setting(name, true)"""
"""Sets what differs, and settings of our own."""

_NOTIFY: Final[LiteralString] = "SELECT pg_backend_pid(), pg_notify(%s, '')"

_WORD: Final = re.compile(r"(?:\\.|[^\s\\])+")


async def open_connection(target: Target, conninfo: str) -> ServerConnection:
    """A connection in autocommit that prepares each statement at its first use. Where a pooler refuses the settings of
    the connection, it has none.

    Raises:
        InvalidUrl: the URL has an option that libpq cannot use.
        ConnectionLost, AccessDenied, PoolerRefused: there is no connection.
    """
    try:
        return await _open(target, conninfo)
    except PoolerRefused:
        return await _open(target, _without_options(conninfo))


async def open_another(connection: ServerConnection, target: Target, conninfo: str) -> ServerConnection:
    """A second connection to the host of the first one, without settings.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied, PoolerRefused: as `open_connection`.
    """
    there = connection.pgconn
    place = {"host": there.host.decode(), "hostaddr": there.hostaddr.decode() or None, "port": there.port.decode()}
    return await _open(target, make_conninfo(_without_options(conninfo), **place))


async def open_shared(target: Target, conninfo: str) -> ServerConnection:
    """A connection through a pooler that shares the sessions of the server, with the settings of its transactions.

    Raises:
        PoolerRefused: the ``options`` of the URL have more than settings.
        InvalidUrl, ConnectionLost, AccessDenied: as `open_connection`.
    """
    shared = _shared_settings(target, conninfo)
    connection = await _open(target, _without_options(conninfo))
    connection.shared = shared
    return connection


async def use_session(connection: ServerConnection, target: Target, conninfo: str) -> None:
    """Give a connection through a pooler the settings of ``conninfo``, and those that are pinned.

    Raises:
        PoolerRefused: the connection has no server session of its own.
        ConnectionLost: the pooler has no second connection, or none of its connections is free.
        ReadOnly: the server is a standby.
    """
    other = await open_another(connection, target, conninfo)
    try:
        async with asyncio.timeout(PROOF_TIMEOUT):
            has_session = await receives(connection, other, connection.server_pid)
    except TimeoutError:
        raise ConnectionLost(
            f"{target.name}: the pooler in between had no second connection within {PROOF_TIMEOUT:g} s: its pool needs"
            " one for each connection of affinity, and one more for a moment"
        ) from None
    except psycopg.Error as error:
        raise translate(error, target) from None
    finally:
        other.pgconn.finish()
    if not has_session:
        raise PoolerRefused(f"{target.name}: a pooler in between shares the sessions of the server; {WITHOUT_POOLER}")
    await settle(connection, target, conninfo)


async def settle(connection: AsyncConnection[Row], target: Target, conninfo: str) -> None:
    """Set, for the server session that a connection has, what a connection without a pooler has from the beginning.

    Raises:
        PoolerRefused: the ``options`` of the URL have more than settings.
    """
    wanted = {**dict(_settings(conninfo, target)), **PINNED}
    await connection.execute(_SETTLE, {"names": [*wanted], "values": [*wanted.values()]}, prepare=False)


def _shared_settings(target: Target, conninfo: str) -> Mapping[str, str]:
    wanted = {**dict(_settings(conninfo, target)), **PINNED}
    return {name: value for name, value in wanted.items() if not name.startswith(_LASTING)}


async def receives(connection: AsyncConnection[Row], other: AsyncConnection[Row], pid: int | None = None) -> bool:
    """Whether a connection receives, while it is idle, what another one sends: by a transaction that writes no row.

    Args:
        connection: the one that listens.
        other: the one that sends.
        pid: of the server session that the first one had before: if it has another one now, or the second one has it,
            nothing will come.
    """
    # Before anything is left in a session that others may have next. On a busy pool sessions change hands all the time.
    if pid is not None and await _has_moved(connection, other, pid):
        return False
    channel = f"affinity_{uuid.uuid4().hex}"
    name = sql.Identifier(channel)
    await connection.execute(sql.SQL("LISTEN {}").format(name), prepare=False)
    cursor = await other.execute(_NOTIFY, [channel], prepare=False)
    ((sender, _),) = await cursor.fetchall()
    found = sender != pid and await _is_notified(connection, channel)
    # Also the proof that it is still connected: the session of one that was cut off goes to the next client. And where
    # sessions are shared, any of them may be the one that listens.
    for _ in range(1 if found else _FORGETTING):
        for each in (connection,) if found else (connection, other):
            await each.execute(sql.SQL("UNLISTEN {}").format(name), prepare=False)
    return found


async def _has_moved(connection: AsyncConnection[Row], other: AsyncConnection[Row], pid: int) -> bool:
    """Whether a connection has another server session than before, or shares it with another connection."""
    for _ in range(_LOOKS):
        # Both are asked: the session of one that was cut off goes to the next client, which is no proof.
        theirs, ours = await _session(other), await _session(connection)
        if theirs == pid or ours != pid:
            return True
    return False


async def _session(connection: AsyncConnection[Row]) -> int:
    cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
    ((pid,),) = await cursor.fetchall()
    return int(pid)


async def _is_notified(connection: AsyncConnection[Row], channel: str) -> bool:
    """Whether a notification comes on that channel. A shared session may have those of other clients."""
    async with aclosing(connection.notifies(timeout=NOTIFIED_WITHIN)) as notices:
        async for notice in notices:
            if notice.channel == channel:
                return True
    return False


async def _open(target: Target, conninfo: str) -> ServerConnection:
    try:
        return await connect_to_a_host(conninfo, autocommit=True, prepare_threshold=0)
    except psycopg.Error as error:
        raise translate_refusal(error, target) from None


def _without_options(conninfo: str) -> str:
    return make_conninfo("", **{key: value for key, value in conninfo_to_dict(conninfo).items() if key != "options"})


def _settings(conninfo: str, target: Target) -> Iterator[tuple[str, str]]:
    """Yield the settings in libpq's ``options``, as the server would read them."""
    words = (re.sub(r"\\(.)", r"\1", word) for word in _WORD.findall(str(conninfo_to_dict(conninfo)["options"])))
    for word in words:
        text = next(words, "") if word == "-c" else word.removeprefix("-c").removeprefix("--")
        name, equals, value = text.partition("=")
        if not equals or text == word:
            raise PoolerRefused(f"{target.name}: a pooler passes on no options but settings: leave {word!r} out")
        yield name.replace("-", "_"), value
