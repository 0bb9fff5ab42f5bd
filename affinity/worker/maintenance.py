"""Periodic work of a worker: sweeps, expired sessions, cancelled work, instances that other code has suspended."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio

from affinity.limits import FAILURE_RETENTION_SECONDS, MAX_BATCH
from affinity.orchestration import KernelApp
from affinity.orchestration.app import HasFunctions
from affinity.provider.contract import Retention, Sweep, WaitFailure, WorkItem
from affinity.worker.moves import MoveReporter
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.sessions import HeldSessions
from affinity_workflows import VERSION

logger: logging.Logger = logging.getLogger("affinity.worker")

MAINTENANCE_SECONDS = 1.0
"""Between two rounds of maintenance: bounds how late an unhinted cancellation or an expired session is noticed."""

DRAIN_STEP_SECONDS = 0.1
"""Between two searches for sessions that a draining worker can free."""

FULL_RATIO = 0.9
"""Share of ``max_sessions_per_runtime`` below which the warning that a worker is full re-arms."""

BACKLOG_PAUSE = 0.05
"""Seconds between two steps of removing old data, at least."""

BACKLOG_REST = 9.0
"""The pause behind such a step as a multiple of its time: a backlog takes a tenth of the database."""

RETRY_SECONDS = 10.0
"""Between two searches for instances that other code has suspended."""

WAITS_LIMIT = 200
"""Overdue items that one call ends (`WorkerProvider.end_waits`); the next call is a second later."""

RETRY_LIMIT = 200
"""Suspended instances that are taken over in one statement."""


class Maintenance(WorkerPart):
    """The loops of maintenance of one worker.

    Args:
        names: of the orchestrations that this worker has code for.
        code: version of that code.
    """

    def __init__(self, services: WorkerServices, sessions: HeldSessions, *, names: frozenset[str], code: str) -> None:
        super().__init__(services)
        self._sessions = sessions
        self._moves = MoveReporter(services, sessions)
        self._names = names
        self._code = code
        self._full_reported = False
        self.fail_waiting: Callable[[WorkItem, WaitFailure], None]
        """Fails an item that is locked to this worker; set by the worker."""
        self.note_due: Callable[[Mapping[str, float | None]], None]
        """Receives the seconds until the loop of each guest has work; set by the worker."""

    async def cancellations(self) -> None:
        """Find running activities whose work item was taken away: at a hint, else each second if they run so long."""
        while True:
            with anyio.move_on_after(MAINTENANCE_SECONDS):
                await self._notifier.check_wanted.wait()
            hinted = self._notifier.check_wanted.is_set()
            self._notifier.check_wanted = anyio.Event()
            locks = self._lease.locks.snapshot(older_than=0.0 if hinted else MAINTENANCE_SECONDS)
            if not locks:
                self._health.forget(self.cancellations)
            for start in range(0, len(locks), MAX_BATCH):
                batch = locks[start : start + MAX_BATCH]
                check = partial(self._provider.check_work_item, batch)
                alive = await self._health.call(check, self.cancellations)
                self._lease.lose_locks([lock for lock, ok in zip(batch, alive, strict=True) if not ok])

    async def expiries(self) -> None:
        """Once a second: expired sessions, idle state. Listeners may take their time, so this has a task of its own."""
        while True:
            await self._pause(MAINTENANCE_SECONDS)
            await self._sessions.sweep()
            self.report_capacity()

    def report_capacity(self) -> None:
        """Log once when the worker has no room for another session, until it has room again (`FULL_RATIO`)."""
        held, most = len(self._sessions), self._options.max_sessions_per_runtime
        if held >= most > 0 and not self._full_reported:
            self._full_reported = True
            logger.warning(
                "worker %s: holds %d sessions and has no place left (max_sessions_per_runtime); one at rest is released"
                " when another one waits, and is loaded again with its next work",
                self._identity.worker_id,
                held,
            )
        elif held < FULL_RATIO * most:
            self._full_reported = False

    async def sweeps(self) -> None:
        """Once a second, by one of the workers: stale routes and dead rows."""
        while True:
            await self._pause(MAINTENANCE_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311
            if self._lease.is_serving:
                await self.sweep()

    async def sweep(self) -> None:
        """One round of `sweeps`. It goes on while there are routes to repair, and, with pauses that leave the database
        to turns, while there is old data to remove.
        """
        interval: float = MAINTENANCE_SECONDS / 2  # N workers together sweep once
        while True:
            began = anyio.current_time()
            done = await self._health.call(partial(self._sweep_once, interval), self.sweeps)
            if done.rerouted:
                self._notifier.hint(None)  # the worker that may take it now need not wait for its poll
            if done.swept:
                self._metrics.count_sweep()
                self.note_due(done.due)
                await self._end_waits()
            if done.records_removed:
                logger.info(
                    "worker %s: retention has removed %d session records",
                    self._identity.worker_id,
                    done.records_removed,
                )
            if done.limit_reached:
                continue
            if not done.backlog:
                return
            pause = min(max(BACKLOG_PAUSE, BACKLOG_REST * (anyio.current_time() - began)), MAINTENANCE_SECONDS)
            interval = pause / 2  # the others stay away meanwhile
            await self._pause(pause)
            if not self._lease.is_serving:
                return

    async def run_due(self) -> None:
        """Do now what the loops would do later, whichever worker has swept last: a sweep, and suspended instances that
        this code may continue.
        """
        done = await self._health.call(partial(self._sweep_once, 0.0), self.sweeps)
        if done.swept:
            await self._end_waits()
        while await self._retry_suspended():
            pass

    async def _sweep_once(self, interval: float) -> Sweep:
        options = self._options
        return await self._provider.sweep(
            interval=interval,
            session_retention=options.session_retention,
            worker_retention=options.session_retention,
            retention=Retention(
                instances=options.instance_retention,
                histories=options.history_retention,
                moves=options.session_move_retention,
                failures=FAILURE_RETENTION_SECONDS,
                records=options.record_retention,
                guests=options.retention_of_guests,
            ),
        )

    async def _end_waits(self) -> None:
        """Fail work whose time to wait is over, and free sessions of busy holders for other workers."""
        fails = self._options.missing_tag == "fail"
        end = partial(
            self._provider.end_waits,
            self._identity,
            limit=WAITS_LIMIT,
            tag_timeout=self._options.unregistered_timeout if fails else None,
            item_lock=self._options.work_item_lock_timeout,
        )
        ended = await self._health.call(end, self.sweeps)
        for item, why in ended.failed:
            self.fail_waiting(item, why)
        for session_id in ended.freed:
            logger.info(
                "session %s is freed for another worker: its holder has had no free slot for its work",
                session_id,
                extra={"session_id": session_id},
            )
        if ended.freed:
            self._notifier.hint(None)

    async def moves(self) -> None:
        """Once a second: report hydrates and count moves, if a session has come here."""
        while True:
            await self._pause(MAINTENANCE_SECONDS)
            await self._moves.report()

    async def operator_drains(self) -> None:
        """While an operator drains this worker: free its sessions as their work ends, until it is resumed."""
        free = partial(self._provider.drain_worker, self._identity, if_wanted=True)
        while True:
            await self._lease.drain_wanted.wait()
            logger.warning("worker %s: an operator drains it; it takes nothing new", self._identity.worker_id)
            before = len(self._sessions) + 1
            handled: anyio.Event | None = None
            while (held := await self._health.retry(free)) is not None:
                if held < before:
                    self._sessions.recheck_all()
                    self._notifier.hint_others(None)  # for what was freed
                before = held
                with anyio.move_on_after(DRAIN_STEP_SECONDS if held else MAINTENANCE_SECONDS):
                    if (wanted := self._notifier.check_wanted) is handled:  # stays set until that check has ended
                        await anyio.sleep_forever()
                    await wanted.wait()
                    handled = wanted
            logger.warning("worker %s: resumed; it takes work again", self._identity.worker_id)
            self._lease.end_operator_drain()

    async def retries(self) -> None:
        """Take over instances that other code has suspended and that this code may continue."""
        while True:
            if self._lease.is_serving and await self._retry_suspended():
                continue
            await self._pause(RETRY_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311

    async def _retry_suspended(self) -> bool:
        """Take over one batch; returns whether there may be more."""
        retry = partial(
            self._provider.retry_suspended, self._identity, names=self._names, code=self._code, limit=RETRY_LIMIT
        )
        taken = await self._health.retry(retry)
        for instance_id in taken:
            of = {"instance_id": instance_id}
            logger.info("instance %s was suspended; trying it with code %s", instance_id, self._code, extra=of)
        if taken:
            self._notifier.notify_fetcher()
        return len(taken) == RETRY_LIMIT


def code_version(app: KernelApp) -> str:
    """Return the version of an application's code: a digest.

    It covers affinity's version, the names that the app registers, its declarations, and the files of its
    orchestrations, activities and handlers. A change in another file does not show: ``RuntimeOptions.code_version`` is
    for that.
    """
    digest = sha256(VERSION.encode())
    for key in sorted([*app.orchestrations, *app.activities]):
        digest.update(key.encode() + b"\0")
    for _, declarations in sorted(app.declared.items()):
        for name, declaration in sorted(declarations.items()):
            digest.update(f"{name}\0{declaration.to_text()}\0".encode())
    functions = [definition.function for definition in [*app.orchestrations.values(), *app.activities.values()]]
    with_functions = [listener for listener in app.session_listeners if isinstance(listener, HasFunctions)]
    functions += [function for listener in with_functions for function in listener._sources()]
    for path in sorted({path for function in functions if (path := _file_of(function)) is not None}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _file_of(function: object) -> Path | None:
    """Return the file of a function's source; None when it has none (typed in, or compiled)."""
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")  # type: ignore[arg-type]
    except TypeError:  # an object that can be called
        return None
    return path if path.is_file() else None
