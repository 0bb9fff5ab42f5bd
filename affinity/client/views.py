"""Results of a client: rows, events and trees of instances, with their payloads decoded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from affinity.errors import ErrorDetails, NotSerializable
from affinity.orchestration.codec import read_json
from affinity.orchestration.exported import OUTCOME_STATUSES
from affinity.orchestration.failures import RecordedError
from affinity.orchestration.wire import read_details
from affinity.provider.contract import (
    FINISHED,
    EventOrigin,
    ExecutionInfo,
    InstanceInfo,
    InstanceStatus,
    MessageState,
    Suspension,
    TreeMember,
    WorkItemState,
)
from affinity.records import ActivityRun, Labels, copied

ExecutionStatus: TypeAlias = InstanceStatus | Literal["continued", "ended"]
"""The current execution has the status of its instance. A former one was ``"continued"`` as new, or has ``"ended"``: a
reset has replaced it, or only the beginning of its history is kept.
"""

_ERROR_TEXTS: Final = {"type": "Error", "message": "", "stack": ""}
_RESULTS: Final = frozenset({"activity_completed", "activity_failed"})
_TYPE: Final = re.compile(r'\{"type":"(\w+)"')


class Failure(NamedTuple):
    """Why an instance failed, or was cancelled."""

    type: str  # name of the exception class
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An orchestration instance as it was when asked for."""

    instance_id: str
    name: str
    version: str | None  # None until a worker has run it
    execution_id: int  # grows with each continue_as_new
    status: InstanceStatus
    custom_status: Any
    output: Any  # as plain JSON values; `Client.wait` gives it typed
    error: Failure | None
    parent_id: str | None
    owner: str | None  # the worker that owns it, or last did
    event_count: int
    created_at: datetime
    updated_at: datetime  # of one that has ended: when it did
    suspension: Suspension | None  # why it waits for an operator or for other code
    session_id: str | None = None  # that it was started with, or its parent
    starts_at: datetime | None = None  # while it is pending: when it begins, if it was started with a delay
    labels: Labels = field(default_factory=dict)  # by which it is found
    has_next: bool = False  # a start waits for its end: ``if_running`` of `Client.start`
    error_details: ErrorDetails | None = None  # of ``error``: its category, bases and fields
    error_stack: str = ""  # of ``error``: where it was raised, as `affinity.errors.ReportedError.stack`

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One event of an execution's history."""

    event_id: int  # its position, from 1
    type: str  # "activity_scheduled", "event_raised", …
    fields: Mapping[str, Any]  # the rest of the event, payloads as plain JSON values
    recorded_at: datetime | None = None  # None: the history was removed while it was read
    worker_id: str | None = None  # the worker that ran the activity, if it is a result; else the one that recorded it
    attempt: int | None = None  # of the activity, if it is a result
    queued_for: float | None = (
        None  # seconds that the activity waited before that attempt; None: `limits.SHOWN_WAIT` at most
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSummary:
    """One execution of an instance: another one begins with each ``continue_as_new``, and with each reset."""

    execution_id: int
    status: ExecutionStatus
    event_count: int  # events of it that are kept
    started_at: datetime | None  # None: it has no events yet, and the execution before it is removed
    ended_at: datetime | None  # None: it has not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """An instance in its tree of sub-orchestrations."""

    depth: int  # 0: the root
    instance_id: str
    parent_id: str | None
    name: str
    version: str | None
    status: InstanceStatus
    execution_id: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTree:
    """An instance with its sub-orchestrations and theirs: each behind its parent, children in the order of creation."""

    nodes: Sequence[TreeNode]
    truncated: bool  # there are more; ``nodes`` has the nearest to the instance


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStatistics:
    """Numbers of instances and of queued work. Queued work is counted up to the given limit."""

    instances: Mapping[InstanceStatus, int]
    work_items: Mapping[WorkItemState, int]  # activities
    messages: Mapping[MessageState, int]
    oldest_work_item: float | None  # seconds for which the one that waits longest could have been fetched
    oldest_message: float | None
    parked: int  # activities that are parked until a message comes: the next wakes of conversations, for the most part
    waiting_sessions: int  # that have work and no holder, among as many activities as the limit
    at_least: Collection[InstanceStatus] = ()  # statuses of which there are, or may be, more instances than that


def instance_of(info: InstanceInfo) -> Instance:
    """The row with its payloads decoded."""
    error = None if info.error is None else error_of(info)
    return copied(
        Instance,
        info,
        has_next=info.next is not None,
        custom_status=_decoded(info.custom_status),
        output=_decoded(info.output),
        error=None if error is None else Failure(error.error_type, error.message),
        error_details=None if error is None else error.details,
        error_stack="" if error is None else error.stack,
    )


def error_of(info: InstanceInfo) -> RecordedError:
    """The error that a failed or cancelled instance ended with."""
    return read_error(info.error)


def read_error(text: str | None) -> RecordedError:
    """The error of an instance, from JSON."""
    error = _decoded(text)
    if not isinstance(error, dict):
        return RecordedError("Error", str(error or ""))
    name, message, stack = (str(error.get(key, default)) for key, default in _ERROR_TEXTS.items())
    return RecordedError(name, message, _details_of(error), stack)


def _details_of(error: dict[str, Any]) -> ErrorDetails | None:
    """None when nothing is known."""
    try:
        details = read_details(error)
    except Exception:  # a stored value may be anything
        return None
    return details if any(details) else None


def record_of(event_id: int, text: str, origin: EventOrigin | None = None) -> HistoryRecord:
    """The event in JSON ``text``, read without its class, so that events of a newer version can be shown. Any other
    text is shown as it is.
    """
    fields = _decoded(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        fields = {"type": "unreadable", "text": text}
    kind = fields.pop("type")
    if origin is None:
        return HistoryRecord(event_id=event_id, type=kind, fields=fields)
    run = origin.run
    if run is None and kind in _RESULTS and origin.worker_id is not None:
        run = ActivityRun(origin.worker_id, 1)  # a first attempt on the worker of the turn is not stored
    return HistoryRecord(
        event_id=event_id,
        type=kind,
        fields=fields,
        recorded_at=origin.recorded_at,
        worker_id=origin.worker_id if run is None else run.worker_id,
        attempt=None if run is None else run.attempt,
        queued_for=None if run is None else run.queued_for,
    )


def _decoded(text: str | None) -> Any:
    """The JSON value; or the text that is no JSON, so that one bad row does not prevent a listing."""
    try:
        return None if text is None else read_json(text)
    except NotSerializable:
        return text


def execution_of(row: ExecutionInfo, instance: InstanceInfo) -> ExecutionSummary:
    """The execution with its status, from its last event, or from the instance for the current execution."""
    found = _TYPE.match(row.last_event or "")
    former = OUTCOME_STATUSES.get(found[1]) if found else None
    status = instance.status if row.execution_id == instance.execution_id else former or "ended"
    return copied(ExecutionSummary, row, status=status)


def tree_of(instance_id: str, members: Sequence[TreeMember], limit: int) -> InstanceTree:
    """The members nearest to the instance, in the order of the tree."""
    children: defaultdict[str | None, list[TreeMember]] = defaultdict(list)
    for member in sorted(members[:limit], key=lambda one: (one.created_at, one.instance_id), reverse=True):
        if member.instance_id != instance_id:
            children[member.parent_id].append(member)
    nodes: list[TreeNode] = []
    waiting = [(0, member) for member in members if member.instance_id == instance_id]
    while waiting:
        depth, member = waiting.pop()
        nodes.append(copied(TreeNode, member, depth=depth))
        waiting += [(depth + 1, child) for child in children.pop(member.instance_id, ())]
    return InstanceTree(nodes=nodes, truncated=len(members) > limit)
