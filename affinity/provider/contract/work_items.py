"""Records of work items: queued activities, their locks, fetches, acknowledgements and returns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from datetime import datetime
from typing import Final, Literal, NamedTuple, NewType, TypeAlias

from affinity.limits import MAX_BATCH_BYTES
from affinity.records import StateWrite, frozen

Token = NewType("Token", str)
"""The name of one lock on one work item; a redelivery has another."""


OFFER_SECONDS: Final = 1.0
"""How long an item that was offered to one worker is left to it, before a sweep offers it to all."""


class WorkKey(NamedTuple):
    """Names one activity of one execution of one instance; unique in ``worker_queue``."""

    instance_id: str
    execution_id: int
    activity_id: int  # event id of the ActivityScheduled event


class WorkLock(NamedTuple):
    """A work item together with the token under which a worker holds it."""

    key: WorkKey
    token: Token


@frozen(kw_only=True)
class NewWorkItem:
    """An activity to queue."""

    key: WorkKey
    name: str  # registered name of the activity
    payload: str
    session_id: str | None = None
    delay: float = 0.0  # seconds until it is visible
    lock_here: bool = False  # lock it to the committing worker, if session-free, or if its session is held there
    claim_here: bool = False  # if nobody holds its session, offer it to the committing worker first


@frozen(kw_only=True)
class WorkItem:
    """A work item that the caller now holds under ``lock.token``."""

    lock: WorkLock
    name: str
    payload: str
    session_id: str | None
    session_epoch: int | None  # of the lease under which it was fetched
    attempts: int  # deliveries so far, this one included
    failures: (
        int  # deliveries that ended in an error the activity raised; attempts - failures were interrupted or run now
    )
    unknown_for: float | None  # seconds since a worker first gave it back as unknown; None when none did
    queued_for: float = 0.0  # seconds since it was queued, when it was locked


@frozen(kw_only=True)
class Timeouts:
    """The two lock lengths of work, in seconds."""

    work_item_lock: float
    session_lock: float


@frozen(kw_only=True)
class FetchOptions:
    """What a worker asks for when it fetches work items."""

    limit: int  # items at most
    max_sessions: int  # sessions that this worker may hold; 0: takes no session work at all
    names: Collection[str]  # activities that it registers, and whatever else work may need (`WorkAbandon.needs`)
    unknown_after: float  # seconds after which an item that nobody registers is delivered to anyone, to be failed
    # Interruptions (attempts - failures) from which a delivery is not counted yet: `Provider.begin_work_item` does it.
    uncounted_after: int = 2**31 - 1
    # UTF-8 bytes of their payloads: an item is left behind when those before it have as many.
    max_bytes: int = MAX_BATCH_BYTES
    timeouts: Timeouts = field(default_factory=lambda: Timeouts(work_item_lock=30.0, session_lock=300.0))


@frozen(kw_only=True)
class WorkFetch:
    """Answer to `Provider.fetch_work_item`."""

    items: Sequence[WorkItem]
    claim_lost: bool  # a claim was lost to another worker, or a row was locked by one: try again at once
    next_due: float | None  # seconds until something of ours, or unclaimed, becomes visible, when ``items`` is empty
    unclaimed_remaining: bool = False  # it was a share: more waits that nobody holds, left to others for a moment
    limit_reached: bool = False  # it ended at a limit: more waits that the caller could have immediately
    crowded: bool = False  # work waits that the caller could claim, if it held fewer sessions
    alone: bool = False  # no other worker is alive and takes work


@frozen(kw_only=True)
class WorkAck:
    """A finished work item: removed, and its result sent to its instance, in one step."""

    lock: WorkLock
    message: str  # payload of the completion message to ``lock.key.instance_id``
    state: StateWrite | None = None  # applied with it; when its fence fails, nothing of the ack is applied


@frozen(kw_only=True)
class WorkAbandon:
    """A work item given back; its token is revoked."""

    lock: WorkLock
    delay: float = 0.0  # seconds until it is visible again
    failed: bool = False  # the activity raised: counts a failure (a retry of the application)
    error: str | None = None  # what it raised, for people: `WorkItemInfo.last_error`; None leaves what was there
    count_attempt: bool = True  # False takes this delivery back out of ``attempts`` (drain, unknown activity)
    unknown: bool = False  # this worker has no code for it: starts ``unknown_for`` unless it runs already
    needs: str | None = (
        None  # with ``unknown``: what a worker must have among its names, beside the activity, to get it
    )
    release_session: bool = False  # give the session up too, if the caller holds it


WorkItemState: TypeAlias = Literal["running", "waiting", "delayed"]
"""Of a work item: a live worker has it, it can be fetched, or it can be later."""


@frozen(kw_only=True)
class WorkItemInfo:
    """One row of ``worker_queue``, for people."""

    key: WorkKey
    name: str
    session_id: str | None
    state: WorkItemState
    worker_id: str | None  # while it is running
    attempts: int  # deliveries so far
    failures: int
    queued_at: datetime
    visible_at: datetime  # when it could be fetched last, or can be next
    last_error: str | None  # of the failure before: `WorkAbandon.error`
