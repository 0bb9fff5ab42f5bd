"""Failures: keeping, listing, counting and removing them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from affinity.limits import FIRST_STACKS, LAST_STACKS, MAX_FAILURE_GROUPS, MAX_PAGE, SWEEP_ROWS
from affinity.provider.contract import FailureFilter, FailureGroups, FailureRecord, Retention, Turn, WorkAbandon
from affinity.provider.rows import failure_conditions, failure_row, to_failure, to_failure_groups
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "failures.sql")


def keep(tx: Tx, turns: Sequence[Turn]) -> None:
    """Keep the failures of turns that pass."""
    tx.many(SQL["keep"], [failure_row(turn, failure) for turn in turns for failure in turn.failures], {"now": tx.now})


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
    if where.kind is None or where.error_type is not None:
        rows = tx.rows(with_parts(SQL["list"], parts), bounds)
    else:  # the newest ones of each class, since the index has the class before the time
        of_class = with_parts(SQL["list"], parts | {"error_type"})
        classes = tx.rows(SQL["classes"], given)
        found = [row for (error_type,) in classes for row in tx.rows(of_class, {**bounds, "error_type": error_type})]
        rows = sorted(found, key=_PLACE, reverse=True)[: bounds["limit"]]
    return [to_failure(row, instant) for row in rows]


_PLACE: Final = itemgetter(8, 0, 1, 2, 3)
"""The columns by which a listing is sorted, as in ``list``."""


def group(tx: Tx, seconds: float, limit: int, *, most: int) -> FailureGroups:
    names = tx.rows(SQL["groups"], {"limit": MAX_FAILURE_GROUPS})
    bounds = {"since": tx.now - seconds, "limit": most + 1}
    rows = [
        (*key, *tx.rows(SQL["measure"], {**dict(zip(("kind", "name", "error_type"), key, strict=True)), **bounds})[0])
        for key in names
    ]
    return to_failure_groups(instant(tx.now), rows, limit, most, instant)


def remove(tx: Tx, retention: Retention) -> tuple[int, bool]:
    """Remove failures without a stack that are old enough, at most `SWEEP_ROWS`; return their number, and whether there
    may be more.
    """
    if retention.failures is None:
        return 0, False
    removed = tx.run(SQL["remove"], {"before": tx.now - retention.failures, "limit": SWEEP_ROWS})
    return removed, removed >= SWEEP_ROWS
