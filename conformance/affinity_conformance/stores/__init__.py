"""Conformance tests of session stores: run them against a store of your own.

A `StoreHarness` gives the suite fresh stores and a clock that it can move. With one in hand, this is all that a test
module needs::

    import pytest
    from affinity_conformance.stores import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def harness(self, tmp_path):
            harness = await MyHarness.create(tmp_path)
            yield harness
            await harness.aclose()

The tests are grouped by theme, one module each; every test is named after the rule of `affinity.SessionStore`
that it checks. No test sleeps. The rules for providers, which know who holds a session, are in
`affinity_conformance.providers`.
"""

from pkgutil import iter_modules

import pytest

# Before the modules are imported, so that their failed assertions show the compared values, as in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from affinity_conformance.stores.base import StoreHarness  # noqa: E402
from affinity_conformance.stores.deleting import DeleteRules  # noqa: E402
from affinity_conformance.stores.ids import StoreIdRules  # noqa: E402
from affinity_conformance.stores.listing import ListRules  # noqa: E402
from affinity_conformance.stores.paging import PageRules  # noqa: E402
from affinity_conformance.stores.saving import SaveRules  # noqa: E402
from affinity_conformance.stores.writers import WriterRules  # noqa: E402

__all__ = ["StoreConformance", "StoreHarness"]


class StoreConformance(SaveRules, WriterRules, DeleteRules, ListRules, PageRules, StoreIdRules):
    """Every rule of `affinity.SessionStore`, as tests of a store. Needs a fixture ``harness``."""
