"""Schedules on SQLite: writing, reading, and finding those that are due."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from affinity.limits import MAX_PAGE, PRUNE_WINDOW
from affinity.provider.contract import Retention
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.messages import create_all
from affinity.provider.sqlite.parts import SqlitePart
from affinity.provider.sqlite.verbs import acts, reads
from affinity.provider.statements import load_statements, with_parts
from affinity.schedules.store.contract import DueSchedules, ScheduleRow, ScheduleWrite
from affinity.schedules.store.rows import schedule_values, to_schedule

SQL: Final = load_statements(__package__, "sqlite.sql")


def write(tx: Tx, writes: Sequence[ScheduleWrite]) -> list[bool]:
    rows = tx.gather(SQL["known"], {"names": to_json([write.row.name for write in writes])})
    known = {name: (generation, revision) for name, generation, revision in rows}
    applied = [known.get(write.row.name) == _expected(write.row) for write in writes]
    done = [write for write, ok in zip(writes, applied, strict=True) if ok]
    create_all(tx, [new for write in done for new in write.starts])
    tx.many(SQL["write"], [schedule_values(write.row) for write in done if not write.removed], {"now": tx.now})
    tx.many(SQL["remove"], [write.row.name for write in done if write.removed])
    return applied


def _expected(row: ScheduleRow) -> tuple[str, int] | None:
    """Return the schedule's row, if it may be written."""
    return (row.generation, row.revision) if row.revision else None


def get_due(tx: Tx, limit: int) -> DueSchedules:
    rows = tx.rows(SQL["due"], {"now": tx.now, "limit": limit})
    return DueSchedules(
        now=instant(tx.now), rows=[to_schedule(row, instant) for row in rows], next_due=seconds_until_due(tx)
    )


def remove_ended(tx: Tx, keep: Retention) -> tuple[int, bool]:
    """Remove clients' schedules that ended longer ago than instances are kept."""
    if keep.instances is not None:
        tx.run(SQL["remove_ended"], {"before": tx.now - keep.instances, "limit": PRUNE_WINDOW})
    return 0, False


def seconds_until_due(tx: Tx) -> float | None:
    """Return the seconds until a schedule is due; None: none will be."""
    at: float | None = tx.value(SQL["due_at"], {"now": tx.now})
    return None if at is None else at - tx.now


def seconds_late(tx: Tx) -> float | None:
    """Return the seconds for which the longest due schedule has been due."""
    since: float | None = tx.value(SQL["late_since"], {"now": tx.now})
    return None if since is None else tx.now - since


def next_due(tx: Tx) -> float | None:
    """Return the time at which the next schedule will be due that is not due now."""
    at: float | None = tx.value(SQL["next_due"], {"now": tx.now})
    return at


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


PART: Final = SqlitePart(
    verbs={
        "write_schedules": acts("write_schedules", "schedule", write),
        "get_due_schedules": reads(get_due),
        "list_schedules": reads(list_schedules),
    },
    due=seconds_until_due,
    late=seconds_late,
    next_due=next_due,
    is_endless=True,
    remove_old=remove_ended,
)
