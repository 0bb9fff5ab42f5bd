"""The worker: one ``async with`` around everything that a process does for its orchestrations and activities.

What it opens, in the order in which things must close:

    telemetry  log records and spans carry the session (`affinity.ambient`)
    provider   the database connections of the main loop
    the name   registration: the worker lease
    keeper     a thread that renews the lease (`affinity.worker.keeper`)
    runtime    the loops (`affinity.worker.runtime`): fetch, group commits, activities, hints, chores

On the way out the runtime drains, the keeper stops, the name is released (which frees all sessions), and the
connections close. None of this is needed for correctness: a killed process leaves all of it to its lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Self

import anyio

from affinity.ambient import instrumented
from affinity.errors import ProviderError
from affinity.orchestration import App
from affinity.orchestration.registry import SessionListener
from affinity.provider import migrate, open_provider, redact
from affinity.provider.contract import Hint, Incarnation, Provider, WorkerIdentity
from affinity.worker.keeper import HeldLocks, Keeper, LeaseEnd
from affinity.worker.metrics import Metrics
from affinity.worker.options import RuntimeOptions
from affinity.worker.retry import Availability
from affinity.worker.runtime import Runtime
from affinity.worker.silence import BEAT_SECONDS

logger = logging.getLogger("affinity.worker")

LEAVE_SECONDS = 5.0
"""How long a worker that ends tries to tell the database so; the lease's end says it anyway."""


