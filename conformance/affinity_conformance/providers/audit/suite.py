"""The rules of the audit log in one class."""

from __future__ import annotations

from typing import ClassVar

from affinity_conformance.providers.audit.fault_verbs import AUDIT
from affinity_conformance.providers.audit.rules import AuditRules
from affinity_conformance.providers.fault_fixtures import FaultPart


class AuditConformance(AuditRules):
    """The rules of the audit log. They belong to a class that has the kernel's, too."""

    fault_part: ClassVar[FaultPart] = AUDIT
