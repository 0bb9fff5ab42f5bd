"""Records of work items: queued activities, their locks, fetches, acknowledgements and returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Final, Literal, NamedTuple, NewType, TypeAlias

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract.workers import NO_TAGS, WorkerTags
from affinity.records import CommitPart, Gate, StateWrite, frozen

Token = NewType("Token", str)
"""The name of one lock on one work item; a redelivery has another."""


OFFER_SECONDS: Final = 1.0
"""Seconds for which only the worker that an item was offered to may fetch it; then a sweep offers it to all."""


NEWER_SECONDS: Final = 2.0
"""Seconds for which only workers of the newest code with room claim a new or freed session; then any worker may."""


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
    # Lock it to the committing worker, if session-free, or if its session is held there. With a session and a tag: only
    # of a caller that knows that the session has this tag.
    lock_here: bool = False
    claim_here: bool = False  # if no worker holds its session, offer it to the committing worker first
    # It has a session, and waits until all earlier ordered items of that session are gone, of all instances: items that
    # were committed before it, or that come before it in the batch.
    ordered: bool = False
    # Kept out of the queue until the guest that parks items queues it. Until then it does not count as work of its
    # session, and no verb of the queue shows it. The commit queues it, unlocked, if the guest has work for it after the
    # commit. An instance has one such item, the last; it is gone with its execution. Not combined with the options
    # below and above.
    parked: bool = False

    # It waits at this gate, on the route ``gate``, until the guest that opens gates admits it: from when it is visible,
    # and again from each give-back and from the end of a lock that has expired. While it waits it does not count as
    # work of its session, and no fetch reads it. It may pass the gate with the commit, and only then be locked there.
    gate: Gate | None = None

    tag: str | None = None  # only workers with this tag may take it, or claim its session for it
    # Seconds that it waits unlocked, from when it is visible and from each give-back, until `WorkerProvider.end_waits`
    # frees its session for other workers, and until that verb returns it to be failed. None: as long as it takes.
    takeover_after: float | None = None
    fail_after: float | None = None

    @property
    def order(self) -> str | None:
        """The session in whose order it stands."""
        return self.session_id if self.ordered else None

    @property
    def is_restricted(self) -> bool:
        """True if the item has a tag, or a bound for its wait."""
        return self.tag is not None or self.takeover_after is not None or self.fail_after is not None


@frozen(kw_only=True)
class WorkItem:
    """A work item that the caller now holds under ``lock.token``."""

    lock: WorkLock
    name: str
    payload: str
    session_id: str | None
    session_epoch: int | None  # of the lease under which it was fetched
    attempts: int  # deliveries so far, this one included
    failures: int  # deliveries that ended in an error of the activity; attempts - failures were interrupted or run now
    unknown_for: float | None  # seconds since a worker first gave it back as unknown; None when none did
    queued_for: float = 0.0  # seconds since it was queued, when it was locked
    ordered: bool = False  # other ordered items of its session may wait for it to be gone
    # Of its session. For a worker without tags: None, since it claims no session with a tag. From a commit: the item's
    # own, since the caller asks for `NewWorkItem.lock_here` only where they are the same.
    session_tag: str | None = None
    limited: bool = False  # it has a limited `NewWorkItem.gate`: its end may admit other work

    @property
    def order(self) -> str | None:
        """The session in whose order it stands."""
        return self.session_id if self.ordered else None


@frozen(kw_only=True)
class Timeouts:
    """The two lock lengths of work, in seconds."""

    work_item_lock: float
    session_lock: float


@frozen(kw_only=True)
class FetchOptions:
    """The arguments of a fetch of work items."""

    limit: int  # items at most
    max_sessions: int  # sessions that this worker may hold; 0: takes no session work at all
    names: Collection[str]  # activities that it registers, and other names that work may need (`WorkAbandon.needs`)
    unknown_after: float  # seconds after which any worker fetches an item that none registers, to fail it
    # After so many interruptions (attempts - failures) `Provider.begin_work_item` counts the delivery, not the fetch.
    uncounted_after: int = 2**31 - 1
    # Leave sessions that no worker holds for `NEWER_SECONDS` to workers with a lower ordinal that have room.
    pack: bool = False
    # UTF-8 bytes of payloads: once the taken items have so many, the fetch takes no more.
    max_bytes: int = MAX_BATCH_BYTES
    timeouts: Timeouts = field(default_factory=lambda: Timeouts(work_item_lock=30.0, session_lock=300.0))
    tags: WorkerTags = NO_TAGS  # as the caller registered them
    # After a `Hint.only_own`: items of sessions that the caller holds, and no others. Of the answer only ``items``,
    # ``claim_lost`` and ``limit_reached`` count.
    only_own: bool = False
    # For a fetch with ``only_own``: names of activities that begin with something that a guest keeps, by guest.
    prefetch: Mapping[str, Collection[str]] = field(default_factory=dict)


@frozen(kw_only=True)
class WorkFetch:
    """Answer to `Provider.fetch_work_item`."""

    items: Sequence[WorkItem]
    claim_lost: bool  # another worker won a claim or had a row locked: fetch again immediately
    next_due: float | None  # seconds until an item becomes visible that is ours or unclaimed, when ``items`` is empty
    unclaimed_remaining: bool = False  # the fetch took its share of unclaimed work and left the rest to other workers
    limit_reached: bool = False  # the fetch ended at a limit: more waits for the caller now
    crowded: bool = False  # work waits that the caller could claim if it held fewer sessions
    workers: int = 1  # that are alive and take work
    draining: bool = False  # the caller is
    # Sessions to take by `take_session`, when their holders have no work of them in hand. They have a `PlannedMove` to
    # the caller, and the plan has a bound or work waits.
    assigned: Sequence[str] = ()
    outdated: bool = False  # a worker of newer code has room: new and freed sessions are left to it
    # By guest and instance, for items of `FetchOptions.prefetch`: what they begin with. The provider may leave guests
    # and instances out; then the guest's part of the worker reads.
    prefetched: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


WaitFailure: TypeAlias = Literal["busy", "no_worker_with_tag"]
"""Why an item is not waited for any longer: `NewWorkItem.fail_after` has passed, or no worker has its tag."""


@frozen(kw_only=True)
class EndedWaits:
    """Answer to `Provider.end_waits`."""

    failed: Sequence[tuple[WorkItem, WaitFailure]] = ()  # locked to the caller, which fails them
    freed: Sequence[str] = ()  # sessions that other workers may claim


@frozen(kw_only=True)
class WorkAck:
    """A finished work item: one step removes it and sends its result to its instance. Or a part of a result."""

    lock: WorkLock
    # Payload of the completion message to ``lock.key.instance_id``. None: the activity goes on; the item keeps its
    # lock, and only state and parts are written.
    message: str | None
    state: StateWrite | None = None  # applied with it; when its fence fails, nothing of the ack is applied
    parts: Sequence[CommitPart] = ()  # likewise, of guests: one of each at most


@frozen(kw_only=True)
class WorkAbandon:
    """A work item given back; its token is revoked."""

    lock: WorkLock
    delay: float = 0.0  # seconds until it is visible again
    failed: bool = False  # the activity raised an error: counts a failure (a retry of the application)
    error: str | None = None  # the error, for `WorkItemInfo.last_error`; None keeps the former error
    # With ``failed``: the class of the error, and its stack, for `FailureRecord`. The stacks of the first
    # `limits.FIRST_STACKS` attempts of an activity are kept, and those of the last `limits.LAST_STACKS`.
    error_type: str = ""
    stack: str | None = None
    count_attempt: bool = True  # False takes this delivery back out of ``attempts`` (drain, unknown activity)
    unknown: bool = False  # this worker has no code for it: starts ``unknown_for`` unless it is set already
    needs: str | None = None  # with ``unknown``: a name that a worker must register, beside the activity, to fetch it
    release_session: bool = False  # give the session up too, if the caller holds it

    def __post_init__(self) -> None:
        if self.failed and not self.count_attempt:
            raise ValueError("failed=True with count_attempt=False: an activity that has failed was an attempt")


WorkItemState: TypeAlias = Literal["running", "waiting", "delayed", "blocked", "limited"]
"""State of a work item: an alive worker runs it, it can be fetched now or later, another ordered item is before it, or
it waits at a limited gate.
"""


QueuePart: TypeAlias = Literal["retried", "delayed", "blocked", "limited"]
"""A part of the queue of work items: those that have failed and are tried again, whatever their state; the other ones
that can be fetched later; those behind another ordered item; those at a gate.
"""


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
    started_at: datetime | None = None  # when it was locked, while it is running
    tag: str | None = None  # a worker must have it to take the item: its own tag, or its session's
    has_worker: bool = True  # False: it waits, and no live worker has the tag
    # Seconds since ``started_at`` while it is running, else since ``visible_at``; negative: until then.
    age: float = 0.0
