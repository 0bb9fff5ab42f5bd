"""Hints: NOTIFY on one channel for each schema, with the worker's id and a letter for each kind.

A hint is ``letters:worker``; no worker means all of them. They are sent in a statement of their own, never by the
transaction that they tell of: a commit with a NOTIFY takes a lock that is the database's only one, and would make the
commits of all workers wait for each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio
import psycopg
from psycopg import AsyncConnection, Notify, sql

from affinity.errors import ConnectionLost
from affinity.provider.contract import Hint, HintSource, WorkerIdentity
from affinity.provider.postgres.arrays import Texts
from affinity.provider.postgres.base import Verbs
from affinity.provider.postgres.connections import connect
from affinity.provider.postgres.conversation import Row
from affinity.provider.postgres.errors import translate, translated
from affinity.provider.postgres.target import Target

_NOTIFY: Final = "SELECT pg_notify(%(channel)s, hint) FROM unnest(%(hints)s) AS hint"


class HintVerbs(Verbs):
    """`hints` and `wake`."""

    @asynccontextmanager
    async def hints(self, identity: WorkerIdentity) -> AsyncIterator[HintSource]:
        """See `affinity.provider.contract.Provider`. Takes a connection of its own."""
        target = self._links.target
        with translated(target):
            connection = await connect(target.connect(f"{self._links.application_name} hints", {}))
        try:
            with translated(target):
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(_channel(target))))
            yield _Subscription(connection, target, identity.worker_id)
        finally:
            connection.pgconn.finish()

    async def wake(self, workers: Mapping[str | None, Hint]) -> None:
        """See `affinity.provider.contract.Provider`."""
        hints = [_encode(worker, hint) for worker, hint in workers.items() if hint.work or hint.cancel]
        if hints:
            params = {"channel": _channel(self._links.target), "hints": Texts(hints)}
            await self._links.misc.run(_NOTIFY, params)


class _Subscription:
    """Notifications gather in the connection until `wait` fetches them."""

    def __init__(self, connection: AsyncConnection[Row], target: Target, worker_id: str) -> None:
        self._connection = connection
        self._target = target
        self._worker_id = worker_id

    async def wait(self, timeout: float) -> Hint | None:
        """See `affinity.provider.contract.HintSource`."""
        deadline = anyio.current_time() + timeout
        merged: Hint | None = None
        while merged is None:
            left = max(0.0, deadline - anyio.current_time())
            try:
                # stop_after=1: one notification, and those that came with it.
                async for notice in self._connection.notifies(timeout=left, stop_after=1):
                    merged = _merge(merged, self._decode(notice))
            except psycopg.OperationalError as error:
                raise ConnectionLost(str(translate(error, self._target))) from error
            if left == 0.0:
                break
        return merged

    def _decode(self, notice: Notify) -> Hint | None:
        kinds, _, worker_id = notice.payload.partition(":")
        if worker_id not in ("", self._worker_id):
            return None
        return Hint(work="w" in kinds, cancel="c" in kinds)


def _channel(target: Target) -> str:
    """Fits 63 bytes, which a schema's name may fill alone: a schema of that length is its own channel."""
    return f"{target.schema}_hints" if len(target.schema) < 58 else target.schema  # noqa: PLR2004 -- 63 less "_hints"


def _encode(worker_id: str | None, hint: Hint) -> str:
    return f"{'w' * hint.work}{'c' * hint.cancel}:{worker_id or ''}"


def _merge(one: Hint | None, other: Hint | None) -> Hint | None:
    if one is None or other is None:
        return one or other
    return Hint(work=one.work or other.work, cancel=one.cancel or other.cancel)
