"""What a worker does while it holds its lease: fetch, run, commit, listen, clean; and what it does when the lease
changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup
from cachetools import LRUCache

from affinity.errors import Contention, DatabaseChanged, ProviderError, WorkerFenced
from affinity.limits import MAX_BATCH, MIN_SHARE, SCRAPE_COUNT
from affinity.orchestration import App
from affinity.orchestration.app import SessionListener
from affinity.orchestration.events import Event
from affinity.orchestration.wire import ActivityTask
from affinity.provider.contract import (
    OFFER_SECONDS,
    FetchOptions,
    HistoryCursor,
    HistoryPage,
    InstanceCounts,
    Placed,
    Provider,
    QueueStatistics,
    Release,
    Retention,
    Suspend,
    Timeouts,
    Turn,
    TurnResult,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkerLease,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.session.retry import RetryingStore
from affinity.worker.activities import ActivityRunner
from affinity.worker.code import code_version
from affinity.worker.committer import GroupCommit
from affinity.worker.instances import InstanceTable
from affinity.worker.isolation import not_begun
from affinity.worker.lease import HeldLocks, LeaseDeadline, Silence
from affinity.worker.metrics import Metrics
from affinity.worker.options import RuntimeOptions
from affinity.worker.results import StagedResult, requeue_after_conflict
from affinity.worker.retry import Backoff, DatabaseHealth
from affinity.worker.sessions import HeldSessions, needs_met
from affinity.worker.wakeups import Waker

logger = logging.getLogger("affinity.worker")

MAINTENANCE_SECONDS = 1.0
"""Between two rounds of maintenance: bounds how late an unhinted cancellation or an expired session is noticed."""

DRAIN_STEP_SECONDS = 0.1
"""Between two looks for sessions that a draining worker can free."""

HINT_SECONDS = 60.0
"""How long one wait for a hint may take; only bounds a system call."""

SHARE_SECONDS = 0.005
"""Between two looks while there is work that nobody holds, and others who may take it: about how long they need to wake
up.
"""

CORES = min(MIN_SHARE, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""Session-free items of one turn that a worker starts by itself while others could have them: one for each core, and a
few at most, since one Python process hardly uses more.
"""

ROOM_SECONDS = 0.5
"""Between two attempts of a full worker to make room for work that no other worker takes."""

PLENTY = 0.9
"""Share of the sessions that a worker may hold, below which it is full no more."""

RETRY_SECONDS = 10.0
"""Between two looks for instances that other code has suspended."""

FETCH_LIMIT = 200
"""Work items, and instances, that one fetch takes at most: one statement stays short."""


LEAST_BATCH = 4
"""A fetch waits until there is room for this part of a batch: many small ones would cost more than they bring."""


