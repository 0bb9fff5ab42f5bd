"""The activities of one execution: from its history, and for activities without a result from the queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from affinity.client.views import HistoryRecord
from affinity.provider.contract import WorkItemInfo

ActivityStatus: TypeAlias = Literal["queued", "running", "ended", "completed", "failed", "cancelled"]
"""``"queued"``: it waits for a worker, for its next attempt, or for an ordered activity before it. ``"ended"``: its
result waits to be recorded by the next turn. ``"cancelled"``: its orchestration does not wait for it any
more, or has ended before it.
"""

_ENDS: Final[dict[str, ActivityStatus]] = {
    "activity_completed": "completed",
    "activity_failed": "failed",
    "activity_cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """An activity of an execution of an instance."""

    execution_id: int
    activity_id: int  # event id of its scheduling
    name: str
    session_id: str | None
    status: ActivityStatus
    attempt: int | None = 1  # the one that runs, is next, or was the last; None: not known
    worker_id: str | None = None  # that runs it, or whose run gave the result
    scheduled_at: datetime | None = None  # None: as of `HistoryRecord.recorded_at`
    started_at: datetime | None = None  # when the attempt began that runs, or has ended it, to `limits.SHOWN_WAIT`
    ended_at: datetime | None = None  # when its result was recorded
    next_attempt_at: datetime | None = None  # while it waits after a failed attempt
    last_error: str | None = None  # "ValueError: …", of the attempt before, or of the one that failed
    blocked: bool = False  # it waits for an ordered activity of its session that is before it
    limited: bool = False  # it waits at a limit: `Client.explain` says at which
    tag: str | None = None  # a worker must have it to run the activity: its own tag, or its session's
    has_worker: bool = True  # False: it waits, and no live worker has the tag

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status not in {"queued", "running"}


class ActivityList:
    """Collects the activities of one execution.

    Args:
        execution_id: which.
    """

    def __init__(self, execution_id: int) -> None:
        self._execution_id = execution_id
        self._found: dict[int, Activity] = {}
        self._parked: set[int] = set()
        self.refused: list[HistoryRecord] = []
        """The events that did not fit what the execution waits for."""

    def add(self, record: HistoryRecord) -> None:
        """Take the next event of the history."""
        if record.type == "activity_scheduled":
            self._found[record.event_id] = self._begun(record)
            if record.fields.get("parked"):
                self._parked.add(record.event_id)
        elif (status := _ENDS.get(record.type)) is not None:
            scheduled = record.fields["schedule_id"]
            if scheduled in self._found:
                self._found[scheduled] = _ended(self._found[scheduled], status, record)
        elif record.type == "event_refused":
            self.refused.append(record)

    def all(self, queued: Iterable[WorkItemInfo], *, finished: bool) -> list[Activity]:
        """In the order in which they were scheduled; with queued items whose event cannot be read.

        Args:
            queued: what was in the queue after the history was read: without a row, an activity has ended.
            finished: the execution had ended by then.
        """
        rows = {row.key.activity_id: row for row in queued if row.key.execution_id == self._execution_id}
        unreadable = {} if finished else {key: self._queued(row) for key, row in rows.items()}
        found = unreadable | {
            key: one if one.finished else _current(one, rows.get(key), finished)
            for key, one in self._found.items()
            if one.finished or key in rows or key not in self._parked
        }
        return [found[key] for key in sorted(found)]

    def _queued(self, row: WorkItemInfo) -> Activity:
        activity = Activity(
            execution_id=self._execution_id,
            activity_id=row.key.activity_id,
            name=row.name,
            session_id=row.session_id,
            status="queued",
        )
        return _with_row(activity, row)

    def _begun(self, record: HistoryRecord) -> Activity:
        return Activity(
            execution_id=self._execution_id,
            activity_id=record.event_id,
            name=record.fields["name"],
            session_id=record.fields.get("session_id"),
            status="queued",
            scheduled_at=record.recorded_at,
            tag=record.fields.get("tag"),
        )


def _current(activity: Activity, row: WorkItemInfo | None, finished: bool) -> Activity:
    """How an activity is that has no end in the history."""
    if finished:
        return replace(activity, status="cancelled", attempt=None)
    return replace(activity, status="ended", attempt=None) if row is None else _with_row(activity, row)


def _with_row(activity: Activity, row: WorkItemInfo) -> Activity:
    is_running = row.state == "running"
    is_retrying = row.state == "delayed" and row.failures > 0
    return replace(
        activity,
        session_id=row.session_id,
        status="running" if is_running else "queued",
        attempt=row.attempts if is_running else row.attempts + 1,
        worker_id=row.worker_id,
        scheduled_at=row.queued_at,
        started_at=row.started_at,
        next_attempt_at=row.visible_at if is_retrying else None,
        last_error=row.last_error,
        blocked=row.state == "blocked",
        limited=row.state == "limited",
        tag=row.tag,
        has_worker=row.has_worker,
    )


def _ended(activity: Activity, status: ActivityStatus, record: HistoryRecord) -> Activity:
    is_result = status != "cancelled"
    started = activity.scheduled_at and activity.scheduled_at + timedelta(seconds=record.queued_for or 0.0)
    return replace(
        activity,
        status=status,
        attempt=record.attempt if is_result else None,
        worker_id=record.worker_id if is_result else None,
        started_at=started if is_result else None,
        ended_at=record.recorded_at,
        last_error=f"{record.fields['error_type']}: {record.fields['message']}" if status == "failed" else None,
    )
