"""Moves of sessions: what their new holders report, listing and removing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.limits import MAX_EPOCH, MAX_PAGE, SWEEP_ROWS
from affinity.provider.contract import MoveFilter, MoveReason, MoveReport, Retention, SessionMove, SessionUse
from affinity.provider.rows import page_of_moves, to_session_use
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "moves.sql")


def report(tx: Tx, reports: Sequence[MoveReport]) -> list[MoveReason | None]:
    for one in reports:
        if one.hydrate_seconds is not None:
            tx.run(SQL["report"], {"epoch": one.epoch, "seconds": one.hydrate_seconds, "bytes": one.hydrate_bytes})
        if one.resource_seconds:
            resources = to_json(dict(one.resource_seconds))
            tx.run(SQL["report_resources"], {"epoch": one.epoch, "resources": resources})
    reasons = dict(tx.gather(SQL["reasons"], {"epochs": to_json([one.epoch for one in reports])}))
    return [reasons.get(one.epoch) for one in reports]


def list_page(
    tx: Tx, where: MoveFilter, *, after: int | None = None, before: int | None = None, limit: int = 100
) -> list[SessionMove]:
    given = {"session": where.session_id, "worker": where.worker_id, "reason": where.reason}
    statement = with_parts(SQL["list"], frozenset(name for name, value in given.items() if value is not None))
    if after is not None:
        statement = statement.replace("DESC", "ASC")
    bounds = {"after": after or 0, "before": before or MAX_EPOCH, "limit": min(limit, MAX_PAGE)}
    return page_of_moves(tx.rows(statement, {**given, **bounds}), instant, limit, newest=after is None)


def list_uses(tx: Tx, session_id: str, *, limit: int = 100) -> list[SessionUse]:
    rows = tx.rows(SQL["uses"], {"session": session_id, "limit": min(limit, MAX_PAGE), "now": tx.now})
    return [to_session_use(row, instant) for row in rows]


def remove(tx: Tx, retention: Retention) -> tuple[int, bool]:
    """Remove moves that are old enough, at most `SWEEP_ROWS`; their number, and whether there may be more."""
    if retention.moves is None:
        return 0, False
    removed = tx.run(SQL["remove"], {"before": tx.now - retention.moves, "limit": SWEEP_ROWS})
    return removed, removed >= SWEEP_ROWS
