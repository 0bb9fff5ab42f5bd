"""The input of a wake, which comes with the fetch of its activity."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from psycopg.types.numeric import Int8

from affinity.conversation.journal import Entry, PendingWork
from affinity.limits import MAX_FETCHED_INPUT
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.operations import columns
from affinity.provider.postgres.parts import PostgresPrefetch
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "fetches.sql")


class _JournalRow(NamedTuple):
    """The first columns of ``pending``; an `Entry`, the journal's only input, follows."""

    journal_id: int
    kind: str
    processed: int
    closed: bool
    parent: str | None


_JOURNAL, _INPUT = columns(_JournalRow, Entry)


def _params(names: Collection[str]) -> Params:
    return {"wakes": Texts(names), "most_input": Int8(MAX_FETCHED_INPUT)}


def _read(row: Row) -> PendingWork | None:
    if row[0] is None:
        return None
    journal, entry = _JournalRow._make(row[_JOURNAL]), Entry._make(row[_INPUT])
    return PendingWork(
        journal_id=journal.journal_id,
        kind=journal.kind,
        processed=journal.processed,
        last_seq=entry.seq,
        closed=journal.closed,
        parent=journal.parent,
        inputs=[entry],
        more=False,
        due=[],
        requests=[],
        revisits=[],
        delegations=[],
        steps=[],
        next_due=None,
    )


PREFETCH: Final = PostgresPrefetch(
    columns="pending.*", width=_INPUT.stop, tables=_SQL["pending"], params=_params, read=_read
)
