"""What is slow of the tests that come from the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

_DEEP = "test_three_thousand_generations[old"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Every verb against every fault on PostgreSQL: SQLite is part of each run. The deepest forks on the older."""
    for item in items:
        if item.name.startswith(("test_every_verb_survives[old-", "test_every_verb_survives[new-", _DEEP)):
            item.add_marker(pytest.mark.slow)
