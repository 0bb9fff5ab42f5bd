"""Schedules on PostgreSQL: writing, reading, and finding those that are due."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_PAGE, PRUNE_WINDOW
from affinity.provider.contract import Retention
from affinity.provider.postgres.actions import acts, with_shares
from affinity.provider.postgres.driver.arrays import Ints, Texts
from affinity.provider.postgres.messages import STARTED, created_of, instance_columns, label_columns
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import CHANGE, READ, RUN, PostgresPart, Rights
from affinity.provider.statements import load_statements, with_parts
from affinity.schedules.store.contract import DueSchedules, ScheduleRow, ScheduleWrite
from affinity.schedules.store.rows import schedule_values, to_schedule

_SQL: Final = load_statements(__package__, "postgres.sql")


async def write_schedules(db: Database, writes: Sequence[ScheduleWrite]) -> Sequence[bool]:
    if not writes:
        return []
    rows = [{"n": n, "removed": write.removed, **schedule_values(write.row)} for n, write in enumerate(writes, 1)]
    starts = [(n, new) for n, write in enumerate(writes, 1) for new in write.starts]
    params = {
        "rows": json.dumps(rows),
        "of": Ints(n for n, _ in starts),
        **instance_columns([new for _, new in starts]),
        **label_columns([new for _, new in starts]),
    }
    statement = _SQL["client_write" if db.as_client else "write"]
    written = await db.connections.misc.run(*with_shares(db.shares, statement, STARTED, params))
    return created_of(written, len(writes))


async def get_due_schedules(db: Database, limit: int) -> DueSchedules:
    rows = await db.connections.misc.run(_SQL["due"], {"limit": Int8(limit)})
    ((now, next_due),) = await db.connections.misc.run(_SQL["next"])
    return DueSchedules(now=now, rows=[to_schedule(row) for row in rows], next_due=next_due)


async def list_schedules(
    db: Database,
    names: Collection[str] | None = None,
    *,
    app: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Sequence[ScheduleRow]:
    conditions = {
        "names": None if names is None else Texts(names),
        "app": app,
        "after": after,
        "limit": Int8(min(limit, MAX_PAGE)) if names is None else None,
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    statement = with_parts(_SQL["list"], frozenset(given))
    return [to_schedule(row) for row in await db.connections.misc.run(statement, given)]


async def remove_ended(db: Database, keep: Retention) -> tuple[int, bool]:
    """Remove clients' schedules that ended longer ago than instances are kept."""
    if keep.instances is not None:
        ended = {"older_than": float(keep.instances), "window": Int8(PRUNE_WINDOW)}
        await db.connections.misc.run(_SQL["remove_ended"], ended)
    return 0, False


PART: Final = PostgresPart(
    verbs={
        "write_schedules": acts("schedule", write_schedules),
        "get_due_schedules": get_due_schedules,
        "list_schedules": list_schedules,
    },
    rights=(
        Rights("TABLE", "schedules", client=READ, worker=CHANGE),
        Rights("FUNCTION", "client_write_schedules", client=RUN, worker=RUN, reader=""),
        Rights("FUNCTION", "is_running next_schedule", client=RUN, worker=RUN),
        Rights("FUNCTION", "write_schedules", worker=RUN),
    ),
    due="next_schedule()",
    late=_SQL["late"],
    next_due=_SQL["next_due"],
    is_endless=True,
    remove_old=remove_ended,
)
