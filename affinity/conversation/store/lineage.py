"""Ancestors of a journal, as both engines give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from affinity.conversation.journal import JournalLineage, JournalRange
from affinity.provider.rows import to_record
from affinity.records import labels_of


def to_lineage(
    rows: Iterable[Sequence[Any]], session_id: str, instant: Callable[[Any], datetime]
) -> list[JournalLineage]:
    """Return a journal and its ancestors, level by level, parents in their order, each once and at its least
    distance.

    Args:
        rows: session id, journal id, kind, lineage, operator, parents, extras, id and number of the base, home, time of
            creation, what removed entries have used, title, owner, labels as JSON, session id of the base; in
            any order.
        session_id: of the journal.
        instant: converts a time.
    """
    by_id = {journal.journal_id: journal for journal in (_to_lineage(row, instant) for row in rows)}
    level = [journal.journal_id for journal in by_id.values() if journal.session_id == session_id]
    ordered: dict[int, JournalLineage] = {}
    distance = 0
    while level:
        ordered |= {journal_id: replace(by_id[journal_id], distance=distance) for journal_id in level}
        parents = dict.fromkeys(parent for journal_id in level for parent in by_id[journal_id].parents)
        level = [parent for parent in parents if parent in by_id and parent not in ordered]
        distance += 1
    return list(ordered.values())


def _to_lineage(row: Sequence[Any], instant: Callable[[Any], datetime]) -> JournalLineage:
    *own, base_id, base_seq, home, created_at, used, title, owner, labels, of_base = row
    base = None if base_id is None else JournalRange(base_id, base_seq)
    found = [*own, base, home, 0, created_at, used, title, owner, labels_of(labels), of_base]
    return to_record(JournalLineage, found, instant)
