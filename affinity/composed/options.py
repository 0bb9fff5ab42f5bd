"""The options of a worker: those of the kernel, and those of the guests."""

from __future__ import annotations

from affinity.audit.options import AuditOptions
from affinity.conversation.options import ConversationOptions
from affinity.trends.options import TrendOptions
from affinity.worker.options import KernelOptions


class RuntimeOptions(KernelOptions, AuditOptions, ConversationOptions, TrendOptions):
    """The options of a worker. Durations are seconds.

    Raises:
        InvalidOptions: names every option that is unknown or out of its bounds; or all values in contradiction.
    """