class Runtime:
    """The moving parts of one worker, between registration and release."""

    def __init__(
        self,
        *,
        app: App,
        provider: Provider,
        identity: WorkerIdentity,
        options: RuntimeOptions,
        locks: HeldLocks,
        lease_deadline: LeaseDeadline,
        listeners: Sequence[SessionListener],
        health: DatabaseHealth,
        metrics: Metrics,
    ) -> None:
        self._provider = provider
        self._identity = identity
        self._options = options
        self._locks = locks
        self._lease_deadline = lease_deadline
        self._metrics = metrics
        self._timeouts = Timeouts(
            work_item_lock=options.work_item_lock_timeout, session_lock=options.session_lock_timeout
        )
        self._activity_names = frozenset(app.activities) | needs_met(listeners)
        self._orchestration_names = frozenset({d.name for d in app.orchestrations.values()} | set(app.orchestrations))
        self._health = health
        self.silence = Silence()
        self.sessions = HeldSessions(listeners, options.session_lock_timeout, partial(provider.check_session, identity))
        self.activities = ActivityRunner(
            app=app,
            options=options,
            locks=locks,
            sessions=self.sessions,
            states=RetryingStore(provider.states, reading=health.retry, writing=health.retry_if_unchanged),
            results=self,
            observe=metrics.activity_ended,
        )
        self._code = options.code_version or code_version(app)
        self.instances = InstanceTable(app, self, options, code=self._code, observe=metrics.orchestration)
        self._waker = Waker(provider)
        most = options.max_batch_bytes
        self._turns = GroupCommit(self._write_turns, health, max_weight=most, observe=metrics.batch("turn"))
        self._acks = GroupCommit(
            self._write_acks, health, idempotent=True, max_weight=most, observe=metrics.batch("ack")
        )
        self._abandons = GroupCommit(
            self._write_abandons, self._health, idempotent=True, observe=metrics.batch("abandon")
        )
        self._releases = GroupCommit(
            self._write_releases, self._health, idempotent=True, observe=metrics.batch("release")
        )
        self._suspends = GroupCommit(
            self._write_suspends, self._health, idempotent=True, observe=metrics.batch("suspend")
        )
        self._look = anyio.Event()
        self._check = anyio.Event()
        self._draining = False
        self._expired = False
        self._lease_generation = 0  # counts the expiries: what was asked in one generation is not used in the next
        self._offers: dict[str, float] = {}  # sessions that may be on offer to us, and until when at most
        self._left = False  # the last look took a share: others get a chance before the next
        self._told = False  # there may be work that no look has seen
        self._room_at = 0.0  # monotonic time of the next attempt to make room
        self._alone = False  # no other worker was there at the last look
        self._backlog = False  # work in the queue waits for a slot: new work of ours waits its turn there
        self._full = False  # it was said that there is room for no further session
        self._uncertain = False  # a reply was lost: items may be locked to us that we do not know of
        # Locks of items that were handed to code and whose end may not be written, such as those of a lease that ended.
        self._delivered: LRUCache[WorkLock, None] = LRUCache(maxsize=10 * MAX_BATCH)
        self._waits_for_room = False  # a fetch was put off until there is room in memory
        self._promised = 0  # slots that turns in flight have asked for
        self._database_time = (0.0, time.monotonic())
        self._unsettled: WeakSet[StagedResult] = (
            WeakSet()
        )  # of results on their way; settled ones stay until they are garbage
        self.ended = anyio.Event()
        self.error: BaseException | None = None
        self._tasks: TaskGroup | None = None

    def start(self, tasks: TaskGroup) -> None:
        """Start all loops in ``tasks``."""
        self._tasks = tasks
        watches = (self._listen, self._cancellations, self._waker.run)
        loops = (self._fetch, self._replay, self._expiries, self._sweeps, self._retries, *watches)
        commits = (self._turns.run, self._acks.run, self._abandons.run, self._releases.run, self._suspends.run)
        for loop in loops + commits:
            tasks.start_soon(self._guarded, loop)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """A loop that the database fails begins again, whatever the error is: a worker that runs outlasts it. Any other
        failure ends the worker, in order, instead of tearing it down in the middle of a write.
        """
        backoff, pause = Backoff(), 0.0
        while True:
            began = time.monotonic()
            try:
                return await loop()
            except DatabaseChanged as error:
                return self.stop(error)
            except Exception as error:
                if isinstance(error, WorkerFenced) or not isinstance(error, ProviderError):
                    logger.exception("worker %s: %s failed", self.worker_id, getattr(loop, "__name__", loop))
                    return self.stop(error)
                if not error.retryable:
                    self._health.failed(error, loop)
            if time.monotonic() - began > pause:  # it has worked for a while
                backoff.reset()
            pause = backoff.next()
            await anyio.sleep(pause)

    @property
    def _alive(self) -> bool:
        """Whether there is a lease under which anything may be done."""
        return not self._expired and self.error is None and not self._lease_deadline.is_past()

    @property
    def _serving(self) -> bool:
        """Whether new work may be taken."""
        return self._alive and not self._draining

    # -- what the parts ask for (`WorkerServices`, `ActivityResults`)

    @property
    def worker_id(self) -> str:
        """Name of this worker."""
        return self._identity.worker_id

    def now(self) -> float:
        """The database's time in Unix seconds, as far as we can tell between two of its answers."""
        at, learned = self._database_time
        return at + time.monotonic() - learned

    async def measure_work(self, after: str | None) -> tuple[QueueStatistics, InstanceCounts]:
        """How much there is in the database, for the metrics; of instances, the page behind the id ``after``."""
        queues = await self._provider.measure_queues(SCRAPE_COUNT)
        return queues, await self._provider.count_instances(SCRAPE_COUNT, after=after)

    def lease_renewed(self, lease: WorkerLease) -> None:
        """Learn the database's time."""
        self._database_time = (lease.database_time.timestamp(), time.monotonic())

    def slots_for_new_work(self) -> int:
        """How many new work items this worker would run at once; none while others wait in the queue for a slot, and
        one less while some may.
        """
        if not self._serving or self._backlog or not self._free_bytes(self.activities.size):
            return 0
        return max(0, self._slots() - self._told)

    def slots_for_plain_work(self) -> int:
        """How many new session-free items of one turn this worker would run immediately, if it has slots for them.

        All of them while it is alone, else as many as its cores can start; and one in any case, as a chain of single
        steps stays where it is.
        """
        if self._alone:
            return self._options.worker_concurrency
        return max(1, CORES - self.activities.busy_threads)

    def _slots(self) -> int:
        return self.activities.free_slots - self._promised

    def try_reserve_session(self, session_id: str) -> bool:
        """Whether this worker has room for a session that it does not hold, with those that are being offered to it:
        what is offered to a full worker is late.
        """
        if session_id in self.sessions:
            return False  # an item of it is locked here, or it is somebody else's by now
        if self._room() <= 0:
            now = time.monotonic()
            self._offers = {s: end for s, end in self._offers.items() if end > now and s not in self.sessions}
        if self._room() <= 0:
            return False
        self._offers[session_id] = time.monotonic() + OFFER_SECONDS
        return True

    def _room(self) -> int:
        return self._options.max_sessions_per_runtime - len(self.sessions) - len(self._offers)

    def submit_turn(self, turn: Turn, done: Callable[[TurnResult | ProviderError], None]) -> None:
        """Commit a turn with the next batch."""
        asked = sum([item.lock_here for item in turn.work_items])
        self._promised += asked
        generation = self._lease_generation

        def settled(result: TurnResult | ProviderError) -> None:
            self._promised -= asked
            if isinstance(result, ProviderError):
                self._uncertain = True
            else:
                self._note_delivered(result.lost_acks)
                if generation != self._lease_generation:
                    result = self._without_work(result)
            done(result)

        self._turns.submit(turn, settled, _weight(turn))

    def _without_work(self, result: TurnResult) -> TurnResult:
        """The reply to a turn of a former lease. Its work goes back: its session may have another holder by now."""
        for place in result.placed:
            if place.item is not None:
                self.submit_abandon(WorkAbandon(lock=place.item.lock, count_attempt=False))
        return replace(result, placed=[Placed(None, place.holder) for place in result.placed])

    def submit_ack(self, ack: WorkAck, staged: StagedResult | None = None) -> None:
        """Send a result the plain way; its instance lives elsewhere."""

        def done(result: bool | ProviderError) -> None:
            self.room_made()
            if result is True:
                self.hint_owner(ack.lock.key.instance_id)
            else:
                self._note_delivered([ack.lock])
            if staged is not None:
                staged.settle(result is True)
            if result is False and ack.state is not None:  # the token is dead, or the state met a newer one
                self.submit_abandon(requeue_after_conflict(ack.lock))

        self._acks.submit(ack, done, len(ack.message) + (len(ack.state.new.state) if ack.state else 0))

    def submit_abandon(self, abandon: WorkAbandon) -> None:
        """Give a work item back."""

        def done(result: bool | ProviderError) -> None:
            if result is not True and abandon.count_attempt:
                self._note_delivered([abandon.lock])
            self._queued()

        self._abandons.submit(abandon, done)

    def submit_release(self, release: Release, done: Callable[[], None]) -> None:
        """Give an instance up."""

        def written(_: object) -> None:
            done()
            self.hint(release.to)

        self._releases.submit(release, written)

    def submit_suspend(self, suspend: Suspend, done: Callable[[bool], None]) -> None:
        """Suspend an instance."""

        def written(result: bool | ProviderError) -> None:
            if result is True:  # else it has moved on meanwhile, or is suspended already
                why = f"{suspend.error_type}: {suspend.message}"
                logger.error("instance %s is suspended: %s", suspend.instance_id, why)
            done(result is True)

        self._suspends.submit(suspend, written)

    def _queued(self) -> None:
        self.wake_fetcher()
        self._waker.hint(None)

    def run(self, item: WorkItem, task: ActivityTask | None = None) -> None:
        """Run a work item that is locked to this worker."""
        if self._serving:
            self.activities.start(item, task)
        else:
            self.submit_abandon(not_begun(item, self._options.isolate_after))

    def cancel(self, keys: Collection[WorkKey], reason: str) -> None:
        """Cancel activities as far as they run here."""
        self.activities.cancel(keys, reason)

    def hint(self, worker: str | None, *, cancel: bool = False) -> None:
        """Wake a worker, or everybody."""
        if worker in {None, self.worker_id}:
            self.wake_fetcher()
        if cancel:
            self._check.set()
        if worker != self.worker_id:
            self._waker.hint(worker, cancel=cancel)

    def share(self) -> None:
        """Wake everybody for work that any worker may take; others look first, since this one has begun with it."""
        self._waker.hint(None)
        if self._alone:
            self.wake_fetcher()
        else:
            self.fetch_after(SHARE_SECONDS)

    def session_released(self, session_id: str) -> None:
        """A turn has released a session, if nothing kept it: there may be room for another one."""
        self.sessions.recheck(session_id)
        self.wake_fetcher()

    def hint_owner(self, instance_id: str) -> None:
        """Wake the worker that owns an instance, which is not live here."""
        self._waker.hint_owner(instance_id)

    def wake_fetcher(self) -> None:
        """Look into the queues soon."""
        self._told = True
        self._look.set()

    def fetch_after(self, seconds: float) -> None:
        """Look into the queues when that much time has passed: the next poll sees what is due after it."""
        if seconds < self._options.poll_interval:
            asyncio.get_running_loop().call_later(seconds, self.wake_fetcher)

    def deliver_result(self, item: WorkItem, event: Event, staged: StagedResult | None) -> None:
        """An activity has ended."""
        if staged is not None:
            self._unsettled.add(staged)
        self.instances.deliver_result(item, event, staged)

    def session_left(self, session_id: str) -> None:
        """A session was given up: its state here is of no use any more."""
        self._spawn(self.sessions.lost, session_id)

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(work, *args)

    def broken(self, error: Exception) -> None:
        """Our own code failed: better no worker than one in an unknown state."""
        logger.error("worker %s: a defect of the worker itself", self.worker_id, exc_info=error)
        self.stop(error)

    @property
    def outstanding_bytes(self) -> int:
        """About how much is in memory of what was fetched, or has come of it, and is not written."""
        return self.activities.size + self._unwritten_bytes

    @property
    def _unwritten_bytes(self) -> int:
        return self.instances.input_size + self._turns.weight + self._acks.weight

    def _free_bytes(self, running: int = 0) -> int:
        """How many bytes the next fetch may bring; none while that is little. Activities that are ``running`` count for
        other activities only: they may wait for messages, while all else is written sooner or later.
        """
        room = self._options.max_outstanding_bytes - self._unwritten_bytes - running
        batch = self._options.max_batch_bytes
        return min(room, batch) if room >= batch // LEAST_BATCH else 0

    def room_made(self) -> None:
        """Messages, results or replays that were in memory are not any more: a fetch may wait for that."""
        if self._waits_for_room:
            self._waits_for_room = False
            self._look.set()

    def slot_freed(self) -> None:
        """A slot is free: somebody may wait for it."""
        if self._told or self._backlog or self._waits_for_room:
            self._look.set()

    def count_isolated(self, item: WorkItem, then: Callable[[bool | None], None]) -> None:
        """Count the delivery of an item that is to run alone, just before it does."""
        self._spawn(self._count_isolated, item, then)

    async def written(self) -> None:
        """Wait until what was submitted is written, for ``work_item_lock_timeout`` at most."""
        with anyio.move_on_after(self._options.work_item_lock_timeout):
            await self._flush()

    async def _count_isolated(self, item: WorkItem, then: Callable[[bool | None], None]) -> None:
        await self.written()  # results that are on their way must not be lost with the process
        if self.activities.isolation.waiting is not item:
            return
        if not self.activities.isolation.is_alone:
            then(None)
            return
        count = partial(self._provider.begin_work_item, self._identity, item.lock, item.attempts)
        try:
            then(await self._health.retry(count))
        except ProviderError as error:
            logger.warning("activity %s cannot be counted: %s", item.name, error)
            then(False)

    # -- writing

    async def _write_turns(self, turns: Sequence[Turn]) -> Sequence[TurnResult]:
        return await self.silence.watch("turns", self._provider.commit_turn(self._identity, turns, self._timeouts))

    async def _write_acks(self, acks: Sequence[WorkAck]) -> Sequence[bool]:
        return await self.silence.watch("acks", self._provider.ack_work_item(self._identity, acks, self._timeouts))

    async def _write_abandons(self, abandons: Sequence[WorkAbandon]) -> Sequence[bool]:
        return await self.silence.watch("abandons", self._provider.abandon_work_item(self._identity, abandons))

    async def _write_releases(self, releases: Sequence[Release]) -> Sequence[None]:
        await self.silence.watch("releases", self._provider.release_instance(self._identity, releases))
        return [None] * len(releases)

    async def _write_suspends(self, suspends: Sequence[Suspend]) -> Sequence[bool]:
        return await self._provider.suspend_instance(self._identity, suspends)

    # -- the loops

    async def _fetch(self) -> None:
        """Take work and messages while there is room; then wait for a hint, for what becomes due, or for the poll."""
        while True:
            pause = self._options.poll_interval * random.uniform(0.7, 1.0)  # noqa: S311 -- jitter, not a secret
            try:
                # Without a lease there is nothing to be had; but the lease renewer waits for an answer that is missing.
                if self._alive or (self._expired and self.silence.waits("fetch")):
                    pause = min(pause, await self._health.call(self._fetch_once, self._fetch))
            except ProviderError as error:
                # The reply may be lost while the database has locked items to us.
                self._uncertain = self._uncertain or not isinstance(error, Contention)
                raise
            with anyio.move_on_after(pause):
                await self._look.wait()
            self._look = anyio.Event()
            self._told |= pause > 0

    async def _fetch_once(self) -> float:
        """One look into both queues; returns the seconds until the next is due."""
        generation = self._lease_generation
        if self._uncertain:
            await self._release_unknown_locks()
        self._left = False
        due = [await self._fetch_work(generation), await self._fetch_messages(generation)]
        if self._left:
            await anyio.sleep(SHARE_SECONDS)
        return max(0.0, min(due))

    async def _fetch_work(self, generation: int) -> float:
        limit = min(self._slots(), FETCH_LIMIT) if self._serving else 0
        room = self._free_bytes(self.activities.size)
        if limit <= 0 or not room:
            self._waits_for_room |= limit > 0
            return self._options.poll_interval
        self._told = False
        options = self._fetch_options(limit, room)
        fetch = self._provider.fetch_work_item(self._identity, options)
        fetched = await self.silence.watch("fetch", fetch, repeated=True)
        if generation != self._lease_generation:
            self._uncertain = True
            return 0.0
        self._backlog = fetched.limit_reached and limit < FETCH_LIMIT
        self._left |= fetched.unclaimed_remaining
        self._alone = fetched.alone
        for item in fetched.items:
            self.run(item)
        pause = self._options.poll_interval if fetched.next_due is None else fetched.next_due
        if fetched.crowded:
            pause = min(pause, await self._make_room(options))
        return 0.0 if fetched.claim_lost or fetched.items else pause

    async def _make_room(self, options: FetchOptions) -> float:
        """Release idle sessions for work that no worker has room for; seconds until the next look."""
        if (pause := self._room_at - time.monotonic()) > 0:
            return pause
        self._room_at = time.monotonic() + ROOM_SECONDS
        release = self._provider.release_idle_session(
            self._identity,
            options,
            min_idle=self._options.session_min_idle,
            only_users=self.sessions.only_users(),
        )
        released = await self.silence.watch("fetch", release, repeated=True)
        for session_id in released:
            logger.info("session %s is released: it is idle, and new ones wait", session_id)
            self.sessions.recheck(session_id)
        return 0.0 if released else ROOM_SECONDS

    def _fetch_options(self, limit: int, room: int) -> FetchOptions:
        return FetchOptions(
            limit=limit,
            max_sessions=self._options.max_sessions_per_runtime,
            names=self._activity_names,
            unknown_after=self._options.unregistered_timeout,
            uncounted_after=self._options.isolate_after,
            max_bytes=room,
            timeouts=self._timeouts,
        )

    async def _fetch_messages(self, generation: int) -> float:
        """Also while draining: the provider gives a draining worker messages of instances that it owns, no others."""
        limit = FETCH_LIMIT - len(self.instances.replaying)
        room = self._free_bytes()
        if limit <= 0 or self.instances.replaying.has_suspect or not room:
            self._waits_for_room = True
            return self._options.poll_interval
        fetch = self._provider.fetch_orchestration_item(
            self._identity,
            limit=limit,
            names=self._orchestration_names,
            unknown_after=self._options.unregistered_timeout,
            exclude=self.instances.excluded_messages(),
            max_bytes=room,
        )
        fetched = await self.silence.watch("fetch", fetch, repeated=True)
        if fetched.fenced:
            self.stop(WorkerFenced(f"worker {self.worker_id!r}: another process has registered under this name"))
        if generation != self._lease_generation:
            return 0.0
        self._left |= fetched.unclaimed_remaining
        self.instances.deliver(fetched.items)
        if fetched.claim_lost or fetched.items:
            return 0.0
        return self._options.poll_interval if fetched.next_due is None else fetched.next_due

    async def _replay(self) -> None:
        """Replay what was fetched and is not in memory, beside the fetches: a long history holds up nothing else."""
        while True:
            await self.instances.replaying.arrived()
            await self._health.call(self.instances.replaying.take_round, self._replay)
            if not self.instances.replaying:
                self._health.given_up(self._replay)

    async def read_history(self, cursors: Sequence[HistoryCursor]) -> Sequence[HistoryPage]:
        """The next pages of some histories."""
        read = self._provider.read_history(cursors, max_bytes=self._options.max_batch_bytes)
        return await self.silence.watch("histories", read)

    async def _release_unknown_locks(self) -> None:
        """After a lost reply: free what is locked to us without our knowledge. No turn may be in flight meanwhile,
        since its reply could bring items that we are about to know of; nor can a fetch, as this is the fetching task.
        """
        async with self._turns.paused():
            delivered = list(self._delivered)
            await self._provider.release_unknown_locks(self._identity, self._known_locks(), delivered)
            for lock in delivered:
                self._delivered.pop(lock, None)
            self._uncertain = False

    def _note_delivered(self, locks: Iterable[WorkLock]) -> None:
        """What becomes of these is not written: should their locks be released as unknown, their delivery was one."""
        for lock in locks:
            self._delivered[lock] = None

    def _known_locks(self) -> list[WorkLock]:
        """Of work that runs here, and of work that has ended and whose outcome is not written yet."""
        ended = [lock for turn in self._turns.unwritten for lock in turn.acks]
        ended += [ack.lock for ack in self._acks.unwritten]
        ended += [abandon.lock for abandon in self._abandons.unwritten]
        return [*self._locks.snapshot(), *ended, *self.instances.waiting_locks()]

    async def _listen(self) -> None:
        """Turn hints into looks and checks."""
        async with AsyncExitStack() as stack:
            subscribe = partial(stack.enter_async_context, self._provider.hints(self._identity))
            hints = await self._health.call(subscribe, self._listen)
            self.wake_fetcher()  # whatever came while nobody listened
            while True:
                hint = await self._health.call(partial(hints.wait, HINT_SECONDS), self._listen)
                if hint is not None and hint.work:
                    self.wake_fetcher()
                if hint is not None and hint.cancel:
                    self._check.set()

    async def _cancellations(self) -> None:
        """Find running activities whose work item was taken away: at a hint, else every second once they run that
        long.
        """
        while True:
            with anyio.move_on_after(MAINTENANCE_SECONDS):
                await self._check.wait()
            hinted = self._check.is_set()
            self._check = anyio.Event()
            locks = self._locks.snapshot(older_than=0.0 if hinted else MAINTENANCE_SECONDS)
            if not locks:
                self._health.given_up(self._cancellations)
            for start in range(0, len(locks), MAX_BATCH):
                batch = locks[start : start + MAX_BATCH]
                check = partial(self._provider.check_work_item, batch)
                alive = await self._health.call(check, self._cancellations)
                self.locks_lost([lock for lock, ok in zip(batch, alive, strict=True) if not ok])

    async def _expiries(self) -> None:
        """Once a second: expired sessions, idle state. Listeners may take their time, so this has a task of its own."""
        while True:
            await anyio.sleep(MAINTENANCE_SECONDS)
            await self.sessions.sweep()
            self._report_capacity()

    def _report_capacity(self) -> None:
        """Say so when there is room for no further session, and again only after there was plenty."""
        held, most = len(self.sessions), self._options.max_sessions_per_runtime
        if held >= most > 0 and not self._full:
            self._full = True
            logger.warning(
                "worker %s: holds %d sessions and takes no more (max_sessions_per_runtime); new ones wait for other"
                " workers, or until one here has had no work for %g s (session_min_idle)",
                self.worker_id,
                held,
                self._options.session_min_idle,
            )
        elif held < PLENTY * most:
            self._full = False

    async def _sweeps(self) -> None:
        """Once a second, by whichever worker comes first: stale marks and dead rows."""
        while True:
            await anyio.sleep(MAINTENANCE_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311
            if self._serving:
                await self._sweep()

    async def _sweep(self) -> None:
        sweep = partial(
            self._provider.sweep,
            interval=MAINTENANCE_SECONDS
            / 2,  # no worker is refused by its own last sweep, nor do N workers sweep N times
            session_retention=self._options.session_retention,
            worker_retention=self._options.session_retention,
            retention=Retention(instances=self._options.instance_retention, histories=self._options.history_retention),
        )
        more = True
        while more:
            done = await self._health.call(sweep, self._sweeps)
            more = done.limit_reached
            if done.rerouted:
                self._queued()  # whoever may take it now need not wait for its poll

    async def _retries(self) -> None:
        """Take over what other code has suspended and this code may go on with."""
        while True:
            if self._serving and await self._retry_suspended():
                continue
            await anyio.sleep(RETRY_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311

    async def _retry_suspended(self) -> bool:
        """Whether there may be more."""
        retry = partial(
            self._provider.retry_suspended,
            self._identity,
            names=self._orchestration_names,
            code=self._code,
            limit=FETCH_LIMIT,
        )
        taken = await self._health.retry(retry)
        for instance_id in taken:
            logger.info("instance %s was suspended; trying it with code %s", instance_id, self._code)
        if taken:
            self.wake_fetcher()
        return len(taken) == FETCH_LIMIT

    # -- the lease (`LeaseListener`), on this loop

    def lease_expired(self, reason: str) -> None:
        """The lease is about to end: stop all that it covers."""
        logger.warning(
            "worker %s: lease lost (%s); stopping %d activities", self.worker_id, reason, len(self.activities)
        )
        self._metrics.expired()
        self._expired = True
        self._lease_generation += 1
        # Session state stays in memory: a session that nobody took keeps its epoch, so nobody need hydrate it again. If
        # somebody did take it, its copy here is of an old epoch, never used, and goes when the session's time is over.
        self._stop_work(f"the worker's lease was lost: {reason}")

    def lease_resumed(self) -> None:
        """The lease is back, and so are the sessions that nobody took."""
        logger.warning("worker %s: lease is back", self.worker_id)
        self._uncertain = True
        self._expired = False
        self.wake_fetcher()

    def stop(self, error: BaseException) -> None:
        """This worker is over: fenced, stalled, or refused by the database for good; or its incarnation is, since the
        database has changed.
        """
        if self.error is None:
            if not isinstance(error, DatabaseChanged):
                logger.error("worker %s: stopping: %s", self.worker_id, error)
            self.error = error
        self._lease_generation += 1
        self._stop_work(f"the worker is over: {error}")
        self._spawn(self.sessions.lost_all)
        self.ended.set()

    def locks_lost(self, locks: Sequence[WorkLock]) -> None:
        """These items were cancelled, or are somebody else's."""
        if locks:
            self.activities.cancel_locks(locks, "the work item was cancelled or taken over")

    def _stop_work(self, reason: str) -> None:
        self._note_delivered([*self.activities.delivered, *self.instances.waiting_locks()])
        self.activities.cancel_all(reason)
        self.instances.drop_all()

    # -- leaving

    async def drain(self) -> None:
        """Take nothing new, let what runs end, give back what does not in time, and free sessions as they become
        idle.
        """
        self._draining = True
        self.activities.give_back_waiting()
        logger.info("worker %s: draining, %d activities run", self.worker_id, len(self.activities))
        with anyio.move_on_after(self._options.drain_timeout) as limit:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guarded, self._free_sessions)
                tasks.start_soon(self._cancel_when_ended, tasks.cancel_scope)
                await self.activities.drained()
                await self._flush()
                tasks.cancel_scope.cancel()
        if limit.cancelled_caught:
            logger.warning("worker %s: giving back %d activities", self.worker_id, len(self.activities))
            self.activities.interrupt_all()
            with anyio.move_on_after(self._options.worker_lease_timeout):
                await self._flush()

    async def _cancel_when_ended(self, scope: anyio.CancelScope) -> None:
        """There is nothing left to drain."""
        await self.ended.wait()
        scope.cancel()

    def give_up(self) -> None:
        """Nobody will hear any more what became of the results that are on their way: their memory is not to be
        trusted.
        """
        for staged in list(self._unsettled):
            staged.settle(False)

    async def _free_sessions(self) -> None:
        while True:
            await self._health.retry(partial(self._provider.drain_worker, self._identity))
            self._waker.hint(None)
            await anyio.sleep(DRAIN_STEP_SECONDS)

    async def _flush(self) -> None:
        """Wait for what is being written: turns may place work, so they come first."""
        for commits in (self._turns, self._acks, self._abandons, self._releases, self._suspends):
            await commits.flushed()


def _weight(turn: Turn) -> int:
    """About how many bytes it takes: an input stands in the history as well as in its work item."""
    return 2 * sum(map(len, turn.history)) + sum([len(write.new.state) for write in turn.states])
