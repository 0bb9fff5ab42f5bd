"""The conformance suite on SQLite, and on an old and a new PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from affinity.provider.conformance import Harness, ProviderConformance
from affinity.provider.sqlite import SqliteProvider
from tests.provider.harnesses import PostgresHarness, SqliteHarness


class TestSqlite(ProviderConformance):
    """The embedded default."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[Harness]:
        path = tmp_path / "affinity.db"
        await SqliteProvider.migrate(path)
        yield SqliteHarness(path)


class TestPostgres(ProviderConformance):
    """The engine for many replicas; `postgres_migrated` makes each test run on both versions."""

    @pytest.fixture
    async def harness(self, postgres_migrated: str) -> AsyncIterator[Harness]:
        yield PostgresHarness(postgres_migrated)
