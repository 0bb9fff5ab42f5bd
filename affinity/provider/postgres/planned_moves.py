"""Planned moves: a session goes from its holder to a named worker while nothing of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import PlannedMove, PlanOutcome, TakenSession, WorkerIdentity
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.fetching import CLAIM_ALONE
from affinity.provider.postgres.operations import Database, caller_params
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "planned_moves.sql")
_TAKE: Final = (CLAIM_ALONE, _SQL["lock"], _SQL["take"])


async def move_session(db: Database, moves: Sequence[PlannedMove]) -> Sequence[PlanOutcome]:
    if not moves:
        return []
    params: Params = {
        "session": [move.session_id for move in moves],
        "target": [move.to for move in moves],
        "within": [move.within for move in moves],
        "reason": [move.reason for move in moves],
        "reroute": Int8(MAX_REROUTE),
    }
    plan, params = with_shares(db.shares, _SQL["plan"], _SQL["planned"], params)
    *_, rows = await db.connections.rows.pipeline((_SQL["lock"], plan), params)
    return [outcome for _, outcome in rows]


async def take_session(
    db: Database, identity: WorkerIdentity, session_ids: Sequence[str], *, max_sessions: int, session_lock: float
) -> Sequence[TakenSession]:
    if not session_ids:
        return []
    params = {
        **caller_params(identity),
        "session": list(session_ids),
        "max_sessions": Int8(max_sessions),
        "session_lock": float(session_lock),
        "reroute": Int8(MAX_REROUTE),
    }
    *_, rows = await db.connections.fetch.pipeline(_TAKE, params)
    return [TakenSession(*row) for row in rows]
