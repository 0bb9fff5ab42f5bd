"""What the session layer needs of its callers: the context of an activity, and which activity is running."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from typing import Final, Protocol, runtime_checkable

from affinity.errors import SessionError
from affinity.records import Participant, SessionStore


class SessionContext(Protocol):
    """Names a session and the epoch of its lease, as an activity context does."""

    @property
    def session_id(self) -> str | None:
        """The session, None for work that is bound to none."""
        ...

    @property
    def session_epoch(self) -> int | None:
        """The epoch of the lease under which the work was fetched. It grows with every change of holder, and when code
        without the lease writes the session's record.
        """
        ...


@runtime_checkable
class RecordReader(Protocol):
    """Reads records of one kind; `Sessions` does."""

    @property
    def kind(self) -> str:
        """Of the records."""
        ...

    def readable_versions(self) -> frozenset[int]:
        """The schema versions of the records that it can read."""
        ...


class ActivityScope(SessionContext, Protocol):
    """What `Sessions` needs of an activity's context, besides."""

    @property
    def instance_id(self) -> str:
        """Of the orchestration that scheduled the activity."""
        ...

    @property
    def execution_id(self) -> int:
        """Of that orchestration."""
        ...

    @property
    def activity_id(self) -> int:
        """With instance and execution it identifies this activity, in all its attempts."""
        ...

    @property
    def session_store(self) -> SessionStore | None:
        """The worker's database: state that is staged for it commits with the activity's result."""
        ...

    @property
    def session_listeners(self) -> Collection[object] | None:
        """The objects that the worker notifies of leases that end; None: not known."""
        ...

    def enlist(self, participant: Participant, /) -> None:
        """Commit it together with the activity's result."""
        ...


class RunningActivity(ActivityScope, Protocol):
    """The context of an activity whose code is running."""

    @property
    def ended(self) -> bool:
        """Its run is over; code that it started may still be running."""
        ...


_activity: Final[ContextVar[RunningActivity | None]] = ContextVar("affinity.activity", default=None)


def enter_activity(ctx: RunningActivity) -> None:
    """Set the activity of the current task, until the task ends; for a worker, which starts a task for each."""
    _activity.set(ctx)


def current_activity() -> RunningActivity | None:
    """The activity of the calling code; None when there is none, or its run is over."""
    ctx = _activity.get()
    return None if ctx is None or ctx.ended else ctx


def address_of(ctx: SessionContext) -> tuple[str, int]:
    """The session and the epoch that the context is bound to.

    Raises:
        SessionError: it is bound to none.
    """
    if ctx.session_id is None or ctx.session_epoch is None:
        raise SessionError("this work is bound to no session: schedule it with .on_session(session_id)")
    return ctx.session_id, ctx.session_epoch
