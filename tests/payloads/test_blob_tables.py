"""The collection of blobs looks at each column that may name one, by the primary key of its table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import affinity
from affinity.blobs.store.tables import TABLES
from affinity.payloads.table import payload_parts

pytestmark = pytest.mark.anyio


def test_all_encoded_columns_are_looked_at() -> None:
    """What has a payload may name a blob, and nothing else does."""
    looked_at = {f"{table.name}.{column}" for table in TABLES for column in table.columns}
    assert looked_at - {"exported_blobs.digest"} == set(_encoded_columns())
    assert len({table.name for table in TABLES}) == len(TABLES)


def _encoded_columns() -> Iterator[str]:
    for part in payload_parts():
        for record in part.records.values():
            for encoded in record.fields.values():
                yield from encoded.columns.split()
        for verb in part.verbs.values():
            for encoded in verb.arguments.values():
                yield from encoded.columns.split()


def test_what_sql_moves_is_looked_at_before_where_it_goes() -> None:
    names = [table.name for table in TABLES]
    for source in ("session_watches", "instances"):
        assert names.index(source) < names.index("orchestrator_queue")
    assert names.index("parked_items") < names.index("worker_queue")


async def test_the_keys_on_sqlite_are_primary(tmp_path: Path) -> None:
    await affinity.migrate(f"sqlite:///{tmp_path}/a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        for table in TABLES:
            rows = connection.execute("SELECT name, pk FROM pragma_table_info(?) WHERE pk ORDER BY pk", [table.name])
            expected = table.sqlite_keys or [name for name, _ in table.keys]
            assert [name for name, _ in rows] == [*expected], table.name


async def test_the_keys_on_postgres_are_primary(postgres_database: str) -> None:
    await affinity.migrate(postgres_database)
    with closing(psycopg.connect(postgres_database)) as connection:
        for table in TABLES:
            rows = connection.execute(KEYS, [f"affinity.{table.name}"]).fetchall()
            expected = [
                (name, "timestamp with time zone" if kind == "timestamptz" else kind) for name, kind in table.keys
            ]
            assert rows == expected, table.name


KEYS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_index i JOIN unnest(i.indkey) WITH ORDINALITY k (n, o) ON true
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n
    WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.o"""
