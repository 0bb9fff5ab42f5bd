"""The provider contract: what a database must do so that durable work with session affinity is safe on it.

A provider stores opaque payloads and knows nothing of orchestrations or replay. It keeps eleven tables
(``workers``, ``sessions``, ``instances``, ``suspensions``, ``history``, ``ended_executions``, ``orchestrator_queue``,
``worker_queue``, ``session_states``, ``session_holds``, ``session_watches``) and promises what the conformance suite
(`affinity.testing.conformance.providers`) asserts, no more and no less.

Terms
    *alive worker*: its ``workers`` row has ``locked_until`` in the future.
    *held session*: its ``sessions`` row has ``locked_until`` in the future and its worker is alive. Its *holder* is the
    incarnation in the row.
    *live token*: the work item's row carries exactly this token and its ``locked_until`` is in the future. Such an item
    can be fetched by nobody else **while the incarnation that locked it is alive**; when that worker's lease has ended
    or its name has a new incarnation, the item is free again, though its token still acks until somebody fetches it.
    *owned instance*: its ``instances`` row names an incarnation, and that very incarnation is alive.
    *birth token*: what tells an instance from another one that had its id before. Ids are reused, birth tokens are not.
    *suspended instance*: it waits for an operator or for other code. It has no owner, is not fetched and commits no
    turn. Nothing of it is removed: its work items run, and messages for it stay in the queue and go on arriving.

Rules for every verb
    * One clock, the database's, read after any lock wait. Durations are seconds (float), instants aware UTC datetimes.
    * Every verb is atomic. A batch verb treats each element on its own: one refused element changes nothing and does
      not
      disturb the others. Results come in the order of the elements.
    * A verb never leaves a transaction open across a client round trip, so a paused worker holds no database lock
      (SQLite, where a transaction is one uninterrupted call, is the nearest thing).
    * Errors are those of `affinity.errors`. Only those that the data itself causes are not retryable: whatever else the
      database reports is the fault of its environment. After an error without ``maybe_done`` nothing was changed.
    * *Touching* a session sets its ``locked_until`` to now + ``session_lock_timeout``. It may be left out while that
      would
      extend the lock by less than `TOUCH_SLACK` of the timeout, so that a hot loop does not write the row every turn.

Timelines
    A provider that was opened with a `Timeline` belongs to one incarnation of a worker. When the database is another
    one, or behind what was seen, its verbs raise `DatabaseChanged`: at least `register_worker` and `renew_worker`, each
    time. Whoever finds it first begins a new timeline: no epoch and no message id comes back, every worker lease has
    ended, every session has a new epoch.

Routing marks
    ``worker_queue.route`` is ``'free'`` for session-free items, ``'new'`` for items of a session that nobody holds
    (``'new:' + worker_id`` while they are offered to that worker), and ``'w:' + worker_id`` for items of a held
    session. ``orchestrator_queue.route`` is ``'new'`` or ``'w:' + owner``; of a suspended instance it is
    ``'suspended'``, which no fetch reads. A route is computed when the row is queued,
    is re-marked when the session moves, and is only a hint for cost: every fetch checks the ``sessions`` or
    ``instances`` row, and `Provider.sweep` repairs marks that went stale.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from datetime import datetime
from typing import Final, Literal, NamedTuple, NewType, Protocol, TypeAlias

from affinity.limits import MAX_BATCH_BYTES
from affinity.records import ActivityRun, SessionStore, StateWrite, frozen

Incarnation = NewType("Incarnation", str)
"""A random name that one start of a worker process gave itself."""

Token = NewType("Token", str)
"""The name of one lock on one work item; a redelivery has another."""

Birth = NewType("Birth", str)
"""A random name of one instance: who creates another under the same id, after a deletion, gives it another."""

TOUCH_SLACK: Final = 0.02
"""Share of the session lock timeout that a touch may fall short of."""

OFFER_SECONDS: Final = 1.0
"""How long an item that was offered to one worker is left to it, before a sweep offers it to all."""

InstanceStatus: TypeAlias = Literal["pending", "running", "suspended", "completed", "failed", "cancelled"]
FINISHED: Final[frozenset[str]] = frozenset({"completed", "failed", "cancelled"})
SWEPT_STATUSES: Final[frozenset[str]] = frozenset({"completed", "cancelled"})
"""Statuses of ended instances that a sweep removes. A failed one may be opened again, by `Provider.reset_instance`."""


# --- workers --------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class WorkerIdentity:
    """Who asks: the stable name of a worker and the incarnation that this process is."""

    worker_id: str
    incarnation: Incarnation


@frozen(kw_only=True)
class WorkerLease:
    """What a registration or renewal gave."""

    expires_in: float  # seconds from the moment at which the request was *sent*
    database_time: datetime  # the database's clock when it answered
    draining: bool = False


@frozen(kw_only=True)
class WorkerInfo:
    """One row of ``workers``, for people."""

    worker_id: str
    incarnation: Incarnation
    alive: bool
    draining: bool
    expires_in: float  # negative when the lease has ended
    started_at: datetime
    sessions: int  # held now
    labels: Mapping[str, str]  # host, pid, version: what the worker said of itself


# --- work items -----------------------------------------------------------------------------------------------------


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
class WorkFetch:
    """Answer to `Provider.fetch_work_item`."""

    items: Sequence[WorkItem]
    raced: bool  # a claim was lost to another worker, or a row was locked by one: try again at once
    next_due: float | None  # seconds until something of ours, or unclaimed, becomes visible, when ``items`` is empty
    left: bool = False  # it was a share: more waits that nobody holds, left to others for a moment
    more: bool = False  # it ended at a limit: more waits that the caller could have immediately
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


# --- instances ------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NewInstance:
    """An orchestration instance to create together with its start message; nothing happens when the id exists."""

    instance_id: str
    name: str  # registered name of the orchestration
    version: str | None  # None: the worker that first runs it pins its latest version
    start: str  # payload of the start message
    parent_id: str | None = None
    delay: float = 0.0  # seconds until the start message is visible
    on_exists: str | None = None  # payload sent to ``parent_id`` when the id was taken
    parent_birth: Birth | None = None  # of the very parent that creates it
    on_deleted: str | None = None  # payload sent to that parent when the instance is deleted before it has ended
    session_id: str | None = None  # that it works for, as logs and listings show it; None: that of its parent, if any
    birth: Birth = field(default_factory=lambda: Birth(secrets.token_hex(8)))


@frozen(kw_only=True)
class NewMessage:
    """A message for an instance; dropped when the instance does not exist, has finished, or is not the one meant."""

    instance_id: str
    payload: str
    delay: float = 0.0  # seconds until it is visible: timers
    timer: tuple[int, int] | None = (
        None  # (execution id, event id) of the timer that it is, so that it can be cancelled
    )
    birth: Birth | None = None  # of the instance that is meant; None: whichever has the id
    unread_limit: int | None = None  # refused to an instance that has so many unread ones: see `Turn.unread`


class Message(NamedTuple):
    """A message in ``orchestrator_queue``; it stays there until a turn that consumed it commits."""

    id: int
    payload: str


@frozen(kw_only=True)
class OrchestrationItem:
    """An instance that the caller now owns, with its visible messages in order of visibility, then of arrival."""

    instance_id: str
    birth: Birth
    execution_id: int
    name: str
    version: str | None
    event_count: int  # events in the history of the current execution: the fence of the next turn
    claims: int  # times that its ownership was taken since a turn of it was last committed: a poison count
    unknown_for: float | None
    messages: Sequence[Message]
    session_id: str | None = None  # that the instance was started with, or its parent


@frozen(kw_only=True)
class OrchestrationFetch:
    """Answer to `Provider.fetch_orchestration_item`."""

    items: Sequence[OrchestrationItem]
    raced: bool
    next_due: float | None
    left: bool = False  # as in `WorkFetch`
    fenced: bool = False  # another process has the caller's name; then there is nothing for it


class HistoryCursor(NamedTuple):
    """A place in the history of one execution."""

    instance_id: str
    execution_id: int
    after: int = 0  # events that were read already


@frozen(kw_only=True)
class HistoryPage:
    """The next events of one execution, oldest first."""

    events: Sequence[str]
    more: bool  # there may be more behind them


@frozen(kw_only=True)
class InstanceUpdate:
    """What a turn says of its instance, beyond its history."""

    status: InstanceStatus
    version: str | None = None  # pinned by the first turn
    output: str | None = None  # JSON, when completed
    error: str | None = None  # JSON, when failed or cancelled
    continued: bool = False  # the execution ended in continue_as_new: execution id + 1, event count 0


class SessionHold(NamedTuple):
    """Keeps a session with its holder while nothing of it runs, for at most ``seconds`` from the commit.

    As far as a live worker holds the session, the lock is extended to that time; nothing else is promised: a holder
    that dies, drains or gives it up is not kept by it. A touch never shortens a lock. When the hold ends
    (``Turn.unholds``, or its execution does), the lock is cut back to the session lock timeout from now, or to the
    latest other hold of that session.
    """

    session_id: str
    hold_id: int  # event id of the wait; with instance and execution it names the hold
    seconds: float


class SessionWatch(NamedTuple):
    """From now on the instance gets ``payload`` as a message each time the session's holder changes: another worker, or
    a new start of the same one. Exactly one message per change, in the transaction that makes it.

    The first claim of a session is no change; nor is a claim by the very incarnation that held it last. A second watch
    of the same session by the same instance replaces the payload. It ends with the instance.
    """

    session_id: str
    payload: str


@frozen(kw_only=True)
class Turn:
    """One step of one instance, committed whole or not at all.

    The fence: the instance is owned by the caller's incarnation, has the birth token ``birth``, is not finished, runs
    execution ``execution_id`` and has exactly ``event_count`` events; every lock in ``acks`` has a live token; and
    every write in ``states`` passes its own fence (`StateWrite`). Otherwise nothing of the turn is applied. Of several
    writes of one session in a batch the first passes.
    """

    instance_id: str
    birth: Birth
    execution_id: int
    event_count: int
    history: Sequence[str]  # events event_count + 1, + 2, …
    consumed: Sequence[int] = ()  # ids of messages; those of other instances are left alone
    acks: Sequence[WorkLock] = ()  # work items whose results are in ``history``; their sessions are touched
    work_items: Sequence[NewWorkItem] = ()
    messages: Sequence[NewMessage] = ()
    instances: Sequence[NewInstance] = ()
    # Of this execution, including what this very turn queues: activity ids, removed from the queue whichever worker
    # runs them, and event ids of timers.
    cancel_activities: Sequence[int] = ()
    cancel_timers: Sequence[int] = ()
    update: InstanceUpdate | None = None  # a finished status also removes all queue rows of the instance
    custom_status: str | None = None  # JSON; None leaves it as it is
    unread: int | None = None  # messages that were consumed, now or before, and not read; None: as many as before
    states: Sequence[StateWrite] = ()  # session state of the activities whose results are in ``history``
    holds: Sequence[SessionHold] = ()
    unholds: Sequence[int] = ()  # hold ids of this execution that end
    watches: Sequence[SessionWatch] = ()
    # By event id: runs of activities whose results are in ``history``, but for first attempts on the committing worker.
    runs: Mapping[int, ActivityRun] = field(default_factory=dict)
    release_sessions: Sequence[str] = ()  # released behind all else that the turn does: see `Provider.release_session`


class Placed(NamedTuple):
    """Where a new work item of a committed turn went."""

    item: WorkItem | None  # locked to the caller: run it now
    holder: str | None  # else the worker that holds its session now, if one does


@frozen(kw_only=True)
class TurnResult:
    """Outcome of one turn of a batch."""

    committed: bool
    lost_acks: Sequence[
        WorkLock
    ] = ()  # when refused: the locks without a live token (maybe none: then the fence failed)
    placed: Sequence[Placed] = ()  # when committed: one for each of ``work_items``
    conflicts: Sequence[str] = ()  # when refused: sessions whose state write did not pass its fence


@frozen(kw_only=True)
class Release:
    """Gives an instance's ownership up; its taking is not counted in ``claims``. Nothing happens when the caller does
    not own it.
    """

    instance_id: str
    to: str | None = None  # hand it to this worker, if alive and not draining; else it is free for anyone
    unknown: bool = False  # this worker does not register the orchestration


@frozen(kw_only=True)
class Suspend:
    """Suspends an instance that this worker cannot go on with, for a reason that is not a decision of its code.

    The fence is that of a `Turn`: owner, birth token, execution and number of events. Nothing happens when it does not
    hold.
    """

    instance_id: str
    birth: Birth
    execution_id: int
    event_count: int
    error_type: str  # the reason: name of an exception class, by which instances are found
    message: str  # and its text
    code: str  # the code version of the worker
    needs_code: bool  # whether other code may go on with it: see `Provider.retry_suspended`


@frozen(kw_only=True)
class Reset:
    """Opens an instance again, whatever became of it, at an earlier point of its history.

    The fence: the instance has this birth token, runs (or ended in) execution ``execution_id`` and has exactly
    ``event_count`` events. Then a new execution begins, ``execution_id`` + 1, with the first ``keep`` events of that
    one and ``history`` behind them; the former one stays readable. The instance is running, without an owner.

    Its work items, timers and holds are gone. What waits for it otherwise stays, behind ``messages`` to itself.
    """

    instance_id: str
    birth: Birth
    execution_id: int
    event_count: int
    keep: int
    history: Sequence[str]
    messages: Sequence[NewMessage] = ()  # a timer fires when that of the same event id would have, if it still waited
    work_items: Sequence[NewWorkItem] = ()
    watches: Sequence[SessionWatch] = ()
    custom_status: str | None = None  # JSON; None leaves it as it is


# --- reading and the client -----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Suspension:
    """Why and since when an instance is suspended."""

    error_type: str
    message: str
    at: datetime
    worker_id: str  # the worker that suspended it
    code: str  # and its code version


@frozen(kw_only=True)
class InstanceInfo:
    """One row of ``instances``, for clients and people."""

    instance_id: str
    birth: Birth
    name: str
    version: str | None
    execution_id: int
    status: InstanceStatus
    custom_status: str | None
    output: str | None
    error: str | None
    parent_id: str | None
    owner: str | None  # worker id that owns it now, or last did
    event_count: int
    created_at: datetime
    updated_at: datetime
    suspension: Suspension | None = None  # while it is suspended
    session_id: str | None = None  # that it was started with, or its parent


class EventOrigin(NamedTuple):
    """When, and by which worker, an event of a history was recorded."""

    event_id: int
    recorded_at: datetime
    worker_id: str | None  # None: by no worker, for a client that has reset the instance
    run: ActivityRun | None  # as the turn said: `Turn.runs`


WorkItemState: TypeAlias = Literal["running", "waiting", "delayed"]
"""Of a work item: a live worker has it, it can be fetched, or it can be later."""

MessageState: TypeAlias = Literal["waiting", "delayed", "suspended"]
"""Of a message: visible, visible later (timers), or of a suspended instance."""


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


EVENT_HEAD: Final = 64
"""Characters of an event that say what kind of event it is."""


@frozen(kw_only=True)
class ExecutionInfo:
    """One execution of an instance, as far as its history is kept; or the current one."""

    execution_id: int
    event_count: int
    started_at: datetime | None  # None: not known
    ended_at: datetime | None  # None: it goes on, or its end is not known
    last_event: str | None  # the first `EVENT_HEAD` characters of it


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


@frozen(kw_only=True)
class QueueStatistics:
    """How much there is to do. Each number stops at the limit that was asked for; those of running and of waiting work
    items may share it.
    """

    work_items: Mapping[WorkItemState, int]
    messages: Mapping[MessageState, int]
    oldest_work_item: float | None  # seconds for which the one that waits longest could have been fetched
    oldest_message: float | None
    suspended: int  # instances


@frozen(kw_only=True)
class InstanceCounts:
    """Instances by status, of one page."""

    counts: Mapping[InstanceStatus, int]
    after: str | None  # the next page begins behind this id; None: this is the last one


@frozen(kw_only=True)
class InstanceFilter:
    """Which instances to list, newest first by (created_at, instance_id)."""

    status: Collection[InstanceStatus] = ()  # empty: any
    name: str | None = None
    prefix: str | None = None  # of the instance id
    parent_id: str | None = None
    reason: str | None = None  # suspended for this: `Suspension.error_type`
    session_id: str | None = None  # that they were started with, or their parents
    after: tuple[datetime, str] | None = None  # keyset cursor: (created_at, instance_id) of the last row seen


@frozen(kw_only=True)
class SessionInfo:
    """One row of ``sessions``, for people."""

    session_id: str
    worker_id: str  # that holds it, or last did; empty: none ever, a write without a lease made the row
    incarnation: Incarnation
    epoch: int
    held: bool
    expires_in: float  # of the session lock; negative when it has expired
    idle: float  # seconds since its work last touched it
    queued: int  # work items that name it, running ones included


@frozen(kw_only=True)
class Quotas:
    """Limits of one database, for all who write to it; None: no limit."""

    instances: int | None = None  # in the database, ended ones and children included
    unread_events: int | None = None  # of one instance, on top of `NewMessage.unread_limit`
    # UTF-8 bytes of one instance: of the events of its present execution, and of the messages that wait for it.
    instance_bytes: int | None = None


NO_QUOTAS: Final = Quotas()

Delivery: TypeAlias = Literal["delivered", "unknown", "finished", "full", "over_quota"]
Deletion: TypeAlias = Literal["deleted", "unknown", "running"]
Resumption: TypeAlias = Literal["resumed", "unknown", "not_suspended"]
SessionRelease: TypeAlias = Literal["released", "busy", "not_held"]


@frozen(kw_only=True)
class Sweep:
    """What one call of `Provider.sweep` did."""

    swept: bool  # False: another worker has swept within the interval
    rerouted: int = 0  # stale marks repaired
    sessions_removed: int = 0
    workers_removed: int = 0
    instances_removed: int = 0  # those that had ended, with their children
    executions_removed: int = 0  # whose histories went
    more: bool = False  # a bound was reached: call again without waiting


@frozen(kw_only=True)
class Retention:
    """For how many seconds after its end something is kept; None: for ever."""

    instances: float | None = None  # completed and cancelled ones, each with its tree
    histories: float | None = None  # of executions after which their instance began another one


NO_RETENTION: Final = Retention()


@frozen(kw_only=True)
class InstancePruning:
    """What one step of `Provider.prune_instances` removed, or would remove."""

    roots: int  # instances without a parent
    instances: int  # they, and the trees below them
    after: datetime | None  # where the next step begins; None: there is none


@frozen(kw_only=True)
class HistoryPruning:
    """What one step of `Provider.prune_histories` removed, or all that it would remove."""

    executions: int
    more: bool  # a bound was reached: call again


@frozen(kw_only=True)
class Hint:
    """Why a worker was woken; only ever a hint."""

    work: bool = True  # look into the queues
    cancel: bool = False  # a work item of ours may have been removed


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


class Provider(Protocol):
    """A database connection, opened; one object serves one event loop. See the module's rules for all verbs."""

    @property
    def dialect(self) -> str:
        """Name for logs and metrics: ``sqlite`` or ``postgresql``."""
        ...

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        ...

    # -- workers

    async def register_worker(
        self, identity: WorkerIdentity, lease: float, labels: Mapping[str, str], *, resume: bool = False
    ) -> WorkerLease:
        """Take the worker's name and a lease of ``lease`` seconds.

        A new incarnation replaces whichever had the name, alive or not, and is given all sessions that the name holds
        by an unexpired session lock, each with a new epoch. With ``resume`` the same incarnation comes back after its
        lease lapsed: it keeps its sessions and their epochs as far as nobody took them. Clears draining.

        Raises:
            WorkerFenced: ``resume``, and another incarnation has taken the name since.
        """
        ...

    async def renew_worker(self, identity: WorkerIdentity, lease: float) -> WorkerLease | None:
        """Extend the worker lease. None when it has expired already: `register_worker` with ``resume`` is then the way.

        Raises:
            WorkerFenced: another incarnation has the name.
        """
        ...

    async def drain_worker(self, identity: WorkerIdentity) -> int:
        """Mark the worker as draining (it claims nothing any more, even when it asks) and free every session of it that
        has no work item locked by it; their items are re-marked. Idempotent: call again as work ends.

        Returns:
            The number of sessions that it still holds.
        """
        ...

    async def release_worker(self, identity: WorkerIdentity) -> None:
        """Leave: free all sessions and owned instances and end the lease. Work items still locked become free.
        Idempotent; does nothing when another incarnation has the name.
        """
        ...

    # -- work items

    async def fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        """Lock up to ``limit`` visible work items to the caller, as many as fit into ``max_bytes`` and at least one;
        attempts + 1, but see `FetchOptions.uncounted_after`; touch or claim their sessions.

        Eligible, the oldest first over all kinds (by when they became visible): items of sessions that the caller holds
        (whatever their name); session-free items; items of sessions that nobody holds, which claims them, while the
        caller holds fewer than ``max_sessions``, is not draining and is alive: what was offered to it
        (``NewWorkItem.claim_here``), and what is anyone's. While other workers are alive and not draining, it gets
        about as many session-free items, and as many that are anyone's, as `limits.fair_share` says. Of all but the
        first kind, an item is passed over while its name, or what it `needs <WorkAbandon.needs>`, is not in ``names``
        and a worker has given it back as unknown less than ``unknown_after`` seconds ago.
        Every change of holder gives the session a new, greater epoch; the same incarnation that re-claims what nobody
        held in between keeps it. Nothing when the caller is not alive or is not the current incarnation.
        """
        ...

    async def renew_work_item_lock(
        self, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts
    ) -> Sequence[bool]:
        """Extend live tokens that this worker's incarnation took, and touch their sessions as far as it holds them.
        False: the item is not ours any more (expired, taken, cancelled, finished) and nothing was extended.
        """
        ...

    async def check_work_item(self, locks: Sequence[WorkLock]) -> Sequence[bool]:
        """Whether each lock still has its token; reads only. How a worker learns of cancellation between renewals."""
        ...

    async def ack_work_item(
        self, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts
    ) -> Sequence[bool]:
        """Remove items by live token, send their results to their instances, write the states that come with them,
        touch their sessions as far as the caller holds them. False: dead token, or a state that did not pass its fence
        (the token is then still live); nothing changed. The session may have moved: without a state, the work-item lock
        governs the result.
        """
        ...

    async def abandon_work_item(self, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> Sequence[bool]:
        """Give items back by live token. False: dead token, nothing changed."""
        ...

    async def begin_work_item(self, identity: WorkerIdentity, lock: WorkLock, attempt: int) -> bool:
        """Count a delivery that its fetch did not count (`FetchOptions.uncounted_after`), just before the item is
        handed to code: afterwards the item has had ``attempt`` deliveries. False: dead token, or another incarnation
        took it; nothing changed.
        """
        ...

    async def disown_work_item(
        self, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
    ) -> int:
        """Free every item that this incarnation has locked under a token that is not in ``known``; returns their
        number.

        For a worker that lost the reply of a fetch or commit: items may be locked to it that it has never heard of, and
        would otherwise wait for their lock to expire. The caller has no fetch and no commit in flight meanwhile. The
        lost delivery is not counted as an attempt, unless it is in ``delivered``: those were handed to code.
        """
        ...

    # -- sessions

    @property
    def states(self) -> SessionStore:
        """The records of session state in this database."""
        ...

    async def check_session(self, identity: WorkerIdentity, session_ids: Sequence[str]) -> Sequence[float | None]:
        """Seconds for which the caller's incarnation, if it is alive, holds each session by its session lock; None for
        those that it does not hold. Reads only.
        """
        ...

    async def release_session(self, session_ids: Sequence[str]) -> Sequence[SessionRelease]:
        """Free sessions, whichever worker holds them. A holder that has a work item of the session in hand keeps it:
        "busy", and nothing is changed. Otherwise its lock ends, as if its time were over, a hold of it
        (`SessionHold`) or not, and items that wait for it are for any worker; the next claim by another incarnation
        gives it a new epoch.
        """
        ...

    async def release_idle_session(
        self, identity: WorkerIdentity, options: FetchOptions, *, min_idle: float, only_users: Mapping[str, str]
    ) -> Sequence[str]:
        """Free idle sessions of the caller's, for work that it could claim if it held fewer (`WorkFetch.crowded`) and
        that no worker has taken: in `OFFER_SECONDS` since it became visible, or, where the caller is alone, at all.

        Idle is a session without any item in the queue and without a hold (`SessionHold`) that lasts, that nothing has
        touched for ``min_idle`` seconds, or whose only user has ended: ``only_users`` names, by session, the instance
        that alone has used it, as far as the caller knows. Those whose user has ended go first, then the least recently
        touched; as many as there is work for, up to ``options.limit`` items. That work is offered to the caller, so
        that no other worker makes room for it too. Nothing when the caller is draining, not alive or not current.

        Returns:
            The ids of the sessions that were freed.
        """
        ...

    # -- orchestrations

    async def fetch_orchestration_item(
        self,
        identity: WorkerIdentity,
        *,
        limit: int,
        names: Collection[str],
        unknown_after: float,
        exclude: Collection[int] = (),
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> OrchestrationFetch:
        """Up to ``limit`` instances with visible messages that the caller owns, or takes because nobody does.

        ``names`` holds ``name`` and ``name@version`` of what the caller registers. An unowned instance is passed over
        while it is not among them (by name when its version is None, else by ``name@version``) and has been given back
        as unknown less than ``unknown_after`` seconds ago. While other workers are alive and not draining, one fetch
        takes as many unowned ones as `limits.fair_share` says. Messages in ``exclude`` (being worked on by the caller)
        are left out; an instance all of whose visible messages are excluded is not returned. At most `MAX_BATCH`
        messages an instance.

        ``max_bytes`` bounds the payloads, in UTF-8 bytes: a message is left behind when those before it have as many.
        So at least one comes. They are taken in rounds: the first message of each instance, then the second, and so on.
        An instance that gets none is not taken. What is left behind comes with the next fetch, in its order.

        A draining worker takes no new instance. Nothing when the caller is not alive or not current; ``fenced`` says
        that it is not.
        """
        ...

    async def read_history(
        self, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[HistoryPage]:
        """The next events of some executions, one page for each; empty when there are none.

        Events are read in the order of the cursors until they have ``max_bytes`` UTF-8 bytes: at least one comes, if
        there is one. The pages behind that are empty, with ``more``. A page has at most `limits.MAX_PAGE_EVENTS`.
        """
        ...

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts
    ) -> Sequence[TurnResult]:
        """Commit turns of distinct instances in one transaction: THE write of the hot loop. See `Turn` for what is
        checked.

        New work items are routed by who holds their session now. Those with ``lock_here`` are locked to the caller with
        a fresh token and attempt 1 when they are visible and either session-free or of a session that the caller holds
        and that the same transaction touched; a draining worker, or one whose lease has ended, locks nothing here.
        Those with ``claim_here`` that are visible and of a session that nobody holds are offered to the caller: its
        fetch may claim that session, nobody else's does before a sweep `OFFER_SECONDS` later.
        """
        ...

    async def release_instance(self, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
        """Give up the ownership of instances, or hand it over; their queued messages are re-marked."""
        ...

    async def suspend_instance(self, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> Sequence[bool]:
        """Suspend instances of the caller's, which loses their ownership. False: the fence did not hold, nothing
        changed. `Suspend.code` is remembered among those that have tried the instance at this point of its history.
        """
        ...

    async def retry_suspended(
        self, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int
    ) -> Sequence[str]:
        """Resume up to ``limit`` instances that were suspended with ``needs_code``, as the caller's own: those that it
        registers (``names`` as in `fetch_orchestration_item`) and that no worker of code version ``code`` has suspended
        at this point of their history since an operator resumed them last. None when the caller is draining, not alive
        or not current.

        Returns:
            The ids of the instances that were resumed.
        """
        ...

    # -- repair and hints

    async def sweep(
        self,
        *,
        interval: float,
        session_retention: float,
        worker_retention: float,
        retention: Retention = NO_RETENTION,
    ) -> Sweep:
        """Repair stale marks in both queues and remove dead rows, at most once per ``interval`` seconds over all
        workers. Marks of a worker that is not alive come at once. For the rest, a call may look at a part of the queued
        sessions and of the session rows, and the next one, by whichever worker, goes on from there.

        Removes sessions that expired more than ``session_retention`` seconds ago, have no work and are not watched,
        holds whose time is over, and workers whose lease ended more than ``worker_retention`` seconds ago. Records of
        session state stay: they go only when they are deleted. A session with a watch that is committed while the sweep
        runs, before it removes the session's row, stays too.

        With ``retention``, it also does one step of `prune_instances`, for `SWEPT_STATUSES` and trees of at most
        `limits.PRUNE_TREE_EVENTS` events, from where the last sweep stopped, and one of `prune_histories`.
        """
        ...

    def hints(self, identity: WorkerIdentity) -> AbstractAsyncContextManager[HintSource]:
        """Subscribe to wake-up hints for this worker."""
        ...

    async def wake(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        """Send hints to workers by id; None: to all. And tell the owners of these instances to look into the queues;
        where nobody alive owns one, all. Best effort, off the hot path.
        """
        ...

    # -- the client

    async def create_instance(self, instances: Sequence[NewInstance]) -> Sequence[bool]:
        """Create instances with their start messages. False: the id was there, nothing changed. A child has the session
        of its parent, as in a turn.

        Raises:
            QuotaExceeded: those that are new would be more than `Quotas.instances` allows, or a start message is larger
                than `Quotas.instance_bytes`; nothing was created.
        """
        ...

    async def send_message(self, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
        """Queue messages for instances, in order.

        A message with an ``unread_limit`` is refused ("full") while its instance has that many unread messages: those
        that its turns reported (`Turn.unread`), and those in its queue that are no timers. So it is while the instance
        has as many as `Quotas.unread_events` allows; and it is refused ("over_quota") when with it the instance would
        have more bytes than `Quotas.instance_bytes`. Calls that are made at the same moment may each find room.
        """
        ...

    async def get_instance(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        """Instances by id."""
        ...

    async def list_instances(self, where: InstanceFilter, limit: int) -> Sequence[InstanceInfo]:
        """One page, newest first; the cursor of the next is the last row's (created_at, instance_id)."""
        ...

    async def resume_instance(self, instance_ids: Sequence[str]) -> Sequence[Resumption]:
        """Let suspended instances go on, on any worker, as if none had taken or tried them."""
        ...

    async def reset_instance(self, reset: Reset) -> bool:
        """Open an instance again at an earlier point; see `Reset`. False: the fence did not hold, nothing changed."""
        ...

    async def delete_instance(
        self, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True
    ) -> Sequence[Deletion]:
        """Remove finished instances, or with ``force`` any, with all their rows, holds and watches.

        With ``tree``, each goes with its children and theirs, all or none: "running" when one of them has not ended,
        and ``force`` is not given. A parent that stays is told of a child that had not ended: it gets
        `NewInstance.on_deleted` as a message.
        """
        ...

    async def prune_instances(
        self, status: frozenset[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
    ) -> InstancePruning:
        """One step of removing instances that ended more than ``older_than`` seconds ago with one of these statuses
        (of `FINISHED`), oldest first, as `delete_instance` removes them.

        A child goes with its parent, never before it. A tree stays while a member of it has not ended for that long.
        What somebody else is changing is passed over. A step looks at `limits.PRUNE_WINDOW` ended instances, behind
        those that ended at ``after``, and removes trees up to about `limits.PRUNE_EVENTS` events, at least one of them.
        With ``dry_run`` it removes nothing, and says what it would.
        """
        ...

    async def prune_histories(self, older_than: float, *, dry_run: bool = False) -> HistoryPruning:
        """One step of removing the histories of executions that ``continue_as_new``, or a reset, ended more than
        ``older_than`` seconds ago: at most `limits.PRUNE_EVENTS` events. What is left of a history at any time is its
        beginning. With ``dry_run`` it removes nothing, and counts all of them.
        """
        ...

    async def read_origins(self, instance_id: str, execution_id: int) -> Sequence[EventOrigin]:
        """The origins of the events of one execution, oldest first. An event that a reset has taken over keeps its own.
        Those of events that a release before this verb recorded are not known and left out.
        """
        ...

    async def list_work_items(self, instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
        """Work items of an instance, oldest activity first."""
        ...

    async def list_executions(
        self, instance_id: str, limit: int, *, before: int | None = None
    ) -> Sequence[ExecutionInfo]:
        """One page of the executions of an instance whose histories are kept, and the current one; newest first. The
        next page is ``before`` the last execution id seen.
        """
        ...

    async def list_tree(self, instance_id: str, limit: int) -> Sequence[TreeMember]:
        """An instance, its children and theirs, in any order; at most ``limit``, those nearest to the instance."""
        ...

    async def measure_queues(self, limit: int) -> QueueStatistics:
        """Count what is in the queues, up to ``limit`` of each kind; no more rows of an index are read for a number."""
        ...

    async def count_instances(self, limit: int, *, after: str | None = None) -> InstanceCounts:
        """Count one page of ``limit`` instances by status, in the order of their ids, behind the id ``after``."""
        ...

    async def list_sessions(self, *, after: str | None = None, limit: int = 100) -> Sequence[SessionInfo]:
        """Session rows by id, held or not."""
        ...

    async def list_workers(self) -> Sequence[WorkerInfo]:
        """Worker rows by id, alive or not."""
        ...

    async def get_quotas(self) -> Quotas:
        """The limits of the database."""
        ...

    async def set_quotas(self, limits: Quotas) -> None:
        """Replace all limits. They hold for what is created and sent from then on: what is there stays. What turns
        create is counted and not refused.
        """
        ...

    async def count_work(self) -> Mapping[str, int]:
        """Rows by kind, for status pages and tests: ``work_items``, ``messages``, ``sessions``, ``workers``,
        ``instances``.
        """
        ...


class HintSource(Protocol):
    """A subscription to hints."""

    async def wait(self, timeout: float) -> Hint | None:
        """The hints that came since the last call, merged, waiting at most ``timeout`` seconds for one; None when none
        came.

        Raises:
            ConnectionLost: the subscription broke; open a new one.
        """
        ...
