"""Ancestors of a journal in the order that both engines give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from affinity.journal import JournalLineage


def nearest_first(found: Sequence[JournalLineage], session_id: str) -> list[JournalLineage]:
    """A journal and its ancestors, generation by generation, parents in their order, each once and at its least
    distance.
    """
    by_id = {each.journal_id: each for each in found}
    generation = [each.journal_id for each in found if each.session_id == session_id]
    ordered: dict[int, JournalLineage] = {}
    distance = 0
    while generation:
        ordered |= {journal_id: replace(by_id[journal_id], distance=distance) for journal_id in generation}
        parents = dict.fromkeys(parent for journal_id in generation for parent in by_id[journal_id].parents)
        generation = [parent for parent in parents if parent in by_id and parent not in ordered]
        distance += 1
    return list(ordered.values())
