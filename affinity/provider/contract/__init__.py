"""The provider contract: the duties of a database that make durable work with session affinity safe.

A provider stores opaque payloads and knows nothing of orchestrations or replay. It keeps the tables ``workers``,
``sessions``, ``instances``, ``suspensions``, ``history``, ``ended_executions``, ``orchestrator_queue``,
``message_keys``, ``instance_values``, ``failures``, ``worker_queue``, ``parked_items``, ``session_moves``,
``session_states``, ``session_holds``, ``session_watches``, ``activity_waits``, ``resources``, ``quotas``, ``timeline``
and ``database_identity``. It promises exactly the behaviour that the conformance suite
(`affinity_conformance.providers`) asserts.

`Provider` is three protocols: `WorkerProvider` (worker_side.py), `ClientProvider` (client_side.py) and
`AdministrationProvider` (administration.py); they have `ProviderConnection` (connection.py) in common. The
records that they take and return are in modules by subject: workers, hints, work_items, sessions, instances, turns,
retention, management. Import all of them from this package. The tables and verbs of guests, such as
`affinity.schedules.store.contract.ScheduleProvider`, are theirs: see `affinity.provider.parts`.

Terms
    *alive worker*: its ``workers`` row has ``locked_until`` in the future.
    *held session*: its ``sessions`` row has ``locked_until`` in the future and its worker is alive. Its *holder* is the
    incarnation in the row.
    *live token*: the work item's row has exactly this token and its ``locked_until`` is in the future. No other worker
    can fetch such an item **while the incarnation that locked it is alive**. When that worker's lease has ended, or
    its name has a new incarnation, the item is free again, but its token still acks until another worker fetches it.
    *owned instance*: its ``instances`` row names an incarnation, and that very incarnation is alive.
    *generation*: a random name that distinguishes an instance from another one that had its id before. Ids are reused,
    generations are not.
    *suspended instance*: it waits for an operator or for other code. It has no owner, is not fetched and commits no
    turn. Nothing of it is removed: its work items run, and messages for it stay in the queue and continue to arrive.

Rules for every verb
    * One clock, the database's, read after any lock wait. Durations are seconds (float), instants aware UTC datetimes.
    * Every verb is atomic. A batch verb treats each element on its own: one refused element changes nothing and does
      not affect the others. Results come in the order of the elements.
    * A verb never leaves a transaction open across a client round trip, so a paused worker or client holds no database
      lock, also while an actor is stated. (In SQLite a transaction is one uninterrupted call, which is the nearest
      equivalent.)
    * Errors are classes of `affinity.errors`. Only errors that the data itself causes are not retryable: every other
      error of the database is a fault of its environment. After an error without ``maybe_done`` nothing was changed.
    * To *touch* a session is to set its ``locked_until`` to now + ``session_lock_timeout``. A provider may leave it out
      while it would extend the lock by less than `TOUCH_SLACK` of the timeout, so that a hot loop does not write the
      row every turn.

Timelines
    A provider that was opened with a `Timeline` belongs to one incarnation of a worker. When the database is another
    one, or has lost commits that the provider has seen, its verbs raise `DatabaseChanged`: at least `register_worker`
    and `renew_worker`, each time. The first that detects it begins a new timeline: no epoch and no message id is issued
    again, every worker lease has ended, every session has a new epoch.

Tags
    A work item and a session may have a tag, a worker several (`NewWorkItem.tag`, `WorkerTags`). A session takes its
    tag from the first work that a worker claims it for, and keeps it as long as its row, which stays while the session
    has a record of state. An item of a session that has begun goes to a worker with the *session's* tag, whatever its
    own. A worker that finds another tag at an item than at its session (`WorkItem.session_tag`) fails the item.

Actions
    A verb that clients write with is an action. While an actor is stated for the database (`affinity.actions`), guests
    add their shares to its transaction. Without an actor nothing more is read or written.

Routes
    ``worker_queue.route`` of an item:

    * ``'free'``: it is session-free.
    * ``'new'``: no worker holds its session.
    * ``'new:' + worker_id``: the same, and it is offered to that worker; or its session has a `PlannedMove` to it.
    * ``'w:' + worker_id``: that worker holds its session.

    After ``'free'`` and ``'new'``, which are for any worker, the tag of the item or its session follows:
    ``'free#gpu'``, ``'new#gpu'``. ``orchestrator_queue.route`` is ``'new'`` or ``'w:' + owner``; of a suspended
    instance it is ``'suspended'``, which no fetch reads.

    A route is computed when the row is queued, and changes when the session moves. It is only a hint for cost: every
    fetch checks the ``sessions`` or ``instances`` row, which is authoritative, and `WorkerProvider.sweep` repairs stale
    routes.

Easy to get wrong
    * Conditions. The statement that acts checks capacity, ownership, liveness and tokens. On PostgreSQL the clock is
      ``clock_timestamp()``, because ``now()`` is the start of the transaction.
    * Batches. Fetch, ack, renew and commit take many items in one round trip. A read is bounded in rows and bytes, and
      the bound applies before the lock: rows that the caller does not get are neither locked, nor counted, nor sent.
    * The parts of one turn see each other. A single SQL statement does not see its own inserts.
    * Order. No fetch returns an ordered item that is not the first of its session. Whatever removes the first item
      promotes the next in the same transaction, also when an add or another removal runs at the same time.
    * Session state. A write without a lease begins a new epoch before it changes the record; `affinity.records` has all
      fences.
    * Parts of guests. A call with a `CommitPart` of a guest that the provider does not know raises `InvalidOptions`,
      and nothing of its batch is written.
    * Prefetches. `WorkFetch.prefetched` saves activities a read, and may be empty. It is read in the transaction that
      locks the item, or after it.
    * Held rows. A call that waits for a row which another transaction goes on holding raises `LockTimeout` after a
      fraction of a second, so that its caller can do the rest of the batch; within `BRIEFLY` almost immediately. A
      renewal does not wait: it skips held rows, and renews them the next time. SQLite has no rows to hold. No verb can
      hold a row, so a provider asserts this by tests of its own.
    * Hints with a call. ``commit_turn`` sends hints after its transaction, and does not fail if a hint fails.
"""

