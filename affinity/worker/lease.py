"""The worker's lease: its state as the worker's own loop knows it (`LeaseState`), and the thread that renews it
(`LeaseRenewer`).

Why a thread: an activity may use the CPU of the event loop for longer than a lease lasts. The lease renewer has its own
event loop and its own database connection, so all that it needs of the process is now and then the interpreter lock.

States, as the worker sees them::

    held ──renewed──► held
    held ──no renewal answered until just before the lease ends──► expired: all work stops, THEN the lease ends
    expired ──database answers, name still this worker's──► held (sessions that no other worker took keep their epoch)
    held, expired ──another process has its name──► fenced: the worker stops
    held, expired ──the database has changed──► ended: the worker starts again (`affinity.worker.worker`)
    held ──the worker's loop stands still for `stall_timeout`──► stalled: the lease is given up, which is logged
    held ──a call of the worker's own has no answer for longer than a lease──► expired; THEN the lease is given up
    expired ──that call has its answer, or is given up──► held

Invariants
    * The deadline is counted on the monotonic clock from the moment at which a request was *sent*, so it can only be
      too early. No clock of this process is compared with the database's.
    * The deadline is the end of the worker lease or of the oldest work-item lock, whichever is first.
    * The lease of a loop that hangs ends: past `stall_timeout` without a beat of the main loop nothing is renewed. A
      loop that is blocked for a second is logged, with its stack.
    * `LeaseState.term` grows with each expiry: a reply to a request of a former term of the lease starts no work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import anyio
from cachetools import LRUCache

from affinity.errors import (
    ConnectionLost,
    DatabaseChanged,
    DatabaseFailure,
    LockTimeout,
    ProviderError,
    WorkerFenced,
    WorkerStalled,
)
from affinity.limits import MAX_BATCH, MIN_PROBE_AFTER
from affinity.orchestration import KernelApp
from affinity.provider.contract import (
    LEFT_BEHIND,
    NO_TAGS,
    Hint,
    Provider,
    Timeouts,
    WorkerIdentity,
    WorkerLease,
    WorkerProfile,
    WorkerTags,
    WorkLock,
)
from affinity.redaction import redacted
from affinity.worker.notifier import FetchState, Notifier
from affinity.worker.options import KernelOptions
from affinity.worker.retry import FIRST_PAUSE, DatabaseHealth

logger: logging.Logger = logging.getLogger("affinity.worker")

T = TypeVar("T")

RENEWER = "affinity-lease"

BEAT_SECONDS: Final = 0.5
"""Between two beats of the worker's loop, which show that it makes progress."""

BLOCKED_BEATS: Final = 3
"""Missing beats in a row after which a loop counts as blocked: it is blocked for one second at least."""

STACK_FRAMES = 20
"""Innermost frames that are logged of a loop that is blocked: down to the application's function, if libraries hang."""

HELD: Final = "another transaction holds the row of this worker in the table of workers"
"""Why a lease cannot be renewed."""

STOP_SECONDS = 5.0
"""Seconds that the thread may take to end; its connection is closed by then, or left to the operating system."""


def lock_timeouts(options: KernelOptions) -> Timeouts:
    """Return the durations of the locks of work."""
    return Timeouts(work_item_lock=options.work_item_lock_timeout, session_lock=options.session_lock_timeout)


def probe_after(options: KernelOptions) -> float:
    """Seconds of silence of PostgreSQL after which a worker looks whether its connection is dead."""
    return max(MIN_PROBE_AFTER, options.worker_lease_timeout / 3)


class HeldLocks:
    """The work-item locks that this worker renews. Its loop changes them, the lease renewer's thread reads a copy: each
    is one step of the interpreter.
    """

    def __init__(self) -> None:
        self._locks: dict[WorkLock, float] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def add(self, lock: WorkLock) -> None:
        """Renew this lock from now on."""
        self._locks[lock] = time.monotonic()

    def discard(self, lock: WorkLock) -> None:
        """Stop renewing this lock."""
        self._locks.pop(lock, None)

    def clear(self) -> None:
        """Stop renewing all of them."""
        self._locks.clear()

    def snapshot(self, older_than: float = 0.0) -> list[WorkLock]:
        """Return the locks that have been held for at least ``older_than`` seconds."""
        latest = time.monotonic() - older_than
        return [lock for lock, since in self._locks.copy().items() if since <= latest]


