"""Values of instances, which orchestrations set and clients read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from affinity.provider.contract import InstanceValue, ValueWrite, last_values
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "values.sql")


def write(tx: Tx, writes: Iterable[tuple[str, Sequence[ValueWrite]]]) -> None:
    """Write the changes of each instance."""
    cleared: list[str] = []
    removed: list[tuple[str, str]] = []
    values: list[tuple[str, str, str]] = []
    for instance_id, changes in writes:
        was_cleared, last = last_values(changes)
        cleared += [instance_id] if was_cleared else []
        removed += [(instance_id, key) for key, value in last.items() if value is None]
        values += [(instance_id, key, value) for key, value in last.items() if value is not None]
    tx.many(SQL["clear"], cleared)
    tx.many(SQL["remove"], removed)
    tx.many(SQL["set"], values, {"now": tx.now})
    tx.many(SQL["measure"], sorted({*cleared, *[row[0] for row in (*removed, *values)]}))


def read(tx: Tx, instance_ids: Collection[str], key: str | None = None) -> list[InstanceValue]:
    rows = tx.gather(SQL["values"], {"instance_ids": to_json(instance_ids), "key": key})
    return [InstanceValue._make(row) for row in rows]
