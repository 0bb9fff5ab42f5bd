"""Where a session has been: its holders one after another, and who holds it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta

from affinity.explain.words import counted
from affinity.provider.contract import LEFT, MoveFilter, MoveReason, Provider, SessionInfo, SessionMove, WorkerInfo
from affinity.records import frozen


@frozen(kw_only=True)
class SessionHolding:
    """The time for which one worker has held a session under one epoch."""

    worker_id: str
    epoch: int
    reason: MoveReason  # for which it came to this worker
    since: datetime
    until: datetime | None  # None: it holds the session now, or was the last holder, or the end is unknown
    gap_seconds: float | None  # before it, without a holder; None: unknown, or there was no holder before
    queued: int  # work items of the session when it came
    hydrate_seconds: float | None  # of the first hydrate, once the holder has reported it
    hydrate_bytes: int | None
    resource_seconds: Mapping[str, float] = field(default_factory=dict)  # of the first load of each resource, by name


@frozen(kw_only=True)
class SessionLife:
    """The holders of a session, and how it is now."""

    session_id: str
    holdings: Sequence[SessionHolding]  # oldest first, as far as retention has kept the moves
    has_more: bool  # there are older ones
    now: SessionInfo | None  # its lease; None: it has none, and its next work begins another
    free_seconds: float | None  # for which no worker has held it; None: one does, or that is unknown
    sentence: str  # who holds it


async def session_life(provider: Provider, session_id: str, limit: int) -> SessionLife:
    """The last ``limit`` holders of a session.

    Raises:
        ProviderError: the database does not answer.
    """
    moves = await provider.list_session_moves(MoveFilter(session_id=session_id), limit=limit + 1)
    now = next(iter(await provider.list_sessions([session_id])), None)
    holder = None if now is None or now.held else await _last_holder(provider, now)
    draining = now is not None and now.held and await _drains(provider, now.worker_id)
    return SessionLife(
        session_id=session_id,
        holdings=_holdings(moves)[-limit:],
        has_more=len(moves) > limit,
        now=now,
        free_seconds=_free_seconds(now, holder),
        sentence=f"session {session_id!r} {_state(now, draining=draining)}",
    )


async def _drains(provider: Provider, worker_id: str) -> bool:
    """Reads no number of sessions, as `list_workers` does: they may be many."""
    return any(one.draining for one in (await provider.get_load()).workers if one.worker_id == worker_id)


async def _last_holder(provider: Provider, session: SessionInfo) -> WorkerInfo | None:
    """The process that was the last to hold the session, while the database knows it."""
    lease = session.worker_id, session.incarnation
    return next((one for one in await provider.list_workers() if (one.worker_id, one.incarnation) == lease), None)


def _holdings(moves: Sequence[SessionMove]) -> list[SessionHolding]:
    return [
        SessionHolding(
            worker_id=move.to_worker,
            epoch=move.epoch,
            reason=move.reason,
            since=move.moved_at,
            until=None if after is None else _end_before(after),
            gap_seconds=move.gap_seconds,
            queued=move.queued,
            hydrate_seconds=move.hydrate_seconds,
            hydrate_bytes=move.hydrate_bytes,
            resource_seconds=move.resource_seconds,
        )
        for move, after in zip(moves, [*moves[1:], None], strict=False)  # without a move, none
    ]


def _end_before(move: SessionMove) -> datetime | None:
    """When the holder before a move has ended."""
    if move.reason == "foreign_write":
        return move.moved_at
    return None if move.gap_seconds is None else move.moved_at - timedelta(seconds=move.gap_seconds)


def _free_seconds(session: SessionInfo | None, holder: WorkerInfo | None) -> float | None:
    if session is None or session.held or (holder is None and session.expires_in > 0):
        return None
    return -min(session.expires_in, 0.0 if holder is None else holder.expires_in)


def _state(session: SessionInfo | None, *, draining: bool) -> str:
    if session is None:
        return "has no lease: a worker takes it with its next work"
    work = ""
    if session.queued:
        does = "runs or waits" if session.queued == 1 else "run or wait"
        work = f"; {counted(session.queued, 'activity', 'activities')} of it {does}"
    if not session.held:
        last = f", the last holder was worker {session.worker_id!r}" if session.worker_id else ""
        return f"is held by no worker{last}; a worker takes it with its next work{work}"
    text = f"is held by worker {session.worker_id!r} under epoch {session.epoch}"
    if session.next_worker is not None:
        text += f" and moves to worker {session.next_worker!r} as its work ends"
    elif session.incarnation.startswith(LEFT):
        text += ", which has left for a restart"
    elif draining:
        text += ", which drains"
    return text + work
