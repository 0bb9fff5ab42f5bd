"""Records of orchestration instances: creation, messages, histories, and what listings show."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence, Set
from dataclasses import field
from datetime import datetime
from typing import Final, Literal, NamedTuple, NewType, TypeAlias

from affinity.limits import check_conditions
from affinity.records import frozen

Generation = NewType("Generation", str)
"""A random name of one instance; an instance that is created under the same id after a deletion has another."""


InstanceStatus: TypeAlias = Literal["pending", "running", "suspended", "completed", "failed", "cancelled"]


FINISHED: Final[frozenset[str]] = frozenset({"completed", "failed", "cancelled"})


RARE_STATUSES: Final[frozenset[InstanceStatus]] = frozenset({"suspended", "failed", "cancelled"})
"""Statuses that few of many instances have."""


SWEPT_STATUSES: Final[frozenset[str]] = frozenset({"completed", "cancelled"})
"""Statuses of ended instances that a sweep removes. A failed one may be opened again, by `Provider.reset_instance`."""


@frozen(kw_only=True)
class NewInstance:
    """An instance to create together with its start message; nothing is created when the id exists."""

    instance_id: str
    name: str  # registered name of the orchestration
    version: str | None  # None: the worker that first runs it pins its latest version
    start: str  # payload of the start message
    parent_id: str | None = None
    delay: float = 0.0  # seconds until the start message is visible
    on_exists: str | None = None  # payload sent to ``parent_id`` when the id was taken
    parent_generation: Generation | None = None  # of the parent that creates it
    on_deleted: str | None = None  # payload sent to that parent when the instance is deleted before it has ended
    session_id: str | None = None  # shown in logs and listings; a child has its parent's
    generation: Generation = field(default_factory=lambda: Generation(secrets.token_hex(8)))


@frozen(kw_only=True)
class Restart:
    """A new generation of an ended instance, which begins with a start message in its next execution.

    It has the id, the name and the time of creation of the former one, and nothing else: it has the session and version
    of ``new``, and no parent. Messages to the former one, and results of its work, do not reach it. The history of the
    former one stays, as the history of an earlier execution.
    """

    new: NewInstance  # without a parent
    ended: Generation  # of the instance that has ended, as the caller has seen it


@frozen(kw_only=True)
class NewMessage:
    """A message for an instance; dropped when the instance does not exist, has finished, or has another generation."""

    instance_id: str
    payload: str
    delay: float = 0.0  # seconds until it is visible: timers
    timer: tuple[int, int] | None = None  # (execution id, event id), if it is a timer, so that it can be cancelled
    generation: Generation | None = None  # of the receiver; None: any instance with that id
    unread_limit: int | None = None  # refused when the instance has so many unread messages: see `Turn.unread`
    key: str | None = None  # an instance gets one message of this key: see `Provider.send_message`


class QueuedMessage(NamedTuple):
    """A message in ``orchestrator_queue``; it stays there until a turn that consumed it commits."""

    id: int
    payload: str


@frozen(kw_only=True)
class OrchestrationItem:
    """An instance that the caller now owns, with its visible messages in order of visibility, then of arrival."""

    instance_id: str
    generation: Generation
    execution_id: int
    name: str
    version: str | None
    event_count: int  # events in the history of the current execution: the fence of the next turn
    claims: int  # times that a worker took ownership since the last commit of a turn: a poison count
    unknown_for: float | None
    messages: Sequence[QueuedMessage]
    session_id: str | None = None  # given at the start of the instance, or of its parent


@frozen(kw_only=True)
class OrchestrationFetch:
    """Answer to `Provider.fetch_orchestration_item`."""

    items: Sequence[OrchestrationItem]
    claim_lost: bool
    next_due: float | None  # seconds until a message becomes visible that is ours or unclaimed; 0: some may be left
    unclaimed_remaining: bool = False  # as in `WorkFetch`
    fenced: bool = False  # another process has the caller's name: it gets nothing


class HistoryCursor(NamedTuple):
    """A place in the history of one execution."""

    instance_id: str
    execution_id: int
    after: int = 0  # events that are read already


@frozen(kw_only=True)
class HistoryPage:
    """The next events of one execution, oldest first."""

    events: Sequence[str]
    more: bool  # there may be more behind them


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
    generation: Generation
    session_id: str | None = None  # given at its start, or at its parent's start
    suspension: Suspension | None = None  # while it is suspended


@frozen(kw_only=True)
class InstanceFilter:
    """Which instances to list, newest first by (created_at, instance_id)."""

    status: Collection[InstanceStatus] = ()  # empty: any
    name: str | None = None
    prefix: str | None = None  # of the instance id
    parent_id: str | None = None
    reason: str | None = None  # suspended for this: `Suspension.error_type`
    session_id: str | None = None  # given at their start, or at their parent's start
    version: str | None = None  # of the orchestration
    created_since: datetime | None = None
    created_before: datetime | None = None
    most: int | None = None  # only this number of the newest instances behind the cursor are looked at; None: all
    after: tuple[datetime, str] | None = None  # keyset cursor: (created_at, instance_id) of the last row seen

    def __post_init__(self) -> None:
        check_conditions(self)

    @property
    def rare_statuses(self) -> Sequence[InstanceStatus]:
        """The wanted statuses, if few instances have them: then a listing reads by status, since a walk by age would be
        long. Empty: other statuses are wanted too, or the index of a parent or a session is shorter.
        """
        found: Set[InstanceStatus] = {"suspended"} if self.reason is not None and not self.status else {*self.status}
        is_short = self.parent_id is not None or self.session_id is not None
        return [] if is_short or not found <= RARE_STATUSES else sorted(found)


Delivery: TypeAlias = Literal["delivered", "repeated", "unknown", "finished", "full", "over_quota"]


class MessageKey(NamedTuple):
    """The key of a message to an instance: `NewMessage.key`."""

    instance_id: str
    key: str


@frozen(kw_only=True)
class KeyState:
    """The state of the message of a key, and of its instance."""

    generation: Generation  # of the instance: another one may have its id by now
    name: str  # of the orchestration
    status: InstanceStatus
    error: str | None  # JSON, when failed or cancelled
    is_known: bool  # the instance has got a message of this key
    is_answered: bool
    reply: str | None  # JSON; None also when it is left out of this answer: ask again


Deletion: TypeAlias = Literal["deleted", "unknown", "running"]


Resumption: TypeAlias = Literal["resumed", "unknown", "not_suspended"]
