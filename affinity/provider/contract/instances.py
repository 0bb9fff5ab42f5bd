"""Records of orchestration instances: creation, messages, histories, and what listings show."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence, Set
from dataclasses import field
from datetime import datetime
from typing import Final, Literal, NamedTuple, NewType, TypeAlias, get_args

from affinity.limits import check_conditions
from affinity.records import Gate, Labels, frozen

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
    # Seconds until the start message is visible, and the Unix time before which it is not. Until then the instance
    # waits to start: messages to it become visible with the start message, behind it.
    delay: float = 0.0
    not_before: float = 0.0
    on_exists: str | None = None  # payload sent to ``parent_id`` when the id was taken
    parent_generation: Generation | None = None  # of the parent that creates it
    on_deleted: str | None = None  # payload sent to that parent when the instance is deleted before it has ended
    session_id: str | None = None  # shown in logs and listings; a child has its parent's
    generation: Generation = field(default_factory=lambda: Generation(secrets.token_hex(8)))
    labels: Labels | None = None  # texts by key, to be found by; None: it has none
    # Its start message waits at this gate, and with it all messages to it; it keeps the place until it ends.
    gate: Gate | None = None


RestartWhen: TypeAlias = Literal["ended", "waiting", "next"]


@frozen(kw_only=True)
class Restart:
    """A new generation of an ended instance, which begins with a start message in its next execution; or a start for an
    id whose instance has not ended, by ``when``:

    - "ended": it has ended, and begins again now.
    - "waiting": it waits to start, with a delay, and no worker has taken it. It gets the start message, version,
      session, gate and time of ``new``, but begins at most ``within`` seconds after it was first started. It keeps its
      generation, and the messages that were sent to it.
    - "next": it has not ended. It begins again when it has: a sweep does it. Of several such starts the last one
      counts, with the generation of the first. ``cancel`` is sent to the instance, in the same transaction.

    A new generation has the id, the name and the time of creation of the former one, and nothing else: it has the
    session, labels and version of ``new``, and no parent. Messages to the former one, and results of its work, do not
    reach it. The history of the former one stays, as the history of an earlier execution.
    """

    new: NewInstance  # without a parent
    ended: Generation  # of the instance that has ended, or is to, as the caller has seen it
    when: RestartWhen = "ended"
    within: float | None = None  # "waiting": None: however long that puts it off
    cancel: str | None = None  # "next": payload, sent with `NewMessage.ends_wait`


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
    # An instance that waits to start, or at its gate, waits no longer, and has this message before its start message.
    # It has no place at the limits of that gate.
    ends_wait: bool = False


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
    value_bytes: int = 0  # of its values: 0: it has none


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
    updated_at: datetime  # of one that has ended: when it did
    generation: Generation
    session_id: str | None = None  # given at its start, or at its parent's start
    starts_at: datetime | None = None  # while it is pending: when its delayed start is due, or was
    next: Generation | None = None  # generation of the start that waits for its end: `Restart.when`
    labels: Labels = field(default_factory=dict)
    suspension: Suspension | None = None  # while it is suspended


InstanceOrder: TypeAlias = Literal["started", "ended", "duration"]
"""The order of a listing: by ``created_at``; by the time of the end; or by the seconds from the start to the end. The
last two have the instances that have ended.
"""


@frozen(kw_only=True)
class InstanceFilter:
    """Which instances to list, and in which order: by default by (created_at, instance_id), newest first."""

    status: Collection[InstanceStatus] = ()  # empty: any
    name: str | None = None
    prefix: str | None = None  # of the instance id
    parent_id: str | None = None
    reason: str | None = None  # suspended for this: `Suspension.error_type`
    session_id: str | None = None  # given at their start, or at their parent's start
    version: str | None = None  # of the orchestration
    name_suffix: str | None = None  # of the name of the orchestration
    without_suffix: Collection[str] = ()  # the name has none of these
    labels: Labels = field(default_factory=dict)  # has all of these
    created_since: datetime | None = None
    created_before: datetime | None = None
    # Only so many of the first instances are looked at, wherever the page begins: of those of this time, and with the
    # labels or rare statuses by which a listing reads. None: all.
    # Ordered by "ended": of those that ended last, or first; by "duration", for which it is given: that ended last.
    most: int | None = None
    oldest_first: bool = False  # or those that ended first, or took the shortest time
    order: InstanceOrder = "started"
    # Keyset cursor: (created_at, instance_id) of the last row seen; ordered by "ended" its ``updated_at`` instead; by
    # "duration" there is one page.
    after: tuple[datetime, str] | None = None

    def __post_init__(self) -> None:
        check_conditions(self)
        if self.order == "duration" and (self.most is None or self.after is not None):
            raise ValueError("a listing by duration looks at so many of the last ended instances, and has one page")

    @property
    def rare_statuses(self) -> Sequence[InstanceStatus]:
        """The wanted statuses, if few instances have them: then a listing reads by status, since a walk by age would be
        long. Empty: other statuses are wanted too, or the index of a parent or a session is shorter.
        """
        has_other = self._is_short or self.by_label or self.by_end
        return [] if has_other or not self._wanted <= RARE_STATUSES else sorted(self._wanted)

    @property
    def by_label(self) -> bool:
        """Whether a listing reads by a label: it has labels, and the index of a parent or a session is not shorter."""
        return bool(self.labels) and not self._is_short and not self.by_end

    @property
    def by_end(self) -> bool:
        """Whether a listing reads the instances by the time of their end."""
        return self.order != "started"

    @property
    def is_placed(self) -> bool:
        """Whether labels, statuses, ids and times tell which instances fit: a count by an index reads no others."""
        by_row = (self.name, self.version, self.reason, self.name_suffix)
        return not any(wanted is not None for wanted in by_row) and not self.without_suffix

    @property
    def phases(self) -> Sequence[str]:
        """The phases of the labels that a listing by label reads."""
        return sorted({phase_of(status) for status in self._wanted or get_args(InstanceStatus)})

    @property
    def _wanted(self) -> Set[InstanceStatus]:
        """The wanted statuses; empty: all."""
        return {"suspended"} if self.reason is not None and not self.status else {*self.status}

    @property
    def _is_short(self) -> bool:
        return self.parent_id is not None or self.session_id is not None


OPEN: Final = "open"
"""The phase of the statuses "pending" and "running"; any other status is a phase of its own."""


def phase_of(status: InstanceStatus) -> str:
    """The phase under which the labels of an instance of this status are found."""
    return OPEN if status in {"pending", "running"} else status


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
