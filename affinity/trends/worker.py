"""The part of a worker that counts: the worker whose sweep finds that a count is due makes it.

A sweep reports when the next count is due (`Sweep.due`), so no worker asks for it. A count is a step of bounded size.
After a step that has reached its bound the next one follows, with a pause that leaves the database to turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import anyio

from affinity.orchestration import KernelApp
from affinity.provider.contract import Provider
from affinity.trends.store.contract import keeps_trends, trends_of
from affinity.worker.guests import GuestPart
from affinity.worker.services import WorkerServices

PAUSE: Final = 10.0
"""Seconds between two counts of a database."""

HORIZON: Final = 1.2
"""Seconds: a count that is due later is found by a later sweep, of this worker or another."""

_STEP_PAUSE: Final = 0.05
_STEP_REST: Final = 9.0  # the pause behind a step as a multiple of its time


class TrendLoops(GuestPart):
    """The loop of one worker."""

    def __init__(self, services: WorkerServices, app: KernelApp, *, code: str) -> None:
        super().__init__(services, app, code=code)
        self._store = trends_of(services.provider)
        self._wanted = anyio.Event()
        self._at = 0.0

    @classmethod
    def is_wanted(cls, provider: Provider, app: KernelApp) -> bool:
        """Return whether the provider keeps trends."""
        return keeps_trends(provider)

    @property
    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Count."""
        return (self.run,)

    def on_due(self, seconds: float | None) -> None:
        """Count after this many seconds, if that is before the next sweep."""
        if seconds is not None and seconds <= HORIZON:
            self._at = self._monotonic() + seconds
            self._wanted.set()

    async def run(self) -> None:
        """Count when a sweep has found that it is due, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._pause(max(0.0, self._at - self._monotonic()))
            while self._lease.is_serving:
                began = self._monotonic()
                if await self.count() > 0:
                    break
                await self._pause(max(_STEP_PAUSE, _STEP_REST * (self._monotonic() - began)))

    async def count(self) -> float:
        """Count one step; return the seconds until the next is due."""
        keep = self._options.retention_of_guests.get("trends", 0.0)
        return await self._health.call(partial(self._store.count_trends, pause=PAUSE, keep=keep), self.run)


PART: Final = TrendLoops
"""The part of a worker."""
