"""Moves of sessions: what their new holders report, and listing them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_EPOCH, MAX_PAGE
from affinity.provider.contract import MoveFilter, MoveReason, MoveReport, SessionMove, SessionUse
from affinity.provider.postgres.driver.arrays import Floats, Ints, Texts
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.rows import page_of_moves, to_session_use
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "moves.sql")


async def report_session_moves(db: Database, reports: Sequence[MoveReport]) -> Sequence[MoveReason | None]:
    params = {
        "epoch": Ints(report.epoch for report in reports),
        "seconds": Floats(report.hydrate_seconds for report in reports),
        "bytes": Ints(report.hydrate_bytes for report in reports),
        "resources": Texts([_resources(report) for report in reports]),
    }
    reasons: dict[int, MoveReason] = dict(await db.connections.rows.run(_SQL["report"], params))
    return [reasons.get(n) for n in range(1, len(reports) + 1)]


def _resources(report: MoveReport) -> str | None:
    return json.dumps(dict(report.resource_seconds)) if report.resource_seconds else None


async def list_session_moves(
    db: Database, where: MoveFilter, *, after: int | None = None, before: int | None = None, limit: int = 100
) -> Sequence[SessionMove]:
    conditions = {"session": where.session_id, "worker": where.worker_id, "reason": where.reason}
    given = {name: value for name, value in conditions.items() if value is not None}
    statement = with_parts(_SQL["list"], frozenset(given))
    if after is not None:
        statement = statement.replace("DESC", "ASC")
    params = {
        **given,
        "after": Int8(after or 0),
        "before": Int8(before or MAX_EPOCH),
        "limit": Int8(min(limit, MAX_PAGE)),
    }
    rows = await db.connections.misc.run(statement, params)
    return page_of_moves(rows, same_time, limit, newest=after is None)


async def list_session_uses(db: Database, session_id: str, *, limit: int = 100) -> Sequence[SessionUse]:
    params = {"session": session_id, "limit": Int8(min(limit, MAX_PAGE))}
    return [to_session_use(row, same_time) for row in await db.connections.quick.run(_SQL["uses"], params)]
