"""The rounds of a sweep that remove entries beyond the retention of journals, and journals at rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from affinity.conversation.journal import JournalRetention
from affinity.conversation.store.resting import ENTRIES, JOURNALS, entry_bounds, first_rows, log_removed, resting_bound
from affinity.conversation.store.sqlite import admin
from affinity.limits import SWEEP_EVENTS, SWEEP_LOOK
from affinity.provider.contract import Retention
from affinity.provider.rounds import RoundKind, Step
from affinity.provider.sqlite import instances, session_states, sessions
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import Access
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "retention.sql")


def rounds(access: Access, keep: Retention) -> Sequence[RoundKind]:
    """Return the rounds of a sweep with this retention."""
    kinds = []
    if (bounds := entry_bounds(keep)) != JournalRetention():
        kinds.append(RoundKind(ENTRIES, 0.0, partial(_prune, access, bounds)))
    if (older_than := resting_bound(keep)) is not None:
        kinds.append(RoundKind(JOURNALS, older_than, partial(_remove, access, older_than)))
    return kinds


async def _prune(access: Access, keep: JournalRetention, place: Any) -> Step:
    after = place or 0
    found = await access.read(partial(admin.find_prunable, retention=keep, after=after, each=1))
    if not (found.entries or found.abandoned):
        return Step(0, found.after)
    step = await access.write(partial(admin.prune, found=found, retention=keep, limit=SWEEP_EVENTS, after=after))
    return Step(step.entries, step.after)


async def _remove(access: Access, older_than: float, place: Any) -> Step:
    done: Step = await access.write(partial(_journals, older_than=older_than, place=place))
    log_removed(done.removed)
    return done


def _journals(tx: Tx, older_than: float, place: Any) -> Step:
    after_time, after_id = place or (0.0, "")
    bounds = {
        "now": tx.now,
        "cutoff": tx.now - older_than,
        "after_time": after_time,
        "after_id": after_id,
        "window": SWEEP_LOOK,
    }
    rows = tx.rows(SQL["old_journals"], bounds)
    taken = first_rows(rows, SWEEP_EVENTS)
    doomed = [row.session_id for row in taken if row.at_rest]
    if doomed:
        instances.delete_instances(tx, doomed, force=True)
        sessions.renew_epochs(tx, doomed)
        session_states.remove(tx, doomed)
    is_last = len(taken) == len(rows) < SWEEP_LOOK
    return Step(len(doomed), None if is_last else [taken[-1].created_at, taken[-1].session_id])
