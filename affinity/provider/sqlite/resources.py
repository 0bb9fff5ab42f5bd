"""Resources that outlive a process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements
from affinity.records import ActivityKey, DurableResource

SQL: Final = load_statements(__package__, "resources.sql")


def begin(tx: Tx, resource_id: str, name: str, activity: ActivityKey, *, held: str | None) -> DurableResource:
    instance_id, execution_id, activity_id = activity
    key = {"instance_id": instance_id, "execution_id": execution_id, "activity_id": activity_id, "name": name}
    row = tx.row(SQL["adopted"], {**key, "resource_id": resource_id, "held": held})
    if row is not None:
        adopted = DurableResource(*row)
        tx.run(SQL["adopt"], {**key, "resource_id": adopted.resource_id, "now": tx.now})
        return adopted
    tx.run(SQL["add"], {**key, "resource_id": resource_id, "now": tx.now})
    return DurableResource(resource_id, name, None)


def set_handle(tx: Tx, resource_id: str, handle: str) -> bool:
    return tx.run(SQL["set_handle"], {"resource_id": resource_id, "handle": handle}) > 0


def get(tx: Tx, resource_id: str) -> DurableResource | None:
    row = tx.row(SQL["get"], {"resource_id": resource_id})
    return None if row is None else DurableResource(*row)


def find_unused(tx: Tx, names: Collection[str], limit: int) -> list[DurableResource]:
    arguments = {"names": to_json(list(names)), "now": tx.now, "limit": limit}
    return [DurableResource(*row) for row in tx.rows(SQL["unused"], arguments)]


def find_others(tx: Tx, *, without: Collection[str], limit: int) -> list[DurableResource]:
    names = set(tx.gather(SQL["names"])) - set(without)
    return find_unused(tx, names, limit)


def take_unused(tx: Tx, names: Collection[str], limit: int, seconds: float) -> list[DurableResource]:
    found = find_unused(tx, names, limit)
    tx.many(SQL["take"], [each.resource_id for each in found], {"until": tx.now + seconds})
    return found


def remove(tx: Tx, resource_ids: Collection[str]) -> None:
    tx.many(SQL["remove"], list(resource_ids))
