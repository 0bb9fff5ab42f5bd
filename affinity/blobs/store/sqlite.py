"""The collection of blobs on SQLite."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Final, LiteralString

from affinity.blob import MARK, digests_in
from affinity.blobs.store.contract import (
    NamedBlobs,
    OrphanBlob,
    OrphanFigures,
    PayloadChange,
    StoredPayload,
    StoredPayloads,
)
from affinity.blobs.store.tables import ENCODED, TABLES, PayloadTable, by_column, place_of
from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.parts import SqlitePart
from affinity.provider.sqlite.verbs import reads, writes
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "sqlite.sql")


def begin_round(tx: Tx, pause: float) -> bool:
    return tx.run(SQL["begin_round"], {"pause": pause, "now": tx.now}) > 0


def find_named(tx: Tx, place: str | None, limit: int) -> NamedBlobs:
    number, after = (0, None) if place is None else json.loads(place)
    table = TABLES[number]
    keys = {} if after is None else {f"k{n}": key for n, key in enumerate(after)}
    width = len(_keys(table))
    rows = tx.rows(_statement(number, is_first=after is None), {**keys, "limit": limit, "mark": MARK})
    digests = {digest for row in rows for payload in row[width:] if payload is not None for digest in _digests(payload)}
    if len(rows) == limit:
        return NamedBlobs(digests, json.dumps([number, list(rows[-1][:width])]))
    return NamedBlobs(digests, json.dumps([number + 1, None]) if number + 1 < len(TABLES) else None)


def _digests(payload: str | bytes) -> set[str]:
    return digests_in(payload if isinstance(payload, str) else payload.decode("latin-1"))


def _keys(table: PayloadTable) -> list[LiteralString]:
    return [name for name, _ in table.keys] if table.sqlite_keys is None else [*table.sqlite_keys]


@cache
def _statement(number: int, *, is_first: bool) -> LiteralString:
    """Return the statement that reads the keys of some rows, and the payloads that have a mark."""
    table = TABLES[number]
    names: LiteralString = ", ".join(_keys(table))
    values: LiteralString = ", ".join(f":k{n}" for n, _ in enumerate(_keys(table)))
    mark: LiteralString = "CAST(:mark AS BLOB)" if table.is_binary else ":mark"
    payloads: LiteralString = ", ".join(
        f"CASE WHEN instr({column}, {mark}) > 0 THEN {column} END" for column in table.columns
    )
    behind: LiteralString = "" if is_first else f"WHERE ({names}) > ({values})"
    return f"SELECT {names}, {payloads} FROM {table.name} {behind} ORDER BY {names} LIMIT :limit"  # noqa: S608 -- names of `TABLES`


def condemn(tx: Tx, digests: Collection[str]) -> None:
    tx.run(SQL["condemn"], {"digests": to_json([*digests]), "now": tx.now})


def get_condemned(tx: Tx, digests: Collection[str] | None = None) -> list[str]:
    if digests is None:
        return [digest for (digest,) in tx.rows(SQL["left_condemned"], {"now": tx.now})]
    return [digest for (digest,) in tx.rows(SQL["condemned"], {"digests": to_json([*digests])})]


def forgive(tx: Tx, digests: Collection[str]) -> None:
    tx.run(SQL["forgive"], {"digests": to_json([*digests])})
    tx.run(SQL["forget_orphans"], {"digests": to_json([*digests])})


def note_orphans(tx: Tx, orphans: Sequence[OrphanBlob]) -> None:
    tx.many(SQL["note_orphans"], orphans, {"now": tx.now})


def get_old_orphans(tx: Tx, grace: float, limit: int) -> list[OrphanBlob]:
    rows = tx.rows(SQL["old_orphans"], {"now": tx.now, "grace": grace, "limit": limit})
    return [OrphanBlob._make(row) for row in rows]


def measure_orphans(tx: Tx) -> OrphanFigures:
    (row,) = tx.rows(SQL["measure"], {"now": tx.now})
    return OrphanFigures._make(row)


def keep_exported(tx: Tx, digests: Collection[str]) -> None:
    tx.run(SQL["keep_exported"], {"digests": to_json([*digests]), "now": tx.now})


def forget_exported(tx: Tx, older_than: float) -> int:
    return tx.run(SQL["forget_exported"], {"older_than": older_than, "now": tx.now})


def read_payloads(tx: Tx, place: str | None, limit: int) -> StoredPayloads:
    number, after = (0, None) if place is None else json.loads(place)
    table = ENCODED[number]
    width = len(_keys(table))
    keys = {} if after is None else {f"k{n}": key for n, key in enumerate(after)}
    rows = tx.rows(_reading(number, is_first=after is None), {**keys, "limit": limit, "bytes": MAX_BATCH_BYTES})
    payloads = [
        StoredPayload(f"{table.name}.{column}", json.dumps(row[:width]), stored)
        for row in rows
        for column, stored in zip(table.columns, row[width:-1], strict=True)
        if stored is not None
    ]
    if rows and (rows[-1][-1] == limit or len(rows) < rows[-1][-1]):
        return StoredPayloads(payloads, json.dumps([number, list(rows[-1][:width])]))
    return StoredPayloads(payloads, json.dumps([number + 1, None]) if number + 1 < len(ENCODED) else None)


@cache
def _reading(number: int, *, is_first: bool) -> LiteralString:
    """Return the statement that reads the keys and the payloads of some rows, and how many rows there were."""
    table = ENCODED[number]
    names: LiteralString = ", ".join(_keys(table))
    columns: LiteralString = ", ".join(table.columns)
    values: LiteralString = ", ".join(f":k{n}" for n, _ in enumerate(_keys(table)))
    size: LiteralString = " + ".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in table.columns)
    behind: LiteralString = "" if is_first else f"WHERE ({names}) > ({values})"
    return f"""
        SELECT {names}, {columns}, found FROM (
            SELECT *, count(*) OVER () AS found, sum(size) OVER (ORDER BY {names}) - size AS before FROM (
                SELECT {names}, {columns}, {size} AS size FROM {table.name} {behind} ORDER BY {names} LIMIT :limit))
        WHERE before = 0 OR before + size <= :bytes ORDER BY {names}"""  # noqa: S608 -- names of `TABLES`


def replace_payloads(tx: Tx, changes: Sequence[PayloadChange]) -> list[int]:
    return [
        place
        for column, places in by_column(change.old.column for change in changes).items()
        for place in places
        if tx.run(_replacing(column), _replacement(changes[place]))
    ]


def _replacement(change: PayloadChange) -> dict[str, object]:
    keys = {f"k{n}": key for n, key in enumerate(json.loads(change.old.key))}
    return {**keys, "old": change.old.stored, "new": change.new}


@cache
def _replacing(column: str) -> LiteralString:
    """Return the statement that replaces one value, if it is as it was."""
    table, name = place_of(column)
    keys: LiteralString = " AND ".join(f"{key} = :k{n}" for n, key in enumerate(_keys(table)))
    return f"UPDATE {table.name} SET {name} = :new WHERE {keys} AND {name} = :old"  # noqa: S608 -- names of `TABLES`


PART: Final = SqlitePart(
    verbs={
        "begin_blob_round": writes(begin_round),
        "find_named_blobs": reads(find_named),
        "condemn_blobs": writes(condemn),
        "get_condemned_blobs": reads(get_condemned),
        "forgive_blobs": writes(forgive),
        "note_orphans": writes(note_orphans),
        "get_old_orphans": reads(get_old_orphans),
        "measure_orphans": reads(measure_orphans),
        "keep_exported_blobs": writes(keep_exported),
        "forget_exported_blobs": writes(forget_exported),
        "read_payloads": reads(read_payloads),
        "replace_payloads": writes(replace_payloads),
    },
)
