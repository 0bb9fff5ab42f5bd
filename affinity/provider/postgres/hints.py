"""Hints: NOTIFY with a letter for each kind, on one channel for each schema and one for each of its workers, so that no
other process wakes up.

A hint is sent in a statement of its own, after the transaction that it is about. A commit with a NOTIFY takes the
server's only lock for notifications, so the commits of all workers would wait for each other.

A hint may follow its transaction without waiting for the reply (``behind`` of `Calls.run`). It stays a transaction of
its own, which locks nothing before its commit. It writes no row, so it waits for neither the disk nor a standby.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from hashlib import sha256
from typing import Final, TypeVar

import anyio

from affinity.errors import ConnectionLost, ProviderError
from affinity.provider.contract import Hint, HintSource, WorkerIdentity
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Params, Statement
from affinity.provider.postgres.operations import Database

_UNSUBSCRIBE_TIMEOUT: Final = 1.0
"""Seconds that the end of a subscription may take."""

_NOTIFY: Final = "SELECT pg_notify(c, h) FROM unnest(%(channels)s, %(hints)s) AS n (c, h)"

_NOTIFY_OWNERS: Final = """
WITH recipient AS (
    SELECT worker_id, hint FROM unnest(%(workers)s, %(hints)s) AS h (worker_id, hint)
    UNION
    SELECT w.worker_id, 'wm'
    FROM unnest(%(instances)s) AS k (instance_id)
    LEFT JOIN instances i USING (instance_id)
    LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
    UNION
    -- A part of a guest may have queued their next work item.
    SELECT CASE WHEN q.route ^@ 'w:' THEN substr(q.route, 3) END, CASE WHEN q.route ^@ 'w:' THEN 'wo' ELSE 'w' END
    FROM unnest(%(instances)s) AS k (instance_id) CROSS JOIN LATERAL (
        SELECT q.route, q.lock_token FROM worker_queue q WHERE q.instance_id = k.instance_id
        ORDER BY q.instance_id DESC, q.execution_id DESC, q.activity_id DESC LIMIT 1
    ) q
    WHERE q.lock_token IS NULL
)
SELECT pg_notify('affinity_' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 40), hint)
FROM (SELECT concat_ws(' ', %(schema)s::text, worker_id) AS name, hint FROM recipient) named
"""


class Listener(ABC):
    """A subscription: collects news until a caller fetches them. ``channels``: the channels that it listens to."""

    def __init__(self, channels: Sequence[str]) -> None:
        self.channels = channels
        self._error: Exception | None = None
        self._changed = anyio.Event()

    @abstractmethod
    def note(self, channel: str, payload: str) -> None:
        """Note a notification on one of its channels."""

    def receive(self, channel: str, payload: str) -> None:
        """Note a notification, if it is for this listener."""
        if channel in self.channels:
            self.note(channel, payload)
            self._changed.set()

    def end(self, error: Exception) -> None:
        """Have `wait_for_news` raise."""
        self._error = error
        self._changed.set()

    async def wait_for_news(self, timeout: float) -> None:
        """Wait until some were noted since the last call, for at most ``timeout`` seconds."""
        with anyio.move_on_after(timeout):
            await self._changed.wait()
        if self._error is not None:
            raise ConnectionLost(str(self._error))
        self._changed = anyio.Event()


L = TypeVar("L", bound=Listener)


def hints(db: Database, identity: WorkerIdentity) -> AbstractAsyncContextManager[HintSource]:
    channels = [_channel(db.connections.target, name) for name in (None, identity.worker_id)]
    return subscribed(db, _HintListener(channels))


@asynccontextmanager
async def subscribed(db: Database, listener: L) -> AsyncIterator[L]:
    """Subscribe, on the connection of the fetches; or on the direct one, where the others go through a pooler."""
    listening = db.connections.listening
    try:
        await db.connections.subscribe(listener.channels, listener)
        yield listener
    finally:
        with anyio.move_on_after(_UNSUBSCRIBE_TIMEOUT, shield=True), suppress(ProviderError):
            await listening.unsubscribe(listener)


async def notify_workers(db: Database, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
    target = db.connections.target
    if owners_of:
        hints = _encode_all(workers)
        params: Params = {
            "workers": Texts(hints),
            "hints": Texts(hints.values()),
            "instances": Texts(owners_of),
            "schema": target.schema,
        }
        await db.connections.quick.run(_NOTIFY_OWNERS, params)
    elif notify := hint_statement(target, workers):
        await db.connections.quick.run(*notify)


def hint_statement(target: Target, workers: Mapping[str | None, Hint]) -> Statement | None:
    """Return the statement that sends hints, if there are any."""
    if not (hints := _encode_all(workers)):
        return None
    channels = Texts(_channel(target, worker) for worker in hints)
    return _NOTIFY, {"channels": channels, "hints": Texts(hints.values())}


class _HintListener(Listener):
    """The subscription of one worker; the common channel of all workers comes first."""

    def __init__(self, channels: Sequence[str]) -> None:
        super().__init__(channels)
        self._hint: Hint | None = None

    def note(self, channel: str, payload: str) -> None:
        self._hint = _decode(payload, to_all=channel == self.channels[0]).merge(self._hint)

    async def wait(self, timeout: float) -> Hint | None:
        await self.wait_for_news(timeout)
        hint, self._hint = self._hint, None
        return hint


def _channel(target: Target, worker_id: str | None) -> str:
    """The channel of one worker, or of all, as in the statement that looks for owners. Names may be longer than the 63
    bytes that a channel's may have.
    """
    name = target.schema if worker_id is None else f"{target.schema} {worker_id}"
    return f"affinity_{sha256(name.encode()).hexdigest()[:40]}"


def _encode_all(workers: Mapping[str | None, Hint]) -> Mapping[str | None, str]:
    """Return the payloads of the hints that say anything."""
    return {worker: text for worker, hint in workers.items() if (text := _encode(hint))}


def _encode(hint: Hint) -> str:
    return "w" * hint.work + "c" * hint.cancel + "s" * hint.sessions + "m" * hint.only_messages + "o" * hint.only_own


def _decode(payload: str, *, to_all: bool) -> Hint:
    return Hint(
        work="w" in payload,
        cancel="c" in payload,
        sessions="s" in payload,
        only_messages="m" in payload,
        only_own="o" in payload,
        to_all=to_all,
    )
