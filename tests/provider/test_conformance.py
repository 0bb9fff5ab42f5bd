"""The conformance suite on SQLite, and on an old and a new PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from affinity.provider.conformance import Harness, ProviderConformance
from tests.provider.harnesses import PostgresHarness, SqliteHarness


class TestSqlite(ProviderConformance):
    """The embedded default."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> Harness:
        return await SqliteHarness.create(tmp_path)


class TestPostgres(ProviderConformance):
    """The engine for many replicas; `postgres_shared` makes each test run on both versions."""

    @pytest.fixture
    async def harness(self, postgres_shared: str) -> AsyncIterator[Harness]:
        harness = await PostgresHarness.create(postgres_shared)
        yield harness
        await harness.aclose()


def test_no_rule_hides_another() -> None:
    """All themes are one class: a name that two of them define would be one rule less, and nobody would notice."""
    themes = ProviderConformance.__mro__[1:]
    names = [name for theme in themes for name in vars(theme) if not name.startswith("__")]
    assert [name for name in set(names) if names.count(name) > 1] == []