def _ignore() -> None:
    pass


class LoopProgress:
    """Beats of an event loop, from the worker's start to its end, whether or not its database answers."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self.on_beat: Callable[[], None] = _ignore

    def stands_still_for(self) -> float:
        """Seconds since the last beat. For any thread."""
        return time.monotonic() - self._at

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Beat on the running loop within the block."""
        loop = asyncio.get_running_loop()
        self._beat(loop)
        try:
            yield
        finally:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop)
        self._at = time.monotonic()
        self.on_beat()


class UnansweredCalls:
    """The time for which calls of the worker's own connections have waited for an answer. Any answer counts, also an
    error that the database reports.

    The lease renewer uses a connection of its own. It may work while the worker's connections do not: then the worker
    would hold its sessions and do nothing.

    Time is counted in beats of the worker's loop: a loop that stands still receives no answers, which is not the
    database's silence.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}

    def waits(self, kind: str) -> bool:
        """Return whether calls of this kind have no answer yet."""
        return kind in self._waiting

    async def watch(self, kind: str, call: Awaitable[T], *, repeated: bool = False) -> T:
        """Await a call. Of one kind there is one at a time.

        Args:
            kind: name of the call, for the log.
            call: the call.
            repeated: the caller repeats it until it is answered: a connection that breaks does not answer it.

        Raises:
            DatabaseFailure: there is not enough memory for it; the call may be repeated.
        """
        self._waiting.setdefault(kind, 0.0)
        answered = not repeated
        try:
            result = await call
            answered = True
        except MemoryError as error:
            raise DatabaseFailure(f"not enough memory ({kind})") from error
        except ProviderError as error:
            answered |= not isinstance(error, ConnectionLost)
            raise
        finally:
            if answered:
                self._waiting.pop(kind, None)
        return result

    def beat(self) -> float:
        """Count `BEAT_SECONDS`; returns the longest time in seconds that a call has waited."""
        for kind in self._waiting:
            self._waiting[kind] += BEAT_SECONDS
        return max(self._waiting.values(), default=0.0)


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(event.set)


class LeaseState:
    """The lease of one worker, and the worker's reactions to its changes; for the worker's own loop.

    Args:
        worker_id: name of the worker.
        state: of the fetcher, which has to release unknown locks when the lease is back.
        notifier: of the worker's fetcher, which fetches then.
        observe_expiry: called at each expiry, for the metrics.
        monotonic: with which the database's time is extrapolated.
    """

    def __init__(
        self,
        worker_id: str,
        state: FetchState,
        notifier: Notifier,
        observe_expiry: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker_id = worker_id
        self.locks: HeldLocks = HeldLocks()
        self.calls: UnansweredCalls = UnansweredCalls()
        self.ends_at: float = math.inf
        """When it ends as far as this process can know, in monotonic seconds. After a pause of the whole process the
        worker's loop may run before the lease renewer notices that the lease has ended.
        """
        self.term: int = 0
        self.is_expired: bool = False
        self.is_draining = False
        self.is_drained_by_operator: bool = False
        self.drain_wanted: anyio.Event = anyio.Event()
        """Set when an operator drains the worker."""
        self.ended: anyio.Event = anyio.Event()
        self.error: BaseException | None = None
        """Why the worker has ended."""
        self.delivered: LRUCache[WorkLock, None] = LRUCache(maxsize=10 * MAX_BATCH)
        """Locks of items that were handed to code and whose outcome may not be written: their delivery counts as an
        attempt when the locks are released as unknown.
        """
        self.left_behind: Callable[[], int] = lambda: 0
        """The number of slots of code that is left behind; set by the worker, and called in the renewer's thread."""
        self.stop_work: Callable[[str], None]
        """Stops the work that the lease covers; set by the worker."""
        self.cancel_work: Callable[[Sequence[WorkLock], str], None]
        """Cancels the work under these locks; set by the worker."""
        self._state = state
        self._notifier = notifier
        self._observe_expiry = observe_expiry
        self._monotonic = monotonic
        self._database_time = (0.0, monotonic())

    @property
    def is_alive(self) -> bool:
        """True if there is a lease under which work may be done."""
        return not self.is_expired and self.error is None and time.monotonic() < self.ends_at

    @property
    def is_serving(self) -> bool:
        """True if new work may be taken."""
        # As `is_alive`, which is not called: each turn asks.
        stops = self.is_draining or self.is_drained_by_operator or self.is_expired
        return not stops and self.error is None and time.monotonic() < self.ends_at

    def now(self) -> float:
        """Return the database's time in Unix seconds, extrapolated from its last answer."""
        at, learned = self._database_time
        return at + self._monotonic() - learned

    def clock_offset(self) -> float:
        """Seconds by which the database's clock is ahead of this machine's; 0 before its first answer."""
        return self.now() - time.time() if self._database_time[0] else 0.0

    def note_delivered(self, locks: Iterable[WorkLock]) -> None:
        """Add to `delivered`."""
        for lock in locks:
            self.delivered[lock] = None

    # -- changes; the lease renewer has them called on the worker's loop

    def note_renewal(self, lease: WorkerLease) -> None:
        """Note the database's time, and whether an operator drains the worker."""
        if lease.draining:
            self.begin_operator_drain()
        self._database_time = (lease.database_time.timestamp(), self._monotonic())

    def begin_operator_drain(self) -> None:
        """Take nothing new, until an operator resumes the worker."""
        if not self.is_draining and not self.is_drained_by_operator:
            self.is_drained_by_operator = True
            self.drain_wanted.set()

    def end_operator_drain(self) -> None:
        """Take work again."""
        self.is_drained_by_operator = False
        self.drain_wanted = anyio.Event()
        self._notifier.notify_fetcher()

    def expire(self, reason: str) -> None:
        """The lease is about to end: stop all that it covers."""
        logger.warning("worker %s: lease lost (%s); stopping %d activities", self.worker_id, reason, len(self.locks))
        self._observe_expiry()
        self.is_expired = True
        self.term += 1
        # Session state stays in memory: a session that no worker took keeps its epoch, and need not be hydrated again.
        # State of a session that another worker took has an old epoch: it is never used, and goes when the session's
        # time is over.
        self.stop_work(f"the worker's lease was lost: {reason}")

    def resume(self) -> None:
        """The lease is back, with the sessions that no other worker took."""
        logger.warning("worker %s: lease is back", self.worker_id)
        self._state.locks_uncertain = True
        self.is_expired = False
        self._notifier.notify_fetcher()

    def end(self, error: BaseException) -> None:
        """End the worker: it is fenced, stalled, or refused by the database for good. Or end its incarnation, since the
        database has changed.
        """
        if self.error is None:
            if not isinstance(error, DatabaseChanged):
                logger.error("worker %s: stopping: %s", self.worker_id, redacted(error))
            self.error = error
        self.term += 1
        self.stop_work(f"the worker has ended: {error}")
        self.ended.set()

    def end_by_defect(self, error: Exception) -> None:
        """End the worker since its own code failed: its state is unknown."""
        logger.error("worker %s: a defect of the worker itself", self.worker_id, exc_info=redacted(error))
        self.end(error)

    def lose_locks(self, locks: Sequence[WorkLock]) -> None:
        """These work items were cancelled, or another worker has them."""
        if locks:
            self.cancel_work(locks, "the work item was cancelled or taken over")


