"""A provider of another database, which lacks the verbs of guests."""

from __future__ import annotations

from typing import Any, Final

from affinity.audit.store.contract import AuditProvider
from affinity.conversation.store.contract import JournalProvider
from affinity.provider.contract import Provider
from affinity.schedules.store.contract import ScheduleProvider
from affinity.trends.store.contract import TrendProvider

PROTOCOLS: Final = (AuditProvider, JournalProvider, ScheduleProvider, TrendProvider)
OF_GUESTS: Final = {name for protocol in PROTOCOLS for name in vars(protocol)}


class KernelOnly:
    """The provider, without the verbs of guests."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        if name in OF_GUESTS:
            raise AttributeError(name)
        return getattr(self._provider, name)
