"""Failures: keeping, listing, counting and removing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from affinity.limits import FIRST_STACKS, LAST_STACKS, MAX_FAILURE_GROUPS, MAX_PAGE, SWEEP_ROWS
from affinity.provider.contract import FailureFilter, FailureGroups, FailureRecord, Retention, Turn, WorkAbandon
from affinity.provider.rows import (
    STATEMENTS_OF_FAILURES,
    Columns,
    failure_conditions,
    failure_row,
    newest_failures,
    to_failure,
    to_failure_groups,
)
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "failures.sql")


def keep(tx: Tx, turns: Sequence[Turn]) -> None:
    """Keep the failures of turns that pass."""
    keep_rows(tx, [(*failure_row(turn, failure), False) for turn in turns for failure in turn.failures])


def keep_rows(tx: Tx, rows: Sequence[Columns]) -> None:
    """Keep failures: the columns of `failure_row`, and whether what has failed is tried again."""
    tx.many(SQL["keep"], rows, {"now": tx.now})


def keep_attempt(tx: Tx, item: int, given: WorkAbandon) -> None:
    """Keep a failed attempt of an item, which was given back."""
    row = {"item": item, "error_type": given.error_type, "error": given.error or given.error_type, "stack": given.stack}
    attempt = tx.value(SQL["keep_attempt"], {**row, "now": tx.now})
    if attempt is not None and attempt > FIRST_STACKS + LAST_STACKS:
        at = given.lock.key._asdict()
        tx.run(SQL["drop_stacks"], {**at, "attempt": attempt, "first": FIRST_STACKS, "last": LAST_STACKS})


def list_attempts(tx: Tx, instance_id: str, execution_id: int, limit: int) -> list[FailureRecord]:
    bounds = {"instance_id": instance_id, "execution_id": execution_id, "limit": min(limit, MAX_PAGE)}
    return [to_failure(row, instant) for row in tx.rows(SQL["attempts"], bounds)]


def list_page(tx: Tx, where: FailureFilter, limit: int) -> list[FailureRecord]:
    parts, given = failure_conditions(where)
    bounds: dict[str, Any] = {**given, "since": tx.now - where.seconds, "limit": min(limit, MAX_PAGE)}
    if where.after is not None:
        bounds["at"] = where.after.failed_at.timestamp()
    names = STATEMENTS_OF_FAILURES.get(where.kind, ("list_failures",))
    rows = [row for name in names for row in tx.rows(with_parts(SQL[name], parts), bounds)]
    return newest_failures([to_failure(row, instant) for row in rows], bounds["limit"])


def group(tx: Tx, seconds: float, limit: int, *, most: int) -> FailureGroups:
    rows: list[tuple[Any, ...]] = []
    for of, listing in (("", "list_failures"), ("_suspended", "list_suspended")):
        newest = with_parts(SQL[listing], frozenset(["error_type"]))
        for key in tx.rows(SQL["groups" + of], {"limit": MAX_FAILURE_GROUPS}):
            bounds = {**dict(zip(("kind", "name", "error_type"), key, strict=True)), "since": tx.now - seconds}
            (measured,) = tx.rows(SQL["measure" + of], {**bounds, "limit": most + 1})
            last = tx.rows(newest, {**bounds, "limit": 1})
            rows.append((*key, *measured, *([last[0][_INSTANCE], last[0][_ERROR]] if last else [None, None])))
    return to_failure_groups(instant(tx.now), rows, limit, most, instant)


_INSTANCE: Final = 0
_ERROR: Final = 9
"""Columns of a listing."""


def remove(tx: Tx, retention: Retention) -> tuple[int, bool]:
    """Remove failures without a stack that are old enough, at most `SWEEP_ROWS`; return their number, and whether there
    may be more.
    """
    if retention.failures is None:
        return 0, False
    removed = tx.run(SQL["remove"], {"before": tx.now - retention.failures, "limit": SWEEP_ROWS})
    return removed, removed >= SWEEP_ROWS
