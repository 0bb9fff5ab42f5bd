"""Resources that outlive a process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements
from affinity.records import ActivityKey, DurableResource

_SQL: Final = load_statements(__package__, "resources.sql")


async def begin_resource(
    db: Database, resource_id: str, name: str, activity: ActivityKey, *, held: str | None
) -> DurableResource:
    params = {
        "resource": resource_id,
        "name": name,
        "instance": activity[0],
        "execution": Int8(activity[1]),
        "activity": Int8(activity[2]),
        "held": held,
    }
    rows = await db.connections.rows.run(_SQL["begin"], params)
    return DurableResource(*rows[0]) if rows else DurableResource(resource_id, name, None)


async def set_resource_handle(db: Database, resource_id: str, handle: str) -> bool:
    params = {"resource": resource_id, "handle": handle}
    return bool(await db.connections.rows.run(_SQL["set_handle"], params))


async def get_resource(db: Database, resource_id: str) -> DurableResource | None:
    rows = await db.connections.rows.run(_SQL["get"], {"resource": resource_id})
    return DurableResource(*rows[0]) if rows else None


async def take_unused_resources(
    db: Database, names: Collection[str], *, limit: int, seconds: float
) -> Sequence[DurableResource]:
    params = {"name": Texts(names), "limit": Int8(limit), "seconds": seconds}
    return [DurableResource(*row) for row in await db.connections.rows.run(_SQL["take_unused"], params)]


async def find_unused_resources(db: Database, *, without: Collection[str], limit: int) -> Sequence[DurableResource]:
    params = {"name": Texts(without), "limit": Int8(limit)}
    return [DurableResource(*row) for row in await db.connections.rows.run(_SQL["find_unused"], params)]


async def remove_resources(db: Database, resource_ids: Collection[str]) -> None:
    await db.connections.rows.run(_SQL["remove"], {"resource": Texts(resource_ids)})
