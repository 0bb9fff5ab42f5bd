"""The audit log: its entries, and the transactions that they are in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from affinity.audit import Acting, ActingTogether, AuditedCall, AuditEntry, AuditFilter, NewAuditEntry
from affinity.limits import MAX_PAGE, SWEEP_ROWS
from affinity.provider.contract import Retention
from affinity.provider.rows import to_audit_entry
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements, with_parts

T = TypeVar("T")

SQL: Final = load_statements(__package__, "audit.sql")


async def run(
    writer: DatabaseThread,
    users: Acting | ActingTogether,
    call: AuditedCall,
    work: Callable[[Tx], T],
    judge: Callable[[T], object] = lambda result: result,
) -> T:
    """Do ``work`` in one transaction with its entries; ``judge`` gives what `Acting.entries` takes of its result."""

    def recorded(tx: Tx) -> tuple[T, Sequence[NewAuditEntry]]:
        result = work(tx)
        entries = users.entries(call, judge(result))
        write(tx, entries)
        return result, entries

    result, entries = await writer.call(Database.write, recorded)
    users.committed(entries)
    return result


def write(tx: Tx, entries: Sequence[NewAuditEntry]) -> None:
    tx.many(SQL["write"], [asdict(each) for each in entries], {"now": tx.now})


def list_page(tx: Tx, where: AuditFilter, limit: int) -> list[AuditEntry]:
    before, before_id = (math.inf, 0) if where.after is None else (where.after[0].timestamp(), where.after[1])
    conditions: dict[str, Any] = {
        "user": where.user,
        "source": where.source,
        "action": where.action,
        "target": where.target,
        "succeeded": where.succeeded,
        "since": None if where.since is None else where.since.timestamp(),
        "until": None if where.until is None else where.until.timestamp(),
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    arguments = {**given, "before": before, "before_id": before_id, "limit": min(limit, MAX_PAGE)}
    return [to_audit_entry(row, instant) for row in tx.rows(with_parts(SQL["list"], frozenset(given)), arguments)]


def remove(tx: Tx, retention: Retention) -> tuple[int, bool]:
    """Remove entries that are old enough, at most `SWEEP_ROWS`; their number, and whether there may be more."""
    if retention.audit is None:
        return 0, False
    removed = tx.run(SQL["remove"], {"before": tx.now - retention.audit, "limit": SWEEP_ROWS})
    return removed, removed >= SWEEP_ROWS
