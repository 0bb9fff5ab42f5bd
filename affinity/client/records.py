"""What a client sees of instances: rows and events with their payloads decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from affinity.errors import ErrorDetails, InvalidInput, NotSerializable
from affinity.orchestration.codec import read_json
from affinity.orchestration.wire import read_details
from affinity.provider.contract import FINISHED, EventOrigin, InstanceInfo, InstanceStatus, Suspension
from affinity.records import ActivityRun

_RESULTS: Final = frozenset({"activity_completed", "activity_failed"})


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
    updated_at: datetime
    suspension: Suspension | None  # why it waits for an operator or for other code
    session_id: str | None = None  # that it was started with, or its parent
    error_details: ErrorDetails | None = None  # of ``error``: its category, bases and fields

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
    recorded_at: datetime | None = None  # None: by a release that did not keep it
    worker_id: str | None = None  # the worker that ran the activity, if it is a result; else the one that recorded it
    attempt: int | None = None  # of the activity, if it is a result


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some instances of a listing, newest first."""

    items: Sequence[Instance]
    next: str | None  # the cursor of the page after this one; None at the end


def instance_of(info: InstanceInfo) -> Instance:
    """The row with its payloads decoded."""
    return Instance(
        instance_id=info.instance_id,
        name=info.name,
        version=info.version,
        execution_id=info.execution_id,
        status=info.status,
        custom_status=_decoded(info.custom_status),
        output=_decoded(info.output),
        error=failure_of(info) if info.error is not None else None,
        parent_id=info.parent_id,
        owner=info.owner,
        event_count=info.event_count,
        created_at=info.created_at,
        updated_at=info.updated_at,
        suspension=info.suspension,
        session_id=info.session_id,
        error_details=error_details_of(info) if info.error is not None else None,
    )


def failure_of(info: InstanceInfo) -> Failure:
    """The error that a failed or cancelled instance ended with."""
    error = _decoded(info.error)
    if not isinstance(error, dict):
        return Failure("Error", str(error or ""))
    return Failure(str(error.get("type", "Error")), str(error.get("message", "")))


def error_details_of(info: InstanceInfo) -> ErrorDetails | None:
    """What else is known of that error; None when nothing is."""
    try:
        details = read_details(_decoded(info.error))
    except Exception:  # what is stored may be anything
        return None
    return details if any(details) else None


def record_of(event_id: int, text: str, origin: EventOrigin | None = None) -> HistoryRecord:
    """The event that JSON ``text`` holds; read without its class, so that what a newer version wrote can be shown. What
    is no event at all is shown as the text that it is.
    """
    fields = _decoded(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        fields = {"type": "unreadable", "text": text}
    kind = fields.pop("type")
    if origin is None:
        return HistoryRecord(event_id=event_id, type=kind, fields=fields)
    run = origin.run
    if run is None and kind in _RESULTS and origin.worker_id is not None:
        run = ActivityRun(origin.worker_id, 1)  # what a turn need not say
    return HistoryRecord(
        event_id=event_id,
        type=kind,
        fields=fields,
        recorded_at=origin.recorded_at,
        worker_id=origin.worker_id if run is None else run.worker_id,
        attempt=None if run is None else run.attempt,
    )


def cursor_of(last: InstanceInfo) -> str:
    """Where a listing goes on after this row."""
    return f"{last.created_at.isoformat()}/{last.instance_id}"


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The row that a cursor stands for.

    Raises:
        InvalidInput: it is not what `Page.next` gave.
    """
    created_at, _, instance_id = cursor.partition("/")
    try:
        return datetime.fromisoformat(created_at), instance_id
    except ValueError:
        raise InvalidInput(f"{cursor!r} is not a cursor of this listing") from None


def _decoded(text: str | None) -> Any:
    """What is stored may be anything: one row that is no JSON must not keep others from being listed."""
    try:
        return None if text is None else read_json(text)
    except NotSerializable:
        return text
