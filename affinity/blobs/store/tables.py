"""The columns in which a payload may name a blob, in the order in which the collection of blobs looks at them.

Rows are found by their primary keys, in steps. So a row that stays is seen, however it changes. What SQL moves from one
table to another, it moves to one that comes later here: a start that waited to the queue, a parked item to the queue.
What Python moves, it writes, and so it touches the blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, LiteralString, NamedTuple

from affinity.errors import InvalidInput


class PayloadTable(NamedTuple):
    """A table with payloads."""

    name: LiteralString
    columns: Sequence[LiteralString]
    keys: Sequence[tuple[LiteralString, LiteralString]]
    """Columns of the primary key, and their types on PostgreSQL."""
    sqlite_keys: Sequence[LiteralString] | None = None
    """None: the same columns."""
    is_binary: bool = False


_INSTANCE: Final = ("instance_id", "text")
_EXECUTION: Final = ("execution_id", "bigint")
_JOURNAL: Final = ("journal_id", "bigint")

TABLES: Final[Sequence[PayloadTable]] = (
    PayloadTable("limits", ["closed_for"], [("name", "text")]),
    PayloadTable("schedules", ["spec", "note"], [("name", "text")]),
    PayloadTable("journals", ["extras", "title"], [_JOURNAL]),
    PayloadTable(
        "journal_streams", ["payload"], [_JOURNAL, ("wake_id", "text"), ("attempt", "bigint"), ("number", "bigint")]
    ),
    PayloadTable("journal_steps", ["arguments", "result"], [_JOURNAL, ("wake_id", "text"), ("key", "text")]),
    PayloadTable("journal_revisits", ["note", "reason"], [_JOURNAL, ("key", "text")]),
    PayloadTable("journal_requests", ["payload"], [_JOURNAL, ("request_id", "text")], ["id"]),
    PayloadTable("journal_wakes", ["reason", "error"], [_JOURNAL, ("processed", "bigint"), ("seq", "bigint")]),
    PayloadTable("journal_entries", ["payload"], [_JOURNAL, ("seq", "bigint")]),
    PayloadTable("resources", ["handle"], [("resource_id", "text")]),
    PayloadTable("session_watches", ["payload"], [("session_id", "text"), _INSTANCE]),
    PayloadTable("parked_items", ["payload"], [_INSTANCE]),
    PayloadTable("instances", ["next_start", "on_deleted", "custom_status", "output", "error"], [_INSTANCE]),
    PayloadTable(
        "worker_queue", ["payload", "last_error"], [_INSTANCE, _EXECUTION, ("activity_id", "integer")], ["id"]
    ),
    PayloadTable("orchestrator_queue", ["payload"], [("id", "bigint")]),
    PayloadTable("message_keys", ["reply"], [_INSTANCE, ("generation", "text"), ("key", "text")], ["id"]),
    PayloadTable("instance_values", ["value"], [_INSTANCE, ("key", "text")]),
    PayloadTable("suspensions", ["message"], [_INSTANCE]),
    PayloadTable("session_states", ["state"], [("session_id", "text")], is_binary=True),
    PayloadTable(
        "failures",
        ["error", "stack"],
        [_INSTANCE, _EXECUTION, ("activity_id", "integer"), ("attempt", "integer")],
        ["id"],
    ),
    PayloadTable("history", ["event"], [_INSTANCE, _EXECUTION, ("event_id", "integer")]),
    PayloadTable("audit", ["details"], [("at", "timestamptz"), ("entry_id", "bigint")], ["entry_id"]),
    PayloadTable("exported_blobs", ["digest"], [("digest", "text")]),
)
"""``exported_blobs`` has digests alone: see `CollectsBlobs.keep_exported_blobs`."""

ENCODED: Final[Sequence[PayloadTable]] = tuple(table for table in TABLES if table.name != "exported_blobs")
"""The tables that have encoded payloads."""

_PLACES: Final[Mapping[str, tuple[PayloadTable, LiteralString]]] = {
    f"{table.name}.{column}": (table, column) for table in ENCODED for column in table.columns
}


def place_of(column: str) -> tuple[PayloadTable, LiteralString]:
    """Return the table and the name of a column of payloads, ``table.column``.

    Raises:
        InvalidInput: it is none.
    """
    if column not in _PLACES:
        raise InvalidInput(f"{column!r} is no column of payloads")
    return _PLACES[column]


def by_column(columns: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """Return the places of each column in a sequence of columns; the columns are in the order of the tables."""
    found: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        place_of(column)
        found.setdefault(column, []).append(place)
    return {column: found[column] for column in _PLACES if column in found}
