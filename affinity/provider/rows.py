"""Rows of either engine as records of the contract; a mapper takes the columns in the order of its statements.

Times come as the engine returns them; ``time`` makes them aware datetimes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from affinity.audit import AuditEntry
from affinity.errors import SessionWriteConflict, WorkerFenced
from affinity.journal import JournalInfo, OpenRequest
from affinity.provider.contract import (
    LEFT,
    EventOrigin,
    ExecutionInfo,
    FleetLoad,
    InstanceCounts,
    InstanceInfo,
    KeyState,
    NewWorkItem,
    ScheduleRow,
    SessionInfo,
    SessionMove,
    Suspension,
    Token,
    TreeMember,
    WorkerIdentity,
    WorkerInfo,
    WorkerLoad,
    WorkItem,
    WorkItemInfo,
    WorkItemState,
    WorkKey,
    WorkLock,
)
from affinity.records import (
    ActivityRun,
    SessionMetadata,
    SessionRecord,
    SessionSummary,
    constructor,
    labels_of,
    participants_of,
)

T = TypeVar("T")

_work_item = constructor(WorkItem)

Columns: TypeAlias = Sequence[Any]
Time: TypeAlias = Callable[[Any], datetime]


def to_record(cls: type[T], row: Columns, time: Time | None = None) -> T:
    """A record whose fields are the columns, in order; flags may be 0 or 1, and a time may be NULL."""
    record: T = _reader(cls)(row, time)  # type: ignore[arg-type]  # a class is hashable
    return record


@cache
def _reader(cls: type) -> Callable[[Columns, Time | None], Any]:
    """`to_record` of one class, written out as `constructor` does: a loop over the fields takes three times as long."""
    kinds = {each.name: str(each.type) for each in fields(cls)}
    lines = [f" {', '.join(kinds)}, = row", " self = new(cls)"]
    for name, kind in kinds.items():
        if kind == "bool":
            lines.append(f" self.{name} = bool({name})")
        elif kind.startswith("datetime"):
            lines.append(f" self.{name} = {name} if time is None or {name} is None else time({name})")
        else:
            lines.append(f" self.{name} = {name}")
    scope: dict[str, Any] = {"new": object.__new__, "cls": cls}
    exec("\n".join(["def read(row, time):", *lines, " return self"]), scope)  # noqa: S102 -- names of our own classes
    read: Callable[[Columns, Time | None], Any] = scope["read"]
    return read


to_key_state: Final = partial(to_record, KeyState)
to_execution: Final = partial(to_record, ExecutionInfo)
to_session: Final = partial(to_record, SessionInfo)
to_session_move: Final = partial(to_record, SessionMove)
to_tree_member: Final = partial(to_record, TreeMember)
to_schedule: Final = partial(to_record, ScheduleRow)


def schedule_values(row: ScheduleRow) -> dict[str, Any]:
    """A schedule as JSON values, for a statement that writes it; times are Unix seconds."""
    values = {each.name: getattr(row, each.name) for each in fields(row)}
    return {name: value.timestamp() if isinstance(value, datetime) else value for name, value in values.items()}


def to_journal_info(row: Columns, time: Time) -> JournalInfo:
    """A journal of a listing."""
    *own, labels = row
    return to_record(JournalInfo, [*own, labels_of(labels)], time)


def to_open_request(row: Columns, time: Time) -> OpenRequest:
    """A request of a listing."""
    *own, labels = row
    return to_record(OpenRequest, [*own, labels_of(labels)], time)


def to_instance(row: Columns, time: Time) -> InstanceInfo:
    """An instance, with the suspension that it is in."""
    *own, error_type, message, at, worker_id, code = row
    info = to_record(InstanceInfo, [*own, None], time)
    if info.status != "suspended":
        return info
    suspension = Suspension(error_type=error_type, message=message, at=time(at), worker_id=worker_id, code=code)
    return replace(info, suspension=suspension)


def to_instance_counts(rows: Sequence[Columns], limit: int) -> InstanceCounts:
    """Counts by status of a page of ``limit`` instances; each row has the last id of the page."""
    counts = {status: number for status, number, _ in rows}
    *_, last = rows[0] if sum(counts.values()) >= limit else (None,)
    return InstanceCounts(counts=counts, after=last)


class OriginRow(NamedTuple):
    """The columns of a row of ``history`` that has any of them.

    A turn has one origin, in the row of its first event, so that it costs no more when it has more events. The run of
    an activity is in the row of its own event.
    """

    event_id: int
    recorded_at: Any  # None: with the rows before it
    recorded_events: int | None  # events of the turn, from this one on
    recorded_by: str | None
    run_by: str | None
    attempt: int | None
    queued_for: float | None = None


def to_origins(rows: Iterable[Columns], time: Time) -> list[EventOrigin]:
    """The origin of each event that has one, from rows in the order of the events: see `OriginRow`."""
    kept = [OriginRow(*row) for row in rows]
    runs = {
        row.event_id: ActivityRun(row.run_by, row.attempt, row.queued_for) for row in kept if row.run_by and row.attempt
    }
    turns = [row for row in kept if row.recorded_at is not None]
    ends = [*(row.event_id for row in turns[1:]), sys.maxsize]  # a reset may have replaced the rest of a turn
    return [
        EventOrigin(event_id, time(row.recorded_at), row.recorded_by, runs.get(event_id))
        for row, end in zip(turns, ends, strict=False)
        for event_id in range(row.event_id, min(row.event_id + (row.recorded_events or 1), end))
    ]


def to_work_item_info(instance_id: str, row: Columns, time: Time) -> WorkItemInfo:
    """A work item as operators see it."""
    execution_id, activity_id, name, session_id, worker_id, is_later, attempts, failures, *rest = row
    queued_at, visible_at, last_error, is_blocked, locked_at, tag, has_worker = rest
    waits: WorkItemState = "blocked" if is_blocked else "delayed" if is_later else "waiting"
    return WorkItemInfo(
        key=WorkKey(instance_id, execution_id, activity_id),
        name=name,
        session_id=session_id,
        state="running" if worker_id is not None else waits,
        worker_id=worker_id,
        attempts=attempts,
        failures=failures,
        queued_at=time(queued_at),
        visible_at=time(visible_at),
        last_error=last_error,
        started_at=None if worker_id is None else time(locked_at),
        tag=tag,
        has_worker=bool(has_worker),
    )


def to_locked_item(item: NewWorkItem, token: Token, epoch: int | None) -> WorkItem:
    """A new work item that its committer has locked: this is its first delivery."""
    return _work_item(
        lock=WorkLock(item.key, token),
        name=item.name,
        payload=item.payload,
        session_id=item.session_id,
        session_epoch=epoch,
        attempts=1,
        failures=0,
        unknown_for=None,
        ordered=item.ordered,
        session_tag=item.tag,
    )


def page_of_moves(rows: Iterable[Columns], time: Time, limit: int, *, newest: bool) -> list[SessionMove]:
    """A page in the order of the epochs: the last or the first ones of the rows."""
    ordered = sorted([to_session_move(row, time) for row in rows], key=attrgetter("epoch"))
    return ordered[-limit:] if newest else ordered[:limit]


def to_worker(row: Columns, time: Time) -> WorkerInfo:
    """A worker's lease as operators see it."""
    worker_id, incarnation, alive, draining, expires_in, started_at, labels, sessions, *profile = row
    capacity, drain_wanted, code_version, code_since, tags, only_tagged, registered, connections = profile
    return WorkerInfo(
        worker_id=worker_id,
        incarnation=incarnation,
        alive=bool(alive),
        draining=bool(draining),
        restarting=bool(alive) and incarnation.startswith(LEFT),
        drain_wanted=bool(drain_wanted),
        expires_in=expires_in,
        started_at=time(started_at),
        sessions=sessions,
        labels=labels_of(labels),
        capacity=capacity,
        code_version=code_version,
        code_since=time(code_since),
        tags=json.loads(tags),
        only_tagged=bool(only_tagged),
        registered=json.loads(registered),
        connections=connections,
    )


