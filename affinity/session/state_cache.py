"""The copies of session state in this process: found by lease, pinned while in use, bounded, disposed exactly once.

A copy belongs to one epoch of one session. Its life::

    hydrating ──► current ──► leaving ──► gone
        └── hydrate failed ────────────────▲

*current*: served to whoever asks with its epoch. While nobody uses it, it lies on the shelf, ordered by last use, from
which the least recently used are evicted for room, and the idle ones for age. *leaving*: served to nobody new; it is
disposed when its last user has left. *gone*: ``dispose`` has run, exactly once.

Invariants
    * A session has at most one copy at any time, in `_current` or in `_leaving`: the next one is hydrated after the old
      one is gone, so that ``dispose`` and ``hydrate`` of a session never overlap (one closes the file the other opens).
    * `retire` and `let_go` decide and never await; `settle` acts. Between finding a copy and pinning it nothing is
      awaited.
    * A copy in use is never disposed. When all are in use, the bounds are exceeded rather than work refused.
    * A user who cannot await lets go and leaves the disposal to the next use or sweep. Whoever waits for the copy is
      woken by ``unused`` and disposes it himself.

Epochs are compared, never interpreted: the provider promises a greater one whenever a copy may be stale.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from cachetools import TTLCache

from affinity.errors import InvalidOptions, UnknownSession
from affinity.telemetry import enter_session

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the cache was made, and its size now."""

    hits: int = 0  # uses and peeks that found the state in memory
    misses: int = 0  # uses and peeks that did not
    hydrations: int = 0  # copies that came to be, by ``hydrate`` or by ``put``
    evictions: int = 0  # copies given up for room or for idleness
    losses: int = 0  # copies given up because their lease had ended
    conflicts: int = 0  # changes that were refused, or whose commit nobody could confirm: the store won
    size: int = 0  # copies in memory, those that wait for their last user included
    bytes: int = 0  # of these copies, as far as somebody measures them


class CacheEntry(Generic[S]):
    """The state of one session at one epoch."""

    state: S  # set once hydrated

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.users: list[int] = []  # id() of the contexts that pin it; an activity may do so more than once
        self.bytes = 0
        self.hydrated = self.leaving = self.disposing = False
        self.failure: Exception | None = None
        self.ready: anyio.Event | None = None  # set when a hydrate that runs has ended, well or not
        self.unused = anyio.Event()  # set when it is leaving and its last user has left
        self.gone = anyio.Event()
        self.saving = anyio.Lock(fast_acquire=True)  # checkpoints of one session keep their order

    @property
    def is_new(self) -> bool:
        """Made just now: nobody uses it, and nobody has tried to hydrate it."""
        return not self.hydrated and not self.users

    def __str__(self) -> str:
        return f"session {self.session_id!r} at epoch {self.epoch}"


class IdleLru(TTLCache[str, None]):
    """Ids of the copies that nobody uses. cachetools expires on almost every call: expiry reports what it removed."""

    def __init__(self, idle_timeout: float, timer: Callable[[], float], on_expire: Callable[[str], None]) -> None:
        super().__init__(math.inf, idle_timeout, timer)
        self._on_expire = on_expire

    def expire(self, time: float | None = None) -> list[tuple[str, None]]:
        expired = super().expire(time)
        for session_id, _ in expired:
            self._on_expire(session_id)
        return expired

    def discard(self, session_id: str) -> None:
        """Remove it, expired or not; ``pop`` would leave an expired one to be reported later."""
        with suppress(KeyError):
            del self[session_id]


def unknown_session(session_id: str, epoch: int, other: CacheEntry[Any] | None) -> UnknownSession:
    """The error, with what this process has instead."""
    text = f"no state of session {session_id!r} at epoch {epoch} in this process"
    if other is not None:
        hint = "the session has moved on" if other.epoch > epoch else "hydrate it again"
        text += f", which has it at epoch {other.epoch}: {hint}"
    return UnknownSession(text)


