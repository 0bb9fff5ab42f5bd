"""The rules of limits in one class."""

from __future__ import annotations

from typing import ClassVar

from affinity_conformance.providers.fault_fixtures import FaultPart
from affinity_conformance.providers.flow.changes import LimitChangeRules
from affinity_conformance.providers.flow.fault_verbs import LIMITS
from affinity_conformance.providers.flow.kinds import LimitedKindRules
from affinity_conformance.providers.flow.listing import LimitListingRules
from affinity_conformance.providers.flow.orders import LimitOrderRules
from affinity_conformance.providers.flow.rates import LimitRateRules
from affinity_conformance.providers.flow.slots import LimitSlotRules
from affinity_conformance.providers.flow.starts import LimitStartRules


class LimitConformance(
    LimitSlotRules,
    LimitOrderRules,
    LimitRateRules,
    LimitChangeRules,
    LimitedKindRules,
    LimitStartRules,
    LimitListingRules,
):
    """The rules of limits. They belong to a class that has the kernel's, too."""

    fault_part: ClassVar[FaultPart] = LIMITS