def to_load(suspended: bool, rows: Sequence[Columns]) -> FleetLoad:
    """How full the workers are that are alive; one that restarts counts as draining."""
    return FleetLoad(
        suspended=suspended,
        workers=[
            WorkerLoad(
                worker_id=worker_id,
                sessions=sessions,
                capacity=capacity,
                draining=bool(draining) or incarnation.startswith(LEFT),
                age=age,
                app=app,
                code_version=code,
            )
            for worker_id, incarnation, sessions, capacity, draining, age, app, code in rows
        ],
    )


def to_session_record(row: Columns, time: Time) -> SessionRecord:
    """A record of session state."""
    session_id, state, encoding, schema_version, *metadata, version, generation, epoch, turn, created_at, updated_at = (
        row
    )
    return SessionRecord(
        session_id=session_id,
        state=state,
        encoding=encoding,
        schema_version=schema_version,
        metadata=_to_metadata(metadata),
        version=version,
        generation=generation,
        epoch=epoch,
        idempotency_key=turn,
        created_at=time(created_at),
        updated_at=time(updated_at),
    )


def to_session_summary(row: Columns, time: Time) -> SessionSummary:
    """A record of session state without the state."""
    session_id, schema_version, *metadata, version, generation, epoch, size, created_at, updated_at, idle, holder = row
    return SessionSummary(
        session_id=session_id,
        schema_version=schema_version,
        metadata=_to_metadata(metadata),
        version=version,
        generation=generation,
        epoch=epoch,
        size=size,
        holder=holder,
        created_at=time(created_at),
        updated_at=time(updated_at),
        idle=idle,
    )


