"""The rules of schedules in one class."""

from __future__ import annotations

from typing import ClassVar

from affinity_conformance.providers.fault_fixtures import FaultPart
from affinity_conformance.providers.schedules.fault_verbs import SCHEDULES
from affinity_conformance.providers.schedules.rules import ScheduleRules


class ScheduleConformance(ScheduleRules):
    """The rules of schedules. They belong to a class that has the kernel's, too."""

    fault_part: ClassVar[FaultPart] = SCHEDULES
