"""Schedules: writing, reading, and which of them are due."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from affinity.limits import MAX_PAGE, PRUNE_WINDOW
from affinity.provider.contract import DueSchedules, ScheduleRow, ScheduleWrite
from affinity.provider.rows import schedule_values, to_schedule
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.messages import create_all
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "schedules.sql")


def write(tx: Tx, writes: Sequence[ScheduleWrite]) -> list[bool]:
    rows = tx.gather(SQL["known"], {"names": to_json([one.row.name for one in writes])})
    known = {name: (generation, revision) for name, generation, revision in rows}
    applied = [known.get(one.row.name) == _expected(one.row) for one in writes]
    done = [one for one, ok in zip(writes, applied, strict=True) if ok]
    create_all(tx, [new for one in done for new in one.starts])
    tx.many(SQL["write"], [schedule_values(one.row) for one in done if not one.removed], {"now": tx.now})
    tx.many(SQL["remove"], [one.row.name for one in done if one.removed])
    return applied


def _expected(row: ScheduleRow) -> tuple[str, int] | None:
    """The schedule's row, if it may be written."""
    return (row.generation, row.revision) if row.revision else None


def get_due(tx: Tx, limit: int) -> DueSchedules:
    rows = tx.rows(SQL["due"], {"now": tx.now, "limit": limit})
    return DueSchedules(now=instant(tx.now), rows=[to_schedule(row, instant) for row in rows], next_due=next_due(tx))


def remove_ended(tx: Tx, older_than: float) -> None:
    tx.run(SQL["remove_ended"], {"before": tx.now - older_than, "limit": PRUNE_WINDOW})


def next_due(tx: Tx) -> float | None:
    """Seconds until a schedule is due; None: none will be."""
    at: float | None = tx.value(SQL["next_due"], {"now": tx.now})
    return None if at is None else at - tx.now


def list_schedules(
    tx: Tx,
    names: Collection[str] | None = None,
    *,
    app: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[ScheduleRow]:
    conditions = {"names": None if names is None else to_json(list(names)), "app": app, "after": after}
    given = {name: value for name, value in conditions.items() if value is not None}
    parts = frozenset(given if names is not None else {*given, "limit"})
    arguments = given if names is not None else {**given, "limit": min(limit, MAX_PAGE)}
    return [to_schedule(row, instant) for row in tx.rows(with_parts(SQL["list"], parts), arguments)]
