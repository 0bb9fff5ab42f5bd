"""Notifications: of this worker's own fetcher, and hints to other workers, sent beside the hot path and coalesced."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import anyio

from affinity.provider.contract import Hint, Provider
from affinity.provider.hint_sender import HintSender

COALESCE_SECONDS = 0.003
"""Hints within this time are sent together: a few hundred notifications a second, under any load."""

LONE_SECONDS = 0.001
"""The same after a notice of one changed session alone: it is shorter, since little is about to join it. So one client
that asks again immediately does not wait.
"""

SHARE_SECONDS = 0.005
"""Pause of a worker between two fetches while there is unclaimed work and other workers that may take it: about how
long they need to wake up.
"""

ROOM_SECONDS = 0.01
"""Between two attempts of a full worker to make room for work that waits: sessions that come to rest meanwhile make it
together.
"""

FEW_WORKERS = 8
"""Up to this number of workers, each fetches immediately after a hint to all."""

SPREAD_SECONDS = 0.002
"""Seconds for each worker beyond `FEW_WORKERS`: the fetches are spread at random over the sum. So all workers together
begin at most about a thousand fetches a second, however often they are notified. The first of 64 begins after 2 ms.
"""


@dataclass(slots=True)
class FetchState:
    """Facts for the fetcher's next fetch."""

    may_have_work: bool = False
    """Work may have come that no fetch has seen."""
    work_wanted: bool = True
    """The next fetch is of work items too, and not only of messages."""
    messages_wanted: bool = True
    """The next fetch is of messages too, and not only of `own_wanted`."""
    own_wanted: bool = False
    """The next fetch brings items of sessions that this worker holds, at least."""
    has_backlog: bool = False
    """Work in the queue waits for a free slot: new work of this worker queues behind it."""
    unclaimed_remaining: bool = False
    """The last fetch took a share: other workers get time to fetch before the next."""
    is_outdated: bool = False
    """A worker of newer code had room for sessions at the last fetch: new ones are left to it."""
    workers: int = 0
    """Workers that were alive and took work at the last fetch; 0: there was none yet."""
    waits_for_memory: bool = False
    """A fetch was put off until payloads in memory are written."""
    locks_uncertain: bool = False
    """A reply was lost: items may be locked to this worker without its knowledge."""
    reserved_slots: int = 0
    """Slots for work items that turns in flight ask for."""
    reserved_sessions: dict[str, float] = field(default_factory=dict)
    """Sessions that turns in flight offer to this worker, with the monotonic time at which the offer ends."""
    next_room_at: float = 0.0
    """Monotonic time of the next attempt to make room for a session."""
    room_pause: float = 0.0
    """Seconds between the last attempt and that one."""
    waits_for_room: bool = False
    """Work waits that this worker has no room for."""

    @property
    def is_alone(self) -> bool:
        """No other worker was alive at the last fetch."""
        return self.workers == 1


class Notifier:
    """Notifies workers of work: this one, another one, or all.

    A lost hint costs the other worker one poll interval, nothing more.
    """

    def __init__(self, provider: Provider, worker_id: str, poll_interval: float, state: FetchState) -> None:
        self.fetch_wanted: anyio.Event = anyio.Event()
        self.check_wanted: anyio.Event = anyio.Event()
        """Running work may have been cancelled, or an operator has resumed this worker."""
        self._sender = HintSender(provider, pause=COALESCE_SECONDS, lone_pause=LONE_SECONDS)
        self._worker_id = worker_id
        self._poll_interval = poll_interval
        self._state = state
        self._notified: Collection[str] = ()
        self._is_spread = False  # a fetch is due for a hint to all

    # -- this worker

    def notify_fetcher(self) -> None:
        """Fetch soon: there may be work."""
        self._state.may_have_work = True
        self._want_work()

    def _want_work(self) -> None:
        self._state.work_wanted = True
        self._want_messages()

    def _want_messages(self) -> None:
        self._state.messages_wanted = True
        self.fetch_wanted.set()

    def want_own(self) -> None:
        """Fetch soon: there may be items of sessions that this worker holds."""
        self._state.own_wanted = True
        self.fetch_wanted.set()

    def on_hint(self, hint: Hint) -> None:
        """Fetch soon. After a hint that all workers have received, each of many waits for a random time."""
        longest = (self._state.workers - FEW_WORKERS) * SPREAD_SECONDS
        if not hint.to_all or longest <= 0.0:
            if hint.only_messages:
                self._want_messages()
            elif hint.only_own:
                self.want_own()
            else:
                self.notify_fetcher()
        elif not self._is_spread:
            self._is_spread = True
            asyncio.get_running_loop().call_later(random.uniform(0.0, longest), self._fetch_spread)  # noqa: S311

    def _fetch_spread(self) -> None:
        self._is_spread = False
        self.notify_fetcher()

    def fetch_after(self, seconds: float) -> None:
        """Fetch when that much time has passed; the poll finds later work."""
        if seconds < self._poll_interval:
            asyncio.get_running_loop().call_later(seconds, self.notify_fetcher)

    def on_slot_freed(self) -> None:
        """Fetch if work may wait for the slot that has become free."""
        state = self._state
        if state.may_have_work or state.has_backlog or state.waits_for_memory:
            self._want_work()

    def on_memory_freed(self) -> None:
        """Fetch if a fetch waits for the memory that messages, results or replays have freed."""
        if self._state.waits_for_memory:
            self._state.waits_for_memory = False
            self._want_work()

    def on_rest(self) -> None:
        """Fetch in a moment if work waits for room: a session that is at rest now may make it."""
        state = self._state
        if state.waits_for_room:
            state.waits_for_room = False
            state.next_room_at = state.room_pause = 0.0
            asyncio.get_running_loop().call_later(ROOM_SECONDS, self.notify_fetcher)

    # -- all workers

    def hint(self, worker: str | None, *, cancel: bool = False) -> None:
        """Notify ``worker``, or all (None); ``cancel`` says that running work may have been cancelled."""
        if worker is None or worker == self._worker_id:
            self.notify_fetcher()
        if cancel:
            self.check_wanted.set()
        if worker != self._worker_id:
            self.hint_others(worker, cancel=cancel)

    def hint_others(self, worker: str | None, *, cancel: bool = False, sessions: bool = False) -> None:
        """Notify ``worker``, or all others (None); ``sessions`` says that some that it held may have moved."""
        self._sender.notify(worker, Hint(cancel=cancel, sessions=sessions))

    def hint_owner(self, instance_id: str) -> None:
        """Notify the worker that owns an instance, which is not live here."""
        self._sender.notify_owners([instance_id])

    def notify_change(self, session_id: str) -> None:
        """Notify the subscribers that a session has changed, or that the instance of this id has replied."""
        if session_id not in self._notified:
            self._sender.notify_changes({session_id: True})

    @contextlib.contextmanager
    def changes_notified(self, session_ids: Collection[str]) -> Iterator[None]:
        """Within the block, `notify_change` ignores these sessions: a notice was sent with the commit."""
        self._notified = session_ids
        try:
            yield
        finally:
            self._notified = ()

    def share(self) -> None:
        """Notify all workers of work that any may take. The others fetch first: this one runs a part of it already."""
        self.hint_others(None)
        if self._state.is_alone:
            self.notify_fetcher()
        else:
            self.fetch_after(SHARE_SECONDS)

    async def send_hints(self) -> None:
        """Send hints until cancelled."""
        await self._sender.run()
