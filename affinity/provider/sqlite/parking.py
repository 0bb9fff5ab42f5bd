"""Parked work items: the guest that parks them queues them. A trigger removes them with their execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from affinity.limits import PRIORITY_SECONDS
from affinity.provider.contract import NewWorkItem, WorkKey
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import commits
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "parking.sql")


def park(tx: Tx, items: Sequence[NewWorkItem]) -> set[WorkKey]:
    """Park the items that no guest wants queued; return their keys."""
    if not items:
        return set()
    instance_ids = [item.key.instance_id for item in items]
    checks = [commit.find_unparkable for commit in commits().values() if commit.find_unparkable is not None]
    busy = {instance_id for find in checks for instance_id in find(tx, instance_ids)}
    parked = [item for item in items if item.key.instance_id not in busy]
    tx.many(SQL["park"], [_row(item) for item in parked])
    return {item.key for item in parked}


def _row(item: NewWorkItem) -> tuple[Any, ...]:
    gate = (None, None) if item.gate is None else (item.gate.text, item.gate.limited)
    return (item.key, item.name, item.session_id, item.payload, *gate)


def unpark(tx: Tx, routes: Mapping[str, str]) -> None:
    """Queue the items of instances, in order, each on its route, or at its gate."""
    tx.many(SQL["unpark"], list(routes.items()), {"now": tx.now, "priority_seconds": PRIORITY_SECONDS})
    tx.many(SQL["remove"], list(routes))
