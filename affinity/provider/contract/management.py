"""Records for operators: executions, trees, origins of events, counts and quotas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from affinity.provider.contract.instances import InstanceStatus
from affinity.provider.contract.work_items import WorkItemState
from affinity.records import ActivityRun, frozen


class EventOrigin(NamedTuple):
    """The time at which an event of a history was recorded, and the worker that did so."""

    event_id: int
    recorded_at: datetime
    worker_id: str | None  # None: a client recorded it, by resetting the instance
    run: ActivityRun | None  # from `Turn.runs`


EVENT_HEAD: Final = 64
"""Number of characters at the beginning of an event that contain its type."""


@frozen(kw_only=True)
class ExecutionInfo:
    """One execution of an instance: one whose history is kept, or the current one."""

    execution_id: int
    event_count: int
    started_at: datetime | None  # None: it has no events yet, and the execution before it is removed
    ended_at: datetime | None  # None: it has not ended
    last_event: str | None  # its first `EVENT_HEAD` characters


@frozen(kw_only=True)
class TreeMember:
    """An instance as a member of a tree, without its payloads."""

    instance_id: str
    parent_id: str | None
    name: str
    version: str | None
    status: InstanceStatus
    execution_id: int
    created_at: datetime
    updated_at: datetime


MessageState: TypeAlias = Literal["waiting", "delayed", "suspended"]
"""State of a message: visible, visible later (timers), or of a suspended instance."""


@frozen(kw_only=True)
class QueueStatistics:
    """Sizes of the queues. Each number stops at the limit of the call; running and waiting work items may share it."""

    work_items: Mapping[WorkItemState, int]
    messages: Mapping[MessageState, int]
    oldest_work_item: float | None  # seconds for which the oldest visible one has been waiting
    oldest_message: float | None
    suspended: int  # instances
    waiting_sessions: int  # sessions with work and without a holder, among the first work items, up to the limit
    oldest_waiting_session: float | None  # seconds for which the oldest visible item of such a session has been waiting
    parked: int  # parked items, among as many rows of them as the limit
    late: Mapping[str, float | None]  # by guest, seconds for which the longest due work of its loop has been due


@frozen(kw_only=True)
class WaitingWork:
    """Work that waits for any worker, of one name and tag: a sample, for people."""

    kind: Literal["activities", "orchestrations"]  # as in `RegisteredNames`: work items, or messages of instances
    name: str  # an orchestration that has a version with it: ``name@version``
    tag: str | None
    count: int
    since: datetime | None  # could be taken, the oldest; None: unknown
    instance_id: str  # one of its instances


@frozen(kw_only=True)
class InstanceCounts:
    """Instances by status, of one page."""

    counts: Mapping[InstanceStatus, int]
    after: str | None  # the next page begins behind this id; None: this is the last one


@frozen(kw_only=True)
class StatusCounts:
    """Instances of each status, up to a limit."""

    counts: Mapping[InstanceStatus, int]  # of all statuses
    at_least: Collection[InstanceStatus]  # whose number is a lower bound: there are more, or may be


@frozen(kw_only=True)
class InstanceSize:
    """What the database keeps of one instance: numbers of rows, and UTF-8 bytes of their payloads."""

    executions: int  # whose histories are kept
    events: int  # of all of them
    history_bytes: int
    messages: int  # in its queue, timers among them
    message_bytes: int
    work_items: int
    work_item_bytes: int
    values: int
    value_bytes: int


@frozen(kw_only=True)
class MatchingCounts:
    """Instances that meet conditions, by status, of one page."""

    counts: Mapping[InstanceStatus, int]
    after: tuple[datetime, str] | None  # `InstanceFilter.after` of the next page; None: this is the last one


@frozen(kw_only=True)
class Quotas:
    """Limits of one database, for all its clients and workers; None: no limit."""

    instances: int | None = None  # in the database, ended ones and children included
    unread_events: int | None = None  # of one instance, on top of `limits.MAX_UNREAD_EVENTS`
    # UTF-8 bytes of one instance: the events of its current execution and the messages that wait for it. Of what guests
    # keep: the messages that they send, and nothing else.
    instance_bytes: int | None = None


class DatabaseIdentity(NamedTuple):
    """The identity of a database for what it stores."""

    name: str  # random; it stays in copies of the database, and at a new timeline
    encoded: bool  # workers encode the payloads: a process without their codec can read none
    offloaded: bool = False  # large payloads are in a blob store: a process without it cannot read them
    check_value: str | None = None  # encoded, to see whether a codec has the keys; opaque to the provider


NO_QUOTAS: Final = Quotas()
