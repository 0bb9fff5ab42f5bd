"""The one schema of each provider: its folder `schema` by subject, and the migrations that lead to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest

from affinity.errors import SchemaMismatch
from affinity.provider import inspect_schema, migrate, open_provider
from affinity.provider.schema import load_migrations

pytestmark = pytest.mark.anyio

PROVIDERS = ("affinity.provider.postgres", "affinity.provider.sqlite")


@pytest.mark.parametrize("package", PROVIDERS)
def test_the_first_migration_is_the_schema(package: str) -> None:
    """Until there is a release, both change together."""
    parts = sorted((files(package) / "schema").iterdir(), key=lambda part: part.name)
    (first,) = load_migrations(package)
    assert first.script == "\n".join(part.read_text() for part in parts)


async def test_a_file_of_an_unreleased_version_is_refused(tmp_path: Path) -> None:
    """By workers, clients and migrations; nothing in it is changed."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE workers (worker_id TEXT PRIMARY KEY); PRAGMA user_version = 31;")
    before = path.read_bytes()
    for refused in (open_provider, migrate, inspect_schema):
        with pytest.raises(SchemaMismatch, match="begin a new schema"):
            await refused(f"sqlite:///{path}")
    assert path.read_bytes() == before


async def test_a_database_of_an_unreleased_version_is_refused(postgres_database: str) -> None:
    """By workers, clients and migrations; nothing in it is changed."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA affinity CREATE TABLE schema_versions (version integer PRIMARY KEY)")
        for refused in (open_provider, migrate, inspect_schema):
            with pytest.raises(SchemaMismatch, match="begin a new schema"):
                await refused(postgres_database)
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'affinity'").fetchall()
    assert tables == [("schema_versions",)]