from __future__ import annotations

from typing import Protocol

from affinity.field_words import show_all_in_help
from affinity.provider.contract.administration import AdministrationProvider
from affinity.provider.contract.client_side import ClientProvider
from affinity.provider.contract.connection import BRIEFLY, ProviderConnection
from affinity.provider.contract.failures import (
    FailureFilter,
    FailureGroup,
    FailureGroups,
    FailureKind,
    FailurePlace,
    FailureRecord,
    NewFailure,
)
from affinity.provider.contract.hints import ChangeWatch, Hint, HintSource, merge_changes
from affinity.provider.contract.instances import (
    FINISHED,
    OPEN,
    RARE_STATUSES,
    SWEPT_STATUSES,
    Deletion,
    Delivery,
    Generation,
    HistoryCursor,
    HistoryPage,
    InstanceFilter,
    InstanceInfo,
    InstanceOrder,
    InstanceStatus,
    KeyState,
    MessageKey,
    NewInstance,
    NewMessage,
    OrchestrationFetch,
    OrchestrationItem,
    QueuedMessage,
    Restart,
    Resumption,
    Suspension,
    phase_of,
)
from affinity.provider.contract.management import (
    EVENT_HEAD,
    NO_QUOTAS,
    DatabaseIdentity,
    EventOrigin,
    ExecutionInfo,
    InstanceCounts,
    InstanceSize,
    MatchingCounts,
    MessageState,
    QueueStatistics,
    Quotas,
    StatusCounts,
    TreeMember,
    WaitingWork,
)
from affinity.provider.contract.retention import NO_RETENTION, HistoryPruning, InstancePruning, Retention, Sweep
from affinity.provider.contract.sessions import (
    MAX_ASSIGNED,
    TOUCH_SLACK,
    IdleSession,
    MoveFilter,
    MoveReason,
    MoveReport,
    PlannedMove,
    PlanOutcome,
    SessionHold,
    SessionInfo,
    SessionMove,
    SessionRelease,
    SessionUse,
    SessionWatch,
    TakenSession,
)
from affinity.provider.contract.turns import (
    InstanceUpdate,
    InstanceValue,
    MessageReply,
    Placed,
    Release,
    Reset,
    Suspend,
    Turn,
    TurnResult,
    ValueWrite,
    last_values,
)
from affinity.provider.contract.work_items import (
    NEWER_SECONDS,
    OFFER_SECONDS,
    EndedWaits,
    FetchOptions,
    NewWorkItem,
    QueuePart,
    Timeouts,
    Token,
    WaitFailure,
    WorkAbandon,
    WorkAck,
    WorkFetch,
    WorkItem,
    WorkItemInfo,
    WorkItemState,
    WorkKey,
    WorkLock,
)
from affinity.provider.contract.worker_side import WorkerProvider
from affinity.provider.contract.workers import (
    LEFT,
    LEFT_BEHIND,
    NO_TAGS,
    SLOTS,
    FleetLoad,
    Incarnation,
    Interfaces,
    RegisteredCode,
    RegisteredNames,
    WorkerDemand,
    WorkerIdentity,
    WorkerInfo,
    WorkerLease,
    WorkerLoad,
    WorkerProfile,
    WorkerTags,
    has_tag,
)

