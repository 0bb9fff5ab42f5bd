"""The database of a test of conversations: SQLite, and the newer PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from affinity.conversation.journal import JournalWrite
from affinity.conversation.writing import WakeWriting


@pytest.fixture(params=["sqlite", "new"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database, without rows."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_kept")
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Of an `Env`; None: SQLite."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_shared")


@pytest.fixture
def postgres_age() -> str:
    """The newer of the two servers."""
    return "new"


@pytest.fixture(params=["traced", "untraced"])
def maybe_traced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs again where no wake writes its trace."""
    if request.param == "traced":
        return
    part, prepare = WakeWriting.part, WakeWriting.prepare

    def without(write: JournalWrite) -> JournalWrite:
        return replace(write, entries=[each for each in write.entries if not each.kind.startswith("span.")])

    async def prepare_without(self: WakeWriting) -> JournalWrite:
        return without(await prepare(self))

    def part_without(self: WakeWriting, **added: Any) -> JournalWrite:
        return without(part(self, **added))

    monkeypatch.setattr(WakeWriting, "part", part_without)
    monkeypatch.setattr(WakeWriting, "prepare", prepare_without)
