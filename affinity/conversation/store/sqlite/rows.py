"""The rows of journals: reading heads and numbers, and appending entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from affinity.conversation.journal import Description, NewEntry
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "rows.sql")

Numbers: TypeAlias = dict[tuple[int, str], int]
"""The number of an entry by journal id and event id."""


@dataclass(slots=True)
class Head:
    """A journal without its entries."""

    journal_id: int
    session_id: str
    kind: str
    parent: str | None
    processed: int = 0
    first_seq: int = 1
    last_seq: int = 0
    closed: int = 0
    base_id: int | None = None
    base_seq: int | None = None
    dropped: int = 0
    home: str | None = None
    parent_journal: int | None = None
    epoch: int = 0  # with a home: the greater one of the journal's own session and of its record
    instance_status: str | None = None  # if it was read
    ended_wake: str | None = None  # of the batch
    ended_attempt: int | None = None


def read_heads(tx: Tx, session_ids: Collection[str], *, with_status: bool = False) -> dict[str, Head]:
    """Return the journals by session, for the sessions that have one."""
    if not session_ids:
        return {}
    asked = {"session_ids": to_json(list(session_ids)), "with_status": with_status}
    heads = [Head(*row) for row in tx.gather(SQL["heads"], asked)]
    return {head.session_id: head for head in heads}


def read_numbers(tx: Tx, entries: Iterable[tuple[Head, NewEntry]]) -> Numbers:
    """Numbers of the entries that are there under the event ids of new ones."""
    rows = [(head.journal_id, entry.event_id, head.first_seq) for head, entry in entries if entry.event_id is not None]
    if not rows:
        return {}
    found = tx.gather(SQL["numbers"], {"rows": to_json(rows)})
    return {(journal_id, event_id): seq for journal_id, event_id, seq in found}


class Segment(NamedTuple):
    """Entries of one row of ``journals`` that a journal has, with numbers in (after, upto]."""

    journal_id: int
    after: int
    upto: int


def read_segments(tx: Tx, head: Head) -> list[Segment]:
    """Return the segments of a journal, the newest first: its own, then those of the journals that it continues."""
    if head.base_id is None:
        return [Segment(head.journal_id, 0, head.last_seq)]
    return [Segment(*row) for row in tx.gather(SQL["segments"], {"journal_id": head.journal_id})]


class EntryWriter:
    """Appends entries to several journals in one transaction.

    Args:
        tx: the transaction.
        numbers: of the entries that have the event ids of added entries already.
    """

    def __init__(self, tx: Tx, numbers: Numbers) -> None:
        self._tx = tx
        self._numbers = numbers
        self._created: list[tuple[Any, ...]] = []
        self._entries: list[tuple[Any, ...]] = []
        self._changed: dict[int, Head] = {}
        self._sizes: dict[int, int] = {}

    def find(self, head: Head, entry: NewEntry) -> int | None:
        """Return the number of the stored entry with the event id of this entry."""
        return None if entry.event_id is None else self._numbers.get((head.journal_id, entry.event_id))

    def create(self, head: Head, about: Description) -> None:
        """Create a journal."""
        described = (about.get("title"), about.get("owner"), about.get("labels") or {})
        self._created.append((head.journal_id, head.session_id, head.kind, head.parent, *described))

    def change(self, head: Head) -> None:
        """Write a head that is changed, before or after this call."""
        self._changed[head.journal_id] = head

    def add(self, head: Head, entry: NewEntry, request_seq: int | None = None) -> None:
        """Append an entry whose event id is not there. ``request_seq``: of the request that it answers."""
        head.last_seq += 1
        journal_id, seq, payload = head.journal_id, head.last_seq, entry.payload
        about = (entry.kind, entry.event_id, entry.wake_id, int(entry.is_input))
        self._entries.append((journal_id, seq, *about, payload, request_seq))
        if entry.event_id is not None:
            self._numbers[journal_id, entry.event_id] = seq
        self._sizes[journal_id] = self._sizes.get(journal_id, 0) + len(payload.encode())
        self.change(head)

    def write(self) -> None:
        """Write it all."""
        rows = [self._row(head) for head in self._changed.values()]
        self._tx.many(SQL["create"], self._created, {"now": self._tx.now})
        self._tx.many(SQL["append"], self._entries, {"now": self._tx.now})
        self._tx.many(SQL["advance"], rows, {"now": self._tx.now})

    def _row(self, head: Head) -> tuple[Any, ...]:
        size = self._sizes.get(head.journal_id, 0)
        ended = (head.ended_wake, head.ended_attempt)
        return (head.journal_id, head.last_seq, size, head.processed, head.closed, head.dropped, *ended)
