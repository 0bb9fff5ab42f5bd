"""Instances as clients see them: reading, listing, deleting."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from affinity.limits import MAX_PAGE
from affinity.provider.contract import (
    FINISHED,
    Deletion,
    Generation,
    InstanceFilter,
    InstanceInfo,
    NewInstance,
    NewMessage,
    Restart,
)
from affinity.provider.rows import to_instance
from affinity.provider.sqlite import holds, messages, parking, quotas, suspension
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "instances.sql")
_ONE: Final = with_parts(SQL["instances"], frozenset({"instance_id"}))


def get_instances(tx: Tx, instance_ids: Sequence[str]) -> list[InstanceInfo | None]:
    rows = [tx.row(_ONE, {"instance_id": instance_id}) for instance_id in instance_ids]
    return [None if row is None else to_instance(row, instant) for row in rows]


def list_instances(tx: Tx, where: InstanceFilter, limit: int) -> list[InstanceInfo]:
    before, before_id = (math.inf, "") if where.after is None else (where.after[0].timestamp(), where.after[1])
    conditions: dict[str, Any] = {
        "status": json.dumps(list(where.status)) if where.status else None,
        "name": where.name,
        "prefix": where.prefix,
        "parent_id": where.parent_id,
        "reason": where.reason,
        "session_id": where.session_id,
        "version": where.version,
        "created_since": where.created_since and where.created_since.timestamp(),
        "created_before": where.created_before and where.created_before.timestamp(),
    }
    arguments = {name: wanted for name, wanted in conditions.items() if wanted is not None}
    parts = {"page", *arguments}
    arguments |= {"before": before, "before_id": before_id, "limit": min(limit, MAX_PAGE)}
    rare = where.rare_statuses
    if where.most is not None:
        parts.add("most_of_status" if rare else "most")
        arguments |= {"most": where.most, "until": arguments.get("created_before", math.inf)}
    if rare:
        statement = with_parts(SQL["instances"], frozenset({"one_status", *parts}))
        pages = [tx.rows(statement, arguments | {"one_status": status}) for status in rare]
        found = [to_instance(row, instant) for row in chain(*pages)]
        found.sort(key=lambda each: (each.created_at, each.instance_id), reverse=True)
        return found[: arguments["limit"]]
    return [to_instance(row, instant) for row in tx.rows(with_parts(SQL["instances"], frozenset(parts)), arguments)]


def restart_instances(tx: Tx, restarts: Sequence[Restart]) -> list[bool]:
    quotas.check_new(tx, [restart.new for restart in restarts], 0)
    return [_restart(tx, restart.new, restart.ended) for restart in restarts]


def _restart(tx: Tx, new: NewInstance, ended: Generation) -> bool:
    arguments = {
        "instance_id": new.instance_id,
        "ended": ended,
        "generation": new.generation,
        "name": new.name,
        "version": new.version,
        "session_id": new.session_id,
        "now": tx.now,
    }
    if not tx.run(SQL["restart"], arguments):
        return False
    clear(tx, [new.instance_id])
    messages.send(tx, [NewMessage(instance_id=new.instance_id, payload=new.start)])
    return True


def delete_instances(tx: Tx, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True) -> list[Deletion]:
    return [_delete(tx, instance_id, force=force, tree=tree) for instance_id in instance_ids]


def _delete(tx: Tx, instance_id: str, *, force: bool, tree: bool) -> Deletion:
    statuses: dict[str, str] = dict(tx.rows(SQL["tree"], {"instance_id": instance_id, "tree": tree}))
    if not statuses:
        return "unknown"
    if not force and not FINISHED.issuperset(statuses.values()):
        return "running"
    doomed = list(statuses)
    orphaned = tx.rows(SQL["orphaned"], {"instance_ids": json.dumps(doomed)})
    messages.send(
        tx, [NewMessage(instance_id=name, generation=generation, payload=text) for name, generation, text in orphaned]
    )
    clear(tx, doomed)
    tx.many(suspension.SQL["forget"], doomed)
    tx.many(parking.SQL["remove"], doomed)
    for what in ("history", "ended", "sizes", "keys", "instances"):
        tx.many(SQL[f"delete_{what}"], doomed)
    return "deleted"


def clear(tx: Tx, instance_ids: Sequence[str]) -> None:
    """Remove all queue rows of instances, their holds and their watches."""
    tx.many(SQL["clear_items"], instance_ids)
    tx.many(SQL["clear_messages"], instance_ids)
    holds.clear(tx, instance_ids)
