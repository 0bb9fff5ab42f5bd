from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Servers
from tests.provider.harnesses import PostgresHarness, SqliteHarness
from tests.session.application import Application
from tests.session.clocked import ClockedStore, in_memory


@pytest.fixture
def app() -> Application:
    return Application()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[ClockedStore]:
    """An SQLite file."""
    harness = await SqliteHarness.create(tmp_path)
    provider = await harness.open()
    yield ClockedStore(provider.states, harness.advance, provider)
    await provider.aclose()


@pytest.fixture
async def postgres(servers: Servers) -> AsyncIterator[ClockedStore]:
    """A schema of the new PostgreSQL."""
    harness = await PostgresHarness.create(servers.shared("new"))
    provider = await harness.open()
    yield ClockedStore(provider.states, harness.advance, provider)
    await provider.aclose()
    await harness.aclose()


@pytest.fixture(params=["memory", "file", "postgres"])
def stage(request: pytest.FixtureRequest) -> ClockedStore:
    stage: ClockedStore = in_memory() if request.param == "memory" else request.getfixturevalue(request.param)
    return stage


@pytest.fixture(params=["file", "postgres"])
def database(request: pytest.FixtureRequest) -> ClockedStore:
    """A store that knows who holds a session."""
    stage: ClockedStore = request.getfixturevalue(request.param)
    return stage
