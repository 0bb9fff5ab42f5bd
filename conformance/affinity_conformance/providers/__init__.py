"""The provider contract as an executable suite: run it against a provider of your own.

A `Harness` gives the suite a fresh database, a clock that it can move, and faults to inject. With one in hand, this
is all that a test module needs::

    import pytest
    from affinity_conformance.providers import ProviderConformance

    class TestMyProvider(ProviderConformance):
        @pytest.fixture
        async def harness(self, tmp_path):
            harness = await MyHarness.create(tmp_path)
            yield harness
            await harness.aclose()

`ProviderConformance` is everything: `KernelConformance`, and the rules of each guest, which build on the kernel's:
`ConversationConformance`, `ScheduleConformance`, `LimitConformance`, `BlobConformance`, `AuditConformance` and
`TrendConformance`. A provider without one of the guests inherits from the others. Each has a folder here, with a
module for each theme.

Every test is named after the rule that it asserts, and its docstring names the verb whose contract
(`affinity.provider.contract`) has the rule. What the suite does not assert is not promised. No test sleeps: the harness
moves the clock. A provider that relies on `Provider.sweep` to find stale routes is given the sweep wherever real
workers would have run it, and nowhere else.
"""

from pkgutil import iter_modules

import pytest

# Before they are imported, so that a failed assertion of theirs says what it compared, as in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from affinity_conformance.providers.audit.suite import AuditConformance  # noqa: E402
from affinity_conformance.providers.blobs.suite import BlobConformance  # noqa: E402
from affinity_conformance.providers.conversation.suite import ConversationConformance  # noqa: E402
from affinity_conformance.providers.flow.suite import LimitConformance  # noqa: E402
from affinity_conformance.providers.harness import Fault, FaultyProvider, Harness  # noqa: E402
from affinity_conformance.providers.kernel.suite import KernelConformance  # noqa: E402
from affinity_conformance.providers.schedules.suite import ScheduleConformance  # noqa: E402
from affinity_conformance.providers.suite import ProviderConformance  # noqa: E402
from affinity_conformance.providers.trends.suite import TrendConformance  # noqa: E402

__all__ = [
    "AuditConformance",
    "BlobConformance",
    "ConversationConformance",
    "Fault",
    "FaultyProvider",
    "Harness",
    "KernelConformance",
    "LimitConformance",
    "ProviderConformance",
    "ScheduleConformance",
    "TrendConformance",
]
