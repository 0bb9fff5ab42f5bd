"""What the suite needs to know of a database beyond its provider."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from affinity.provider.contract import FetchOptions, Provider, WorkerIdentity

Trouble: TypeAlias = Literal["contention", "duplicate", "connection_lost"]


class Harness(Protocol):
    """One fresh database, already migrated, for one test."""

    async def open(self) -> Provider:
        """A further provider object on the same database, as another process would have. The suite closes it."""
        ...

    async def advance(self, seconds: float) -> None:
        """Move the database's clock forward, for every provider object on it."""
        ...

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """The work of one `fetch_work_item` on a provider object opened for it; no other is open meanwhile.

        In units that do not depend on time: rows and blocks read, or instructions of a virtual machine.
        """
        ...

    async def provoke(self, trouble: Trouble) -> None:
        """Bring a provider object into this trouble with its database, and let out the error that it raises."""
        ...

    async def aclose(self) -> None:
        """Remove the database."""
        ...
