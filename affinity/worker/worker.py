"""The worker: one ``async with`` around everything that a process does for its orchestrations and activities.

It opens these, in the order in which things must close:

    telemetry    log records and spans carry the session (`affinity.telemetry`), and the metrics are served
    incarnation  a task that owns all of the following
    provider     the database connections of the main loop
    the name     registration: the worker lease
    renewer      a thread that renews the lease (`affinity.worker.lease`)
    runtime      the loops (`affinity.worker.runtime`): fetches, group commits, activities, hints, maintenance

At the end the runtime drains, the lease renewer stops, the name is released (which frees all sessions), and the
connections close. None of this is needed for correctness: the lease of a killed process expires.

An incarnation follows one timeline (`affinity.provider.timeline`). When the database is another one, or has lost
commits, the memory of the process may be wrong. The incarnation then ends without writing anything, and the next begins
with empty caches, as a restarted process would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import ClassVar, Final, Self, TypeVar

import anyio
from prometheus_client import CollectorRegistry

from affinity.actions import ACTORS
from affinity.async_block import AsyncBlock
from affinity.errors import DatabaseChanged, InvalidApp, InvalidInput, InvalidOptions, ProviderError
from affinity.limits import check_items
from affinity.orchestration import KernelApp
from affinity.orchestration.app import SessionListener, check_listeners
from affinity.payloads import Blobs, PayloadCodec, check_blobs, check_codec, open_coded
from affinity.provider import migrate, open_provider, redact
from affinity.provider.contract import SLOTS, Hint, Incarnation, Provider, WorkerIdentity, WorkerInfo
from affinity.provider.timeline import Timeline
from affinity.redaction import redacted
from affinity.tasks import BackgroundTask
from affinity.telemetry import instrumented
from affinity.user_code import refuse_in_orchestration
from affinity.worker.clients import ClientMaker
from affinity.worker.guests import guest_parts
from affinity.worker.hung import ended_though_hung
from affinity.worker.lease import LeaseRenewer, LoopProgress, probe_after
from affinity.worker.metrics import Metrics, WorkReading
from affinity.worker.options import KernelOptions
from affinity.worker.retry import DatabaseHealth
from affinity.worker.runtime import Runtime
from affinity.worker.services import REAL_TIME
from affinity_workflows import VERSION

logger: logging.Logger = logging.getLogger("affinity.worker")

T = TypeVar("T")

_BEGUN: Final[set[Incarnation]] = set()
"""The incarnations of this process."""

MEASURE_TIMEOUT = 3.0
"""Seconds that a scrape of the metrics waits for the database, or for a loop that is blocked."""

IDLE_SECONDS = 1.0
"""A worker that is to end when it is idle still waits for what is due within this time."""

IDLE_PAUSE = 0.05
"""Seconds between two checks whether a worker is idle while it has something to do."""

LEAVE_SECONDS = 5.0
"""Seconds for which a worker that ends tries to release its name; its lease expires anyway."""


class KernelWorker(AsyncBlock):
    """A worker with the options of the kernel; `affinity.Worker` has those of the guests too."""

    _options_type: ClassVar[type[KernelOptions]] = KernelOptions
    _client_maker: ClassVar[ClientMaker | None] = None

    def __init__(
        self,
        app: KernelApp,
        url: str,
        options: KernelOptions | None = None,
        *,
        listeners: Iterable[SessionListener] = (),
        migrate: bool = True,
        codec: PayloadCodec | None = None,
        registry: CollectorRegistry | None = None,
        blobs: Blobs | None = None,
    ) -> None:
        refuse_in_orchestration("a Worker")
        if not isinstance(app, KernelApp):
            raise InvalidApp(f"a worker runs an affinity.App, not {app!r:.80}; the name of one is for the command")
        if not isinstance(options, KernelOptions | None):
            raise InvalidOptions(f"options must be RuntimeOptions, as RuntimeOptions(...), not {options!r:.80}")
        if registry is not None and not hasattr(registry, "restricted_registry"):
            raise InvalidOptions(f"registry must be a CollectorRegistry of prometheus_client, not {registry!r:.80}")
        self.options: KernelOptions = options or self._options_type.from_environment()
        self.identity: WorkerIdentity = _new_identity(self.options.worker_node_id)
        self._own = {self.identity.incarnation}
        self.metrics: Metrics = Metrics(self.identity.worker_id, app, beside=registry)
        self.metrics_port: int | None = None
        self._progress = LoopProgress()
        self._timing = REAL_TIME
        self._app = app
        self._url = url
        self._listeners = [*app.session_listeners, *check_items(listeners, "listeners")]
        self._migrate = migrate
        self._codec = check_codec(codec)
        self._blobs = check_blobs(blobs)
        self._labels = {**_describe_process(app), SLOTS: str(self.options.worker_concurrency)}
        self._health = DatabaseHealth(self.identity.worker_id)
        self._drain_begun = False
        self.drained: bool = False
        """True if a drain came to its end; False when SIGINT cut it short."""
        self._was_opened = False
        self._entered = False
        self._leaving = anyio.Event()
        self._is_running = False  # an incarnation has begun, and is not over
        self._incarnation_scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._error: BaseException | None = None
        self._runtime: Runtime | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise InvalidInput("this worker was opened before: make another Worker for another `async with`")
        self._was_opened = True
        async with AsyncExitStack() as stack:
            self._app.check()
            check_listeners(self._listeners)
            stack.enter_context(instrumented(self.options.log_labels))
            stack.enter_context(self._progress.beating())
            self._serve_metrics(stack)
            await stack.enter_async_context(self._incarnations())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        finally:
            logger.info("worker %s: ended%s", self.identity.worker_id, "" if self.drained else ", not drained")
        if error is None and self._error is not None:
            raise self._error

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
        await self._ended.wait()
        assert self._error is not None
        raise self._error

    async def drain(self) -> None:
        """Take nothing new, let activities end or give them back, free all sessions; as leaving the block does."""
        if not self._drain_begun and self._error is None:
            self._drain_begun = True
            if self._is_running and self.runtime.lease.error is None:
                await self.runtime.drain()
            self.drained = True

    async def serve(self) -> signal.Signals:
        """Run as a process: enter, run until SIGTERM, SIGINT or SIGHUP, drain, leave; returns the signal.

        SIGINT during the drain ends it, and a signal that comes while the worker is still starting ends the start: stop
        now. SIGTERM or SIGHUP during the drain changes nothing; under ``nohup`` SIGHUP changes nothing
        ever. A signal to a process whose event loop stands still ends it without a drain after ``stall_timeout``, and a
        further SIGINT at once. Call it instead of the ``async with``, so that no signal can come before its handler.

        Raises:
            WorkerFenced, WorkerStalled: see `wait_ended`; and the errors of entering.
        """
        ended_by = await self._serve(anyio.sleep_forever)
        assert ended_by is not None
        return ended_by

    async def serve_until_idle(self, most: float | None = None) -> signal.Signals | None:
        """Run as `serve` does, and end when `wait_idle` returns; returns None then."""
        return await self._serve(partial(self.wait_idle, most))

    async def wait_idle(self, most: float | None = None) -> bool:
        """Wait until this worker is idle: nothing runs here or waits to be written, and there is nothing that it could
        run, now or within a second. Work that other workers have does not count, nor do suspended instances.

        Args:
            most: seconds to wait at most. What becomes due within this time counts as if it were due now: timers,
                delayed starts, retries, schedules. None: as long as it takes.

        Returns:
            False when ``most`` seconds have passed, and something is left to do.
        """
        end = math.inf if most is None else time.monotonic() + most
        while (left := end - time.monotonic()) > 0:
            due = 0.0
            with contextlib.suppress(ProviderError), anyio.move_on_after(None if most is None else left):
                due = await self.runtime.look_for_work()
            if due > (IDLE_SECONDS if most is None else max(0.0, end - time.monotonic())):
                logger.info("worker %s: idle", self.identity.worker_id)
                return True
            await anyio.sleep(min(max(due, IDLE_PAUSE), IDLE_SECONDS, max(0.0, end - time.monotonic())))
        logger.info("worker %s: something is left to do, and the time is over", self.identity.worker_id)
        return False

    async def _serve(self, wait: Callable[[], Awaitable[object]]) -> signal.Signals | None:
        """Run as a process until a signal has come, or until ``wait`` has returned; returns the signal."""
        received: list[signal.Signals] = []
        failure: BaseException | None = None
        hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []  # ignored by `nohup`
        numbers = (signal.SIGTERM, signal.SIGINT, *hangup)
        with (
            anyio.open_signal_receiver(*numbers) as signals,
            ended_though_hung(self.identity.worker_id, self.options.stall_timeout, numbers),
        ):
            async with anyio.create_task_group() as tasks:
                first = anyio.Event()
                tasks.start_soon(self._watch, signals, received, first, tasks.cancel_scope)
                try:
                    async with self:
                        tasks.start_soon(_cancel_after, self._ended, tasks.cancel_scope)
                        async with anyio.create_task_group() as ending:
                            ending.start_soon(_cancel_after, first, ending.cancel_scope)
                            await wait()
                            ending.cancel_scope.cancel()
                        await self.drain()
                except Exception as error:
                    failure = error  # leaves as itself, not as a group
                tasks.cancel_scope.cancel()
        failure = failure or self._error
        if failure is not None:
            raise failure
        return received[0] if received else None

    async def _watch(
        self,
        signals: AsyncIterator[signal.Signals],
        received: list[signal.Signals],
        first: anyio.Event,
        scope: anyio.CancelScope,
    ) -> None:
        async for number in signals:
            drains = bool(received)
            received.append(number)
            if not self._entered or (drains and number is signal.SIGINT):
                logger.warning("worker %s: %s, stopping now", self.identity.worker_id, number.name)
                scope.cancel()
            first.set()

    # -- one incarnation after another

    @asynccontextmanager
    async def _incarnations(self) -> AsyncIterator[None]:
        """Run the incarnations in a task of their own, which an error of the block ends."""
        begun = anyio.Event()
        task = BackgroundTask(partial(self._run, begun))
        try:
            await begun.wait()
            if self._entered:
                yield
                self._leaving.set()
                if self._incarnation_scope is not None and not self._is_running:
                    self._incarnation_scope.cancel()
        except BaseException:
            task.cancel()
            raise
        finally:
            await task.join()

    async def _run(self, begun: anyio.Event) -> None:
        """Run one incarnation after another, until the block is left or the worker has ended; ``begun`` is set when the
        first one has begun, or cannot begin.
        """
        ACTORS.set(())  # the actions of workers have no actor
        try:
            await self._run_incarnations(begun)
        finally:
            begun.set()

    async def _run_incarnations(self, begun: anyio.Event) -> None:
        timeline = Timeline()
        timeout: float | None = self.options.startup_timeout
        while not (self._leaving.is_set() or self._drain_begun):
            try:
                with anyio.CancelScope() as self._incarnation_scope:
                    async with self._incarnation(timeline, timeout) as runtime:
                        if not self._entered:
                            self._entered = True
                            begun.set()
                        await self._until_over(runtime)
            except DatabaseChanged:
                pass  # while it began
            except Exception as error:
                if not self._entered:
                    raise
                self._end(error)
                return
            timeline, timeout = Timeline(timeline), None
            self.identity = _new_identity(self.identity.worker_id)
            self._own.add(self.identity.incarnation)
            self._health.forget_all()

    async def _until_over(self, runtime: Runtime) -> None:
        """Wait until the block is left or the database has changed. Any other end is the worker's."""
        self._is_running = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_after, runtime.lease.ended, tasks.cancel_scope)
            await self._leaving.wait()
            tasks.cancel_scope.cancel()
        if isinstance(runtime.lease.error, DatabaseChanged):
            self._is_running = False
            logger.warning(
                "worker %s: %s; starting again as a new incarnation",
                runtime.lease.worker_id,
                redacted(runtime.lease.error),
            )
        elif runtime.lease.error is not None:
            self._end(runtime.lease.error)
            await self._leaving.wait()

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    @asynccontextmanager
    async def _incarnation(self, timeline: Timeline, timeout: float | None) -> AsyncIterator[Runtime]:
        async with AsyncExitStack() as stack:
            provider = self.metrics.observed(await self._open(stack, timeline, timeout))
            runtime = self._runtime = Runtime(
                app=self._app,
                provider=provider,
                identity=self.identity,
                options=self.options,
                listeners=self._listeners,
                health=self._health,
                metrics=self.metrics,
                timing=self._timing,
                clients=self._client_maker,
            )
            stack.callback(runtime.instances.close_all)
            renewer = LeaseRenewer(
                connect=partial(self._connect, timeline),
                identity=self.identity,
                options=self.options,
                labels=self._labels,
                profile=runtime.profile,
                lease=runtime.lease,
                health=self._health,
            )
            registered_at = await stack.enter_async_context(self._registered(provider, timeout))
            await stack.enter_async_context(self._running(runtime, renewer, registered_at))
            logger.info("worker %s: running app %r at %s", self.identity.worker_id, self._app.name, redact(self._url))
            yield runtime

    # -- coming and going

    async def _open(self, stack: AsyncExitStack, timeline: Timeline, timeout: float | None) -> Provider:
        """Migrate and connect."""
        if self._migrate:
            await self._retry(partial(migrate, self._url), timeout)
        name = f"affinity {self.identity.worker_id}"
        connect = partial(
            open_coded,
            self._url,
            self._codec,
            self._blobs,
            is_worker=True,
            application_name=name,
            timeline=timeline,
            probe_after=probe_after(self.options),
            log_warnings=not self._entered,
        )
        provider = await self._retry(connect, timeout)
        stack.push_async_callback(_close, provider)
        return provider

    async def _retry(self, verb: Callable[[], Awaitable[T]], timeout: float | None) -> T:
        """Retry while the database does not answer, for ``timeout`` seconds; None: without a limit."""
        if timeout is None:
            return await self._health.retry(verb)
        return await self._health.start(verb, timeout)

    async def _connect(self, timeline: Timeline) -> Provider:
        name = f"affinity lease {self.identity.worker_id}"
        return self.metrics.observed(
            await open_provider(
                self._url,
                application_name=name,
                timeline=timeline,
                one_connection=True,
                probe_after=probe_after(self.options),
            )
        )

    @asynccontextmanager
    async def _registered(self, provider: Provider, timeout: float | None) -> AsyncIterator[float]:
        """Hold the worker's name; gives the monotonic time at which the lease was asked for."""
        asked = 0.0

        async def register() -> None:
            nonlocal asked
            asked = time.monotonic()
            lease = self.options.worker_lease_timeout
            answer = await provider.register_worker(self.identity, lease, self._labels, profile=self.runtime.profile)
            self.runtime.lease.note_renewal(answer)

        former = await self._retry(provider.list_workers, timeout)
        await self._retry(register, timeout)
        self._report_takeover(former)
        with contextlib.suppress(ProviderError):  # only a hint
            await provider.notify_workers({self.identity.worker_id: Hint()})  # the process that had the name stops
        try:
            yield asked
        finally:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True), contextlib.suppress(ProviderError):
                grace = self.runtime.restart_grace
                if grace:  # what has ended since the drain's last look
                    await provider.drain_worker(self.identity, restarts=True)
                await provider.release_worker(self.identity, restart_grace=grace)
                await provider.notify_workers({None: Hint()})

    def _pass_for_ended(self) -> None:
        """Have this worker count as one whose process has ended: a start under its name is then no second process."""
        _BEGUN.difference_update(self._own)

    def _report_takeover(self, workers: Iterable[WorkerInfo]) -> None:
        """Log that another process had the name, and may run."""
        for worker in workers:
            is_held = worker.worker_id == self.identity.worker_id and worker.alive and not worker.restarting
            if is_held and worker.incarnation not in self._own and not _has_ended(worker, self._labels):
                logger.warning(
                    "worker %s: another process had this name, and its lease had not ended: process %s on %s. It stops "
                    "now, if it still runs; give each worker a name of its own (worker_node_id)",
                    worker.worker_id,
                    worker.labels.get("pid"),
                    worker.labels.get("host"),
                )

    @asynccontextmanager
    async def _running(self, runtime: Runtime, renewer: LeaseRenewer, registered_at: float) -> AsyncIterator[None]:
        """The loops and the renewer. An error of the block leaves as itself, not as a group."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            runtime.start(tasks)
            self._progress.on_beat = lambda: renewer.beat(runtime.lease.calls.beat())
            renewer.start(registered_at)
            try:
                yield
                if runtime.lease.error is None:
                    await self.drain()
            except Exception as error:
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    await runtime.activities.aclose(LEAVE_SECONDS)
                    await renewer.stop()
                    runtime.instances.settle_staged()
                    await runtime.sessions.remove_all()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _serve_metrics(self, stack: AsyncExitStack) -> None:
        gauge = self.metrics.gauge
        gauge("running_activities", "Activities that run now", self._count(lambda now: len(now.activities)))
        gauge(
            "left_behind_activities",
            "Slots of activities that have ended, while their code goes on, as it ignores its cancellation",
            self._count(lambda now: now.activities.left_behind),
        )
        gauge(
            "live_instances", "Orchestrations whose coroutine is in memory", self._count(lambda now: len(now.instances))
        )
        gauge(
            "held_sessions",
            "Sessions whose work ran here and whose lock has not ended",
            self._count(lambda now: len(now.sessions)),
        )
        most = self.options.max_sessions_per_runtime
        gauge(
            "outstanding_bytes",
            "Payloads that were fetched and are not written, about",
            self._count(lambda now: now.capacity.outstanding_bytes),
        )
        gauge("session_capacity", "Sessions that it may hold at the same time", lambda: most)
        gauge("database_up", "1: the database answers, as this worker sees it", lambda: self._health.is_up)
        gauge(
            "database_clock_offset_seconds",
            "Seconds by which the database's clock is ahead of this machine's",
            self._count(lambda now: now.lease.clock_offset()),
        )
        gauge(
            "draining",
            "1: the worker takes no new work",
            self._count(lambda now: now.lease.is_draining or now.lease.is_drained_by_operator),
        )
        gauge("loop_stall_seconds", "Seconds since the event loop made progress", self._progress.stands_still_for)
        self.metrics.counter("turns", "Turns committed", self._count(lambda now: now.instances.turns))
        self.metrics.counter("replays", "Histories replayed", self._count(lambda now: now.instances.replays))
        if self.options.metrics_port is not None:
            late = {guest: part.late for guest, part in guest_parts().items() if part.late is not None}
            measures = [measure for part in guest_parts().values() for measure in part.measures]
            self.metrics.work(partial(self._measured, asyncio.get_running_loop()), late, measures)
            host = self.options.metrics_host
            try:
                self.metrics_port, stop = self.metrics.serve(host, self.options.metrics_port, self._is_alive)
            except OSError as error:
                raise InvalidOptions(
                    f"metrics_port={self.options.metrics_port}, metrics_host={host}: {error.strerror}: give another"
                    " --metrics-port (AFFINITY_METRICS_PORT) or --metrics-host"
                ) from error
            stack.callback(stop)
            logger.info("worker %s: metrics on %s, port %d", self.identity.worker_id, host, self.metrics_port)

    def _is_alive(self) -> bool:
        """Return whether the worker's loop makes progress; called in the thread of the probe.

        The database is not asked: an outage of the database must not end a worker.
        """
        return self._progress.stands_still_for() <= self.options.stall_timeout

    def _measured(self, loop: asyncio.AbstractEventLoop, after: str | None) -> WorkReading | None:
        """Counts of the database's rows, for the thread of a scrape. None: the database does not answer in time."""
        if self._runtime is None or not self._is_running:
            return None
        asked = asyncio.run_coroutine_threadsafe(self._runtime.measure_work(after), loop)
        try:
            return asked.result(MEASURE_TIMEOUT)
        except (TimeoutError, CancelledError, ProviderError) as error:
            asked.cancel()
            logger.debug("worker %s: no statistics: %r", self.identity.worker_id, redacted(error))
            return None

    def _count(self, read: Callable[[Runtime], float]) -> Callable[[], float]:
        """Return a number of the present runtime, read when it is asked for; 0 before the first incarnation."""
        return lambda: 0 if self._runtime is None else read(self._runtime)


def _new_identity(worker_id: str) -> WorkerIdentity:
    incarnation = Incarnation(secrets.token_hex(8))
    _BEGUN.add(incarnation)
    return WorkerIdentity(worker_id=worker_id, incarnation=incarnation)


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _close(provider: Provider) -> None:
    """Close it also when cancelled: the database notices a dropped connection late."""
    with anyio.move_on_after(LEAVE_SECONDS, shield=True):
        await provider.aclose()


def _has_ended(worker: WorkerInfo, own: Mapping[str, str]) -> bool:
    """Return whether the process of a worker has ended, as far as this machine knows. ``own``: the labels of this
    process, which a container may have started in the place of another process, with the same number.
    """
    host, pid = worker.labels.get("host"), worker.labels.get("pid", "")
    if host != own["host"] or not pid.isdecimal():
        return False
    if pid == own["pid"]:
        return worker.incarnation not in _BEGUN
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _describe_process(app: KernelApp) -> dict[str, str]:
    """Return the labels of this process in the ``workers`` table."""
    return {"host": socket.gethostname(), "pid": str(os.getpid()), "app": app.name, "affinity": VERSION}
