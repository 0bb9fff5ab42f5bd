"""Schedules: writing, reading, and which of them are due."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_PAGE
from affinity.provider.contract import DueSchedules, ScheduleRow, ScheduleWrite
from affinity.provider.postgres.audit import with_entries
from affinity.provider.postgres.driver.arrays import Ints, Texts
from affinity.provider.postgres.messages import STARTED, created_of, instance_columns
from affinity.provider.postgres.operations import Database
from affinity.provider.rows import schedule_values, to_schedule
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "schedules.sql")


async def write_schedules(db: Database, writes: Sequence[ScheduleWrite]) -> Sequence[bool]:
    if not writes:
        return []
    rows = [{"n": n, "removed": one.removed, **schedule_values(one.row)} for n, one in enumerate(writes, 1)]
    starts = [(n, new) for n, one in enumerate(writes, 1) for new in one.starts]
    params = {
        "rows": json.dumps(rows),
        "of": Ints(n for n, _ in starts),
        **instance_columns([new for _, new in starts]),
    }
    statement = _SQL["client_write" if db.as_client else "write"]
    written = await db.connections.misc.run(*with_entries(db.entries, statement, STARTED, params))
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
