"""All rows of a database, as text."""

from __future__ import annotations

import sqlite3

import psycopg
from psycopg import sql

from affinity.provider.urls import sqlite_path


def all_rows(url: str) -> str:
    """The rows of all tables, as the database writes them."""
    if (path := sqlite_path(url)) is not None:
        connection = sqlite3.connect(path)
        try:
            return "\n".join(connection.iterdump())
        finally:
            connection.close()
    with psycopg.connect(url) as postgres:
        tables = postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'affinity'").fetchall()
        rows = [
            row
            for (table,) in tables
            for (row,) in postgres.execute(
                sql.SQL("SELECT t::text FROM affinity.{} t").format(sql.Identifier(table))
            ).fetchall()
        ]
    return "\n".join(rows)
