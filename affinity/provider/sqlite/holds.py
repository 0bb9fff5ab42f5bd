"""Holds, which keep a session with its holder while an orchestration waits, and watches, which notify an orchestration
when a session has moved.

A hold is a long lock: an extension of the session never shortens it, and a release ends it like any other lock. Its row
is needed when the hold ends early: the lock is then cut back to what it would be without the hold, as far as the other
holds of the session allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.provider.contract import SessionWatch, Turn
from affinity.provider.sqlite.driver.transaction import PORTION, Row, Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "holds.sql")


def apply(tx: Tx, turns: Sequence[Turn], session_lock: float) -> None:
    """End holds, begin holds and set watches, as the turns ask. Finished instances are left to `clear`.

    Called after the touches of the same commit, which extend locks by ``session_lock`` seconds.
    """
    named = [(turn.instance_id, turn.execution_id, hold_id) for turn in turns for hold_id in turn.ended_holds]
    continued = [turn.instance_id for turn in turns if turn.update is not None and turn.update.continued]
    _cut_back(tx, [*_end(tx, "end_some", named), *_end(tx, "end_all", continued)])
    begun = [(turn, hold) for turn in turns for hold in turn.lasting_holds]
    rows = [(turn.instance_id, turn.execution_id, hold.hold_id, hold.session_id, hold.seconds) for turn, hold in begun]
    tx.many(SQL["begin"], rows, {"now": tx.now, "session_lock": session_lock})
    tx.many(SQL["extend"], [(hold.session_id, hold.seconds) for _, hold in begun], {"now": tx.now})
    watches = [(watch.session_id, turn.instance_id, watch.payload) for turn in turns for watch in turn.watches]
    tx.many(SQL["watch"], watches)


def end(tx: Tx, instance_ids: Sequence[str]) -> None:
    """End all holds of instances."""
    _cut_back(tx, _end(tx, "end_all", instance_ids))


def watch(tx: Tx, instance_id: str, watches: Sequence[SessionWatch]) -> None:
    """Set watches of an instance."""
    tx.many(SQL["watch"], [(watch.session_id, instance_id, watch.payload) for watch in watches])


def clear(tx: Tx, instance_ids: Sequence[str]) -> None:
    """Remove all holds and watches of instances."""
    end(tx, instance_ids)
    tx.many(SQL["unwatch"], instance_ids)


def _end(tx: Tx, statement: str, rows: Sequence[object]) -> list[Row]:
    """Remove holds; their sessions, each with the session lock timeout that the hold came with."""
    portions = (to_json(rows[start : start + PORTION]) for start in range(0, len(rows), PORTION))
    return [ended for portion in portions for ended in tx.rows(SQL[statement], {"rows": portion})]


def _cut_back(tx: Tx, ended: Sequence[Row]) -> None:
    tx.many(SQL["cut_back"], ended, {"now": tx.now})
