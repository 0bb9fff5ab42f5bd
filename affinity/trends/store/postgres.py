"""Trends on PostgreSQL: counting in one statement, and reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import SWEEP_ROWS
from affinity.provider.contract import Retention
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import CHANGE, READ, RUN, PostgresPart, Rights
from affinity.provider.statements import load_statements
from affinity.trends.store.contract import (
    LAG,
    MAX_WAITING_ROWS,
    STEP_ROWS,
    WAITING_ROWS,
    TrendKind,
    TrendRows,
    TrendSum,
)
from affinity.trends.store.rows import to_trend_row, to_trend_sum

_SQL: Final = load_statements(__package__, "postgres.sql")


async def count_trends(db: Database, *, pause: float, keep: float) -> float:
    begun = await db.connections.misc.run(_SQL["begin"], {"pause": float(pause)})
    if not begun:
        ((left,),) = await db.connections.misc.run(_SQL["due"])
        return max(0.0, float(left))
    ((counted_to,),) = begun
    params = {
        "counted_to": counted_to,
        "keep": float(keep),
        "lag": LAG,
        "rows": Int8(STEP_ROWS),
        "waiting": Int8(WAITING_ROWS),
        "most_waiting": Int8(MAX_WAITING_ROWS),
    }
    counted = await db.connections.misc.run(_SQL["count"], params)
    return 0.0 if counted and counted[0][0] else float(pause)


async def read_trends(db: Database, kind: TrendKind, name: str, minutes: int) -> TrendRows:
    ((now, counted_to, present),) = await db.connections.misc.run(_SQL["counted_to"])
    params = {"kind": kind, "name": name, "since": Int8(present - minutes)}
    return TrendRows(
        now, counted_to, [to_trend_row(row) for row in await db.connections.misc.run(_SQL["read"], params)]
    )


async def sum_trends(db: Database, minutes: int, limit: int) -> Sequence[TrendSum]:
    rows = await db.connections.misc.run(_SQL["sum"], {"minutes": Int8(minutes), "limit": Int8(limit)})
    return [to_trend_sum(row) for row in rows]


async def remove_old(db: Database, keep: Retention) -> tuple[int, bool]:
    """Remove minutes that are old enough, at most `SWEEP_ROWS`."""
    older_than = keep.guests.get("trends")
    if older_than is None:
        return 0, False
    bounds = {"older_than": float(older_than), "limit": Int8(SWEEP_ROWS)}
    ((minutes,),) = await db.connections.misc.run(_SQL["remove"], bounds)
    return minutes, minutes >= SWEEP_ROWS


PART: Final = PostgresPart(
    verbs={"count_trends": count_trends, "read_trends": read_trends, "sum_trends": sum_trends},
    rights=(
        Rights("TABLE", "trends trend_rounds", client=READ, worker=CHANGE),
        Rights("FUNCTION", "add_durations", worker=RUN),
    ),
    due="coalesce((SELECT extract(epoch FROM r.due_at - clock())::float8 FROM trend_rounds r), 0)",
    remove_old=remove_old,
)
