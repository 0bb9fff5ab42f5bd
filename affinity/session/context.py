"""What the session layer asks of whoever uses it."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from typing import Final, Protocol, runtime_checkable

from affinity.errors import SessionError
from affinity.records import Participant, SessionStore


class SessionContext(Protocol):
    """Whatever names a session and the lease under which it is used; an activity context does."""

    @property
    def session_id(self) -> str | None:
        """The session, None for work that is bound to none."""
        ...

    @property
    def session_epoch(self) -> int | None:
        """The epoch of the lease under which the work was fetched. It grows with every change of holder, and when
        somebody else writes the session's record.
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
    """What `Sessions` asks of an activity's context, besides."""

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
        """With instance and execution it names this activity, in all its attempts."""
        ...

    @property
    def session_store(self) -> SessionStore | None:
        """Of the worker's database: what is written there commits with the activity's result."""
        ...

    @property
    def session_listeners(self) -> Collection[object] | None:
        """What the worker tells about the sessions that it loses; None: not known."""
        ...

    def enlist(self, participant: Participant, /) -> None:
        """Keep it together with the activity's result."""
        ...


class RunningActivity(ActivityScope, Protocol):
    """The context of an activity whose code runs now."""

    @property
    def ended(self) -> bool:
        """Its run is over: code that still runs was left behind."""
        ...


_activity: Final[ContextVar[RunningActivity | None]] = ContextVar("affinity.activity", default=None)


def enter_activity(ctx: RunningActivity) -> None:
    """Name the activity of the current task from here to its end; for a worker, which starts a task for each."""
    _activity.set(ctx)


def current_activity() -> RunningActivity | None:
    """The activity that the calling code runs for; None when there is none, or its run is over."""
    ctx = _activity.get()
    return None if ctx is None or ctx.ended else ctx


def address_of(ctx: SessionContext) -> tuple[str, int]:
    """The session and the epoch that the context is bound to.

    Raises:
        SessionError: to none.
    """
    if ctx.session_id is None or ctx.session_epoch is None:
        raise SessionError("this work is bound to no session: schedule it with .on_session(session_id)")
    return ctx.session_id, ctx.session_epoch
