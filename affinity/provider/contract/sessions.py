"""Records of sessions: holds, watches, releases and what listings show."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

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


@frozen(kw_only=True)
class MoveFilter:
    """Which moves to list; None: all."""

    session_id: str | None = None
    worker_id: str | None = None  # from it or to it
    reason: MoveReason | None = None


class MoveReport(NamedTuple):
    """What the holder of a session adds to the move of this epoch."""

    epoch: int
    hydrate_seconds: float | None = None  # None: nothing was hydrated
    hydrate_bytes: int | None = None


SessionRelease: TypeAlias = Literal["released", "busy", "not_held"]


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
