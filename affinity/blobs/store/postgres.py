"""The collection of blobs on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.blob import MARK
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
from affinity.provider.postgres.driver.arrays import Blobs, Ints, Packed, Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import CHANGE, READ, RUN, PostgresPart, Rights
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "postgres.sql")


async def begin_blob_round(db: Database, pause: float) -> bool:
    return bool(await db.connections.misc.run(_SQL["begin_round"], {"pause": float(pause)}))


async def find_named_blobs(db: Database, place: str | None, limit: int) -> NamedBlobs:
    number, after = (0, None) if place is None else json.loads(place)
    keys = {} if after is None else {f"k{n}": key for n, key in enumerate(after)}
    params = {**keys, "limit": Int8(limit), "mark": MARK}
    rows = await db.connections.misc.run(_statement(number, is_first=after is None), params)
    digests = {digest for *_, found in rows for digest in found or ()}
    if len(rows) == limit:
        return NamedBlobs(digests, json.dumps([number, rows[-1][:-1]]))
    return NamedBlobs(digests, json.dumps([number + 1, None]) if number + 1 < len(TABLES) else None)


@cache
def _statement(number: int, *, is_first: bool) -> LiteralString:
    """Return the statement that reads the keys of some rows, and the digests in each."""
    table = TABLES[number]
    names: LiteralString = ", ".join(f"t.{name}" for name, _ in table.keys)
    values: LiteralString = ", ".join(f"%(k{n})s::text::{kind}" for n, (_, kind) in enumerate(table.keys))
    texts: LiteralString = ", ".join(f"t.{name}::text" for name, _ in table.keys)
    payload: LiteralString = _payload(table)
    behind: LiteralString = "" if is_first else f"WHERE ({names}) > ({values})"
    return f"""
        SELECT {texts}, CASE WHEN {_has_mark(table)} THEN
            ARRAY (SELECT DISTINCT m[1] FROM regexp_matches({payload}, %(mark)s || '([0-9a-f]{{64}})', 'g') AS m) END
        FROM {table.name} t {behind} ORDER BY {names} LIMIT %(limit)s"""  # noqa: S608 -- names of `TABLES`


def _payload(table: PayloadTable) -> LiteralString:
    if table.is_binary:
        return f"encode(t.{table.columns[0]}, 'escape')"
    columns: LiteralString = ", ".join(f"t.{column}" for column in table.columns)
    return f"concat_ws(' ', {columns})"


def _has_mark(table: PayloadTable) -> LiteralString:
    if table.is_binary:
        return f"position(convert_to(%(mark)s, 'UTF8') IN t.{table.columns[0]}) > 0"
    return " OR ".join(f"strpos(t.{column}, %(mark)s) > 0" for column in table.columns)


async def condemn_blobs(db: Database, digests: Collection[str]) -> None:
    await db.connections.misc.run(_SQL["condemn"], {"digests": Texts([*digests])})


async def get_condemned_blobs(db: Database, digests: Collection[str] | None = None) -> Collection[str]:
    if digests is None:
        return [digest for (digest,) in await db.connections.misc.run(_SQL["left_condemned"])]
    rows = await db.connections.quick.run(_SQL["condemned"], {"digests": Texts([*digests])})
    return [digest for (digest,) in rows]


async def forgive_blobs(db: Database, digests: Collection[str]) -> None:
    await db.connections.misc.run(_SQL["forgive"], {"digests": Texts([*digests])})


async def note_orphans(db: Database, orphans: Sequence[OrphanBlob]) -> None:
    params = {
        "digests": Texts(orphan.digest for orphan in orphans),
        "used_at": Texts(orphan.used_at for orphan in orphans),
        "size": Ints(orphan.size for orphan in orphans),
    }
    await db.connections.misc.run(_SQL["note_orphans"], params)


async def get_old_orphans(db: Database, grace: float, limit: int) -> Sequence[OrphanBlob]:
    rows = await db.connections.misc.run(_SQL["old_orphans"], {"grace": float(grace), "limit": Int8(limit)})
    return [OrphanBlob._make(row) for row in rows]


async def measure_orphans(db: Database) -> OrphanFigures:
    (row,) = await db.connections.misc.run(_SQL["measure"])
    return OrphanFigures._make(row)


async def keep_exported_blobs(db: Database, digests: Collection[str]) -> None:
    await db.connections.rows.run(_SQL["keep_exported"], {"digests": Texts([*digests])})


async def forget_exported_blobs(db: Database, older_than: float) -> int:
    ((removed,),) = await db.connections.misc.run(_SQL["forget_exported"], {"older_than": float(older_than)})
    return int(removed)


async def read_payloads(db: Database, place: str | None, limit: int) -> StoredPayloads:
    number, after = (0, None) if place is None else json.loads(place)
    table = ENCODED[number]
    width = len(table.keys)
    keys = {} if after is None else {f"k{n}": key for n, key in enumerate(after)}
    params = {**keys, "limit": Int8(limit), "bytes": Int8(MAX_BATCH_BYTES)}
    rows = await db.connections.misc.run(_reading(number, is_first=after is None), params)
    payloads = [
        StoredPayload(f"{table.name}.{column}", json.dumps(row[:width]), stored)
        for row in rows
        for column, stored in zip(table.columns, row[width:-1], strict=True)
        if stored is not None
    ]
    if rows and (rows[-1][-1] == limit or len(rows) < rows[-1][-1]):
        return StoredPayloads(payloads, json.dumps([number, rows[-1][:width]]))
    return StoredPayloads(payloads, json.dumps([number + 1, None]) if number + 1 < len(ENCODED) else None)


@cache
def _reading(number: int, *, is_first: bool) -> LiteralString:
    """Return the statement that reads the keys and the payloads of some rows, and how many rows there were."""
    table = ENCODED[number]
    names: LiteralString = ", ".join(f"t.{name}" for name, _ in table.keys)
    columns: LiteralString = ", ".join(f"t.{column}" for column in table.columns)
    values: LiteralString = ", ".join(f"%(k{n})s::text::{kind}" for n, (_, kind) in enumerate(table.keys))
    texts: LiteralString = ", ".join(f"t.{name}::text" for name, _ in table.keys)
    size: LiteralString = " + ".join(f"coalesce(octet_length(t.{column}), 0)::bigint" for column in table.columns)
    behind: LiteralString = "" if is_first else f"WHERE ({names}) > ({values})"
    return f"""
        SELECT {texts}, {columns}, t.found FROM (
            SELECT t.*, count(*) OVER () AS found, sum(t.size) OVER (ORDER BY {names}) - t.size AS before FROM (
                SELECT {names}, {columns}, {size} AS size FROM {table.name} t {behind} ORDER BY {names} LIMIT %(limit)s
            ) t) t
        WHERE t.before = 0 OR t.before + t.size <= %(bytes)s ORDER BY {names}"""  # noqa: S608 -- names of `TABLES`


async def replace_payloads(db: Database, changes: Sequence[PayloadChange]) -> Collection[int]:
    replaced = list[int]()
    for column, places in by_column(change.old.column for change in changes).items():
        chosen = [changes[place] for place in places]
        params = {"place": Ints(places), **_values(column, chosen)}
        replaced += [place for (place,) in await db.connections.misc.run(_replacing(column), params)]
    return replaced


def _values(column: str, changes: Sequence[PayloadChange]) -> dict[str, Packed]:
    table, _ = place_of(column)
    columns = zip(*(json.loads(change.old.key) for change in changes), strict=True)
    keys = {f"k{n}": Texts([*keys]) for n, keys in enumerate(columns)}
    old, new = [change.old.stored for change in changes], [change.new for change in changes]
    pack: Any = Blobs if table.is_binary else Texts
    return {**keys, "old": pack(old), "new": pack(new)}


@cache
def _replacing(column: str) -> LiteralString:
    """Return the statement that replaces values that are as they were. It waits for no lock."""
    table, name = place_of(column)
    kind: LiteralString = "bytea" if table.is_binary else "text"
    arrays: LiteralString = ", ".join(f"%(k{n})s::text[]" for n, _ in enumerate(table.keys))
    given: LiteralString = ", ".join(f"k{n}" for n, _ in enumerate(table.keys))
    is_row: LiteralString = " AND ".join(f"t.{key} = g.k{n}::{kind}" for n, (key, kind) in enumerate(table.keys))
    return f"""
        WITH given AS (
            SELECT * FROM unnest({arrays}, %(old)s::{kind}[], %(new)s::{kind}[], %(place)s::bigint[])
                AS g ({given}, old, new, place)
        ), free AS (
            SELECT g.* FROM given g JOIN {table.name} t ON {is_row}
            WHERE t.{name} = g.old FOR NO KEY UPDATE OF t SKIP LOCKED
        )
        UPDATE {table.name} t SET {name} = g.new FROM free g WHERE {is_row} AND t.{name} = g.old RETURNING g.place"""  # noqa: S608 -- names of `TABLES`


PART: Final = PostgresPart(
    verbs={
        "begin_blob_round": begin_blob_round,
        "find_named_blobs": find_named_blobs,
        "condemn_blobs": condemn_blobs,
        "get_condemned_blobs": get_condemned_blobs,
        "forgive_blobs": forgive_blobs,
        "note_orphans": note_orphans,
        "get_old_orphans": get_old_orphans,
        "measure_orphans": measure_orphans,
        "keep_exported_blobs": keep_exported_blobs,
        "forget_exported_blobs": forget_exported_blobs,
        "read_payloads": read_payloads,
        "replace_payloads": replace_payloads,
    },
    rights=(
        Rights("TABLE", "condemned_blobs exported_blobs orphan_blobs", client=READ, worker=CHANGE),
        Rights("TABLE", "blob_rounds", worker=CHANGE),
        Rights("FUNCTION", "keep_exported_blobs", client=RUN, worker=RUN, reader=""),
    ),
)
