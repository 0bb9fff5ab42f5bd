"""The whole contract in one class."""

from __future__ import annotations

from affinity_conformance.providers.audit.suite import AuditConformance
from affinity_conformance.providers.blobs.suite import BlobConformance
from affinity_conformance.providers.conversation.suite import ConversationConformance
from affinity_conformance.providers.flow.suite import LimitConformance
from affinity_conformance.providers.kernel.suite import KernelConformance
from affinity_conformance.providers.schedules.suite import ScheduleConformance
from affinity_conformance.providers.trends.suite import TrendConformance


class ProviderConformance(
    KernelConformance,
    ConversationConformance,
    ScheduleConformance,
    AuditConformance,
    LimitConformance,
    BlobConformance,
    TrendConformance,
):
    """Every rule of `affinity.provider.contract`, as tests of a provider. Needs a fixture ``harness``."""
