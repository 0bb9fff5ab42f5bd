"""The provider contract as an executable suite: run it against a provider of your own.

A `Harness` gives the suite a fresh database, a clock that it can move, and faults to inject. With one in hand, this
is all that a test module needs::

    import pytest
    from affinity.testing.conformance.providers import ProviderConformance

    class TestMyProvider(ProviderConformance):
        @pytest.fixture
        async def harness(self, tmp_path):
            harness = await MyHarness.create(tmp_path)
            yield harness
            await harness.aclose()

The tests are grouped by theme, one module each. Every test is named after the rule of the contract
(`affinity.provider.contract`) that it asserts: what the suite does not assert is not promised. No test sleeps: time is
moved through the harness. A provider that relies on `Provider.sweep` to find stale routes is given
the sweep wherever real workers would have run it, and nowhere else.

Needs the extra `conformance` (pytest). The plugin of anyio for pytest comes with anyio.
"""

from pkgutil import iter_modules

import pytest

# Before they are imported, so that a failed assertion of theirs says what it compared, as in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from affinity.testing.conformance.providers.harness import Fault, FaultyProvider, Harness  # noqa: E402
from affinity.testing.conformance.providers.suite import ProviderConformance  # noqa: E402

__all__ = ["Fault", "FaultyProvider", "Harness", "ProviderConformance"]
