"""The table of what is encoded, against the schemas of both databases and against the documents."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg
import pytest

from affinity import migrate
from affinity.payloads.table import encoded_columns, metadata_columns

ROOT: Final = Path(__file__).parents[2]

NUMBERS: Final = frozenset(
    {
        "bigint",
        "integer",
        "boolean",
        "timestamp with time zone",
        "double precision",
        "real",
        "bigint[]",
        "smallint",
        "INTEGER",
        "REAL",
    }
)
"""Types that hold no text of users."""


async def _sqlite_columns(path: Path) -> set[str]:
    await migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        return {
            f"{table}.{row[1]}"
            for (table,) in tables
            for row in connection.execute(f"PRAGMA table_info({table})")
            if row[2] not in NUMBERS
        }


def _postgres_columns(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT c.relname || '.' || a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a"
            " JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'affinity'::regnamespace"
            " AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"
        ).fetchall()
        return {column for column, kind in rows if kind not in NUMBERS}


async def _columns(tmp_path: Path, url: str) -> tuple[set[str], set[str]]:
    return await _sqlite_columns(tmp_path / "schema.db"), _postgres_columns(url)


@pytest.mark.parametrize("postgres_age", ["old"], indirect=True)
async def test_each_column_is_encoded_or_has_a_reason(tmp_path: Path, postgres_migrated: str) -> None:
    """A column that a change adds is in one of two lists."""
    of_sqlite, of_postgres = await _columns(tmp_path, postgres_migrated)
    encoded, metadata = encoded_columns(), metadata_columns()
    assert len(encoded) > 25
    assert not encoded & metadata.keys()
    assert encoded <= of_sqlite & of_postgres
    assert (of_sqlite | of_postgres) - encoded == metadata.keys()


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "run" / "encryption.md").read_text()
    _, _, table = page.partition("## Every column\n")
    for column in encoded_columns():
        assert f"`{column}`" in table, column
    for column, reason in metadata_columns().items():
        (line,) = [line for line in table.splitlines() if line.startswith(f"| {reason} |")]
        assert f"`{column}`" in line, column
