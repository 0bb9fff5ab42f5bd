"""What is slow of the tests that come from the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Every verb against every fault on the older PostgreSQL: the newer one, and SQLite, are part of each run."""
    for item in items:
        if item.name.startswith("test_every_verb_survives[old-"):
            item.add_marker(pytest.mark.slow)
