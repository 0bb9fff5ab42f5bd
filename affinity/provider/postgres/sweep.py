"""The sweep: repair of stale routes in both queues, and removal of rows that are no longer needed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.errors import ProviderError
from affinity.limits import DRAINED_RETENTION_SECONDS, MAX_REROUTE, SWEEP_ROWS
from affinity.provider.contract import LEFT, NO_RETENTION, OFFER_SECONDS, Retention, Sweep
from affinity.provider.postgres.old_data import remove_old
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import expressions
from affinity.provider.statements import load_statements, with_columns

WINDOW: Final = 5_000
"""Queued sessions, and session rows, that one sweep looks at: some tens of milliseconds, however many there are."""

DEAD: Final = 50_000
"""Dead rows of a queue that are worth a vacuum: some tens of megabytes."""

TOO_MANY: Final = 1_000_000
"""Dead rows that our vacuums must have failed to remove: something keeps them visible, and looking at all of them again
and again would make it worse. Then it is left to autovacuum.
"""

HALF_SENT: Final = 5.0
"""Seconds after which the rest of a request that the server has begun will not come: it was sent with its beginning."""

_SQL: Final = load_statements(__package__, "sweep.sql")
_VACUUM: Final[dict[str, LiteralString]] = {
    # Without truncation, for which all others would have to wait.
    table: f"VACUUM (SKIP_LOCKED, TRUNCATE false) {table}"
    for table in ("worker_queue", "orchestrator_queue")
}


async def sweep(
    db: Database,
    *,
    interval: float,
    session_retention: float,
    worker_retention: float,
    retention: Retention = NO_RETENTION,
) -> Sweep:
    """Sweep, and vacuum the queues if this role owns them.

    Autovacuum runs once a minute by default. Meanwhile a busy queue of a hundred rows grows by hundreds of
    megabytes, which no longer fit into the server's memory.
    """
    begun = await db.connections.misc.run(_SQL["begin"], {"interval": float(interval)})
    if not begun:
        return Sweep(swept=False)
    *places, pruned_to = begun[0]
    bounds = {
        **dict(zip(("queued_session", "queued_route", "session"), places, strict=True)),
        "window": Int8(WINDOW),
        "reroute": Int8(MAX_REROUTE),
        "rows": Int8(SWEEP_ROWS),
        "offer_seconds": OFFER_SECONDS,
        "left": LEFT,
        "session_retention": float(session_retention),
        "worker_retention": float(worker_retention),
        "drained_retention": max(float(worker_retention), DRAINED_RETENTION_SECONDS),
        "dead": Int8(DEAD),
        "too_many": Int8(TOO_MANY),
        "half_sent": HALF_SENT,
        "application_name": db.connections.target.conninfo.get("application_name"),
    }
    (
        [(begun,)],
        _,
        [(items, messages, sessions, workers, holds, bloated, _, *due)],
    ) = await db.connections.misc.pipeline(_repair(), bounds)
    more = max(items, messages) >= MAX_REROUTE
    if more:
        await db.connections.misc.run(_SQL["again"])
    for table in bloated:
        with suppress(ProviderError):  # it took too long, or there was no room for it: another time
            await db.connections.misc.simple_query(_VACUUM[table])
    old = await remove_old(db, retention, pruned_to)
    swept = Sweep(
        swept=True,
        rerouted=begun + items + messages,
        sessions_removed=sessions,
        workers_removed=workers,
        limit_reached=more,
        backlog=max(begun, sessions, workers, holds) >= SWEEP_ROWS,
        due=dict(zip(expressions("due"), due, strict=True)),
    )
    return replace(swept, **{**old, "backlog": swept.backlog or bool(old["backlog"])})


@cache
def _repair() -> tuple[LiteralString, LiteralString, LiteralString]:
    """Return the statements of a sweep, with the columns of the guests."""
    return _SQL["begin_next"], _SQL["end_plans"], with_columns(_SQL["repair"], expressions("due").values())
