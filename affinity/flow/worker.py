"""The part of a worker that admits work at limits, and updates the limits that its code declares.

A worker admits when it has committed work with a limit, or has ended or given back such work; when a sweep says that
something waits; and when time opens a limit, for which the worker waits that has asked last. One call admits whatever
may go on by then, so calls that come during a call go with the next.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

import anyio

from affinity.flow.charging import WorkerLimits
from affinity.flow.declaring import declared_limits
from affinity.flow.measuring import MEASURES, LimitMeasurement
from affinity.flow.store.contract import Admitted, keeps_limits, limits_of
from affinity.limits import MAX_ADMISSIONS
from affinity.orchestration import KernelApp
from affinity.provider.contract import Provider
from affinity.worker.guests import GuestPart, newest_version
from affinity.worker.measures import Measure, Measured
from affinity.worker.services import WorkerServices

logger: logging.Logger = logging.getLogger("affinity.worker")

HORIZON: Final = 5.0
"""Seconds: for a limit that opens later, a later sweep comes first, of this worker or another."""

SPREAD: Final = 0.2
"""Seconds, at most, for which a worker that has admitted nothing waits beyond the time at which a limit opens: another
worker is there in time.
"""

FREED_SECONDS: Final = 0.03
"""Seconds after which slots that have become free are offered to work that waits, if this worker knows of none: it may
have come to another worker since.
"""

EARLY_SECONDS: Final = 0.005
"""Seconds: a call that comes so early was meant for the time at which a limit opens."""

MIN_PAUSE: Final = 0.001
"""Seconds; the clock of a test may stand a microsecond before the time that is waited for."""

DECLARE_SECONDS: Final = 30.0
"""Seconds between two checks that the database has the limits of this code: versions may have come or gone."""


class LimitLoops(GuestPart):
    """The loops of one worker."""

    measures: ClassVar[Sequence[Measure]] = MEASURES

    def __init__(self, services: WorkerServices, app: KernelApp, *, code: str) -> None:
        super().__init__(services, app, code=code)
        self._store = limits_of(services.provider)
        self._app = app
        self._code = code
        self._wanted = anyio.Event()
        self._has_declared = anyio.Event()
        self._must_return = False
        self._must_admit = True  # else the next call comes for freed slots alone, and looks first whether work waits
        self._waits = True  # work waits at limits, as far as this worker knows
        self._at = float("inf")  # monotonic time of the next call
        self._limits = WorkerLimits(self._store, self._health.retry)
        self._measurement = LimitMeasurement(self._store, self._lease.now)

    @classmethod
    def is_wanted(cls, provider: Provider, app: KernelApp) -> bool:
        """Return whether the provider keeps limits, or the app declares some, which then is an error."""
        return keeps_limits(provider) or bool(declared_limits(app))

    @property
    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Admit, and declare."""
        return (self.run, self.declare)

    @property
    def access(self) -> WorkerLimits:
        """What activities write to limits."""
        return self._limits

    async def close_limit(self, place: tuple[str, str], seconds: float, reason: str) -> bool:
        """Let a limit, or one key of it, admit nothing for some seconds."""
        await self._limits.close_limit(place, seconds, reason)
        return True

    async def aclose(self) -> None:
        """End the calls of activities: the worker has ended."""
        await self._limits.aclose()

    def on_gates(self, came: bool) -> None:
        """Admit now, if work waits; else soon: slots have become free that other workers do not know of."""
        self._waits = self._waits or came
        self._must_admit = self._must_admit or self._waits
        self._admit_at(self._monotonic() + (0.0 if self._waits else FREED_SECONDS))

    def on_due(self, seconds: float | None) -> None:
        """Return the slots of lost work, and admit after this many seconds."""
        if seconds is not None:
            self._must_return = True
            self._must_admit = self._must_admit or seconds <= HORIZON
            self._admit_at(self._monotonic() + (seconds if seconds <= HORIZON else 0.0))

    def _admit_at(self, at: float) -> None:
        if at < self._at:
            self._at = at
            self._wanted.set()

    async def run(self) -> None:
        """Admit when there may be work for it, until cancelled. The limits of this code come first."""
        await self._has_declared.wait()
        while True:
            await self._wait()
            if self._lease.is_serving:
                admitted = await self.admit()
                if admitted.next_due is not None and admitted.next_due <= HORIZON:
                    is_first = admitted.admitted or self._state.is_alone or admitted.next_due < EARLY_SECONDS
                    late = 0.0 if is_first else random.uniform(0.0, SPREAD)  # noqa: S311
                    self._must_admit = True
                    self._admit_at(self._monotonic() + max(0.0, admitted.next_due) + late)

    async def _wait(self) -> None:
        """Wait for the time of the next call; an earlier time may be set meanwhile."""
        while True:
            self._wanted = anyio.Event()
            left = self._at - self._monotonic()
            if left <= 0:
                self._at = float("inf")
                return
            with anyio.move_on_after(max(left, MIN_PAUSE)):
                await self._wanted.wait()

    async def admit(self) -> Admitted:
        """Return the slots of lost work, if that is due, and admit all that may go on; return the last answer."""
        if self._must_return:
            self._must_return = False
            await self._health.call(self._store.return_slots, self.run)
        admit = partial(self._store.admit, most=MAX_ADMISSIONS, if_waiting=not self._must_admit)
        self._must_admit = False
        total = 0
        while True:
            admitted = await self._health.call(admit, self.run)
            total += admitted.admitted
            self._notify(admitted.routes)
            self._waits = admitted.waits
            if not admitted.more:
                return replace(admitted, admitted=total)

    def _notify(self, routes: Collection[str]) -> None:
        """Notify the workers that may fetch work of these routes."""
        own = {route.partition(":")[2] for route in routes if route.startswith(("w:", "new:"))}
        for worker in own:
            self._notifier.hint(worker)
        if any(not route.startswith(("w:", "new:")) for route in routes):
            self._notifier.share()

    async def run_due(self) -> float | None:
        """Admit all that may go on."""
        if not self._has_declared.is_set():
            await self.declare_now()
            self._has_declared.set()
        self._must_return = self._must_admit = True
        return (await self.admit()).next_due

    async def declare(self) -> None:
        """Update the declared limits, at the start and every `DECLARE_SECONDS`, until cancelled."""
        is_done = False
        while declared_limits(self._app) or not is_done:
            if self._lease.is_serving:
                is_done = await self.declare_now()
                self._has_declared.set()
            pause = DECLARE_SECONDS if self._has_declared.is_set() else FREED_SECONDS
            await self._pause(pause * random.uniform(0.9, 1.1))  # noqa: S311

    async def declare_now(self) -> bool:
        """Update the declared limits. False: they were left, as live workers of the app run newer code."""
        workers = await self._health.call(self._provider.list_workers, self.declare)
        if newest_version(workers, self._app.name) not in {None, self._code}:
            return False
        specs = declared_limits(self._app)
        declare = partial(self._store.declare_limits, self._app.name, self._code, specs)
        await self._health.call(declare, self.declare)
        self.on_gates(True)
        return True

    async def measure(self) -> Measured:
        """Return the values of `MEASURES`."""
        return await self._measurement.read()


PART: Final = LimitLoops
"""The part of a worker."""