def describe_worker(options: KernelOptions, app: KernelApp, code: str) -> WorkerProfile:
    """Return the profile that a worker with these options registers; ``code`` is the version of the app's code."""
    return WorkerProfile(
        capacity=options.max_sessions_per_runtime,
        app=app.name,
        code_version=code,
        tags=worker_tags(options),
        registered=app.registered(),
        interfaces=app.interfaces(),
        named="worker_node_id" in options.model_fields_set,
    )


def worker_tags(options: KernelOptions) -> WorkerTags:
    """Return the tags of the work that a worker with these options takes."""
    return WorkerTags(tags=options.tags, only=options.only_tagged) if options.tags else NO_TAGS


class LeaseRenewer:
    """Runs the lease renewer thread. `start` after the worker has registered; `stop` before it releases."""

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[Provider]],
        identity: WorkerIdentity,
        options: KernelOptions,
        labels: dict[str, str],
        profile: WorkerProfile,
        lease: LeaseState,
        health: DatabaseHealth,
    ) -> None:
        self._lease = lease
        self._connect = connect
        self._identity = identity
        self._options = options
        self._labels = dict(labels)
        self._left_behind = 0  # as the labels say
        self._profile = profile
        self._health = health
        self._timeouts = lock_timeouts(options)
        shortest = min(options.worker_lease_timeout, options.work_item_lock_timeout)
        self._interval = shortest / 3
        self._margin = min(1.0, shortest / 10)
        self._expired = False
        self._is_held = False  # since the last success, a renewal needed a row that another transaction holds
        self._deadline = 0.0
        self._items_deadline = 0.0
        self._beat = time.monotonic()
        self._silent_for = 0.0
        self._thread = threading.Thread(target=self._run, name=RENEWER, daemon=True)
        self._stopping = threading.Event()
        self._want_round: Callable[[], None] = lambda: None

    def start(self, registered_at: float) -> None:
        """Begin to renew a lease that was requested at ``registered_at`` (monotonic seconds)."""
        self._deadline = registered_at + self._options.worker_lease_timeout
        self._items_deadline = time.monotonic() + self._options.work_item_lock_timeout
        self._lease.ends_at = self._nearest()
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; the lease is not released by this."""
        self._stopping.set()
        self._want_round()
        if self._thread.is_alive():
            await anyio.to_thread.run_sync(self._thread.join, STOP_SECONDS)

    def renew_now(self) -> None:
        """End the pause before the next renewal."""
        self._want_round()

    def beat(self, silent_for: float) -> None:
        """Note progress of the worker's loop, and for how many seconds its own calls have had no answer."""
        self._beat = time.monotonic()
        self._silent_for = silent_for

    # -- the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except (DatabaseChanged, WorkerFenced, WorkerStalled) as error:
            self._post(self._lease.end, error)
        except Exception as error:
            logger.exception("worker %s: the lease renewer failed", self._identity.worker_id, exc_info=redacted(error))
            self._post(self._lease.end, error)

    async def _keep(self) -> None:
        round_wanted = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._want_round = partial(_set_from_thread, loop, round_wanted)
        provider: Provider | None = None
        pause = 0.0
        watch = asyncio.create_task(self._watch_loop())
        try:
            while not self._stopping.is_set():
                try:
                    if provider is None:
                        provider = await self._in_time(self._connect)
                    await self._round(provider)
                    self._is_held = False
                    pause = self._interval * random.uniform(0.8, 1.0)  # noqa: S311 -- jitter, not a secret
                    pause /= 3 if self._expired else 1
                except (DatabaseChanged, WorkerFenced):
                    raise
                except ProviderError as error:  # of any kind: while this worker runs, the database may recover
                    self._is_held |= isinstance(error, LockTimeout)
                    pause = random.uniform(FIRST_PAUSE, self._interval / 3)  # noqa: S311
                self._expire_if_due()
                with anyio.move_on_after(self._until(pause)):
                    await round_wanted.wait()
                round_wanted.clear()
        finally:
            watch.cancel()
            if provider is not None:
                with anyio.move_on_after(STOP_SECONDS, shield=True):
                    await provider.aclose()

    def _until(self, pause: float) -> float:
        """Return the pause, cut at the deadline: an expiry must be noticed before the lease ends."""
        if self._expired:
            return pause
        return max(0.01, min(pause, self._nearest() - self._margin - time.monotonic()))

    def _nearest(self) -> float:
        return min(self._deadline, self._items_deadline)

    async def _in_time(self, verb: Callable[[], Awaitable[T]]) -> T:
        """Await a call, until the deadline at most: a network without answers must not hide an expiry."""
        limit = self._interval if self._expired else max(0.05, self._nearest() - self._margin - time.monotonic())
        with anyio.move_on_after(limit):
            return await self._health.call(verb, RENEWER)
        silence = ConnectionLost(f"the database did not answer within {limit:.1f} s")
        self._health.note_failure(silence, RENEWER)
        raise silence

    async def _round(self, provider: Provider) -> None:
        """Renew everything once; after an expiry, try once to register again."""
        if self._stalled_for() > self._options.stall_timeout:
            await self._give_up(provider)
        if self._silent_for > self._options.worker_lease_timeout:
            await self._release_lease(provider)
            return
        sent = time.monotonic()
        if self._expired:
            await self._in_time(partial(self._register_again, provider))
            self._deadline = sent + self._options.worker_lease_timeout
            self._items_deadline = sent + self._options.work_item_lock_timeout
            self._lease.ends_at = self._nearest()
            self._expired = False
            self._post(self._lease.resume)
            return
        renew = partial(provider.renew_worker, self._identity, self._options.worker_lease_timeout)
        slots = self._lease.left_behind()
        lease = await self._in_time(renew if slots == self._left_behind else partial(renew, self._relabel(slots)))
        self._left_behind = slots
        if lease is None:
            self._expire("the lease had ended before it could be renewed")
            return
        self._deadline = sent + lease.expires_in
        self._lease.ends_at = self._nearest()
        self._post(self._lease.note_renewal, lease)
        await self._renew_items(provider)

    def _relabel(self, left_behind: int) -> Mapping[str, str]:
        """Return the labels, with the slots of code that is left behind."""
        self._labels.pop(LEFT_BEHIND, None)
        if left_behind:
            self._labels[LEFT_BEHIND] = str(left_behind)
        return self._labels

    async def _register_again(self, provider: Provider) -> WorkerLease:
        return await provider.register_worker(
            self._identity, self._options.worker_lease_timeout, self._labels, resume=True, profile=self._profile
        )

    async def _renew_items(self, provider: Provider) -> None:
        sent = time.monotonic()
        locks = self._lease.locks.snapshot()
        for start in range(0, len(locks), MAX_BATCH):
            batch = locks[start : start + MAX_BATCH]
            kept = await self._in_time(partial(provider.renew_work_item_lock, self._identity, batch, self._timeouts))
            if lost := [lock for lock, ok in zip(batch, kept, strict=True) if not ok]:
                self._post(self._lease.lose_locks, lost)
        self._items_deadline = sent + self._options.work_item_lock_timeout
        self._lease.ends_at = self._nearest()

    # -- the ends of a lease

    def _expire_if_due(self) -> None:
        if not self._expired and time.monotonic() >= self._nearest() - self._margin:
            self._expire(HELD if self._is_held else "no renewal was answered in time")

    def _expire(self, reason: str) -> None:
        self._expired = True
        self._post(self._lease.expire, reason)

    async def _release_lease(self, provider: Provider) -> None:
        """Release the lease since the worker's own calls are not answered: others can take its work until they are."""
        if self._expired:
            return
        self._expire(
            f"the database answers the lease renewer, but has not answered the worker for {self._silent_for:g} s"
        )
        await anyio.sleep(self._margin)  # the work stops, THEN the lease ends
        await self._in_time(partial(provider.release_worker, self._identity))
        await self._in_time(partial(provider.notify_workers, {None: Hint()}))

    def _stalled_for(self) -> float:
        return time.monotonic() - self._beat

    async def _give_up(self, provider: Provider) -> None:
        """Release the lease since the main loop hangs, and log the stack of the main thread."""
        logger.error(
            "worker %s: the event loop has made no progress for %.0f s (stall_timeout); giving up the lease. %s",
            self._identity.worker_id,
            self._stalled_for(),
            self._blame(),
        )
        await self._in_time(partial(provider.release_worker, self._identity))
        raise WorkerStalled(f"the event loop stood still for more than {self._options.stall_timeout:g} s")

    async def _watch_loop(self) -> None:
        """Log the stack of the worker's loop when it has been blocked for a second; once for each time.

        Beats are counted on this thread's clock: a pause of the whole process is not logged as a blocked loop.
        """
        seen, missing = self._beat, 0
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            seen, missing = self._beat, missing + 1 if self._beat == seen else 0
            if missing == BLOCKED_BEATS:
                logger.warning(
                    "worker %s: the event loop has been blocked for more than a second. %s",
                    self._identity.worker_id,
                    self._blame(),
                )

    def _blame(self) -> str:
        """Return the possible culprit, the remedy, and the stack of the loop's thread."""
        frame = sys._current_frames().get(self._main_thread)
        stack = "".join(traceback.format_stack(frame)[-STACK_FRAMES:]) if frame else "unknown"
        return (
            "An async activity, an orchestration or a handler blocks it. Move blocking code into "
            "a sync activity; in a handler, call it with `await anyio.to_thread.run_sync(function)`, or make it a tool "
            f"that is a plain def. It is at:\n{stack}"
        )

    def _post(self, event: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the main loop has closed
            self._main_loop.call_soon_threadsafe(event, *args)
