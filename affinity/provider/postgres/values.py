"""Values of instances: what clients and workers read of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from affinity.provider.contract import InstanceValue
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "values.sql")


async def get_values(db: Database, instance_ids: Collection[str], key: str | None = None) -> Sequence[InstanceValue]:
    if not instance_ids:
        return []
    params = {"instance": Texts(instance_ids), "key": key}
    return [InstanceValue._make(row) for row in await db.connections.quick.run(_SQL["values"], params)]
