"""Planned moves: a session goes from its holder to a named worker while nothing of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.provider.contract import PlannedMove, PlanOutcome, TakenSession, WorkerIdentity
from affinity.provider.sqlite import sessions, workers
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.sessions import Lease, offer_route
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "planned_moves.sql")


def plan(tx: Tx, moves: Sequence[PlannedMove]) -> list[PlanOutcome]:
    leases = sessions.read_leases(tx, [move.session_id for move in moves])
    return [_plan(tx, move, leases.get(move.session_id)) for move in moves]


def _plan(tx: Tx, move: PlannedMove, lease: Lease | None) -> PlanOutcome:
    if lease is None or not lease.held:
        return "not_held"
    if lease.worker_id == move.to:
        return "at_target"
    if not workers.takes_work(tx, move.to, lease.tag):
        return "unavailable"
    named = {"session_id": move.session_id, "now": tx.now}
    if move.within is None and (lease.next_worker is not None or tx.value(SQL["has_work_or_hold"], named)):
        return "busy"
    tx.run(SQL["plan"], {**named, "target": move.to, "within": move.within, "reason": move.reason})
    sessions.reroute(tx, [move.session_id], offer_route(move.to))
    return "planned"


def take(
    tx: Tx, identity: WorkerIdentity, session_ids: Sequence[str], *, max_sessions: int, session_lock: float
) -> list[TakenSession]:
    caller = workers.read_caller(tx, identity)
    if not caller.alive or caller.draining:
        return []
    room = max(0, max_sessions - sessions.count_held(tx, identity))
    wanted = {"session_ids": to_json(list(session_ids)), "worker_id": identity.worker_id, "now": tx.now}
    idle = sorted(tx.gather(SQL["idle"], wanted))[:room]
    former = sessions.read_leases(tx, idle)
    epochs = sessions.claim(tx, identity, dict(former), session_lock, tags={})
    tx.run(SQL["keep_holds"], {"session_ids": to_json(idle)})
    return [TakenSession(name, epochs[name], former[name].worker_id) for name in idle]
