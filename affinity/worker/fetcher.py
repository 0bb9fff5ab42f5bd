"""Fetching: takes work items and messages from the queues while there is room for them, and brings their instances to
memory.

One task fetches. Between two fetches it waits for a notification (`Notifier`), for the next due item, or for the poll.
The other parts of the worker report to it in `FetchState`. After a hint about items of sessions that it
holds, and nothing else, it fetches these and leaves all that is due as it was.

A reply that is lost may have locked items to this worker. Then the next fetch first releases the locks that the worker
does not know of. A reply to a request of a former lease starts nothing, for the same reason (`LeaseState.term`).
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import anyio

from affinity.errors import Contention, ProviderError, WorkerFenced
from affinity.limits import ANY_TAG, MAX_WAITING_TAGS
from affinity.orchestration import KernelApp
from affinity.provider.contract import FetchOptions, WorkerTags, WorkFetch
from affinity.worker.activities import ActivityRunner
from affinity.worker.capacity import Capacity
from affinity.worker.commits import Commits
from affinity.worker.instances import InstanceTable
from affinity.worker.lease import lock_timeouts, worker_tags
from affinity.worker.notifier import ROOM_SECONDS, SHARE_SECONDS
from affinity.worker.options import PACK
from affinity.worker.replays import Replays
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.sessions import HeldSessions, needs_met

logger: logging.Logger = logging.getLogger("affinity.worker")

HINT_SECONDS = 60.0
"""Seconds that one wait for a hint may take; only bounds a system call."""

LONGEST_ROOM_SECONDS = 0.5
"""Between two attempts of a full worker to make room, if they are in vain: each doubles `ROOM_SECONDS`, until work of a
session here ends.
"""

ASSIGNED_SECONDS = 0.1
"""Between two attempts to take a session that is to move here, while work of it runs on its holder."""

FETCH_LIMIT = 200
"""Work items, and instances, that one fetch takes at most: one statement stays short."""


class Fetcher(WorkerPart):
    """The loops that bring work to one worker."""

    def __init__(
        self,
        app: KernelApp,
        services: WorkerServices,
        *,
        capacity: Capacity,
        commits: Commits,
        sessions: HeldSessions,
        activities: ActivityRunner,
        instances: InstanceTable,
        replays: Replays,
    ) -> None:
        super().__init__(services)
        self._capacity = capacity
        self._commits = commits
        self._sessions = sessions
        self._activities = activities
        self._instances = instances
        self._replays = replays
        self._timeouts = lock_timeouts(services.options)
        self._tags = worker_tags(services.options)
        self._takes_any_tag = ANY_TAG in self._tags.tags
        self._activity_names = frozenset(app.activities) | needs_met(sessions.listeners)
        self._orchestration_names = orchestration_names(app)
        self._work_at = 0.0  # monotonic time at which the next work items may be visible
        self._messages_at = 0.0  # and the next messages
        # For `look`: the numbers of the last round that has begun and of the last one that is over, and its results.
        self._begun = self._over = 0
        self._work_due = self._messages_due = 0.0
        self._looked = anyio.Event()
        self.taken = 0
        """Fetches that have brought something."""

    async def fetch(self) -> None:
        """Fetch while there is room and work; then wait."""
        while True:
            pause = self._options.poll_interval
            try:
                # Without a lease there is nothing to fetch; but the lease renewer waits for an answer that is missing.
                if self._lease.is_alive or (self._lease.is_expired and self._lease.calls.waits("fetch")):
                    pause = min(pause, await self._health.call(self._fetch_once, self.fetch))
            except ProviderError as error:
                # The reply may be lost while the database has locked items to this worker.
                self._state.locks_uncertain = self._state.locks_uncertain or not isinstance(error, Contention)
                raise
            with anyio.move_on_after(pause):
                await self._notifier.fetch_wanted.wait()
            self._notifier.fetch_wanted = anyio.Event()
            self._state.may_have_work |= pause > 0 and self._wants_work()

    async def _fetch_once(self) -> float:
        """Fetch once, as far as there is room; returns the seconds until the next fetch is due."""
        term = self._lease.term
        if self._state.locks_uncertain:
            await self._release_unknown_locks()
        if self._state.own_wanted and not (self._wants_work() or self._wants_messages()):
            await self._fetch_own(term)
        else:
            await self._fetch_queues(term)
        return max(0.0, min(self._work_at, self._messages_at) - time.monotonic())

    async def look(self) -> float:
        """Fetch from both queues; return the seconds until something is due that this worker may take. 0: it has taken
        something, or there was no room to look; infinity: nothing is queued for it.
        """
        after = self._begun
        while self._over <= after:
            self._looked = anyio.Event()
            self._notifier.notify_fetcher()
            await self._looked.wait()
        return min(self._work_due, self._messages_due)

    async def _fetch_queues(self, term: int) -> None:
        self._begun += 1
        is_whole = self._wants_work()
        self._state.unclaimed_remaining = False
        if self._wants_work() or self._state.own_wanted:
            self._state.work_wanted = self._state.own_wanted = False
            self._work_at = 0.0  # in case that this fails
            due = await self._fetch_work(term)
            self._work_at = time.monotonic() + min(due, self._poll())
        self._state.messages_wanted = False
        self._messages_at = 0.0
        pause = await self._fetch_messages(term)
        if self._state.unclaimed_remaining:
            await anyio.sleep(SHARE_SECONDS)
        self._messages_at = time.monotonic() + pause
        if is_whole:
            self._over = self._begun
            self._looked.set()

    def _wants_work(self) -> bool:
        return self._state.work_wanted or time.monotonic() >= self._work_at

    def _wants_messages(self) -> bool:
        return self._state.messages_wanted or time.monotonic() >= self._messages_at

    def _poll(self) -> float:
        """Seconds after which to fetch without a hint."""
        return self._options.poll_interval * random.uniform(0.7, 1.0)  # noqa: S311 -- jitter, not a secret

    async def _release_unknown_locks(self) -> None:
        """Free the items that are locked to this worker without its knowledge, after a lost reply. No turn may be in
        flight meanwhile, since its reply could bring items; nor can a fetch, as this is the fetching task.
        """
        async with self._commits.turns.paused():
            known = [*self._lease.locks.snapshot(), *self._commits.unwritten_locks(), *self._instances.waiting_locks()]
            delivered = list(self._lease.delivered)
            await self._provider.release_unknown_locks(self._identity, known, delivered)
            for lock in delivered:
                self._lease.delivered.pop(lock, None)
            self._state.locks_uncertain = False
            self._state.work_wanted = True

    # -- work items

    async def _fetch_own(self, term: int) -> None:
        """Fetch items of sessions that this worker holds. If it gets none, or not all, a fetch of all work follows:
        immediately, or with the next free slot.
        """
        self._state.own_wanted = False
        if (options := self._fetch_options(only_own=True)) is None:
            self._state.may_have_work = True
            return
        due, self._work_at = self._work_at, 0.0  # in case that this fails
        fetched = await self._fetch_items(options, term)
        if fetched is not None and fetched.items and not fetched.limit_reached:
            self._work_at = due
        else:
            self._state.may_have_work = True

    async def _fetch_work(self, term: int) -> float:
        self._work_due = 0.0
        if self._takes_any_tag:
            await self._find_tags()
        if (options := self._fetch_options()) is None:
            return self._options.poll_interval
        self._state.may_have_work = False
        if (fetched := await self._fetch_items(options, term)) is None:
            return 0.0
        self._state.has_backlog = fetched.limit_reached and options.limit < FETCH_LIMIT
        self._state.unclaimed_remaining |= fetched.unclaimed_remaining
        self._state.workers = fetched.workers
        self._state.is_outdated = fetched.outdated
        pause = self._options.poll_interval if fetched.next_due is None else fetched.next_due
        waits = fetched.crowded and options.max_sessions > 0
        if not (fetched.items or fetched.claim_lost or fetched.assigned or waits):
            self._work_due = math.inf if fetched.next_due is None else fetched.next_due
        self._state.waits_for_room = fetched.crowded
        if fetched.crowded:
            pause = min(pause, await self._make_room(options))
        if fetched.assigned:
            pause = min(pause, await self._take_assigned(fetched.assigned))
        else:
            self._sessions.assigned.clear()
        if fetched.draining:
            self._lease.begin_operator_drain()
        return 0.0 if fetched.claim_lost or fetched.items else pause

    async def _find_tags(self) -> None:
        """Fetch with the tags that work waits with now."""
        found = await self._lease.calls.watch(
            "fetch", self._provider.list_waiting_tags(MAX_WAITING_TAGS), repeated=True
        )
        self._tags = WorkerTags(tags=found, only=self._options.only_tagged)

    async def _fetch_items(self, options: FetchOptions, term: int) -> WorkFetch | None:
        """Fetch work items and start them; None if the lease has ended meanwhile."""
        fetch = self._provider.fetch_work_item(self._identity, options)
        fetched = await self._lease.calls.watch("fetch", fetch, repeated=True)
        if term != self._lease.term:
            self._state.locks_uncertain = True
            return None
        self.taken += bool(fetched.items)
        self._activities.start_all(fetched)
        return fetched

    def _fetch_options(self, *, only_own: bool = False) -> FetchOptions | None:
        """Return the options of the next fetch; None without room for work."""
        limit = min(self._capacity.free_slots(), FETCH_LIMIT) if self._lease.is_serving else 0
        room = self._capacity.free_bytes(self._activities.size)
        if limit <= 0 or not room:
            self._state.waits_for_memory |= limit > 0
            return None
        return FetchOptions(
            limit=limit,
            max_sessions=self._options.max_sessions_per_runtime,
            names=self._activity_names,
            unknown_after=self._options.unregistered_timeout,
            uncounted_after=self._options.isolate_after,
            max_bytes=room,
            timeouts=self._timeouts,
            pack=self._options.placement == PACK,
            tags=self._tags,
            only_own=only_own,
            prefetch=self._activities.prefetched if only_own else {},
        )

    async def _make_room(self, options: FetchOptions) -> float:
        """Release sessions at rest for work that no worker has room for; returns the seconds until the next fetch."""
        state = self._state
        if (pause := state.next_room_at - self._monotonic()) > 0:
            return pause
        release = self._provider.release_idle_session(self._identity, options, order=self._sessions.room_order())
        released = await self._lease.calls.watch("fetch", release, repeated=True)
        for session_id in released:
            text, of = "session %s is released: it is at rest, and others wait", {"session_id": session_id}
            logger.info(text, session_id, extra=of)
        self._sessions.give_up(released)
        longer = min(max(2 * state.room_pause, ROOM_SECONDS), LONGEST_ROOM_SECONDS)
        state.room_pause = ROOM_SECONDS if released else longer
        state.next_room_at = self._monotonic() + state.room_pause
        return 0.0 if released else state.room_pause

    async def _take_assigned(self, session_ids: Sequence[str]) -> float:
        """Take sessions that are to move here and are at rest; returns the seconds until the next fetch."""
        self._sessions.assign(session_ids)
        take = self._provider.take_session(
            self._identity,
            session_ids,
            max_sessions=self._options.max_sessions_per_runtime,
            session_lock=self._options.session_lock_timeout,
        )
        taken = await self._lease.calls.watch("fetch", take, repeated=True)
        for session_id, epoch, former in taken:
            of = {"session_id": session_id}
            logger.info("session %s has moved here from worker %s", session_id, former, extra=of)
            self._sessions.add(session_id, epoch)
            self._notifier.hint_others(former, sessions=True)
        return 0.0 if taken else ASSIGNED_SECONDS

    # -- messages

    async def _fetch_messages(self, term: int) -> float:
        """Fetch messages, also while draining: then only for instances that this worker owns."""
        self._messages_due = 0.0
        limit = FETCH_LIMIT - len(self._replays)
        room = self._capacity.free_bytes()
        if limit <= 0 or self._replays.has_suspect or not room:
            self._state.waits_for_memory = True
            return self._options.poll_interval
        fetch = self._provider.fetch_orchestration_item(
            self._identity,
            limit=limit,
            names=self._orchestration_names,
            unknown_after=self._options.unregistered_timeout,
            exclude=self._instances.excluded_messages(),
            max_bytes=room,
        )
        fetched = await self._lease.calls.watch("fetch", fetch, repeated=True)
        if fetched.fenced:
            name = self._identity.worker_id
            self._lease.end(WorkerFenced(f"worker {name!r}: another process has registered under this name"))
        if term != self._lease.term:
            return 0.0
        self.taken += bool(fetched.items)
        self._state.unclaimed_remaining |= fetched.unclaimed_remaining
        if fetched.items and not self._instances.deliver(fetched.items):
            return self._options.poll_interval
        if fetched.claim_lost:
            return 0.0
        if not fetched.items:
            self._messages_due = math.inf if fetched.next_due is None else fetched.next_due
        return self._options.poll_interval if fetched.next_due is None else fetched.next_due

    async def replay(self) -> None:
        """Replay fetched instances that are not in memory, beside the fetches: a long history delays nothing else."""
        while True:
            await self._replays.arrived()
            await self._health.call(self._replays.take_round, self.replay)
            if not self._replays:
                self._health.forget(self.replay)

    # -- hints

    async def listen(self) -> None:
        """Turn the hints of other workers and of clients into fetches and checks."""
        async with AsyncExitStack() as stack:
            subscribe = partial(stack.enter_async_context, self._provider.hints(self._identity))
            hints = await self._health.call(subscribe, self.listen)
            self._notifier.notify_fetcher()  # for what came before the subscription
            while True:
                hint = await self._health.call(partial(hints.wait, HINT_SECONDS), self.listen)
                if hint is not None and hint.work:
                    self._notifier.on_hint(hint)
                if hint is not None and hint.cancel:
                    self._notifier.check_wanted.set()
                if hint is not None and hint.sessions:
                    self._sessions.recheck_all()


def orchestration_names(app: KernelApp) -> frozenset[str]:
    """Return the orchestrations that an app has code for, with and without their versions."""
    return frozenset({d.name for d in app.orchestrations.values()} | set(app.orchestrations))
