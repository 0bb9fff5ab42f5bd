"""Statements on a database of a test, whatever it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, LiteralString

import psycopg


def execute(url: str, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    """Read or write behind the back of the provider."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(statement.replace("%s", "?"), values).fetchall()
    with psycopg.connect(url, options="-c search_path=affinity") as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []
