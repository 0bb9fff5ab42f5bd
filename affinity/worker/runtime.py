"""The life of a worker while it holds its lease: builds its parts, runs their loops, stops them, and drains.

A turn goes through these parts::

    Fetcher ──work items──► ActivityRunner ──results──► InstanceTable ──turns──► Commits
       └──────messages───────────────────────────────────────▲  │
                             ActivityRunner ◄──new work items───┘

`LeaseState` says whether any of them may act, `Capacity` how much they may take, `Notifier` which worker fetches next.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from affinity.errors import DatabaseChanged, ProviderError, WorkerFenced
from affinity.limits import SCRAPE_COUNT
from affinity.orchestration import KernelApp
from affinity.orchestration.app import SessionListener
from affinity.provider.contract import (
    HistoryCursor,
    HistoryPage,
    InstanceValue,
    Provider,
    WorkerIdentity,
    WorkerProfile,
)
from affinity.redaction import redacted
from affinity.tasks import start_in
from affinity.worker.activities import ActivityRunner
from affinity.worker.capacity import Capacity
from affinity.worker.clients import ClientMaker
from affinity.worker.commits import Commits
from affinity.worker.fetcher import Fetcher, orchestration_names
from affinity.worker.guests import GuestPart, guest_parts
from affinity.worker.instances import InstanceTable
from affinity.worker.lease import LeaseState, describe_worker
from affinity.worker.maintenance import DRAIN_STEP_SECONDS, Maintenance, code_version
from affinity.worker.metrics import Metrics, WorkReading
from affinity.worker.notifier import FetchState, Notifier
from affinity.worker.options import PACK, KernelOptions
from affinity.worker.rebalancing import Rebalancer
from affinity.worker.registrations import Registrations
from affinity.worker.replays import Replays
from affinity.worker.resources import ResourceSweeper
from affinity.worker.retry import Backoff, DatabaseHealth
from affinity.worker.sent_events import SentEvents
from affinity.worker.services import REAL_TIME, Timing, WorkerServices
from affinity.worker.sessions import HeldSessions

logger: logging.Logger = logging.getLogger("affinity.worker")

DEMAND_SECONDS = 2.0
"""Seconds for which a draining worker waits for the number of workers that are needed."""

ORDINAL = re.compile(r"\d+$")
"""The ordinal in the name of a worker, as a StatefulSet numbers its pods."""


class Runtime:
    """Builds the parts of one worker, and runs their loops, between registration and release."""

    def __init__(
        self,
        *,
        app: KernelApp,
        provider: Provider,
        identity: WorkerIdentity,
        options: KernelOptions,
        listeners: Sequence[SessionListener],
        health: DatabaseHealth,
        metrics: Metrics,
        timing: Timing = REAL_TIME,
        clients: ClientMaker | None = None,
    ) -> None:
        self._provider = provider
        self._identity = identity
        self._options = options
        self._health = health
        self._tasks: TaskGroup | None = None
        self._drain_limit: anyio.CancelScope | None = None
        self.restart_grace: float = options.restart_grace
        """Seconds for which the sessions stay with the name when this incarnation has left."""
        state = FetchState()
        notifier = Notifier(provider, identity.worker_id, options.poll_interval, state)
        self.lease: LeaseState = LeaseState(
            identity.worker_id, state, notifier, metrics.count_lease_expiry, timing.monotonic
        )
        self.services: WorkerServices = WorkerServices(
            provider=provider,
            identity=identity,
            options=options,
            health=health,
            metrics=metrics,
            fetch_state=state,
            notifier=notifier,
            lease=self.lease,
            timing=timing,
        )
        services = self.services
        code = options.code_version or code_version(app)
        self.profile: WorkerProfile = describe_worker(options, app, code)
        self.sessions: HeldSessions = HeldSessions(
            listeners,
            options.session_lock_timeout,
            self._check_sessions,
            self._spawn,
            timing.monotonic,
            database=provider.database,
        )
        self.commits: Commits = Commits(services)
        self.guests: Mapping[str, GuestPart] = {
            guest: part(services, app, code=code)
            for guest, part in guest_parts().items()
            if part.is_wanted(provider, app)
        }
        self.activities: ActivityRunner = ActivityRunner(
            app,
            services,
            sessions=self.sessions,
            commits=self.commits,
            guests=self.guests,
            spawn=self._spawn,
            clients=clients,
        )
        self.capacity: Capacity = Capacity(services, self.activities, self.sessions, self.commits)
        self.replays: Replays = Replays(self._read_history, self.commits.flush_in_time, self._read_values)
        self.sent_events: SentEvents = SentEvents(services)
        self.registrations: Registrations = Registrations(services)
        for name, version in itertools.chain.from_iterable(guest.starts() for guest in self.guests.values()):
            if app.find_orchestration(name, version) is None:
                self.registrations.note_missing(name if version is None else f"{name}@{version}")
        self.instances: InstanceTable = InstanceTable(
            app,
            services,
            code=code,
            capacity=self.capacity,
            commits=self.commits,
            activities=self.activities,
            sessions=self.sessions,
            replays=self.replays,
            sent_events=self.sent_events,
            registrations=self.registrations,
        )
        self.fetcher: Fetcher = Fetcher(
            app,
            services,
            capacity=self.capacity,
            commits=self.commits,
            sessions=self.sessions,
            activities=self.activities,
            instances=self.instances,
            replays=self.replays,
        )
        self.maintenance: Maintenance = Maintenance(services, self.sessions, names=orchestration_names(app), code=code)
        self.rebalancer: Rebalancer = Rebalancer(services, self.sessions)
        self.resources: ResourceSweeper = ResourceSweeper(services, app.resources)
        # Each of these parts needs one that is made after it.
        self.activities.deliver_result = self.instances.deliver_result
        self.maintenance.fail_waiting = self.activities.fail_waiting
        self.maintenance.note_due = self._note_due
        self.commits.on_gates = self._note_gates
        self.lease.stop_work = self._stop_work
        self.lease.cancel_work = self.activities.cancel_locks

    # -- loops

    def start(self, tasks: TaskGroup) -> None:
        """Start all loops in ``tasks``."""
        self._tasks = tasks
        fetcher, maintenance = self.fetcher, self.maintenance
        loops = (fetcher.fetch, fetcher.replay, fetcher.listen, self.services.notifier.send_hints)
        rounds = (
            maintenance.cancellations,
            maintenance.expiries,
            maintenance.sweeps,
            maintenance.moves,
            maintenance.retries,
            maintenance.operator_drains,
            self.rebalancer.run,
            self.resources.run,
            self.sent_events.run,
            self.registrations.run,
            *[loop for guest in self.guests.values() for loop in guest.loops],
        )
        for loop in (*loops, *rounds, *[group.run for group in self.commits.groups]):
            tasks.start_soon(self._guarded, loop)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop. After any error of the database it begins again. Any other failure ends the
        worker, in order, instead of cancelling it in the middle of a write.
        """
        backoff, pause = Backoff(self._health.longest_pause), 0.0
        while True:
            began = time.monotonic()
            try:
                return await loop()
            except DatabaseChanged as error:
                return self.lease.end(error)
            except Exception as error:
                if isinstance(error, WorkerFenced) or not isinstance(error, ProviderError):
                    name = getattr(loop, "__qualname__", loop)
                    worker_id = self._identity.worker_id
                    logger.exception("worker %s: %s failed", worker_id, name, exc_info=redacted(error))
                    return self.lease.end(error)
                if not error.retryable:
                    self._health.note_failure(error, loop)
            if time.monotonic() - began > pause:  # it has worked for a while
                backoff.reset()
            pause = backoff.next()
            await anyio.sleep(pause)

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        if self._tasks is not None:
            start_in(self._tasks, work, *args)

    def _note_due(self, due: Mapping[str, float | None]) -> None:
        """Pass on the due times of guests that a sweep has found."""
        for guest, part in self.guests.items():
            part.on_due(due.get(guest))

    def _note_gates(self, came: bool) -> None:
        for part in self.guests.values():
            part.on_gates(came)

    async def _read_history(self, cursors: Sequence[HistoryCursor]) -> Sequence[HistoryPage]:
        """Return the next pages of some histories."""
        read = self._provider.read_history(cursors, max_bytes=self._options.max_batch_bytes)
        return await self.lease.calls.watch("histories", read)

    async def _read_values(self, instance_ids: Collection[str]) -> Sequence[InstanceValue]:
        """Return the values of some instances."""
        return await self.lease.calls.watch("histories", self._provider.get_values(instance_ids))

    async def _check_sessions(self, session_ids: Collection[str]) -> Mapping[str, float]:
        """Return the sessions among these that this worker holds, with the seconds until the lock of each ends."""
        rows = await self._provider.list_sessions(session_ids)
        mine = self._identity.incarnation
        return {row.session_id: row.expires_in for row in rows if row.held and row.incarnation == mine}

    async def measure_work(self, after: str | None) -> WorkReading:
        """Return the sizes of the queues, the counts of one page of instances after ``after``, and what guests measure;
        for metrics.
        """
        queues = await self._provider.measure_queues(SCRAPE_COUNT)
        counts = await self._provider.count_instances(SCRAPE_COUNT, after=after)
        of_guests: dict[str, Mapping[str, float]] = {}
        for part in self.guests.values():
            of_guests |= await part.measure()
        return queues, counts, of_guests

    # -- idle

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing runs here, is being replayed, or waits to be written."""
        return not (self.activities or self.replays) and self.instances.is_idle and self.commits.is_idle

    async def look_for_work(self) -> float:
        """Take what is due; return the seconds until this worker has something to do. 0: it has something now;
        infinity: it has nothing to wait for. What other workers have, and suspended instances, do not count.

        Raises:
            ProviderError: the database does not answer.
        """
        if not self._is_at_rest:
            return 0.0
        taken = self.fetcher.taken  # what began and ended while this looked has left its next step behind the look
        await self.maintenance.run_due()
        dues = [await guest.run_due() for guest in self.guests.values()]
        found = await self.fetcher.look()
        if not self._is_at_rest or self.fetcher.taken != taken:
            return 0.0
        return min([found, *[due for due in dues if due is not None]])

    # -- the end

    def _stop_work(self, reason: str) -> None:
        """Stop all that the lease covers; if the worker has ended, remove its sessions too."""
        self.lease.note_delivered([*self.activities.delivered, *self.instances.waiting_locks()])
        self.activities.cancel_all(reason)
        self.instances.drop_all()
        if self.lease.error is not None:
            self._spawn(self.sessions.remove_all)

    async def drain(self) -> None:
        """Take nothing new, let running work end or give it back in time, and free sessions as they become idle."""
        self.lease.is_draining = True
        self.activities.give_back_waiting()
        logger.info("worker %s: draining, %d activities run", self._identity.worker_id, len(self.activities))
        if self.restart_grace and await self._leaves_for_good():
            self.restart_grace = 0.0
        with anyio.move_on_after(self._options.drain_timeout) as limit:
            self._drain_limit = limit
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guarded, self._free_sessions)
                tasks.start_soon(self._cancel_when_ended, tasks.cancel_scope)
                await self.activities.drained()
                await self.commits.flush()
                tasks.cancel_scope.cancel()
        if limit.cancelled_caught:
            logger.warning("worker %s: giving back %d activities", self._identity.worker_id, len(self.activities))
            self.activities.interrupt_all()
            with anyio.move_on_after(self._options.worker_lease_timeout):
                await self.commits.flush()

    def pass_time(self, seconds: float) -> None:
        """Move time forward for the limits of running activities, and for the limit of the drain: for tests."""
        self.activities.pass_time(seconds)
        if self._drain_limit is not None:
            self._drain_limit.deadline -= seconds

    async def _cancel_when_ended(self, scope: anyio.CancelScope) -> None:
        """Cancel the scope when nothing is left to drain."""
        await self.lease.ended.wait()
        scope.cancel()

    async def _leaves_for_good(self) -> bool:
        """Return whether scale-in ends this worker, as far as it knows: it packs and needs no worker of its ordinal."""
        ordinal = ORDINAL.search(self._identity.worker_id)
        if ordinal is None or self._options.placement != PACK:
            return False
        with anyio.move_on_after(DEMAND_SECONDS), suppress(ProviderError):
            return int(ordinal[0]) >= max(1, (await self._provider.desired_workers()).desired)
        return False

    async def _free_sessions(self) -> None:
        while True:
            restarts = self.restart_grace > 0
            await self._health.retry(partial(self._provider.drain_worker, self._identity, restarts=restarts))
            self.services.notifier.hint_others(None)
            await anyio.sleep(DRAIN_STEP_SECONDS)