__all__ = [
    "BRIEFLY",
    "EVENT_HEAD",
    "FINISHED",
    "LEFT",
    "LEFT_BEHIND",
    "MAX_ASSIGNED",
    "NEWER_SECONDS",
    "NO_QUOTAS",
    "NO_RETENTION",
    "NO_TAGS",
    "OFFER_SECONDS",
    "OPEN",
    "RARE_STATUSES",
    "SLOTS",
    "SWEPT_STATUSES",
    "TOUCH_SLACK",
    "AdministrationProvider",
    "ChangeWatch",
    "ClientProvider",
    "DatabaseIdentity",
    "Deletion",
    "Delivery",
    "EndedWaits",
    "EventOrigin",
    "ExecutionInfo",
    "FailureFilter",
    "FailureGroup",
    "FailureGroups",
    "FailureKind",
    "FailurePlace",
    "FailureRecord",
    "FetchOptions",
    "FleetLoad",
    "Generation",
    "Hint",
    "HintSource",
    "HistoryCursor",
    "HistoryPage",
    "HistoryPruning",
    "IdleSession",
    "Incarnation",
    "InstanceCounts",
    "InstanceFilter",
    "InstanceInfo",
    "InstanceOrder",
    "InstancePruning",
    "InstanceSize",
    "InstanceStatus",
    "InstanceUpdate",
    "InstanceValue",
    "Interfaces",
    "KeyState",
    "MatchingCounts",
    "MessageKey",
    "MessageReply",
    "MessageState",
    "MoveFilter",
    "MoveReason",
    "MoveReport",
    "NewFailure",
    "NewInstance",
    "NewMessage",
    "NewWorkItem",
    "OrchestrationFetch",
    "OrchestrationItem",
    "Placed",
    "PlanOutcome",
    "PlannedMove",
    "Provider",
    "ProviderConnection",
    "QueuePart",
    "QueueStatistics",
    "QueuedMessage",
    "Quotas",
    "RegisteredCode",
    "RegisteredNames",
    "Release",
    "Reset",
    "Restart",
    "Resumption",
    "Retention",
    "SessionHold",
    "SessionInfo",
    "SessionMove",
    "SessionRelease",
    "SessionUse",
    "SessionWatch",
    "StatusCounts",
    "Suspend",
    "Suspension",
    "Sweep",
    "TakenSession",
    "Timeouts",
    "Token",
    "TreeMember",
    "Turn",
    "TurnResult",
    "ValueWrite",
    "WaitFailure",
    "WaitingWork",
    "WorkAbandon",
    "WorkAck",
    "WorkFetch",
    "WorkItem",
    "WorkItemInfo",
    "WorkItemState",
    "WorkKey",
    "WorkLock",
    "WorkerDemand",
    "WorkerIdentity",
    "WorkerInfo",
    "WorkerLease",
    "WorkerLoad",
    "WorkerProfile",
    "WorkerProvider",
    "WorkerTags",
    "has_tag",
    "last_values",
    "merge_changes",
    "phase_of",
]


class Provider(WorkerProvider, ClientProvider, AdministrationProvider, Protocol):
    """A database in which workers and clients meet: all verbs of the three sides."""


show_all_in_help(globals())
