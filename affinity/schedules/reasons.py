"""Explanations of when a schedule ticks next, or why it does not."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from affinity.explain import time_text
from affinity.provider.contract import WorkerInfo
from affinity.records import frozen
from affinity.schedules.store.contract import PauseKind, ScheduleRow

LATE_SECONDS: Final = 5.0
"""A tick that has been due for this long is late: workers look every second."""

_REMEDIES: Final[dict[PauseKind, str]] = {
    "operator": "`affinity schedules resume {name}`",
    "undeclared": "declare it again, or `affinity schedules delete {name}`",
}


@frozen()
class TickReason:
    """The state of a schedule in a sentence: its next tick, or the reason why it does not tick."""

    sentence: str
    late_seconds: float | None  # since its next tick was due; None: it is not late


def explain_schedule(row: ScheduleRow, workers: Iterable[WorkerInfo], now: datetime) -> TickReason:
    """Explain when a schedule ticks next, or why it does not, by the database's clock."""
    overdue = 0.0 if row.next_due is None else (now - row.next_due).total_seconds()
    late = overdue if overdue >= LATE_SECONDS else None
    serves = any(worker.alive and not worker.restarting and not worker.draining for worker in workers)
    text = _state(row, serves=serves, is_late=late is not None)
    return TickReason(f"schedule {row.name!r} {text}", late)


def _state(row: ScheduleRow, *, serves: bool, is_late: bool) -> str:
    note = f" ({row.note})" if row.note else ""
    if row.paused is not None:
        return f"is paused{note}: {_REMEDIES[row.paused].format(name=row.name)}"
    if not serves and (row.next_due or row.queued) is not None:
        return "does not tick: no worker is alive that does not drain; start one"
    if row.queued is not None:
        others = f", and those missed until {time_text(row.queued_until)}," if row.queued_until is not None else ""
        return f"waits with the tick of {time_text(row.queued)}{others} for the end of {row.running!r}{note}"
    if row.next_due is None:
        return f"has no more ticks{note}"
    if is_late:
        return f"is late: its tick was due at {time_text(row.next_due)}; the log of a worker says why{note}"
    return f"ticks next at {time_text(row.next_due)}{note}"
