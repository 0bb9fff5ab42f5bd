"""Instances as clients see them: reading, listing, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.limits import FEW_LABELLED
from affinity.provider.contract import Deletion, InstanceFilter, InstanceInfo, MatchingCounts
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.rows import to_instance, to_matching_counts
from affinity.provider.statements import load_statements, with_parts
from affinity.records import labels_text

_SQL: Final = load_statements(__package__, "instances.sql")


async def get_instance(db: Database, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
    rows = await db.connections.quick.run(_SQL["get"], {"instance": Texts(instance_ids)})
    found = {instance.instance_id: instance for instance in (to_instance(row, same_time) for row in rows)}
    return [found.get(instance_id) for instance_id in instance_ids]


async def list_instances(db: Database, where: InstanceFilter, limit: int) -> Sequence[InstanceInfo]:
    rows = await _read(db, where, limit, "shown")
    return [to_instance(row, same_time) for row in rows]


async def count_matching(db: Database, where: InstanceFilter, limit: int) -> MatchingCounts:
    return to_matching_counts(await _read(db, where, limit, "counted"), limit, same_time)


async def _read(db: Database, where: InstanceFilter, limit: int, form: LiteralString) -> Sequence[Row]:
    after_time, after_id = where.after or (None, None)
    params: dict[str, Any] = {
        "status": Texts(where.rare_statuses or where.status),
        "name": where.name,
        "prefix": where.prefix,
        "parent": where.parent_id,
        "reason": where.reason,
        "session": where.session_id,
        "version": where.version,
        "labels": labels_text(where.labels),
        "since": where.created_since,
        "before": where.created_before,
        "after_time": after_time,
        "after_id": after_id,
        "limit": Int8(limit),
    }
    is_forward = where.oldest_first and where.order != "duration"
    parts: set[LiteralString] = {form, "oldest" if is_forward else "newest", "all"}
    if where.name_suffix is not None:
        parts.add("suffix")
        params["suffix"] = where.name_suffix
    if where.without_suffix:
        parts.add("without")
        params["without"] = Texts(where.without_suffix)
    if where.most is not None:
        parts ^= {"all", "most"}
        params["most"] = Int8(where.most)
    if where.by_end:
        return await db.connections.misc.run(with_parts(_SQL["list_ended"], frozenset(parts | _by_end(where))), params)
    if not where.rare_statuses and not where.by_label:
        return await db.connections.misc.run(with_parts(_SQL["list"], frozenset({"whole", *parts})), params)
    parts.add("slim" if form == "counted" and where.is_placed else "whole")
    if where.rare_statuses:
        parts.add("rare")
    else:
        parts.add("labelled")
        params["phase"] = Texts(where.phases)
        if len(where.labels) > 1:
            parts.add("several")
            params["few"] = Int8(FEW_LABELLED)
    return await db.connections.misc.run(with_parts(_SQL["list_indexed"], frozenset(parts)), params)


def _by_end(where: InstanceFilter) -> set[LiteralString]:
    """Return the parts of the statement that reads by the time of the end."""
    if where.order == "duration":
        return {"newest", "shortest" if where.oldest_first else "longest"}
    return {"ended"} if where.after is None else {"ended", "cursor"}


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
