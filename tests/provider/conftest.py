"""What is slow of the tests that come from the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

_FAULTS = "test_every_verb_survives["


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """The conformance suite on the older PostgreSQL, and every verb against every fault on both: the newer one, and the
    faults on SQLite, are part of each run.
    """
    for item in items:
        if "TestPostgres" in item.nodeid and ("[old" in item.name or item.name.startswith(_FAULTS)):
            item.add_marker(pytest.mark.slow)
