"""The one schema of each provider: its folder `schema` by subject, and the migrations that lead to it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from affinity import migrate
from affinity.errors import SchemaMismatch
from affinity.provider import inspect_schema, open_provider
from affinity.provider.schema import Migration, load_migrations
from tests.support.later_release import write_first_migrations

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a provider ``engine`` of which there is only the schema, in two files."""
    folder = tmp_path / "affinity" / "provider" / "engine"
    (folder / "schema").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "schema" / "02_b.sql").write_text("CREATE b;\n")
    (folder / "schema" / "01_a.sql").write_text("CREATE a;\n")
    monkeypatch.syspath_prepend(folder.parent)
    yield folder
    sys.modules.pop("engine", None)


def test_until_the_first_release_the_schema_is_the_first_migration(folder: Path) -> None:
    assert load_migrations("engine") == [Migration(1, "0001_schema", "CREATE a;\n\nCREATE b;\n")]


def test_the_release_writes_the_first_migration_down(folder: Path, tmp_path: Path) -> None:
    """With the command of CONTRIBUTING.md: the text is the same, and stays when the schema goes on."""
    before = load_migrations("engine")
    write_first_migrations(tmp_path, "engine")
    assert load_migrations("engine") == before
    for place in ("schema/02_b.sql", "migrations/0002_c.sql"):
        (folder / place).write_text("CREATE c;")
    assert load_migrations("engine") == [*before, Migration(2, "0002_c", "CREATE c;")]


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
