"""Parked work items: an input of their journal queues them. A trigger removes them with their execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from affinity.provider.contract import NewWorkItem, WorkKey
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "parking.sql")


def park(tx: Tx, items: Sequence[NewWorkItem]) -> set[WorkKey]:
    """Park the items whose journals have no input to process; their keys."""
    if not items:
        return set()
    busy = set(tx.gather(SQL["busy"], {"instance_ids": to_json([item.key.instance_id for item in items])}))
    parked = [item for item in items if item.key.instance_id not in busy]
    tx.many(SQL["park"], [(item.key, item.name, item.session_id, item.payload) for item in parked])
    return {item.key for item in parked}


def unpark(tx: Tx, routes: Mapping[str, str]) -> None:
    """Queue the items of instances, in order, each on its route."""
    tx.many(SQL["unpark"], list(routes.items()), {"now": tx.now})
    tx.many(SQL["remove"], list(routes))
