"""The suite of session stores on every store that we have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from affinity import SessionStore
from affinity.session import SessionFilter, SessionState
from affinity.session.stores import MemorySessionStore
from affinity_conformance.stores import StoreConformance, StoreHarness
from tests.session.stores import MemoryStores, ProviderStores, StoppablePostgres, StoppableSqlite


class TestMemory(StoreConformance):
    """The reference."""

    @pytest.fixture
    async def harness(self) -> StoreHarness:
        return MemoryStores()


class TestSqlite(StoreConformance):
    """The records of the embedded default."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[StoreHarness]:
        stores = ProviderStores(await StoppableSqlite.create(tmp_path))
        yield stores
        await stores.aclose()


class TestPostgres(StoreConformance):
    """The records of the engine for many replicas, on both versions."""

    @pytest.fixture
    async def harness(self, postgres_shared: str) -> AsyncIterator[StoreHarness]:
        stores = ProviderStores(await StoppablePostgres.create(postgres_shared))
        yield stores
        await stores.aclose()


async def test_stores_in_memory_share_nothing_and_keep_utc() -> None:
    """By the machine's clock, unless it gets another."""
    stores: list[SessionStore] = [MemorySessionStore(), MemorySessionStore()]
    await stores[0].save(SessionState(session_id="s", state=b""))
    (row,) = await stores[0].list(SessionFilter(), 10)
    assert row.updated_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - row.updated_at) < timedelta(minutes=1)
    assert await stores[1].load("s") is None
