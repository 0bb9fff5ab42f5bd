"""Sends wake-up hints to other workers, off the hot path and coalesced."""

from __future__ import annotations

import contextlib

import anyio

from affinity.errors import ProviderError
from affinity.provider.contract import Hint, Provider

COALESCE_SECONDS = 0.003
"""Hints within this time go out together: at most a few hundred notifications a second, whatever the load."""


class Waker:
    """Collects hints and sends them. A hint that is lost costs one poll interval of the other worker, nothing more."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._pending: dict[str | None, Hint] = {}
        self._instances: set[str] = set()
        self._arrived = anyio.Event()

    def hint(self, worker: str | None, *, cancel: bool = False) -> None:
        """Wake ``worker``, or everybody (None); ``cancel`` says that running work may have been cancelled."""
        before = self._pending.get(worker)
        self._pending[worker] = Hint(work=True, cancel=cancel or (before is not None and before.cancel))
        self._arrived.set()

    def hint_owner(self, instance_id: str) -> None:
        """Wake the worker that owns an instance."""
        self._instances.add(instance_id)
        self._arrived.set()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            pending, self._pending = self._pending, {}
            instances, self._instances = self._instances, set()
            if None in pending:
                instances.clear()  # their owners are told with everybody
            # Only a hint: the poll finds the work anyway, and the loops that matter report the database's state.
            with contextlib.suppress(ProviderError):
                await self._provider.wake(pending, instances)
            await anyio.sleep(COALESCE_SECONDS)
