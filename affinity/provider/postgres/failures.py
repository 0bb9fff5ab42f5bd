"""Failures: listing and counting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_FAILURE_GROUPS, MAX_PAGE
from affinity.provider.contract import FailureFilter, FailureGroups, FailureRecord
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.rows import (
    STATEMENTS_OF_FAILURES,
    failure_conditions,
    newest_failures,
    to_failure,
    to_failure_groups,
)
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "failures.sql")


async def list_failed_attempts(
    db: Database, instance_id: str, execution_id: int, limit: int
) -> Sequence[FailureRecord]:
    params = {"instance": instance_id, "execution": Int8(execution_id), "limit": Int8(min(limit, MAX_PAGE))}
    return [to_failure(row, same_time) for row in await db.connections.quick.run(_SQL["attempts"], params)]


async def list_failures(db: Database, where: FailureFilter, limit: int) -> Sequence[FailureRecord]:
    parts, given = failure_conditions(where)
    params: dict[str, Any] = {name: Int8(each) if isinstance(each, int) else each for name, each in given.items()}
    params |= {"seconds": float(where.seconds), "limit": Int8(min(limit, MAX_PAGE))}
    names = STATEMENTS_OF_FAILURES.get(where.kind, ("list_failures",))
    found = [row for name in names for row in await db.connections.misc.run(with_parts(_SQL[name], parts), params)]
    return newest_failures([to_failure(row, same_time) for row in found], min(limit, MAX_PAGE))


async def group_failures(db: Database, seconds: float, limit: int, *, most: int) -> FailureGroups:
    ((now,),) = await db.connections.misc.run(_SQL["now"])
    params = {"seconds": float(seconds), "groups": Int8(MAX_FAILURE_GROUPS), "limit": Int8(most + 1)}
    rows = [row for name in ("groups", "groups_suspended") for row in await db.connections.misc.run(_SQL[name], params)]
    return to_failure_groups(now, rows, limit, most, same_time)
