"""What every side of a provider has: the connection, histories, sessions, records of session state, hints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Final, Protocol

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract.hints import ChangeWatch, Hint
from affinity.provider.contract.instances import HistoryCursor, HistoryPage
from affinity.provider.contract.sessions import SessionInfo
from affinity.provider.contract.workers import FleetLoad, WorkerIdentity
from affinity.records import SessionStore, WaitEdge

BRIEFLY: Final = ContextVar("affinity_briefly", default=False)
"""Calls wait hardly at all for a row that another transaction holds: they raise `LockTimeout`. For calls that are tried
again and again, with others behind them.
"""


class ProviderConnection(Protocol):
    """An open database; one object serves one event loop. The package's rules hold for every verb."""

    @property
    def dialect(self) -> str:
        """Name for logs and metrics: ``sqlite``, ``postgresql``, or that of another database."""
        ...

    @property
    def timeline(self) -> str:
        """The name of the database's timeline (`affinity.provider.timeline`), as of the last read. If it is the same
        before a call and after a later read, nothing that the call wrote or saw was lost in between. If it differs,
        something may have been lost.
        """
        ...

    @property
    def database(self) -> str:
        """A name of the database, among all that this process has open: two databases, and two schemas of one, have
        different names, and all providers of one database have the same. It stays the same at a new connection. It is
        another one if the database is replaced, and may be at a new timeline.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        ...

    @property
    def states(self) -> SessionStore:
        """The records of session state in this database."""
        ...

    async def read_history(
        self, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[HistoryPage]:
        """The next events of some executions, one page for each; empty when there are none.

        Events are read in the order of the cursors until they have ``max_bytes`` UTF-8 bytes: at least one, if there is
        one. Later pages are empty, with ``more``. A page has at most `limits.MAX_PAGE_EVENTS`.
        """
        ...

    async def list_sessions(
        self,
        session_ids: Collection[str] | None = None,
        *,
        worker_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[SessionInfo]:
        """Session rows, held or not: the rows of these sessions, or else one page of ``limit`` rows by id, with
        ``worker_id`` only of sessions that this worker holds, or was the last to hold. Reads only.
        """
        ...

    async def get_waits(self, instance_id: str) -> Sequence[WaitEdge]:
        """Return the noted waits of an instance, and of the instances that it waits for, directly or not, oldest first;
        at most `limits.MAX_WAITS_READ`. Only waits of activities that run, for what has not come. Reads only.
        """
        ...

    async def get_load(self, identity: WorkerIdentity | None = None, *, held: int = 0) -> FleetLoad:
        """How full the workers are, as they said last. A worker also says how many sessions it holds; that is not
        stored when its lease has ended.
        """
        ...

    async def notify_workers(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        """Send hints to workers by id; None: to all. Notify also the owners of these instances, or all workers if no
        alive worker owns one. Best effort, off the hot path. No other verb sends hints: its caller does, once.
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
