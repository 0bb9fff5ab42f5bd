"""Usage over distinct entries: each counts once, also when several compressions have left it out.

A *writer* is one instance of a conversation: the ids of its wakes begin with the same text. Conversations that are made
from others have the first entries of a writer, up to some number. So of two sums of one writer, the sum of more entries
includes the other.

The usage that compressions have left out is in the extras of a lineage: "usage", the sum for people, and
"usage_by_writer". The usage that retention has removed is in `JournalLineage.used`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from affinity.conversation.events import JournalEntry
from affinity.conversation.journal import JournalLineage
from affinity.records import parse_stored

MAX_WRITERS: Final = 32
"""Writers in the extras of a lineage. Beyond, the oldest are added up as one. Each compression adds a writer."""

MAX_WRITER_BYTES: Final = 16 * 1024
"""Bytes of the sums of these writers; beyond, the oldest are added up too."""

CARRYING: Final = frozenset({"compress", "detach", "import"})
"""Kinds of lineage that cut off earlier usage, and so have it in their extras."""


class Share(NamedTuple):
    """The usage of one writer."""

    entries: int  # with a usage
    usage: Mapping[str, int]


Spent: TypeAlias = dict[str, Share]
"""The shares by writer, oldest first."""


class UsageCounter:
    """Counts the kept entries of a journal, in order. It begins with the usage of removed entries."""

    def __init__(self, own: JournalLineage) -> None:
        self._spent: Spent = {writer: Share(*share) for writer, share in from_json(own.used).items()}
        self._waiting: list[JournalEntry] = []  # inputs: each is counted with the wakes behind it
        self._writer = ""

    def add(self, entry: JournalEntry) -> None:
        """Count the next entry that has a usage."""
        self._waiting.append(entry)
        if entry.wake_id is not None:
            self._writer = entry.wake_id.rsplit("-", 2)[0]
            self._count()

    def _count(self) -> None:
        for entry in self._waiting:
            share = self._spent.get(self._writer, Share(0, {}))
            if usage := getattr(entry.event, "usage", {}):
                self._spent[self._writer] = Share(share.entries + 1, _added(share.usage, usage))
        self._waiting.clear()

    def spent(self) -> Spent:
        """Return the usage of the counted entries, by writer."""
        self._count()
        return self._spent


def spent_before(lineage: Sequence[JournalLineage]) -> Spent:
    """Return the usage that compressions have left out. The nearest compressions suffice: each includes the earlier
    ones.
    """
    by_id = {node.journal_id: node for node in lineage}
    found: Spent = {}
    seen: set[int] = set()
    at = [lineage[0].journal_id]
    while at:
        row = by_id.get(at.pop())
        if row is None or row.journal_id in seen:
            continue
        seen.add(row.journal_id)
        spent = _carried(row) if row.lineage in CARRYING else None
        if spent is None:
            at += row.parents
        else:
            found = united(found, spent)
    return found


def united(one: Spent, other: Spent) -> Spent:
    """Return the usage of both, each entry counted once."""
    return one | {
        writer: share for writer, share in other.items() if writer not in one or share.entries > one[writer].entries
    }


def total_of(spent: Spent) -> dict[str, int]:
    """Return the sum."""
    total: dict[str, int] = {}
    for share in spent.values():
        total = _added(total, share.usage)
    return total


def extras_of(spent: Spent) -> dict[str, JsonValue]:
    """Return the extras that carry it on."""
    kept = dict(spent)
    while len(kept) > MAX_WRITERS or (len(kept) > 1 and len(to_json(kept)) > MAX_WRITER_BYTES):
        (first, oldest), (second, next_oldest), *_ = kept.items()
        del kept[second]
        kept[first] = Share(oldest.entries + next_oldest.entries, _added(oldest.usage, next_oldest.usage))
    shares: dict[str, JsonValue] = {writer: [share.entries, dict(share.usage)] for writer, share in kept.items()}
    return {"usage": dict(total_of(spent)), "usage_by_writer": shares}


def _carried(row: JournalLineage) -> Spent | None:
    """Return the extras of a row; None: they carry nothing."""
    shares = parse_stored(row.extras).get("usage_by_writer")
    if shares is None:
        return None
    return {writer: Share(entries, used) for writer, (entries, used) in shares.items()}


def _added(total: Mapping[str, int], usage: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of two usages, by name."""
    return {name: int(total.get(name, 0)) + int(usage.get(name, 0)) for name in {**total, **usage}}
