"""The verbs that every side of a provider has: connection, histories, sessions, records of session state, hints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Final, Protocol

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract.hints import ChangeWatch, Hint
from affinity.provider.contract.instances import HistoryCursor, HistoryPage
from affinity.provider.contract.management import DatabaseIdentity
from affinity.provider.contract.sessions import SessionInfo
from affinity.provider.contract.turns import InstanceValue
from affinity.provider.contract.workers import FleetLoad, WorkerIdentity
from affinity.records import SessionStore, WaitEdge

BRIEFLY: Final = ContextVar("affinity_briefly", default=False)
"""True: calls raise `LockTimeout` almost immediately when another transaction holds a row that they need. Set for calls
that are retried and that other calls wait behind.
"""


class ProviderConnection(Protocol):
    """An open database; one object serves one event loop. The package's rules hold for every verb."""

    @property
    def dialect(self) -> str:
        """Name for logs and metrics: ``sqlite``, ``postgresql``, or that of another database."""
        ...

    @property
    def timeline(self) -> str:
        """The name of the database's timeline (`affinity.provider.timeline`) at the last read. If it is the same before
        a call and after a later read, nothing that the call wrote or saw was lost in between. If it differs, something
        may have been lost.
        """
        ...

    @property
    def database(self) -> str:
        """The name of the database among all that this process has open. Two databases, and two schemas of one, have
        different names; all providers of one database have the same. The name stays the same at a new connection and at
        a new timeline: it changes only if the database is replaced. A standby that was promoted while its primary goes
        on has the name of the primary.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        ...

    @property
    def states(self) -> SessionStore:
        """The records of session state in this database."""
        ...

    async def read_identity(self) -> DatabaseIdentity:
        """Return the name of the database in the contexts of payloads, and whether these are encoded."""
        ...

    async def mark_encoded(self, check_value: str, *, former: str | None) -> bool:
        """Note that the payloads are encoded from now on, and keep a check value, if the ``former`` one is still there;
        None: there was none. Return whether it was; otherwise nothing is changed. Needs the rights of a worker.
        """
        ...

    async def mark_offloaded(self) -> None:
        """Note that large payloads are in a blob store from now on. Needs the rights of a worker."""
        ...

    async def read_history(
        self, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[HistoryPage]:
        """Return the next events of some executions, one page for each; a page is empty when there are no events.

        Events are read in the order of the cursors until they have ``max_bytes`` UTF-8 bytes; at least one event is
        read, if there is any. Later pages are empty, with ``more``. A page has at most `limits.MAX_PAGE_EVENTS`.
        """
        ...

    async def get_values(self, instance_ids: Collection[str], key: str | None = None) -> Sequence[InstanceValue]:
        """Return the values of some instances (`Turn.values`): all, or those of one key. Reads only."""
        ...

    async def list_sessions(
        self,
        session_ids: Collection[str] | None = None,
        *,
        worker_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[SessionInfo]:
        """Return session rows, held or not: the rows of these sessions, or else one page of ``limit`` rows by id. With
        ``worker_id`` it has only sessions that this worker holds, or was the last to hold. Reads only.
        """
        ...

    async def get_waits(self, instance_id: str) -> Sequence[WaitEdge]:
        """Return the noted waits of an instance, and of the instances that it waits for, directly or not, oldest first;
        at most `limits.MAX_WAITS_READ`. Only waits of running activities that have not been answered. Reads only.
        """
        ...

    async def get_load(self, identity: WorkerIdentity | None = None, *, held: int = 0) -> FleetLoad:
        """Return how full the workers are, by their last reports. A worker that calls also reports how many sessions it
        holds (``held``), which is not stored when its lease has ended.
        """
        ...

    async def notify_workers(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        """Send hints to workers by id; None: to all. Notify also the owners of these instances, or all workers if no
        alive worker owns one. Best effort, off the hot path. No other verb sends hints: the caller of a verb sends
        them, once.
        """
        ...

    def watch_changes(self) -> AbstractAsyncContextManager[ChangeWatch]:
        """Subscribe to changes by session id, among them replies of instances (`Turn.replies`)."""
        ...

    async def notify_changes(self, session_ids: Collection[str], *, minor: bool = False) -> None:
        """Notify the subscribers of all processes that these sessions have changed, or that the instances of these ids
        have replied to messages; called after the commit. ``minor``: see `ChangeWatch.wait`.
        """
        ...
