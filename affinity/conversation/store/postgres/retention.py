"""The rounds of a sweep that remove entries beyond the retention of journals, and journals at rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from psycopg.types.numeric import Int8

from affinity.conversation.journal import JournalRetention
from affinity.conversation.store.postgres.admin import prune_journals
from affinity.conversation.store.resting import ENTRIES, JOURNALS, entry_bounds, first_rows, log_removed, resting_bound
from affinity.limits import SWEEP_EVENTS, SWEEP_LOOK
from affinity.provider.contract import Retention
from affinity.provider.postgres.driver.arrays import Ints
from affinity.provider.postgres.operations import Database
from affinity.provider.rounds import RoundKind, Step
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "retention.sql")


def rounds(db: Database, keep: Retention) -> Sequence[RoundKind]:
    """Return the rounds of a sweep with this retention."""
    kinds = []
    if (bounds := entry_bounds(keep)) != JournalRetention():
        kinds.append(RoundKind(ENTRIES, 0.0, partial(_entries, db, bounds)))
    if (older_than := resting_bound(keep)) is not None:
        kinds.append(RoundKind(JOURNALS, older_than, partial(_journals, db, older_than)))
    return kinds


async def _entries(db: Database, keep: JournalRetention, place: Any) -> Step:
    step = await prune_journals(db, keep, limit=SWEEP_EVENTS, after=place or 0)
    return Step(step.entries, step.after)


async def _journals(db: Database, older_than: float, place: Any) -> Step:
    after_time, after_id = place or (None, None)
    bounds = {
        "older_than": float(older_than),
        "after_time": after_time,
        "after_id": after_id,
        "window": Int8(SWEEP_LOOK),
    }
    rows = await db.connections.misc.run(_SQL["old_journals"], bounds)
    taken = first_rows(rows, SWEEP_EVENTS)
    removed = 0
    if found := [row.journal_id for row in taken if row.at_rest]:
        doomed = {"journals": Ints(found), "older_than": float(older_than)}
        ((removed,),) = await db.connections.misc.run(_SQL["remove_journals"], doomed)
    log_removed(removed)
    is_last = len(taken) == len(rows) < SWEEP_LOOK
    return Step(removed, None if is_last else [taken[-1].created_at, taken[-1].session_id])
