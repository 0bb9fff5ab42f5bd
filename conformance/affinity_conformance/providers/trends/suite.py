"""The rules of trends in one class."""

from __future__ import annotations

from typing import ClassVar

from affinity_conformance.providers.fault_fixtures import FaultPart
from affinity_conformance.providers.trends.fault_verbs import TRENDS
from affinity_conformance.providers.trends.rules import TrendRules


class TrendConformance(TrendRules):
    """The rules of trends. They belong to a class that has the kernel's, too."""

    fault_part: ClassVar[FaultPart] = TRENDS
