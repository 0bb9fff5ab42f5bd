"""The notes of activities that wait for instances."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from affinity.errors import ProviderError
from affinity.provider.contract import Provider
from affinity.records import ActivityWait, WaitEdge


class WorkerWaits:
    """The `affinity.records.WaitNotes` of a worker; made on its event loop."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._loop = asyncio.get_running_loop()

    def is_here(self) -> bool:
        """Return whether the caller runs on the event loop of the worker."""
        return asyncio.get_running_loop() is self._loop

    async def begin_wait(self, wait: ActivityWait) -> None:
        """Note that an activity waits."""
        await self._provider.begin_wait(wait)

    async def end_wait(self, wait_id: int) -> None:
        """Remove the note."""
        with suppress(ProviderError):  # a sweep removes it
            await self._provider.end_wait(wait_id)

    async def get_waits(self, instance_id: str) -> Sequence[WaitEdge]:
        """Return the noted waits of an instance, and of those that it waits for."""
        return await self._provider.get_waits(instance_id)
