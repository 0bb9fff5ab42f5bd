"""The databases of tests of conversations, and of an `Env`."""

from __future__ import annotations

import pytest

from tests.conversation.conftest import maybe_traced, postgres_age, url

__all__ = ["maybe_traced", "postgres_age", "url"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.nightly])])
def server(request: pytest.FixtureRequest) -> str | None:
    """Of an `Env`; None: SQLite. No rule of agents depends on the database; the conformance suite covers journals."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_shared")
