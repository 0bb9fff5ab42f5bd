"""The starts and messages of one tick of a schedule, for workers, which fire schedules, and for clients."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from affinity.limits import MAX_UNREAD_EVENTS
from affinity.orchestration.events import CancelRequested, EventRaised, OrchestrationStarted
from affinity.orchestration.wire import ANY_EXECUTION, encode_message
from affinity.provider.contract import NewInstance, NewMessage
from affinity.schedules.spec import ScheduleSpec, format_due, next_tick, read_spec
from affinity.schedules.store.contract import ScheduleRow

_SHARES: Final = 2**32


def new_row(
    name: str, spec: ScheduleSpec, now: datetime, *, app: str | None = None, code: str | None = None
) -> ScheduleRow:
    """Return the row of a new schedule, whose first tick comes after ``now``."""
    return ScheduleRow(
        name=name,
        generation=secrets.token_hex(4),
        spec=spec.to_text(),
        app=app,
        code=code,
        next_due=next_tick(spec, now),
    )


def with_spec(row: ScheduleRow, spec: ScheduleSpec, now: datetime) -> ScheduleRow:
    """Return the row with another spec. Its next tick, which may be due, stays if the ticks do; else it is
    after ``now``.
    """
    changed = replace(row, spec=spec.to_text())
    if row.paused is not None or (row.next_due is not None and spec.has_ticks_of(read_spec(row.spec))):
        return changed
    return replace(changed, next_due=next_tick(spec, now), queued_until=None, retry_at=None)


def tick_id(row: ScheduleRow, due: datetime) -> str:
    """Return the id of the instance that a tick starts, or the key of the event that it sends."""
    return f"{row.name}/{row.generation}@{format_due(due)}"


def start_of_tick(spec: ScheduleSpec, instance_id: str, due: datetime, *, now: datetime | None = None) -> NewInstance:
    """Return the instance that a tick starts. With ``now``, its start is delayed by its part of the jitter."""
    assert spec.orchestration is not None
    started = OrchestrationStarted(
        name=spec.orchestration,
        version=spec.version or "",
        input=spec.input_at(due),
        scheduled_for=due.timestamp(),
        labels=spec.labels or None,
    )
    return NewInstance(
        instance_id=instance_id,
        name=spec.orchestration,
        version=spec.version,
        start=encode_message(ANY_EXECUTION, started),
        session_id=spec.for_session,
        labels=spec.labels or None,
        delay=0.0 if now is None else _delay(spec, instance_id, due, now),
    )


def _delay(spec: ScheduleSpec, instance_id: str, due: datetime, now: datetime) -> float:
    """Return the rest of the jitter of a tick: the same wherever it is computed."""
    if not spec.jitter:
        return 0.0
    share = int.from_bytes(sha256(instance_id.encode()).digest()[:4]) / _SHARES
    return max(0.0, (due + timedelta(seconds=share * spec.jitter) - now).total_seconds())


def message_of_tick(spec: ScheduleSpec, key: str, due: datetime) -> NewMessage:
    """Return the event that a tick sends; its key makes repeated sends one event."""
    assert spec.instance_id is not None
    assert spec.event is not None
    raised = EventRaised(name=spec.event, data=spec.input_at(due), key=key)
    return NewMessage(
        instance_id=spec.instance_id,
        payload=encode_message(ANY_EXECUTION, raised),
        unread_limit=MAX_UNREAD_EVENTS,
        key=key,
    )


def cancellation(instance_id: str, name: str) -> NewMessage:
    """Return the request to cancel the instance of the tick before."""
    request = CancelRequested(reason=f"the next tick of the schedule {name!r} is due")
    return NewMessage(instance_id=instance_id, payload=encode_message(ANY_EXECUTION, request), ends_wait=True)
