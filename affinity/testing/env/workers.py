"""The workers of an `Env`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

import anyio
import anyio.to_thread

from affinity.actions import ACTORS
from affinity.composed.app import App
from affinity.composed.options import RuntimeOptions
from affinity.composed.worker import Worker
from affinity.errors import ConnectionLost, ProviderError, ReadOnly
from affinity.provider.contract import Provider, WorkerIdentity
from affinity.provider.timeline import Timeline
from affinity.session.state_cache import CacheLeaseListener
from affinity.testing.env.traffic import HOLD_SECONDS, Link, Traffic, locked, observed
from affinity.worker.lease import LeaseRenewer
from affinity.worker.runtime import Runtime
from affinity.worker.services import Timing

T = TypeVar("T")

RETRY_SECONDS: Final = 0.1
"""Longest real pause of a worker after a call that the database has refused."""


class _Crash(Exception):
    """Ends the block of a worker."""


class OpenProvider(Protocol):
    """Opens a provider on the database of the env."""

    async def __call__(self, timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider: ...


def names_in(app: App) -> list[str]:
    """The names of the activities and orchestrations of an app."""
    return [*app.activities, *app.orchestrations]


def pass_idle_time(listeners: Iterable[object], seconds: float) -> None:
    """Let so much time pass for the states in the memory of this process."""
    for listener in listeners:
        if isinstance(listener, CacheLeaseListener):
            listener.pass_time(seconds)


class WorkerOfEnv(Protocol):
    """The calls of an `Env` to its workers; see `EnvWorker`."""

    is_abandoned: bool

    @property
    def has_crashed(self) -> bool: ...
    @property
    def is_paused(self) -> bool: ...
    @property
    def identity(self) -> WorkerIdentity: ...
    @property
    def is_alive(self) -> bool: ...
    @property
    def is_recovering(self) -> bool: ...
    @property
    def runs_code(self) -> bool: ...
    @property
    def has_unwritten(self) -> bool: ...
    @property
    def has_looked(self) -> bool: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def cut(self) -> None: ...
    async def crash(self) -> None: ...
    def pause(self) -> None: ...
    async def resume(self) -> None: ...
    def held(self) -> AbstractAsyncContextManager[None]: ...
    def pass_time(self, seconds: float) -> None: ...
    async def sweep(self) -> None: ...
    def look(self) -> None: ...


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
    ) -> None:
        super().__init__(app, "env", options, migrate=False)
        self._timing = Timing(pause=self._pause, monotonic=timing.monotonic)
        self._outer_pause = timing.pause
        self._health.longest_pause = RETRY_SECONDS
        self._renewing = threading.Lock()  # held by a renewal of leases, and while the clock jumps
        self._traffic = traffic
        self._open_provider = open_provider
        self.is_abandoned: bool = False
        """Whether it ends without a drain."""
        self._link = Link(options.worker_node_id)
        self._held_at = 0.0
        self._is_resuming = False
        self._renewer: LeaseRenewer | None = None
        self._wanted = 0  # looks for work that were asked for
        # By verb: how many of them were asked for when the last call began that has ended.
        self._seen = {"fetch_orchestration_item": 0, "drain_worker": 0}

    async def _open(self, stack: AsyncExitStack, timeline: Timeline, timeout: float | None) -> Provider:
        provider = await self._open_in_time(timeline, timeout)
        stack.push_async_callback(provider.aclose)
        watched = observed(provider, self._traffic, self._link)
        for verb in self._seen:
            setattr(watched, verb, self._noting(verb, getattr(watched, verb)))
        return watched

    async def _open_in_time(self, timeline: Timeline, timeout: float | None) -> Provider:
        """As soon as there is a database, which may be failing over; None: however long it takes."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await self._open_provider(timeline)
            except (ConnectionLost, ReadOnly):
                if time.monotonic() > end:
                    raise
                await anyio.sleep(RETRY_SECONDS)

    def _noting(self, verb: str, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """The call of a verb, whose end is noted."""

        @wraps(call)
        async def noted(*args: Any, **kwargs: Any) -> T:
            wanted = self._wanted
            result = await call(*args, **kwargs)
            self._seen[verb] = wanted
            self._traffic.notify()
            return result

        return noted

    async def drain(self) -> None:
        """Let running activities end; at the end of the env they are cancelled instead."""
        if not self.is_abandoned:
            await super().drain()

    async def _connect(self, timeline: Timeline) -> Provider:
        provider = await self._open_provider(timeline, one_connection=True)
        return locked(provider, self._renewing, self._link)  # in a thread of its own

    @asynccontextmanager
    async def _running(self, runtime: Runtime, renewer: LeaseRenewer, registered_at: float) -> AsyncIterator[None]:
        self._renewer = renewer
        runtime.lease.now = self._timing.monotonic  # type: ignore[method-assign] # it is the database's, and exact
        async with super()._running(runtime, renewer, registered_at):
            yield

    async def _pause(self, seconds: float) -> None:
        await self._outer_pause(seconds)
        await self._link.wait()

    # -- faults

    @property
    def has_crashed(self) -> bool:
        """Whether it was killed."""
        return self._link.is_cut

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self._link.is_held

    def cut(self) -> None:
        """Let nothing more reach the database."""
        self.is_abandoned = True
        self._link.cut()
        self._pass_for_ended()

    async def crash(self) -> None:
        """End as a process that is killed: nothing more reaches the database."""
        self.cut()
        error = _Crash()
        with contextlib.suppress(_Crash, ProviderError):
            await self.__aexit__(_Crash, error, None)

    def pause(self) -> None:
        """Stand still: no call reaches the database, and no answer comes from it."""
        if not self.is_paused:
            self._held_at = self._timing.monotonic()
            self._link.hold()
            self._traffic.changes += 1

    async def resume(self) -> None:
        """Go on, with the lease that is left; returns once the worker has a lease again, or has ended."""
        if not self.is_paused:
            return
        self.runtime.pass_time(self._timing.monotonic() - self._held_at)
        self._is_resuming = True  # its lease may have ended, which it does not know before the next renewal
        self._link.go_on()
        self._traffic.changes += 1
        try:
            while not (self._link.is_renewed and self.is_alive) and self._error is None and not self.has_crashed:
                if self._renewer is not None and not self._link.is_renewed:
                    self._renewer.renew_now()
                await anyio.sleep(HOLD_SECONDS)
        finally:
            self._is_resuming = False

    @property
    def is_alive(self) -> bool:
        """Whether it takes part."""
        return self._runs and self.runtime.lease.is_alive

    @property
    def is_recovering(self) -> bool:
        """Whether it has lost its lease and will have one again: the lease ends in real time too, and each incarnation
        has its own.
        """
        goes_on = self._error is None and not (self.has_crashed or self.is_paused or self._drain_begun)
        has_none = not self._is_running or self._is_resuming or not self.runtime.lease.is_alive
        return goes_on and not self._leaving.is_set() and has_none

    @property
    def _runs(self) -> bool:
        return not (self.has_crashed or self.is_paused) and self._is_running and self._error is None

    @property
    def runs_code(self) -> bool:
        """Whether an activity runs here."""
        return len(self.runtime.activities) > 0 or self.runtime.activities.isolation.is_on

    @property
    def has_unwritten(self) -> bool:
        """Whether something waits to be replayed or written."""
        return len(self.runtime.replays) > 0 or any(group.unwritten for group in self.runtime.commits.groups)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Within it no lease is renewed."""
        await anyio.to_thread.run_sync(self._renewing.acquire)
        try:
            yield
        finally:
            self._renewing.release()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass for the activities that run, and for a drain."""
        self.runtime.pass_time(seconds)

    async def sweep(self) -> None:
        """One round of maintenance; a worker that stands still meanwhile ends it later."""
        sweep = asyncio.create_task(self._sweep())
        sweep.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        while self.is_alive and not sweep.done():
            await asyncio.wait([sweep], timeout=HOLD_SECONDS)
        error = sweep.exception() if sweep.done() else None
        if error is not None and not isinstance(error, ProviderError):
            raise error

    async def _sweep(self) -> None:
        ACTORS.set(())  # the test may have stated one
        await self.runtime.maintenance.sweep()
        if self.runtime.lease.is_serving:  # sweeps see what guests have to do; here the clock may stand
            for part in self.runtime.guests.values():
                await part.run_due()

    def look(self) -> None:
        """Look for work now."""
        self._wanted += 1
        self.runtime.services.notifier.notify_fetcher()
        if self.runtime.lease.is_drained_by_operator:  # the loop of the drain does not wait for the clock
            self.runtime.services.notifier.check_wanted.set()

    @property
    def has_looked(self) -> bool:
        """Whether a look that began after the last `look` has ended, at messages and at activities."""
        state = self.runtime.services.fetch_state
        if self.runtime.lease.is_drained_by_operator and self._seen["drain_worker"] != self._wanted:
            return False
        is_done = self._seen["fetch_orchestration_item"] == self._wanted
        return is_done and not (state.work_wanted or state.messages_wanted or state.locks_uncertain)
