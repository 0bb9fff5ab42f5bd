"""The database of a test of conversations: SQLite, and the newer PostgreSQL."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", "new"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_migrated")
    return found


@pytest.fixture
def postgres_age() -> str:
    """The newer of the two servers."""
    return "new"
