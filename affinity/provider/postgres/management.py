"""Reads for operators: origins of events, work items, executions and trees of an instance, queue statistics, counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.provider.contract import (
    EVENT_HEAD,
    EventOrigin,
    ExecutionInfo,
    InstanceCounts,
    InstanceSize,
    QueuePart,
    QueueStatistics,
    StatusCounts,
    TreeMember,
    WaitingWork,
    WorkItemInfo,
)
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.postgres.parts import expressions
from affinity.provider.rows import (
    not_negative,
    to_execution,
    to_instance_counts,
    to_origins,
    to_record,
    to_status_counts,
    to_tree_member,
    to_work_item_info,
)
from affinity.provider.statements import load_statements, with_columns, with_parts

_SQL: Final = load_statements(__package__, "management.sql")


async def read_origins(db: Database, instance_id: str, execution_id: int) -> Sequence[EventOrigin]:
    params = {"instance": instance_id, "execution": Int8(execution_id)}
    return to_origins(await db.connections.quick.run(_SQL["origins"], params), same_time)


async def list_work_items(db: Database, instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
    rows = await db.connections.quick.run(_SQL["work_items"], {"instance": instance_id, "limit": Int8(limit)})
    return [to_work_item_info(row, same_time) for row in rows]


async def list_queue(db: Database, part: QueuePart, limit: int) -> Sequence[WorkItemInfo]:
    rows = await db.connections.quick.run(with_parts(_SQL["queue"], frozenset({part})), {"limit": Int8(limit)})
    return [to_work_item_info(row, same_time) for row in rows]


async def measure_instance(db: Database, instance_id: str) -> InstanceSize | None:
    rows = await db.connections.misc.run(_SQL["size"], {"instance": instance_id})
    return next((to_record(InstanceSize, row) for row in rows), None)


async def list_executions(
    db: Database, instance_id: str, limit: int, *, before: int | None = None
) -> Sequence[ExecutionInfo]:
    params = {
        "instance": instance_id,
        "limit": Int8(limit),
        "before": None if before is None else Int8(before),
        "head": EVENT_HEAD,
    }
    return [to_execution(row, same_time) for row in await db.connections.quick.run(_SQL["executions"], params)]


async def list_tree(db: Database, instance_id: str, limit: int) -> Sequence[TreeMember]:
    rows = await db.connections.quick.run(_SQL["tree"], {"instance": instance_id, "limit": Int8(limit)})
    return [to_tree_member(row, same_time) for row in rows]


async def measure_queues(db: Database, limit: int) -> QueueStatistics:
    ((suspended, parked, *columns),) = await db.connections.quick.run(_measure(), {"limit": Int8(limit)})
    counts, (waiting_sessions, oldest_item, oldest_session, oldest_message, *late) = columns[:7], columns[7:]
    return QueueStatistics(
        work_items=dict(zip(("running", "waiting", "delayed", "blocked"), counts[:4], strict=True)),
        messages=dict(zip(("waiting", "delayed", "suspended"), counts[4:], strict=True)),
        oldest_work_item=not_negative(oldest_item),
        oldest_message=not_negative(oldest_message),
        suspended=suspended,
        parked=parked,
        waiting_sessions=waiting_sessions,
        oldest_waiting_session=not_negative(oldest_session),
        late=dict(zip(expressions("late"), map(not_negative, late), strict=True)),
    )


@cache
def _measure() -> LiteralString:
    return with_columns(_SQL["measure"], expressions("late").values())


async def sample_waiting_work(db: Database, limit: int) -> Sequence[WaitingWork]:
    rows = await db.connections.quick.run(_SQL["waiting_work"], {"limit": Int8(limit)})
    return [to_record(WaitingWork, row) for row in rows]


async def count_instances(db: Database, limit: int, *, after: str | None = None) -> InstanceCounts:
    params = {"after": after or "", "limit": Int8(limit)}
    rows = await db.connections.quick.run(_SQL["count_instances"], params)
    return to_instance_counts(rows, limit)


async def count_statuses(db: Database, limit: int) -> StatusCounts:
    (row,) = await db.connections.quick.run(_SQL["count_statuses"], {"limit": Int8(limit)})
    return to_status_counts(row, limit)
