"""The common part of all sides of a provider: the connection, histories, records of session state, wake-ups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract.hints import Hint
from affinity.provider.contract.instances import HistoryCursor, HistoryPage
from affinity.records import SessionStore


class ProviderConnection(Protocol):
    """An open database; one object serves one event loop. The package's rules hold for every verb."""

    @property
    def dialect(self) -> str:
        """Name for logs and metrics: ``sqlite`` or ``postgresql``."""
        ...

    @property
    def timeline(self) -> str:
        """Names the timeline of the database (`affinity.provider.timeline`), as the reads so far have found it. It is
        equal before a call and after a later read: nothing that the call has written or seen was lost meanwhile. Where
        it is not equal, it may have been.
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

    async def wake(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        """Send hints to workers by id; None: to all. Wake also the owners of these instances, or all workers if no
        alive worker owns one. Best effort, off the hot path. No other verb sends hints: its caller does, once.
        """
        ...
