"""Hints: NOTIFY with a letter for each kind, on one channel for each schema and one for each of its workers, so that no
other process wakes up.

A hint is sent in a statement of its own, after the transaction that it is about: a commit with a NOTIFY takes a lock of
which the server has one, so that the commits of all workers would wait for each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final

import anyio
import psycopg
from psycopg import AsyncConnection, Notify, sql

from affinity.errors import ConnectionLost
from affinity.provider.contract import Hint, HintSource, WorkerIdentity
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.connections import connect
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.postgres.errors import translate, translated
from affinity.provider.postgres.operations import Operations

_NOTIFY: Final = """
WITH recipient AS (
    SELECT worker_id, hint FROM unnest(%(workers)s, %(hints)s) AS h (worker_id, hint)
    UNION
    SELECT w.worker_id, 'w'
    FROM unnest(%(instances)s) AS k (instance_id)
    LEFT JOIN instances i USING (instance_id)
    LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
)
SELECT pg_notify('affinity_' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 40), hint)
FROM (SELECT concat_ws(' ', %(schema)s::text, worker_id) AS name, hint FROM recipient) named
"""


class HintOperations(Operations):
    """`hints` and `wake`."""

    @asynccontextmanager
    async def hints(self, identity: WorkerIdentity) -> AsyncIterator[HintSource]:
        """Subscribe, on a connection of its own."""
        target = self._connections.target
        with translated(target):
            connection = await connect(target.connect(f"{self._connections.application_name} hints", {}))
        try:
            with translated(target):
                for worker_id in (None, identity.worker_id):
                    channel = sql.Identifier(_channel(target, worker_id))
                    await connection.execute(sql.SQL("LISTEN {}").format(channel))
            yield _Listener(connection, target)
        finally:
            connection.pgconn.finish()

    async def wake(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        hints = {worker: text for worker, hint in workers.items() if (text := _encode(hint))}
        if hints or owners_of:
            params = {
                "workers": Texts(hints),
                "hints": Texts(hints.values()),
                "instances": Texts(owners_of),
                "schema": self._connections.target.schema,
            }
            await self._connections.quick.run(_NOTIFY, params)


class _Listener:
    """Notifications gather in the connection until `wait` fetches them."""

    def __init__(self, connection: AsyncConnection[Row], target: Target) -> None:
        self._connection = connection
        self._target = target

    async def wait(self, timeout: float) -> Hint | None:
        deadline = anyio.current_time() + timeout
        merged: Hint | None = None
        while merged is None:
            left = max(0.0, deadline - anyio.current_time())
            try:
                # stop_after=1: one notification, and those that came with it.
                async for notice in self._connection.notifies(timeout=left, stop_after=1):
                    merged = _merge(merged, _decode(notice))
            except psycopg.OperationalError as error:
                raise ConnectionLost(str(translate(error, self._target))) from None
            if left == 0.0:
                break
        return merged


def _channel(target: Target, worker_id: str | None) -> str:
    """The channel of one worker, or of all, as in the statement above. Names may be longer than the 63 bytes that a
    channel's may have.
    """
    name = target.schema if worker_id is None else f"{target.schema} {worker_id}"
    return f"affinity_{sha256(name.encode()).hexdigest()[:40]}"


def _encode(hint: Hint) -> str:
    return "w" * hint.work + "c" * hint.cancel


def _decode(notice: Notify) -> Hint:
    return Hint(work="w" in notice.payload, cancel="c" in notice.payload)


def _merge(one: Hint | None, other: Hint) -> Hint:
    if one is None:
        return other
    return Hint(work=one.work or other.work, cancel=one.cancel or other.cancel)
