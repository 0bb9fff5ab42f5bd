"""The workers of an `Env`."""

from __future__ import annotations

import contextlib
import threading
from contextlib import AsyncExitStack
from functools import wraps
from typing import Any, Protocol

from affinity.errors import ProviderError
from affinity.orchestration import App
from affinity.provider.contract import OrchestrationFetch, Provider
from affinity.provider.timeline import Timeline
from affinity.testing.env.traffic import Traffic, locked, observed
from affinity.worker import RuntimeOptions, Worker
from affinity.worker.services import Timing


class _Crash(Exception):
    """Ends the block of a worker."""


class OpenProvider(Protocol):
    """Opens a provider on the database of the env."""

    async def __call__(self, timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider: ...


class EnvWorker(Worker):
    """A worker whose calls are counted, and whose rounds of maintenance end their pauses when the clock jumps."""

    def __init__(
        self,
        app: App,
        options: RuntimeOptions,
        *,
        open_provider: OpenProvider,
        traffic: Traffic,
        timing: Timing,
        renewing: threading.Lock,
    ) -> None:
        super().__init__(app, "env", options, migrate=False)
        self._timing = timing
        self._renewing = renewing
        self._traffic = traffic
        self._open_provider = open_provider
        self.is_abandoned = False
        """Whether it ends without a drain."""
        self.has_crashed = False
        self._wanted = 0  # looks for work that were asked for
        self._done = 0  # and how many of them have ended without any

    async def _open(self, stack: AsyncExitStack, timeline: Timeline, timeout: float | None) -> Provider:
        provider = await self._open_provider(timeline)
        stack.push_async_callback(provider.aclose)
        watched = observed(provider, self._traffic, self._is_cut)
        fetch = watched.fetch_orchestration_item

        @wraps(fetch)
        async def looking(*args: Any, **kwargs: Any) -> OrchestrationFetch:
            wanted = self._wanted
            found = await fetch(*args, **kwargs)
            self._done = wanted
            self._traffic.notify()
            return found

        watched.fetch_orchestration_item = looking  # type: ignore[method-assign]
        return watched

    async def drain(self) -> None:
        """Let running activities end; at the end of the env they are cancelled instead."""
        if not self.is_abandoned:
            await super().drain()

    async def _connect(self, timeline: Timeline) -> Provider:
        provider = await self._open_provider(timeline, one_connection=True)
        return locked(observed(provider, Traffic(), self._is_cut), self._renewing)  # in a thread of its own

    def _is_cut(self) -> bool:
        return self.has_crashed

    async def crash(self) -> None:
        """End as a process that is killed: nothing more reaches the database."""
        self.has_crashed = self.is_abandoned = True
        error = _Crash()
        with contextlib.suppress(_Crash, ProviderError):
            await self.__aexit__(_Crash, error, None)

    @property
    def is_alive(self) -> bool:
        """Whether it takes part."""
        return not self.has_crashed and self._is_running and self._error is None and self.runtime.lease.is_alive

    @property
    def runs_code(self) -> bool:
        """Whether an activity runs here."""
        return len(self.runtime.activities) > 0 or self.runtime.activities.isolation.is_on

    @property
    def has_unwritten(self) -> bool:
        """Whether something waits to be replayed or written."""
        return len(self.runtime.replays) > 0 or any(group.unwritten for group in self.runtime.commits.groups)

    def look(self) -> None:
        """Look for work now."""
        self._wanted += 1
        self.runtime.services.wakeups.wake_fetcher()

    @property
    def has_looked(self) -> bool:
        """Whether a look that began after the last `look` has ended, at messages and at activities."""
        state = self.runtime.services.fetch_state
        return self._done == self._wanted and not (state.work_wanted or state.messages_wanted)
