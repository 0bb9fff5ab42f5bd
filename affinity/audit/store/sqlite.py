"""The audit log on SQLite: its entries, and the transactions that they are in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from affinity.actions import ActionCall, Actors, Administration
from affinity.audit.acting import Acting, ActingTogether, administrative_entries, users_of
from affinity.audit.entries import AuditEntry, AuditFilter, NewAuditEntry
from affinity.audit.store.rows import to_audit_entry
from affinity.limits import MAX_PAGE, SWEEP_ROWS
from affinity.provider.contract import Retention
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import ActionShare, SqlitePart
from affinity.provider.sqlite.verbs import reads, writes
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "sqlite.sql")


def share_in_action(actors: Actors, call: ActionCall) -> ActionShare | None:
    """Return the audit log's share in a call of an action: an entry for each outcome."""
    users = users_of(actors)
    return None if users is None else partial(_record, users, call)


def _record(users: Acting | ActingTogether, call: ActionCall, tx: Tx, result: object) -> Callable[[], None]:
    entries = users.entries(call, result)
    write(tx, entries)
    return partial(users.committed, entries)


def administered(tx: Tx, done: Administration) -> None:
    """Write the entries of an administrator's changes."""
    if entries := administrative_entries(done):
        write(tx, entries)


def write(tx: Tx, entries: Sequence[NewAuditEntry]) -> None:
    tx.many(SQL["write"], [asdict(entry) for entry in entries], {"now": tx.now})


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


def remove_old(tx: Tx, keep: Retention) -> tuple[int, bool]:
    """Remove entries that are old enough, at most `SWEEP_ROWS`."""
    older_than = keep.guests.get("audit")
    if older_than is None:
        return 0, False
    removed = tx.run(SQL["remove"], {"before": tx.now - older_than, "limit": SWEEP_ROWS})
    return removed, removed >= SWEEP_ROWS


PART: Final = SqlitePart(
    verbs={"write_audit": writes(write), "list_audit": reads(list_page)},
    remove_old=remove_old,
    share_in_action=share_in_action,
    administered=administered,
)
