"""Slots that come back without their worker, and the removal of lines and keys that nothing uses."""

from __future__ import annotations

from typing import Any, Final

from affinity.limits import MAX_ADMISSIONS, PRUNE_WINDOW, UNTAKEN_PAUSE, UNTAKEN_SECONDS
from affinity.provider.contract import Retention
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "returning.sql")

WINDOW: Final = 10 * MAX_ADMISSIONS
"""Pieces of work with slots that one call looks at. The next call goes on behind them."""

RETURN_SECONDS: Final = 3600.0
"""Seconds after which there is something to do if nothing waits: a call at any time is soon enough."""

UNUSED_SECONDS: Final = 3600.0
"""Seconds after its last use when a line or a key is removed."""


def return_slots(database: Database) -> int:
    """Take the write lock only when there is something to do."""
    return database.write(_return) if database.read(_find) else 0


def may_return(tx: Tx) -> bool:
    """Return whether there is work that a call may have to put back."""
    return bool(tx.value(SQL["has_work"]))


def _find(tx: Tx) -> bool:
    lost, untaken, behind = _look(tx)
    return bool(lost or untaken or behind != _place(tx))


def _return(tx: Tx) -> int:
    lost, untaken, behind = _look(tx)
    tx.many(SQL["return_lost"], lost)
    tx.many(SQL["return_untaken"], untaken, {"now": tx.now, "least": UNTAKEN_SECONDS, "most": UNTAKEN_PAUSE})
    tx.run(SQL["set_place"], {"place": behind})
    return len(lost) + len(untaken)


def _look(tx: Tx) -> tuple[list[int], list[int], int]:
    """Return lost items, items that no worker takes though other work waits, and where the next call begins."""
    arguments: dict[str, Any] = {
        "after": _place(tx),
        "window": WINDOW,
        "now": tx.now,
        "untaken_since": tx.now - UNTAKEN_SECONDS,
    }
    row = tx.row(SQL["held"], arguments)
    number, last = row if row is not None else (0, 0)
    arguments["until"] = last or 0
    found = tx.gather(SQL["find"], arguments) if number else []
    lost = [item_id for item_id, is_lost in found if is_lost][:MAX_ADMISSIONS]
    untaken = [item_id for item_id, is_lost in found if not is_lost][:MAX_ADMISSIONS]
    return lost, untaken, last if number == WINDOW else 0


def _place(tx: Tx) -> int:
    return int(tx.value(SQL["place"]) or 0)


def remove_unused(tx: Tx, keep: Retention) -> tuple[int, bool]:
    """Remove lines and keys that were not used for a while."""
    before = {"before": tx.now - UNUSED_SECONDS, "now": tx.now, "limit": PRUNE_WINDOW}
    lines: list[int] = tx.gather(SQL["unused_lines"], before)
    tx.many(SQL["unlink"], lines)
    tx.many(SQL["remove_lines"], lines)
    keys = tx.gather(SQL["unused_keys"], before)
    tx.many(SQL["keep_counts"], keys)
    tx.many(SQL["remove_keys"], [key_id for key_id, *_ in keys])
    return 0, False
