"""What operators look at beside single rows: work items, executions and trees of an instance, and how much there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import (
    EVENT_HEAD,
    EventOrigin,
    ExecutionInfo,
    InstanceCounts,
    QueueStatistics,
    TreeMember,
    WorkItemInfo,
    WorkKey,
)
from affinity.provider.origins import OriginRow, origins_of
from affinity.provider.postgres.operations import Operations
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "management.sql")


class ManagementOperations(Operations):
    """`read_origins` to `count_work`."""

    async def read_origins(self, instance_id: str, execution_id: int) -> Sequence[EventOrigin]:
        params = {"instance": instance_id, "execution": Int8(execution_id)}
        return origins_of(map(OriginRow._make, await self._connections.quick.run(_SQL["origins"], params)))

    async def list_work_items(self, instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
        rows = await self._connections.quick.run(_SQL["work_items"], {"instance": instance_id, "limit": Int8(limit)})
        return [
            WorkItemInfo(
                key=WorkKey(instance_id, execution_id, activity_id),
                name=name,
                session_id=session_id,
                state="running" if worker_id is not None else "delayed" if is_later else "waiting",
                worker_id=worker_id,
                attempts=attempts,
                failures=failures,
                queued_at=queued_at,
                visible_at=visible_at,
                last_error=last_error,
            )
            for (
                execution_id,
                activity_id,
                name,
                session_id,
                worker_id,
                is_later,
                attempts,
                failures,
                queued_at,
                visible_at,
                last_error,
            ) in rows
        ]

    async def list_executions(
        self, instance_id: str, limit: int, *, before: int | None = None
    ) -> Sequence[ExecutionInfo]:
        params = {
            "instance": instance_id,
            "limit": Int8(limit),
            "before": None if before is None else Int8(before),
            "head": EVENT_HEAD,
        }
        return [
            ExecutionInfo(
                execution_id=execution_id, event_count=events, started_at=started, ended_at=ended, last_event=last
            )
            for execution_id, events, started, ended, last in await self._connections.quick.run(
                _SQL["executions"], params
            )
        ]

    async def list_tree(self, instance_id: str, limit: int) -> Sequence[TreeMember]:
        rows = await self._connections.quick.run(_SQL["tree"], {"instance": instance_id, "limit": Int8(limit)})
        return [
            TreeMember(
                instance_id=member,
                parent_id=parent,
                name=name,
                version=version,
                status=status,
                execution_id=execution_id,
                created_at=created_at,
                updated_at=updated_at,
            )
            for member, parent, name, version, status, execution_id, created_at, updated_at in rows
        ]

    async def measure_queues(self, limit: int) -> QueueStatistics:
        ((suspended, *counts, oldest_item, oldest_message),) = await self._connections.quick.run(
            _SQL["measure"], {"limit": Int8(limit)}
        )
        return QueueStatistics(
            work_items=dict(zip(("running", "waiting", "delayed"), counts[:3], strict=True)),
            messages=dict(zip(("waiting", "delayed", "suspended"), counts[3:], strict=True)),
            oldest_work_item=_positive(oldest_item),
            oldest_message=_positive(oldest_message),
            suspended=suspended,
        )

    async def count_instances(self, limit: int, *, after: str | None = None) -> InstanceCounts:
        params = {"after": after or "", "limit": Int8(limit)}
        rows = await self._connections.quick.run(_SQL["count_instances"], params)
        counts = {status: number for status, number, _ in rows}
        return InstanceCounts(counts=counts, after=rows[0][2] if sum(counts.values()) >= limit else None)

    async def count_work(self) -> Mapping[str, int]:
        (counts,) = await self._connections.misc.run(_SQL["count"])
        return dict(zip(("work_items", "messages", "sessions", "workers", "instances"), counts, strict=True))


def _positive(seconds: float | None) -> float | None:
    """What becomes visible between two looks at the clock waits since now."""
    return None if seconds is None else max(0.0, seconds)
