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

from affinity.errors import SessionWriteConflict, WorkerFenced
from affinity.limits import MAX_FAILURE_GROUPS
from affinity.provider.contract import (
    LEFT,
    EventOrigin,
    ExecutionInfo,
    FailureFilter,
    FailureGroup,
    FailureGroups,
    FailureKind,
    FailurePlace,
    FailureRecord,
    FleetLoad,
    InstanceCounts,
    InstanceInfo,
    InstanceStatus,
    KeyState,
    MatchingCounts,
    NewFailure,
    NewWorkItem,
    RegisteredCode,
    SessionInfo,
    SessionMove,
    SessionUse,
    StatusCounts,
    Suspension,
    Token,
    TreeMember,
    Turn,
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
    """Return a record whose fields are the columns, in order; flags may be 0 or 1, and a time may be NULL."""
    record: T = _reader(cls)(row, time)  # type: ignore[arg-type]  # a class is hashable
    return record


@cache
def _reader(cls: type) -> Callable[[Columns, Time | None], Any]:
    """`to_record` of one class, written out as `constructor` does: a loop over the fields takes three times as long."""
    kinds = {field.name: str(field.type) for field in fields(cls)}
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
to_session_use: Final = partial(to_record, SessionUse)
to_tree_member: Final = partial(to_record, TreeMember)


def to_instance(row: Columns, time: Time) -> InstanceInfo:
    """Return an instance, with its suspension, if it is suspended."""
    *own, labels, error_type, message, at, worker_id, code = row
    info = to_record(InstanceInfo, [*own, {} if labels is None else labels_of(labels), None], time)
    if info.status != "suspended":
        return info
    suspension = Suspension(error_type=error_type, message=message, at=time(at), worker_id=worker_id, code=code)
    return replace(info, suspension=suspension)


def to_instance_counts(rows: Sequence[Columns], limit: int) -> InstanceCounts:
    """Return the counts by status of a page of ``limit`` instances; each row has the last id of the page."""
    counts = {status: number for status, number, _ in rows}
    *_, last = rows[0] if sum(counts.values()) >= limit else (None,)
    return InstanceCounts(counts=counts, after=last)


def to_status_counts(row: Columns, limit: int) -> StatusCounts:
    """Return the counts of each status up to ``limit``, from the columns of the statement ``count_statuses``."""
    pending, running, live, failed, cancelled, suspended, completed = row
    found: dict[InstanceStatus, int] = {
        "pending": pending,
        "running": running,
        "suspended": suspended,
        "completed": completed,
        "failed": failed,
        "cancelled": cancelled,
    }
    is_live_cut, is_ended_cut = live > 2 * limit, max(failed, cancelled) > 2 * limit
    unsure = {"pending": is_live_cut, "running": is_live_cut, "completed": is_ended_cut}
    return StatusCounts(
        counts={status: min(number, limit) for status, number in found.items()},
        at_least=[status for status, number in found.items() if number > limit or unsure.get(status)],
    )


to_failure: Final = partial(to_record, FailureRecord)


def failure_row(turn: Turn, failure: NewFailure) -> Columns:
    """Return the columns of a failure of a turn, without its time."""
    kind = "activity" if failure.activity_id else "orchestration"
    key = (turn.instance_id, turn.execution_id, failure.activity_id, failure.attempt)
    return (*key, kind, failure.name, failure.error_type, failure.error)


def failure_conditions(where: FailureFilter) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the parts of a listing's statement, and the values that they need."""
    given: dict[str, Any] = {}
    parts = set[str]()
    if where.kind is not None:
        parts.add("name" if where.error_type is None else "error_type")
        given |= {"kind": where.kind, "name": where.name}
    if where.error_type is not None:
        given["error_type"] = where.error_type
    if where.after is not None:
        parts.add("after")
        at, *place = where.after
        names = ("after_instance", "after_execution", "after_activity", "after_attempt")
        given |= {"at": at, **dict(zip(names, place, strict=True))}
    return frozenset(parts), given


STATEMENTS_OF_FAILURES: Final[Mapping[FailureKind | None, Sequence[str]]] = {
    None: ("list_failures", "list_suspended"),
    "suspension": ("list_suspended",),
}
"""The statements of a listing by what is asked for; of all other kinds it is ``list_failures``."""


def newest_failures(found: Iterable[FailureRecord], limit: int) -> list[FailureRecord]:
    """Return the first failures of a listing, from the pages of its statements."""
    return sorted(found, key=_failure_place, reverse=True)[:limit]


def _failure_place(row: FailureRecord) -> FailurePlace:
    return FailurePlace(row.failed_at, row.instance_id, row.execution_id, row.activity_id, row.attempt)


def to_failure_groups(now: datetime, rows: Sequence[Columns], limit: int, most: int, time: Time) -> FailureGroups:
    """Return the groups that have failures, counted up to ``most``, from the columns of the groups of failures and of
    suspensions.
    """
    found = [
        FailureGroup(
            kind=kind,
            name=name,
            error_type=error_type,
            count=min(number, most),
            instances=instances,
            is_cut=number > most,
            first_at=time(first_at),
            last_at=time(last_at),
            instance_id=instance_id,
            error=error,
        )
        for kind, name, error_type, number, instances, first_at, last_at, instance_id, error in rows
        if number
    ]
    found.sort(key=lambda group: (group.kind == "suspension", group.count, group.last_at), reverse=True)
    suspended = sum(kind == "suspension" for kind, *_ in rows)
    is_cut = len(found) > limit or max(suspended, len(rows) - suspended) >= MAX_FAILURE_GROUPS
    return FailureGroups(now=now, groups=found[:limit], is_cut=is_cut)


def to_matching_counts(rows: Sequence[Columns], limit: int, time: Time) -> MatchingCounts:
    """Return the counts by status of a page of ``limit`` instances; each row has the place of the last one."""
    counts = {status: number for status, number, *_ in rows}
    after = None
    if rows and sum(counts.values()) >= limit:
        _, _, at, instance_id = rows[0]
        after = (time(at), instance_id)
    return MatchingCounts(counts=counts, after=after)


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
    """Return the origin of each event that has one, from rows in the order of the events: see `OriginRow`."""
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


def to_work_item_info(row: Columns, time: Time) -> WorkItemInfo:
    """Return a work item as operators see it."""
    instance_id, is_later, is_blocked, is_limited, execution_id, activity_id, name, session_id, worker_id, *rest = row
    waits: WorkItemState = (
        "blocked" if is_blocked else "delayed" if is_later else "limited" if is_limited else "waiting"
    )
    state = waits if worker_id is None else "running"
    key = WorkKey(instance_id, execution_id, activity_id)
    return to_record(WorkItemInfo, [key, name, session_id, state, worker_id, *rest], time)


def to_locked_item(item: NewWorkItem, token: Token, epoch: int | None) -> WorkItem:
    """Return a new work item that its committer has locked: this is its first delivery."""
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
        limited=item.gate is not None and item.gate.limited,
    )


