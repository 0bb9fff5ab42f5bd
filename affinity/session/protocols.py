"""What the session layer and a worker ask of each other; neither imports the other."""

from __future__ import annotations

from typing import Protocol


class SessionContext(Protocol):
    """Whatever names a session and the lease under which it is used; an activity context does."""

    @property
    def session_id(self) -> str | None:
        """The session, None for work that is bound to none."""
        ...

    @property
    def session_epoch(self) -> int | None:
        """The epoch of the lease under which the work was fetched; every change of holder has a greater one."""
        ...


class SessionListener(Protocol):
    """What a worker tells about its leases. Every call may be repeated, and may name sessions that are not known."""

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        """The lease of a session, up to ``epoch`` (None: whichever), has been lost or given back."""
        ...

    async def lost_all(self) -> None:
        """All leases are gone: the worker was fenced, or leaves."""
        ...

    async def sweep(self) -> None:
        """Give up what has been idle for too long. A worker calls it about once a second."""
        ...

    async def aclose(self) -> None:
        """The worker has ended."""
        ...