def _to_metadata(row: Columns) -> SessionMetadata:
    kind, name, parent, labels, message_count, participants = row
    return SessionMetadata(
        kind=kind,
        name=name,
        parent=parent,
        labels=labels_of(labels),
        message_count=message_count,
        participants=participants_of(participants),
    )


def not_negative(seconds: float | None) -> float | None:
    """A duration that was computed from two readings of the clock."""
    return None if seconds is None else max(0.0, seconds)


def write_conflict(
    session_id: str, expected: int | None, version: int | None, epoch: int | None, *, same_generation: bool, known: bool
) -> SessionWriteConflict:
    """The error for a write of session state whose fences do not pass.

    Args:
        session_id: of the record.
        expected: the version that the writer knows.
        version: of the record; None when there is none.
        epoch: of the writer.
        same_generation: whether it is the record that the writer knows.
        known: whether it has the version that the writer knows.
    """
    if not same_generation:
        reason = _replaced_record(expected)
    elif not known:
        reason = f"its record has version {version or 0}, not {expected}"
    else:
        reason = f"the session or its record has a newer epoch than {epoch}"
    return SessionWriteConflict(session_id, expected, version, reason)


def _replaced_record(expected: int | None) -> str:
    """Why a write is refused whose record is another one; ``expected``: the version that the writer knows."""
    if expected:
        return "its record was deleted, and another one was created"
    return "another writer has created its record meanwhile"


def worker_fenced(identity: WorkerIdentity) -> WorkerFenced:
    """The error for a process whose node id another process has registered since."""
    return WorkerFenced(f"worker {identity.worker_id!r}: another process has registered under this name")


def to_audit_entry(row: Columns, time: Time) -> AuditEntry:
    """An entry of the audit log."""
    entry_id, at, user, source, role, action, kind, target, outcome, succeeded, details = row
    return AuditEntry(
        entry_id=entry_id,
        at=time(at),
        user=user,
        source=source,
        role=role,
        action=action,
        kind=kind,
        target=target,
        outcome=outcome,
        succeeded=bool(succeeded),
        details=_details(details),
    )


def _details(text: str) -> Mapping[str, Any]:
    """What any client may have written."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"details": text}