def page_of_moves(rows: Iterable[Columns], time: Time, limit: int, *, newest: bool) -> list[SessionMove]:
    """Return a page in the order of the epochs: the last or the first of the rows."""
    moves = [to_record(SessionMove, [*row, json.loads(resources)], time) for *row, resources in rows]
    ordered = sorted(moves, key=attrgetter("epoch"))
    return ordered[-limit:] if newest else ordered[:limit]


def to_worker(row: Columns, time: Time) -> WorkerInfo:
    """Return a worker's lease as operators see it."""
    *own, labels, registered, tags = row
    _, incarnation, alive, *_ = own
    parsed = [labels_of(labels), json.loads(registered), json.loads(tags)]
    return to_record(WorkerInfo, [*own, *parsed, alive and incarnation.startswith(LEFT)], time)


def to_code(alive: object, registered: str, interfaces: str) -> RegisteredCode:
    """Return the code that workers have registered."""
    return RegisteredCode(alive=bool(alive), registered=json.loads(registered), interfaces=json.loads(interfaces))


def to_load(suspended: bool, rows: Sequence[Columns]) -> FleetLoad:
    """Return how full the live workers are; a worker that restarts counts as draining."""
    workers = [
        to_record(WorkerLoad, [worker_id, sessions, capacity, draining or incarnation.startswith(LEFT), *rest])
        for worker_id, incarnation, sessions, capacity, draining, *rest in rows
    ]
    return FleetLoad(suspended=suspended, workers=workers)


def to_session_record(row: Columns, time: Time) -> SessionRecord:
    """Return a record of session state."""
    return to_record(SessionRecord, [*row[:4], _to_metadata(row[4:10]), *row[10:]], time)


def to_session_summary(row: Columns, time: Time) -> SessionSummary:
    """Return a record of session state without the state."""
    return to_record(SessionSummary, [*row[:2], _to_metadata(row[2:8]), *row[8:]], time)


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
    """Return a duration that was computed from two readings of the clock; at least 0."""
    return None if seconds is None else max(0.0, seconds)


def write_conflict(
    session_id: str, expected: int | None, version: int | None, epoch: int | None, *, same_generation: bool, known: bool
) -> SessionWriteConflict:
    """Return the error for a write of session state whose fences do not pass.

    Args:
        session_id: of the record.
        expected: the version that the writer knows.
        version: of the record; None without a record.
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
    """Return why a write is refused whose record was replaced; ``expected``: the version that the writer knows."""
    if expected:
        return "its record was deleted, and another one was created"
    return "another writer has created its record meanwhile"


def worker_fenced(identity: WorkerIdentity) -> WorkerFenced:
    """Return the error for a process whose node id another process has registered since."""
    return WorkerFenced(f"worker {identity.worker_id!r}: another process has registered under this name")