class Worker:
    """Runs the orchestrations and activities of an app until the ``async with`` block ends, then drains.

    Args:
        app: what to run.
        url: the database, see `affinity.provider.open_provider`.
        options: see `RuntimeOptions`; by default from the environment.
        listeners: told when this worker loses a session; those that the app knows are told anyway.
        migrate: bring the database's schema up to date first.

    Raises:
        InvalidUrl, AccessDenied, SchemaMismatch: on entry.
        ProviderError: on entry, when the database fails in another way for ``startup_timeout``.
        InvalidApp: on entry, when an annotation of the app cannot be resolved.
        WorkerFenced: from `wait_ended` and on exit, when another process has taken the worker's name.
    """

    def __init__(
        self,
        app: App,
        url: str,
        options: RuntimeOptions | None = None,
        *,
        listeners: Iterable[SessionListener] = (),
        migrate: bool = True,
    ) -> None:
        self.options = options or RuntimeOptions.from_environment()
        self.identity = WorkerIdentity(
            worker_id=self.options.worker_node_id, incarnation=Incarnation(secrets.token_hex(8))
        )
        self.metrics = Metrics(self.identity.worker_id)
        self.metrics_port: int | None = None
        self._app = app
        self._url = url
        self._listeners = [*app.session_listeners, *listeners]
        self._migrate = migrate
        self._labels = _describe_process(app)
        self._availability = Availability(self.identity.worker_id)
        self._drain_begun = False
        self.drained = False
        """Whether a drain came to its end: False after a second signal."""
        self._entered = False
        self._runtime: Runtime | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._app.check()
            stack.enter_context(instrumented())
            provider = self.metrics.observed(await self._open(stack))
            locks, lease_end = HeldLocks(), LeaseEnd()
            runtime = self._runtime = Runtime(
                app=self._app,
                provider=provider,
                identity=self.identity,
                options=self.options,
                locks=locks,
                lease_end=lease_end,
                listeners=self._listeners,
                availability=self._availability,
                metrics=self.metrics,
            )
            self._keeper = Keeper(
                connect=self._connect,
                identity=self.identity,
                options=self.options,
                labels=self._labels,
                locks=locks,
                lease_end=lease_end,
                listener=runtime,
                availability=self._availability,
            )
            registered_at = await stack.enter_async_context(self._registered(provider))
            self._serve_metrics(stack)
            await stack.enter_async_context(self._running(registered_at))
            logger.info("worker %s: running app %r at %s", self.identity.worker_id, self._app.name, redact(self._url))
            self._stack = stack.pop_all()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
        if error is None and self.runtime.error is not None:
            raise self.runtime.error

    # -- while it runs

    @property
    def runtime(self) -> Runtime:
        """The moving parts, for status and tests; there are some once the worker was entered."""
        assert self._runtime is not None, "the worker was never entered"
        return self._runtime

    @property
    def stuck(self) -> list[str]:
        """Activities that go on although the worker has ended: they keep the process from ending by itself."""
        return self._runtime.activities.stuck if self._runtime else []

    async def wait_ended(self) -> None:
        """Wait until the worker cannot go on.

        Raises:
            WorkerFenced: another process has its name.
            WorkerStalled: its event loop stood still.
        """
        await self.runtime.ended.wait()
        assert self.runtime.error is not None
        raise self.runtime.error

    async def drain(self) -> None:
        """Take nothing new, let running activities end or give them back, free all sessions. Leaving the block does it
        too.
        """
        if not self._drain_begun and self.runtime.error is None:
            self._drain_begun = True
            await self.runtime.drain()
            self.drained = True

    async def serve(self) -> signal.Signals:
        """Be the whole life of a process: enter, run until SIGTERM or SIGINT, drain, leave; returns the signal.

        A second signal ends the drain, and one that comes while the worker is still starting ends the start: stop now.
        Call it instead of the ``async with``, so that no signal can come before its handler.

        Raises:
            WorkerFenced, WorkerStalled: as for `wait_ended`; and what entering raises.
        """
        received: list[signal.Signals] = []
        failure: BaseException | None = None
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                first = anyio.Event()
                tasks.start_soon(self._watch, signals, received, first, tasks.cancel_scope)
                try:
                    async with self:
                        tasks.start_soon(self._cancel_when_ended, tasks.cancel_scope)
                        await first.wait()
                        await self.drain()
                except Exception as error:
                    failure = error  # leaves as itself, not as a group
                tasks.cancel_scope.cancel()
        failure = failure or (self._runtime.error if self._runtime else None)
        if failure is not None:
            raise failure
        return received[0]

    async def _watch(
        self,
        signals: AsyncIterator[signal.Signals],
        received: list[signal.Signals],
        first: anyio.Event,
        scope: anyio.CancelScope,
    ) -> None:
        async for number in signals:
            received.append(number)
            if not self._entered or len(received) > 1:
                logger.warning("worker %s: %s, stopping now", self.identity.worker_id, number.name)
                scope.cancel()
            first.set()

    async def _cancel_when_ended(self, scope: anyio.CancelScope) -> None:
        await self.runtime.ended.wait()
        scope.cancel()

    # -- coming and going

    async def _open(self, stack: AsyncExitStack) -> Provider:
        """Migrate and connect; while the database does not answer, try for ``startup_timeout``."""
        patience = self.options.startup_timeout
        if self._migrate:
            await self._availability.start(partial(migrate, self._url), patience)
        name = f"affinity {self.identity.worker_id}"
        provider = await self._availability.start(partial(open_provider, self._url, application_name=name), patience)
        stack.push_async_callback(_close, provider)
        return provider

    async def _connect(self) -> Provider:
        name = f"affinity keeper {self.identity.worker_id}"
        return self.metrics.observed(await open_provider(self._url, application_name=name))

    @asynccontextmanager
    async def _registered(self, provider: Provider) -> AsyncIterator[float]:
        """Hold the worker's name; gives the monotonic time at which the lease was asked for."""
        asked = 0.0

        async def register() -> None:
            nonlocal asked
            asked = time.monotonic()
            lease = self.options.worker_lease_timeout
            self.runtime.lease_renewed(await provider.register_worker(self.identity, lease, self._labels))

        await self._availability.start(register, self.options.startup_timeout)
        with contextlib.suppress(ProviderError):  # only a hint
            await provider.wake({self.identity.worker_id: Hint()})  # whoever had the name until now stops
        try:
            yield asked
        finally:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True), contextlib.suppress(ProviderError):
                await provider.release_worker(self.identity)
                await provider.wake({None: Hint()})

    @asynccontextmanager
    async def _running(self, registered_at: float) -> AsyncIterator[None]:
        """The loops and the keeper. An error of the block drains too, and leaves as itself, not as a group."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self.runtime.start(tasks)
            tasks.start_soon(self._beat)
            self._keeper.start(registered_at)
            try:
                yield
                await self.drain()
            except Exception as error:
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    await self.runtime.activities.aclose(LEAVE_SECONDS)
                    await self._keeper.stop()
                    self.runtime.give_up()
                    await self.runtime.sessions.lost_all()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _beat(self) -> None:
        while True:
            self._keeper.beat(self.runtime.silence.beat())
            await anyio.sleep(BEAT_SECONDS)

    def _serve_metrics(self, stack: AsyncExitStack) -> None:
        runtime = self.runtime
        self.metrics.gauge("running_activities", "Activities that run now", lambda: len(runtime.activities))
        self.metrics.gauge(
            "live_instances", "Orchestrations whose coroutine is in memory", lambda: len(runtime.instances)
        )
        self.metrics.gauge(
            "held_sessions", "Sessions whose work ran here and whose lock has not ended", lambda: len(runtime.sessions)
        )
        most = self.options.max_sessions_per_runtime
        self.metrics.gauge("session_capacity", "Sessions that it may hold at once", lambda: most)
        self.metrics.gauge("turns", "Turns committed since the start", lambda: runtime.instances.turns)
        self.metrics.gauge("replays", "Histories replayed since the start", lambda: runtime.instances.replays)
        if self.options.metrics_port is not None:
            self.metrics_port, stop = self.metrics.serve(self.options.metrics_port)
            stack.callback(stop)
            logger.info("worker %s: metrics on port %d", self.identity.worker_id, self.metrics_port)


async def _close(provider: Provider) -> None:
    """Also when we are being cancelled: a connection that is just dropped is noticed late by the database."""
    with anyio.move_on_after(LEAVE_SECONDS, shield=True):
        await provider.aclose()


def _describe_process(app: App) -> dict[str, str]:
    """What the ``workers`` table says of this process."""
    return {"host": socket.gethostname(), "pid": str(os.getpid()), "app": app.name, "affinity": version("affinity")}
