"""Instances as clients see them: reading, listing, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.provider.contract import Deletion, InstanceFilter, InstanceInfo
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.rows import to_instance
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "instances.sql")


async def get_instance(db: Database, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
    rows = await db.connections.quick.run(_SQL["get"], {"instance": Texts(instance_ids)})
    found = {instance.instance_id: instance for instance in (to_instance(row, same_time) for row in rows)}
    return [found.get(instance_id) for instance_id in instance_ids]


async def list_instances(db: Database, where: InstanceFilter, limit: int) -> Sequence[InstanceInfo]:
    after_time, after_id = where.after or (None, None)
    rare = where.rare_statuses
    params: dict[str, Any] = {
        "status": Texts(rare or where.status),
        "name": where.name,
        "prefix": where.prefix,
        "parent": where.parent_id,
        "reason": where.reason,
        "session": where.session_id,
        "version": where.version,
        "since": where.created_since,
        "before": where.created_before,
        "after_time": after_time,
        "after_id": after_id,
        "limit": Int8(limit),
    }
    part: LiteralString = "all"
    if where.most is not None:
        part, params["most"] = "most", Int8(where.most)
    statement = with_parts(_SQL["list_rare" if rare else "list"], frozenset({part}))
    rows = await db.connections.misc.run(statement, params)
    return [to_instance(row, same_time) for row in rows]


async def delete_instance(
    db: Database, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True
) -> Sequence[Deletion]:
    params = {"instance": Texts(instance_ids), "force": force, "tree": tree}
    asked = with_shares(db.shares, _SQL["delete"], _SQL["deleted"], params)
    doomed: dict[str, bool] = dict(await db.connections.deletions.run(*asked))
    deletions: list[Deletion] = []
    for instance_id in instance_ids:
        found = doomed.get(instance_id)
        deletions.append("unknown" if found is None else "deleted" if found else "running")
        if found:
            del doomed[instance_id]  # named twice, it is unknown the second time
    return deletions
