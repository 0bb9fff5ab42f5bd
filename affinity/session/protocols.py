"""What the session layer asks of whoever uses it."""

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
