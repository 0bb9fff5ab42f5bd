"""Retention of journals: the bounds that a sweep gets, and the journals that one step looks at."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from affinity.conversation.journal import JournalRetention
from affinity.provider.contract import Retention

logger: logging.Logger = logging.getLogger("affinity.worker")

GUEST: Final = "conversation"

ENTRIES: Final = "entries"
"""Round, and count in `Sweep.removed`, of entries that journals need not keep."""

JOURNALS: Final = "journals"
"""Round, and count in `Sweep.removed`, of journals at rest."""


def entry_bounds(keep: Retention) -> JournalRetention:
    """Return what journals keep of their entries: ``age``, ``entries`` and ``size`` of the guest's bounds."""
    bounds = _bounds(keep)
    return JournalRetention(age=bounds.get("age"), entries=bounds.get("entries"), size=bounds.get("size"))


def resting_bound(keep: Retention) -> float | None:
    """Return the seconds after which a journal at rest is removed: ``resting`` of the guest's bounds."""
    return _bounds(keep).get("resting")


def _bounds(keep: Retention) -> Mapping[str, Any]:
    bounds: Mapping[str, Any] = keep.guests.get(GUEST, {})
    return bounds


class OldJournal(NamedTuple):
    """A journal that is old enough to be looked at."""

    journal_id: int
    session_id: str
    created_at: Any
    at_rest: bool
    entries: int


def first_rows(rows: Iterable[Sequence[Any]], entries: int) -> list[OldJournal]:
    """Return the first rows, up to one with which those at rest have so many entries."""
    taken: list[OldJournal] = []
    for row in map(OldJournal._make, rows):
        taken.append(row)
        entries -= row.entries if row.at_rest else 0
        if entries <= 0:
            break
    return taken


def log_removed(journals: int) -> None:
    """Log how many journals a step has removed, if any."""
    if journals:
        logger.info("retention has removed %d journals with their records", journals)
