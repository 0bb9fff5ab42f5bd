"""The sessions that this worker holds, as far as it knows, and the listeners that it notifies when it loses one.

The `sessions` table is authoritative; this is a copy in memory. A session is added with its epoch when work of it
arrives, and its lock is assumed to end `session_lock_timeout` after its last work was renewed or finished. A hold may
keep it longer (`affinity.provider.contract.SessionHold`), so the database is asked before the session counts as lost.
An error in either direction is harmless. If a session counts as lost too early, its state is hydrated again. If it
counts as lost too late, the state in memory is not used: it has an old epoch.

To run an activity a worker must also be able to read the record of its session. An activity whose session was written
by later code is given back with such a need (`WorkAbandon.needs`). Each worker names the needs that it meets when it
fetches.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import TypeAlias, TypeVar

from affinity.errors import ProviderError
from affinity.limits import MAX_BATCH
from affinity.orchestration.app import (
    AssignmentListener,
    DatabaseListener,
    HasCostlySessions,
    MovePolicy,
    SessionListener,
)
from affinity.provider.contract import IdleSession
from affinity.redaction import redacted
from affinity.session import Sessions
from affinity.tasks import call_here
from affinity.user_code import call_sync

logger: logging.Logger = logging.getLogger("affinity.worker")

CheckSessions: TypeAlias = Callable[[Collection[str]], Awaitable[Mapping[str, float]]]
"""Returns the sessions among these that this worker holds, with the seconds until the lock of each ends."""

T = TypeVar("T")

Spawn: TypeAlias = Callable[..., None]
"""Runs a coroutine function with arguments beside the loops of the worker."""

RECHECK_SECONDS = 10.0
"""Between two checks of all sessions without work: another process may have released one of them."""

MAX_ARRIVALS = 10_000
"""Sessions that wait for their move to be counted: that is done each second."""


REST_PAUSES = 4.0
"""A session is in use until it has had no work for as many of the pauses between its works."""

REST_SECONDS = 1.0
"""And for so long at most: a session whose works come with longer pauses is at rest when one of them ends."""

COSTLY_SECONDS = 0.1
"""A session whose state took longer to load makes room later than others."""

NOTIFY_SECONDS = 60.0
"""A listener that takes longer is not waited for."""


@dataclass(slots=True)
class _Held:
    epoch: int
    user: str | None = None  # the instance whose work it had; None: several
    running: int = 0
    ends: float = 0.0  # monotonic, once nothing runs
    tag: str | None = None  # as far as it is known
    idle_since: float = 0.0  # monotonic, once nothing runs
    begun: float = 0.0  # monotonic
    uses: int = 0  # work items that have started here
    rests_until: float = 0.0  # monotonic: it has come by a planned move, and is not offered before
    offered: bool = False  # to another worker, which has not taken it yet
    hydrate_seconds: float = 0.0  # of its last hydrate here
    load_seconds: float = 0.0  # of all loads of its resources here
    pause: float = math.inf  # seconds between two works of it, lately; inf: there was one work

    @property
    def cost(self) -> float:
        """Seconds that another holder would need to load what it has here."""
        return self.hydrate_seconds + self.load_seconds

    def begin(self, now: float) -> None:
        """Count a work item that begins."""
        if not self.running and self.uses:
            pause = now - self.idle_since
            self.pause = pause if self.pause == math.inf else (self.pause + pause) / 2
        self.running += 1
        self.uses += 1
        self.offered = False  # the offer is over, or was not taken

    def is_in_use(self, now: float) -> bool:
        """Whether its next work is likely to come in a moment."""
        if self.running:
            return True
        return self.pause < REST_SECONDS and now < self.idle_since + min(REST_PAUSES * self.pause, REST_SECONDS)


class HeldSessions:
    """Sessions by id, with the number of their work items that run here."""

    def __init__(
        self,
        listeners: Iterable[SessionListener],
        lock_timeout: float,
        check: CheckSessions,
        spawn: Spawn,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        database: str = "",
    ) -> None:
        self.listeners: tuple[SessionListener, ...] = tuple(listeners)
        self.notified: list[SessionListener] = [
            one._in_database(database) if isinstance(one, DatabaseListener) else one for one in self.listeners
        ]
        """The listeners, of this database alone where they know several apart."""
        self._spawn = spawn
        self._monotonic = monotonic
        self._policies = [one for one in self.notified if isinstance(one, MovePolicy)]
        self._costly = [one for one in self.notified if isinstance(one, HasCostlySessions)]
        self._check = check
        self._lock_timeout = lock_timeout
        self._held: dict[str, _Held] = {}
        self.arrivals: deque[int] = deque(maxlen=MAX_ARRIVALS)
        """Epochs of sessions whose first work has come, for `MoveReporter`."""
        self.assigned: set[str] = set()
        """Sessions that are to move here, and that the listeners know."""
        self._recheck_at = self._monotonic() + RECHECK_SECONDS

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._held

    def begin(self, session_id: str, epoch: int, instance_id: str = "") -> None:
        """Count a work item of the session that starts here; it belongs to that instance."""
        held = self._held.get(session_id)
        if held is None:
            held = self._held[session_id] = _Held(epoch, instance_id, begun=self._monotonic())
            self.arrivals.append(epoch)
        elif held.user != instance_id:
            held.user = None
        if held.epoch != epoch:
            held.epoch = epoch
            self.arrivals.append(epoch)
        held.begin(self._monotonic())

    def set_tag(self, session_id: str, tag: str) -> None:
        """Remember the tag of a session whose work begins here."""
        if (held := self._held.get(session_id)) is not None:
            held.tag = tag

    def tag_of(self, session_id: str) -> str | None:
        """The tag of a session, if it is held here and the tag is known; it is from its first fetch on."""
        held = self._held.get(session_id)
        return held.tag if held else None

    def add(self, session_id: str, epoch: int) -> None:
        """Add a session that has moved here, without work so far."""
        self.assigned.discard(session_id)
        now = self._monotonic()
        ends = now + self._lock_timeout
        self._held[session_id] = _Held(epoch, ends=ends, idle_since=now, begun=now, rests_until=ends)
        self.arrivals.append(epoch)

    def assign(self, session_ids: Collection[str]) -> None:
        """Notify the listeners of the sessions that are to move here, of each once: they may hydrate ahead."""
        new = [session_id for session_id in session_ids if session_id not in self.assigned]
        self.assigned = set(session_ids)
        for listener in self.notified:
            if isinstance(listener, AssignmentListener):
                for session_id in new:
                    self._spawn(_notify, listener.on_assigned, session_id)

    def end(self, session_id: str) -> None:
        """Count a work item of the session that has ended here."""
        if (held := self._held.get(session_id)) is not None:
            if held.running > 0:  # a session that was lost and came back began again at 0
                held.running -= 1
            held.idle_since = now = self._monotonic()
            held.ends = now + self._lock_timeout

    def running(self, session_id: str) -> int:
        """Work items of the session that run here."""
        held = self._held.get(session_id)
        return held.running if held else 0

    def has_idle(self) -> bool:
        """Whether nothing of one of them runs."""
        return any(not held.running for held in self._held.values())

    def room_order(self) -> list[IdleSession]:
        """All sessions, in the order in which they make room for others: those that are not in use; of these, those
        that are cheap to load, and last those that keep something open here; of these, the least recently used.
        """
        now = self._monotonic()
        none: Collection[str] = ()
        costly = {name for one in self._costly for name in _ask(one._costly_sessions, none)}

        def place(item: tuple[str, _Held]) -> tuple[bool, bool, bool, float]:
            name, held = item
            return held.is_in_use(now), name in costly, held.cost >= COSTLY_SECONDS, held.idle_since

        return [
            IdleSession(session_id=name, only_user=None if held.running else held.user, in_use=held.is_in_use(now))
            for name, held in sorted(self._held.items(), key=place)
        ]

    def give_up(self, session_ids: Iterable[str]) -> None:
        """Remove sessions that were released, and notify the listeners beside the loops."""
        for session_id in session_ids:
            if (held := self._held.get(session_id)) is not None and not held.running:
                del self._held[session_id]
                for listener in self.notified:
                    self._spawn(_notify, listener.lost, session_id, held.epoch)

    # -- moves to other workers

    def movable(self, *, idle: float, most: int) -> list[str]:
        """Sessions that may be offered to other workers, at most ``most``, the cheapest first.

        A session may be offered if it has had no work for ``idle`` seconds, is not offered yet, is at rest since it
        came from another worker, and no listener keeps it here. Its cost is the time of its hydrate and of the loads of
        its resources, times the rate at which it is used.
        """
        now = self._monotonic()
        found = [
            (held.cost * held.uses / (now - held.begun + 1.0), name)
            for name, held in self._held.items()
            if not held.running
            and not held.offered
            and now >= max(held.idle_since + idle, held.rests_until)
            and all(_ask(partial(policy._may_move, name), False) for policy in self._policies)
        ]
        return [name for _, name in nsmallest(most, found)]

    def note_offers(self, session_ids: Iterable[str]) -> None:
        """Note that these are offered, until work of them comes here."""
        for session_id in session_ids:
            if (held := self._held.get(session_id)) is not None:
                held.offered = True

    def note_hydrates(self, seconds: Mapping[int, float]) -> None:
        """Note how long hydrates took here, by epoch."""
        for held in self._held.values():
            held.hydrate_seconds = seconds.get(held.epoch, held.hydrate_seconds)

    def note_loads(self, seconds: Mapping[int, float]) -> None:
        """Note how long the sessions of these epochs have waited for resources here."""
        for held in self._held.values():
            held.load_seconds += seconds.get(held.epoch, 0.0)

    def count_offered(self) -> int:
        """How many are offered to other workers, and have not gone."""
        return sum(held.offered for held in self._held.values())

    def recheck(self, session_id: str) -> None:
        """Have the next sweep ask the database whether the session is still held."""
        held = self._held.get(session_id)
        if held is not None and held.running == 0:
            held.ends = 0.0

    def recheck_all(self) -> None:
        """Have the next sweep ask the database which sessions are still held."""
        self._recheck_at = 0.0

    async def remove(self, session_id: str) -> None:
        """Remove a session that was given up, and notify the listeners."""
        held = self._held.pop(session_id, None)
        if held is not None:
            for listener in self.notified:
                await _notify(listener.lost, session_id, held.epoch)

    async def remove_all(self) -> None:
        """Remove all sessions: the worker ends."""
        for session_id in list(self._held):
            await self.remove(session_id)

    async def sweep(self) -> None:
        """Remove the sessions whose locks have expired, and let the listeners evict."""
        now = self._monotonic()
        if now >= self._recheck_at:
            self._recheck_at = now + RECHECK_SECONDS
            for session_id in self._held:
                self.recheck(session_id)
        for session_id in await self._not_held([s for s in self._held if self._over(s, now)], now):
            if self._over(session_id, now):  # no work has come while listeners of others were notified
                logger.debug("session %s has expired here", session_id)
                await self.remove(session_id)
        for listener in self.notified:
            await _notify(listener.sweep)

    def _over(self, session_id: str, now: float) -> bool:
        """Whether the session's time seems over."""
        held = self._held.get(session_id)
        return held is not None and held.running == 0 and held.ends <= now

    async def _not_held(self, session_ids: Sequence[str], now: float) -> list[str]:
        """The sessions that the database no longer reports as held; the others get the end that it reports.

        Empty when it does not answer: the next sweep asks again, also for sessions that do not fit into one call.
        """
        asked = session_ids[:MAX_BATCH]
        if not asked:
            return []
        try:
            left = await self._check(asked)
        except ProviderError:
            return []
        for session_id, seconds in left.items():
            if (held := self._held.get(session_id)) is not None:
                held.ends = max(held.ends, now + seconds)
        return [session_id for session_id in asked if session_id not in left]


async def _notify(notify: Callable[..., Awaitable[None]], *args: object) -> None:
    """A listener is the application's code: what it raises is logged, and changes nothing here."""
    try:
        await call_here(notify, *args, limit=NOTIFY_SECONDS)
    except Exception as error:
        logger.exception("a session listener failed", exc_info=redacted(error))


def _ask(question: Callable[[], T], otherwise: T) -> T:
    """The answer of a listener; what to do without one."""
    try:
        return call_sync(question)
    except Exception as error:
        logger.exception("a session listener failed", exc_info=redacted(error))
        return otherwise


def record_need(kind: str, schema_version: int) -> str:
    """The need of a worker that can read records of this kind and schema version."""
    return f"state {kind}@{schema_version}"


def needs_met(listeners: Iterable[object]) -> frozenset[str]:
    """The needs that the session states among these listeners meet: the records that they can read."""
    readers = [one for one in listeners if isinstance(one, Sessions)]
    return frozenset(record_need(one.kind, version) for one in readers for version in one._readable_versions())