class StateCache(Generic[S]):
    """Copies by session id. One pool serves one event loop."""

    def __init__(
        self,
        *,
        dispose: Callable[[CacheEntry[S]], Awaitable[None]],
        max_sessions: int,
        max_bytes: int | None,
        idle_timeout: float | None,
        timer: Callable[[], float],
    ) -> None:
        """``dispose`` frees what a copy holds; it is bounded in time and raises nothing. The rest: `SessionCache`.

        Raises:
            InvalidOptions: a bound that is not positive.
        """
        if max_sessions < 1:
            raise InvalidOptions(f"max_sessions = {max_sessions!r}: a cache holds at least one session")
        if max_bytes is not None and max_bytes < 1:
            raise InvalidOptions(f"max_bytes = {max_bytes!r}: must be a positive number of bytes, or None")
        if idle_timeout is not None and not idle_timeout > 0:
            raise InvalidOptions(f"idle_timeout = {idle_timeout!r}: must be a positive number of seconds, or None")
        self._dispose_copy = dispose
        self._max_sessions = max_sessions
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._shelf = IdleLru(math.inf if idle_timeout is None else idle_timeout, timer, self._expired)
        self._current: dict[str, CacheEntry[S]] = {}
        self._current_bytes = 0
        self._leaving: dict[str, CacheEntry[S]] = {}
        self._counts = {"hits": 0, "misses": 0, "hydrations": 0, "evictions": 0, "losses": 0, "conflicts": 0}

    @property
    def stats(self) -> CacheStats:
        """The counters now."""
        leaving = sum(copy.bytes for copy in self._leaving.values())
        size = len(self._current) + len(self._leaving)
        return CacheStats(**self._counts, size=size, bytes=self._current_bytes + leaving)

    def count(self, what: str) -> None:
        """Count one more of what `CacheStats` calls so."""
        self._counts[what] += 1

    # -- finding and pinning

    async def pin(
        self,
        address: tuple[str, int],
        user: int,
        load: Callable[[CacheEntry[S]], Awaitable[S]],
        fits: Callable[[S], bool] = lambda _: True,
    ) -> CacheEntry[S]:
        """The copy at this session and epoch, hydrated by ``load`` if need be, and pinned until ``user`` unpins it.

        A copy whose state does not ``fit`` is given up and loaded anew. Concurrent calls share one load; what it raises
        is raised in all of them, and nothing stays.

        Raises:
            UnknownSession: there is a copy at a newer epoch.
        """
        session_id, epoch = address

        def is_served(copy: CacheEntry[S]) -> bool:
            # An activity that has the copy already gets it again even while it is leaving: it would wait for itself.
            if copy.epoch != epoch or (copy.leaving and user not in copy.users):
                return False
            return not copy.hydrated or fits(copy.state)

        copy = await self.find(session_id, epoch, user, is_served)
        try:
            if copy.hydrated:
                self._counts["hits"] += 1
            else:
                self._counts["misses"] += 1
                await self._ensure_hydrated(copy, load)
                await self._make_room()  # only now is it known how large it is
        except BaseException:
            await self.unpin(copy, user)
            raise
        return copy

    def pin_again(self, copy: CacheEntry[S], user: int) -> None:
        """One pin more for somebody who has one."""
        copy.users.append(user)

    async def find(
        self, session_id: str, epoch: int, user: int, accept: Callable[[CacheEntry[S]], bool]
    ) -> CacheEntry[S]:
        """A copy that ``accept`` takes, which may be a new one once the former is gone; pinned by ``user``."""
        while True:
            self._shelf.expire()
            copy = self.copy_of(session_id)
            if copy is None:
                copy = self._current[session_id] = CacheEntry(session_id, epoch)
            if epoch < copy.epoch:
                raise unknown_session(session_id, epoch, copy)
            if accept(copy):
                copy.users.append(user)
                self._shelf.discard(session_id)
                return copy
            self.retire(copy, "losses" if copy.epoch < epoch else None)
            await self.settle()
            await (copy.unused if copy.users else copy.gone).wait()

    def peek(self, session_id: str, epoch: int) -> CacheEntry[S]:
        """The copy at this epoch, not pinned, as the most recently used one.

        Raises:
            UnknownSession: there is none.
        """
        with self._shelf.timer:  # or the copy might expire between the two calls
            self._shelf.expire()
            copy = self._current.get(session_id)
            if copy is None or not copy.hydrated or copy.epoch != epoch:
                self._counts["misses"] += 1
                raise unknown_session(session_id, epoch, self.copy_of(session_id))
            self._counts["hits"] += 1
            if not copy.users:
                self._shelf[session_id] = None  # last used now
            return copy

    async def unpin(self, copy: CacheEntry[S], user: int) -> None:
        """`let_go`, and then dispose what may go."""
        self.let_go(copy, user)
        await self._make_room()

    def let_go(self, copy: CacheEntry[S], user: int) -> None:
        """Take back one pin, from code that cannot await."""
        copy.users.remove(user)
        if copy.users:
            return
        if not copy.hydrated:
            self._forget(copy)
        elif copy.leaving:
            copy.unused.set()
        else:
            self._shelf[copy.session_id] = None

    def copy_of(self, session_id: str) -> CacheEntry[S] | None:
        """The one copy of the session, leaving or not."""
        return self._leaving.get(session_id) or self._current.get(session_id)

    # -- hydrating

    async def _ensure_hydrated(self, copy: CacheEntry[S], load: Callable[[CacheEntry[S]], Awaitable[S]]) -> None:
        """One of the users hydrates and the others wait; when that one is cancelled, another takes over."""
        while not copy.hydrated:
            if copy.failure is not None:
                raise copy.failure
            if copy.ready is None:
                await self._hydrate(copy, load)
            else:
                await copy.ready.wait()

    async def _hydrate(self, copy: CacheEntry[S], load: Callable[[CacheEntry[S]], Awaitable[S]]) -> None:
        copy.ready = ready = anyio.Event()
        try:
            await self._make_room()
            self.fill(copy, await load(copy))
        except Exception as error:
            copy.failure = error
            self._forget(copy)
            raise
        finally:
            copy.ready = None
            ready.set()

    def fill(self, copy: CacheEntry[S], state: S) -> None:
        """Give a new copy its state."""
        copy.state, copy.hydrated = state, True
        self._counts["hydrations"] += 1

    def weigh(self, copy: CacheEntry[S], size: int) -> None:
        """Note how large the copy is now, in bytes; room for it is made when somebody unpins."""
        if self._current.get(copy.session_id) is copy:
            self._current_bytes += size - copy.bytes
        copy.bytes = size

    # -- giving up

    def retire(self, copy: CacheEntry[S], count: str | None = None) -> None:
        """Serve the copy to nobody new. `settle` disposes it, at the latest when its last user unpins it."""
        if copy.leaving or self._current.get(copy.session_id) is not copy:
            return
        copy.leaving = True
        self._leaving[copy.session_id] = self._current.pop(copy.session_id)
        self._current_bytes -= copy.bytes
        self._shelf.discard(copy.session_id)
        if count is not None:
            self._counts[count] += 1

    async def lost(self, session_id: str, epoch: int | None) -> None:
        """Dispose the session's copy if it is of that epoch or an older one (None: whichever)."""
        copy = self._current.get(session_id)
        if copy is not None and (epoch is None or copy.epoch <= epoch):
            self.retire(copy, "losses")
        await self.settle()

    async def lost_all(self) -> None:
        """As `lost`, for all; the copies are disposed side by side."""
        for copy in list(self._current.values()):
            self.retire(copy, "losses")
        await self.settle()

    async def sweep(self) -> None:
        """Dispose what was idle for too long, or was let go of."""
        self._shelf.expire()
        await self._make_room()

    def _expired(self, session_id: str) -> None:
        self.retire(self._current[session_id], "evictions")

    async def _make_room(self) -> None:
        with self._shelf.timer:  # or the last copy on the shelf might expire between the two calls
            while self._is_over() and len(self._shelf):
                self._expired(self._shelf.popitem()[0])
        await self.settle()

    def _is_over(self) -> bool:
        return len(self._current) > self._max_sessions or self._current_bytes > self._max_bytes

    async def settle(self) -> None:
        """Dispose all leaving copies that have no users and that no other task is disposing."""
        if not self._leaving:
            return
        unused = [copy for copy in self._leaving.values() if not copy.users and not copy.disposing]
        for copy in unused:
            copy.disposing = True
        with anyio.CancelScope(shield=True):  # a user may leave because it was cancelled; disposing is bounded
            async with anyio.create_task_group() as tasks:
                for copy in unused:
                    tasks.start_soon(self._dispose, copy)

    async def _dispose(self, copy: CacheEntry[S]) -> None:
        enter_session(copy.session_id)  # in a task of its own, which somebody else's session may have started
        try:
            await self._dispose_copy(copy)
        finally:
            self._forget(copy)

    def _forget(self, copy: CacheEntry[S]) -> None:
        if self._current.get(copy.session_id) is copy:
            del self._current[copy.session_id]
            self._current_bytes -= copy.bytes
        elif self._leaving.get(copy.session_id) is copy:
            del self._leaving[copy.session_id]
        copy.unused.set()
        copy.gone.set()


class CacheLeaseListener(Generic[S]):
    """What a worker tells a pool's owner of its leases: a `SessionListener` (of `affinity.orchestration.app`)."""

    _pool: StateCache[S]

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        """The session's lease, up to ``epoch`` (None: whichever), ended: dispose its copy, now or after its last user.

        Returns when that is done, or when it is left to the last user. A block that is open keeps its copy and may end.
        A `SessionCache` does not save it any more; whether a staged change may still be written, the store decides.
        """
        await self._pool.lost(session_id, epoch)

    async def lost_all(self) -> None:
        """Every lease ended: as `lost`, for all; the copies are disposed side by side."""
        await self._pool.lost_all()

    async def sweep(self) -> None:
        """Dispose what was idle for ``idle_timeout``, is too much, or was dropped when its activity was settled. Uses
        do it too, but only while there are uses.
        """
        await self._pool.sweep()

    async def aclose(self) -> None:
        """Dispose every copy that is not in use; the others follow as their users leave.

        The object can be used again, by the next worker of this process.
        """
        await self._pool.lost_all()

    @property
    def stats(self) -> CacheStats:
        """The counters now; scripts do not count."""
        return self._pool.stats
