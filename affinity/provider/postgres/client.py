"""The client's verbs, and what people look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from psycopg.types.numeric import Int8

from affinity.errors import QuotaExceeded
from affinity.provider.contract import (
    Deletion,
    Delivery,
    InstanceFilter,
    InstanceInfo,
    NewInstance,
    NewMessage,
    Quotas,
    SessionInfo,
    Suspension,
)
from affinity.provider.postgres.base import Verbs, flags
from affinity.provider.postgres.driver.arrays import Floats, Ints, Texts
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "client.sql")
_QUOTAS: Final = ("instances", "unread_events", "instance_bytes")


class ClientVerbs(Verbs):
    """`create_instance` to `count_work`."""

    async def create_instance(self, instances: Sequence[NewInstance]) -> Sequence[bool]:
        if not instances:
            return []
        params = {
            "instance": Texts(new.instance_id for new in instances),
            "birth": Texts(new.birth for new in instances),
            "name": Texts(new.name for new in instances),
            "version": Texts(new.version for new in instances),
            "start": Texts(new.start for new in instances),
            "parent": Texts(new.parent_id for new in instances),
            "delay": Floats(new.delay for new in instances),
            "on_exists": Texts(new.on_exists for new in instances),
            "parent_birth": Texts(new.parent_birth for new in instances),
            "on_deleted": Texts(new.on_deleted for new in instances),
            "session": Texts(new.session_id for new in instances),
        }
        rows = await self._links.quick.run(_SQL["create"], params)
        for n, quota, allowed in rows:
            if n is None:
                raise QuotaExceeded(quota, allowed)
        return flags(len(instances), (n for n, *_ in rows))

    async def send_message(self, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
        if not messages:
            return []
        params = {
            "instance": Texts(message.instance_id for message in messages),
            "birth": Texts(message.birth for message in messages),
            "payload": Texts(message.payload for message in messages),
            "delay": Floats(message.delay for message in messages),
            "timer_execution": Ints(message.timer and message.timer[0] for message in messages),
            "timer_id": Ints(message.timer and message.timer[1] for message in messages),
            "unread_limit": Ints(message.unread_limit for message in messages),
        }
        deliveries: list[Delivery] = ["unknown"] * len(messages)
        for n, delivery in await self._links.quick.run(_SQL["send"], params):
            deliveries[n - 1] = delivery
        return deliveries

    async def get_instance(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        rows = await self._links.quick.run(_SQL["get"], {"instance": Texts(instance_ids)})
        found = {row[0]: _instance(row) for row in rows}
        return [found.get(instance_id) for instance_id in instance_ids]

    async def list_instances(self, where: InstanceFilter, limit: int) -> Sequence[InstanceInfo]:
        after_time, after_id = where.after or (None, None)
        params = {
            "status": Texts(where.status),
            "name": where.name,
            "prefix": where.prefix,
            "parent": where.parent_id,
            "reason": where.reason,
            "session": where.session_id,
            "after_time": after_time,
            "after_id": after_id,
            "limit": Int8(limit),
        }
        return [_instance(row) for row in await self._links.misc.run(_SQL["list"], params)]

    async def delete_instance(
        self, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True
    ) -> Sequence[Deletion]:
        params = {"instance": Texts(instance_ids), "force": force, "tree": tree}
        doomed: dict[str, bool] = dict(await self._links.quick.run(_SQL["delete"], params))
        deletions: list[Deletion] = []
        for instance_id in instance_ids:
            found = doomed.get(instance_id)
            deletions.append("unknown" if found is None else "deleted" if found else "running")
            if found:
                del doomed[instance_id]  # named twice, it is unknown the second time
        return deletions

    async def list_sessions(self, *, after: str | None = None, limit: int = 100) -> Sequence[SessionInfo]:
        rows = await self._links.misc.run(_SQL["list_sessions"], {"after": after, "limit": Int8(limit)})
        return [
            SessionInfo(
                session_id=session_id,
                worker_id=worker_id,
                incarnation=incarnation,
                epoch=epoch,
                held=held,
                expires_in=expires_in,
                idle=idle,
                queued=queued,
            )
            for session_id, worker_id, incarnation, epoch, held, expires_in, idle, queued in rows
        ]

    async def get_quotas(self) -> Quotas:
        rows = await self._links.misc.run(_SQL["get_quotas"])
        return Quotas(**dict(zip(_QUOTAS, rows[0], strict=True))) if rows else Quotas()

    async def set_quotas(self, limits: Quotas) -> None:
        """Needs the rights of the role that migrated."""
        params = {name: None if (most := getattr(limits, name)) is None else Int8(most) for name in _QUOTAS}
        await self._links.misc.run(_SQL["set_quotas"], params)

    async def count_work(self) -> Mapping[str, int]:
        (counts,) = await self._links.misc.run(_SQL["count"])
        return dict(zip(("work_items", "messages", "sessions", "workers", "instances"), counts, strict=True))


def _instance(row: Row) -> InstanceInfo:
    (
        instance_id,
        name,
        version,
        execution_id,
        status,
        custom_status,
        output,
        error,
        parent_id,
        owner,
        event_count,
        created_at,
        updated_at,
        birth,
        session_id,
        *suspension,
    ) = row
    return InstanceInfo(
        instance_id=instance_id,
        birth=birth,
        name=name,
        version=version,
        execution_id=execution_id,
        status=status,
        custom_status=custom_status,
        output=output,
        error=error,
        parent_id=parent_id,
        owner=owner,
        event_count=event_count,
        created_at=created_at,
        updated_at=updated_at,
        suspension=_suspension(*suspension) if status == "suspended" else None,
        session_id=session_id,
    )


def _suspension(error_type: str, message: str, at: datetime, worker_id: str, code: str) -> Suspension:
    return Suspension(error_type=error_type, message=message, at=at, worker_id=worker_id, code=code)
