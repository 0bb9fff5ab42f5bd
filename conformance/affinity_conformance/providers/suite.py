"""The whole contract in one class."""

from __future__ import annotations

from affinity_conformance.providers.audit.suite import AuditConformance
from affinity_conformance.providers.conversation.suite import ConversationConformance
from affinity_conformance.providers.kernel.suite import KernelConformance
from affinity_conformance.providers.schedules.suite import ScheduleConformance


class ProviderConformance(KernelConformance, ConversationConformance, ScheduleConformance, AuditConformance):
    """Every rule of `affinity.provider.contract`, as tests of a provider. Needs a fixture ``harness``."""
