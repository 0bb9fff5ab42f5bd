"""Records of sessions: holds, watches, releases and what listings show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from affinity.limits import check_conditions
from affinity.provider.contract.workers import Incarnation
from affinity.records import frozen

TOUCH_SLACK: Final = 0.02
"""Share of the session lock timeout that a touch may fall short of."""


class SessionHold(NamedTuple):
    """Keeps a session with its holder while nothing of it runs, for at most ``seconds`` from the commit.

    If an alive worker holds the session, its lock is extended to that time. The hold keeps no session of a holder that
    dies, drains or releases it. A touch never shortens a lock. When the hold ends (``Turn.ended_holds``, or the end of
    its execution), the lock is shortened to the session lock timeout from now, or to the latest other hold of that
    session.
    """

    session_id: str
    hold_id: int  # event id of the wait; with instance and execution it names the hold
    seconds: float


class SessionWatch(NamedTuple):
    """Sends ``payload`` to the instance each time the session's holder changes: another worker, or a new start of the
    same one. Exactly one message per change, in the transaction that makes it. A payload that is a JSON object gets a
    last member, ``"move": {"worker_id": …, "epoch": …, "reason": …}``, with the new holder and the `MoveReason`.

    The first claim of a session is no change; nor is a claim by the very incarnation that held it last. A second watch
    of the same session by the same instance replaces the payload. It ends with the instance.
    """

    session_id: str
    payload: str


MoveReason: TypeAlias = Literal[
    "new",  # no worker has held it, as far as its row says
    "idle_expired",  # its lock had ended before the lease of its holder did
    "lease_expired",  # the lease of its holder had ended, or was given up
    "restart",  # the same worker, started again
    "drained",  # its holder had freed it in order to end, or was asked to
    "code_missing",  # its holder lacked the code of its work
    "foreign_write",  # the same holder; its record was saved or deleted without the lease
    "room_needed",  # its holder was full and released it for another session
    "released",  # by `Provider.release_session`, or a turn
    "moved",  # by hand, to a worker that was named
    "rebalanced",  # to a worker with more free capacity
    "holder_busy",  # its holder had no free slot for as long as its work would wait
]
"""Why a session has another epoch."""


@frozen(kw_only=True)
class SessionMove:
    """One change of a session's holder, or one write without the lease; after each the holder hydrates."""

    session_id: str
    from_worker: str | None  # the holder before; None: none, as far as the session's row says
    to_worker: str  # the holder since
    epoch: int  # since then; no two moves have the same, and a later move of a session has a greater one
    reason: MoveReason
    moved_at: datetime
    queued: int  # work items of the session at that moment, running ones included; at most `limits.MAX_MOVE_QUEUED`
    hydrate_seconds: float | None  # of the first hydrate since, once the holder has reported it
    hydrate_bytes: int | None  # size of that state
    # Before it, for which no worker held the session. None: unknown, or no worker held it before, or the holder stays.
    gap_seconds: float | None = None
    # Of the first load of each resource since, by name, once the holder has reported it.
    resource_seconds: Mapping[str, float] = field(default_factory=dict)


@frozen(kw_only=True)
class MoveFilter:
    """Which moves to list; None: all."""

    session_id: str | None = None
    worker_id: str | None = None  # from it or to it
    reason: MoveReason | None = None

    def __post_init__(self) -> None:
        check_conditions(self)


class MoveReport(NamedTuple):
    """Facts that the holder of a session adds to the move of this epoch."""

    epoch: int
    hydrate_seconds: float | None = None  # None: nothing was hydrated
    hydrate_bytes: int | None = None
    resource_seconds: Mapping[str, float] = MappingProxyType({})  # of loads of resources, by name


@frozen(kw_only=True)
class SessionUse:
    """An instance that uses a session: by its work, by a hold, or by a watch; or is to use it, by work at a limit."""

    kind: Literal["work", "limited", "hold", "watch"]  # limited: the work waits at a gate
    instance_id: str
    activity: str | None  # the name of the work
    worker_id: str | None  # that runs the work; None: it waits
    age: float | None  # seconds for which the work runs, or is queued
    until: datetime | None  # the end of the hold


@frozen(kw_only=True)
class IdleSession:
    """A session of the caller that may make room for another one (`WorkerProvider.release_idle_session`)."""

    session_id: str
    only_user: str | None = None  # the one instance that has used it, as far as the caller knows
    in_use: bool = False  # its work comes so often that it is kept for a moment


SessionRelease: TypeAlias = Literal["released", "busy", "not_held"]

MAX_ASSIGNED: Final = 100
"""Sessions that one `WorkFetch.assigned` names at most; of each kind."""


@frozen(kw_only=True)
class PlannedMove:
    """Plans that a session goes from its holder to another worker.

    From then on the holder starts nothing new of the session: its commits do not lock items of it, its fetches pass
    them over, and they are offered to the other worker. That one takes the session (`take_session`) when its holder has
    no item of it locked. So what runs ends on the holder and is committed, and then the session moves.

    The plan ends without a move in these cases, and the items are routed back: ``within`` has passed; the other
    worker's lease ends, or it drains; it could take waiting items and does not, one to three times `OFFER_SECONDS`
    later. A session that is claimed in another way, because its holder died or its lock ended, has no plan any more. A
    new start of the holder changes nothing.

    Without ``within`` it is an *offer*: the plan lasts until the session's next work arrives, with which the other
    worker takes the session.
    """

    session_id: str
    to: str  # worker id
    within: float | None  # seconds in which the holder's running work must end; None: an offer
    reason: MoveReason = "moved"  # that is recorded with the move


PlanOutcome: TypeAlias = Literal["planned", "not_held", "at_target", "unavailable", "busy"]
"""Outcome of a `PlannedMove`: it is planned; no worker holds the session; the target holds it; the target is dead,
drains, or does not take the session's tag; or, for an offer, the session has work, a hold or a plan.
"""


class TakenSession(NamedTuple):
    """A session that has moved to the caller."""

    session_id: str
    epoch: int
    former: str  # the worker that held it


@frozen(kw_only=True)
class SessionInfo:
    """One row of ``sessions``, for people."""

    session_id: str
    worker_id: str  # the holder, or the last one; empty: none ever, a write without a lease made the row
    incarnation: Incarnation
    epoch: int
    held: bool
    expires_in: float  # of the session lock; negative when it has expired
    idle: float  # seconds since its work last touched it
    queued: int  # work items that name it, running ones included
    next_worker: str | None = None  # to which it will move, by a plan that has not ended
