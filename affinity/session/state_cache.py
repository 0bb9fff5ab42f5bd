"""The cache of session states in this process: one entry per session, pinned while in use, bounded, disposed once.

An entry belongs to one epoch of one session of one database: a process may work for several databases, whose sessions
may have equal ids, and whose epochs cannot be compared. Its life::

    hydrating ──► current ──► retired ──► disposed
        │    ▲                                │ of an entry that is kept
        │    └── at rest ◄────────────────────┤
        └── hydrate failed ──────────────────▲

*current*: the cache returns it to callers that name its epoch. While nothing pins it, it is in an LRU list, from which
the least recently used entries are evicted for room, and idle ones by age. *retired*: the cache returns it to no new
caller, and disposes it when its last user has unpinned it. *disposed*: ``dispose`` has run, exactly once. *at rest*: a
current entry without a state, with what the one before has left (`CacheEntry.successor`): its state was dropped while
the lease lasts.

Invariants
    * A session has at most one entry at any time, in `_current` or in `_retired`. The next one is hydrated after the
      former is disposed, so ``dispose`` and ``hydrate`` of a session never overlap: one may close the file that the
      other opens.
    * `retire` and `release` never await; `dispose_retired` does the work. Nothing is awaited between finding an entry
      and pinning it.
    * Code of an activity that has ended, and ignores its cancellation, keeps its entry for itself (*left behind*): the
      next entry does not wait for it. Only such an entry is disposed after its successor has begun.
    * A pinned entry is never disposed. When all entries are pinned, the bounds are exceeded; no call is refused.
    * A user that cannot await calls `release`; the next use or sweep then disposes the entry. A caller that waits for
      the entry waits for ``unused`` and disposes the entry itself.

Epochs are only compared: the provider gives a session a greater one whenever an entry may be stale.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import anyio
from cachetools import TTLCache

from affinity.errors import InvalidOptions, SessionError, UnknownSession
from affinity.limits import is_number
from affinity.records import Hydrate, database_of
from affinity.session.resources import SharedCall
from affinity.tasks import finish
from affinity.telemetry import enter_session

MAX_HYDRATES: Final = 10_000
"""Hydrates that wait for a worker to report them: it does so each second."""

RECHECK_SECONDS: Final = 1.0
"""Between two looks whether an entry that is in use belongs to code that is left behind."""

S = TypeVar("S")
E = TypeVar("E", bound="CacheEntry[Any]")

SessionKey: TypeAlias = tuple[str, str]
"""A database, by its name in this process (`affinity.records.database_of`), and the id of a session in it."""


class SessionContext(Protocol):
    """Names a session and the epoch of its lease, as an activity context does."""

    @property
    def session_id(self) -> str | None:
        """The session, None for work that is bound to none."""
        ...

    @property
    def session_epoch(self) -> int | None:
        """The epoch of the lease under which the work was fetched. It grows with every change of holder, and when code
        without the lease writes the session's record.
        """
        ...


class Address(NamedTuple):
    """A session, the epoch of its lease, and its database."""

    session_id: str
    epoch: int
    database: str

    @property
    def key(self) -> SessionKey:
        """The session, in whatever epoch."""
        return self.database, self.session_id


def address_of(ctx: SessionContext) -> Address:
    """The session and the epoch that the context is bound to, in the database of its worker.

    Raises:
        SessionError: it is bound to none.
    """
    if ctx.session_id is None or ctx.session_epoch is None:
        raise SessionError("this work is bound to no session: schedule it with .on_session(session_id)")
    return Address(ctx.session_id, ctx.session_epoch, database_of(getattr(ctx, "session_store", None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the cache was made, and its size now."""

    hits: int = 0  # uses and peeks that found the state in memory
    misses: int = 0  # uses and peeks that did not
    hydrations: int = 0  # states that entered the cache, by ``hydrate`` or by ``put``
    evictions: int = 0  # states removed for room or because they were idle
    losses: int = 0  # states removed because their lease had ended
    conflicts: int = 0  # writes that were refused, or whose commit could not be confirmed
    size: int = 0  # states in memory, retired ones included
    bytes: int = 0  # of these states, as far as their size is known


class CacheEntry(Generic[S]):
    """The state of one session at one epoch, in memory."""

    state: S  # set once hydrated

    def __init__(self, session_id: str, epoch: int, database: str = "") -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.database = database
        self.key: SessionKey = (database, session_id)
        self.users: list[int] = []  # id() of the contexts that pin it; an activity may pin it more than once
        self.contexts: dict[int, object] = {}  # these contexts
        self.bytes = 0
        self.is_retired = self.is_disposing = False
        self.is_kept = False  # while it is retired: its successor follows it
        self.variables: Context = copy_context()  # of the code that has opened it; code that disposes it has them too
        self.home: tuple[str, int] | None = None  # the session, and its epoch, on whose lease it is; None: its own
        self.hydration: SharedCall = SharedCall()
        self.unused: anyio.Event = anyio.Event()  # set when it is retired and unpinned
        self.gone: anyio.Event = anyio.Event()  # set when it is no longer in the cache
        self.saving: Any = anyio.Lock(fast_acquire=True)  # keeps the checkpoints of one session in order

    @property
    def is_hydrated(self) -> bool:
        """Whether the entry has its state."""
        return self.hydration.is_done

    @property
    def is_new(self) -> bool:
        """Made just now: nothing pins it, and no hydrate has begun."""
        return not self.is_hydrated and not self.users

    def successor(self) -> Self | None:
        """A new entry of the same session and epoch that takes over what this one keeps; None: it keeps nothing."""
        return None

    def __str__(self) -> str:
        return f"session {self.session_id!r} at epoch {self.epoch}"


class IdleLru(TTLCache[SessionKey, None]):
    """Keys of the entries that nothing pins, by last use. Almost every call expires idle ones and reports them."""

    def __init__(
        self, idle_timeout: float, timer: Callable[[], float], on_expire: Callable[[SessionKey], None]
    ) -> None:
        super().__init__(math.inf, idle_timeout, timer)
        self._on_expire = on_expire

    def expire(self, time: float | None = None) -> list[tuple[SessionKey, None]]:
        expired = super().expire(time)
        for key, _ in expired:
            self._on_expire(key)
        return expired

    def discard(self, key: SessionKey) -> None:
        """Remove a key, expired or not; ``pop`` would leave an expired one, which is then reported later."""
        with suppress(KeyError):
            del self[key]


class StateCache(Generic[E]):
    """Entries by database and session id. One cache serves one event loop."""

    def __init__(
        self,
        make: Callable[[str, int, str], E],
        *,
        dispose: Callable[[E], Awaitable[None]],
        max_sessions: int,
        max_bytes: int | None,
        idle_timeout: float | None,
        timer: Callable[[], float],
    ) -> None:
        """An empty cache; `SessionCache` describes the bounds. ``make`` returns an entry of an `Address`, not hydrated;
        ``dispose`` frees what an entry holds, is bounded in time and raises nothing.

        Raises:
            InvalidOptions: a bound that is not positive.
        """
        if not is_number(max_sessions) or max_sessions < 1:
            raise InvalidOptions(f"max_sessions = {max_sessions!r}: a cache holds at least one session")
        if max_bytes is not None and not (is_number(max_bytes) and max_bytes >= 1):
            raise InvalidOptions(f"max_bytes = {max_bytes!r}: must be a positive number of bytes, or None")
        if idle_timeout is not None and not (is_number(idle_timeout) and idle_timeout > 0):
            raise InvalidOptions(f"idle_timeout = {idle_timeout!r}: must be a positive number of seconds, or None")
        self._make, self._dispose_entry = make, dispose
        self._timer, self._skipped = timer, 0.0
        self._max_sessions = max_sessions
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._idle = IdleLru(math.inf if idle_timeout is None else idle_timeout, self._time, self._evict)
        self._current: dict[SessionKey, E] = {}
        self._current_bytes = 0
        self._retired: dict[SessionKey, E] = {}
        self._left_behind: list[E] = []  # that only code of activities uses that have ended
        self.has_homes = False
        """An entry has been on the lease of another session."""
        self._hydrates: deque[tuple[str, Hydrate]] = deque(maxlen=MAX_HYDRATES)  # that no worker has taken
        self._counts = {"hits": 0, "misses": 0, "hydrations": 0, "evictions": 0, "losses": 0, "conflicts": 0}

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._current

    @property
    def stats(self) -> CacheStats:
        """The counters now."""
        retired = sum(entry.bytes for entry in (*self._retired.values(), *self._left_behind))
        size = len(self._current) + len(self._retired) + len(self._left_behind)
        return CacheStats(**self._counts, size=size, bytes=self._current_bytes + retired)

    def _time(self) -> float:
        return self._timer() + self._skipped

    def pass_time(self, seconds: float) -> None:
        """Move time forward for the idle times of all entries."""
        self._skipped += seconds

    def count(self, what: str) -> None:
        """Add one to a counter of `CacheStats`."""
        self._counts[what] += 1

    # -- finding and pinning

    async def pin(
        self,
        address: Address,
        ctx: object,
        hydrate: Callable[[E], Awaitable[None]],
        fits: Callable[[E], bool] = lambda _: True,
    ) -> E:
        """The entry of this session and epoch, hydrated if need be, and pinned until the user ``id(ctx)`` unpins it.

        An entry that does not ``fit`` is retired and hydrated again. Concurrent calls share one ``hydrate``; what it
        raises is raised in all of them, and nothing is cached.

        Raises:
            UnknownSession: the cache has an entry of a newer epoch.
        """
        user = id(ctx)

        def accept(entry: E) -> bool:
            # An activity that has pinned the entry gets it again even when it is retired: it would wait for itself.
            if entry.epoch != address.epoch or (entry.is_retired and user not in entry.users):
                return False
            return not entry.is_hydrated or fits(entry)

        entry = await self.pin_entry(address, ctx, accept)
        try:
            if entry.is_hydrated:
                self._counts["hits"] += 1
            else:
                self._counts["misses"] += 1
                await entry.hydration.run(partial(self._hydrate, entry, hydrate))
                await self._make_room()  # its size is known only now
        except BaseException:
            await self.unpin(entry, user)
            raise
        return entry

    def pin_again(self, entry: E, user: int) -> None:
        """Add one more pin for a user that has one."""
        entry.users.append(user)

    async def pin_entry(self, address: Address, ctx: object, accept: Callable[[E], bool]) -> E:
        """The session's entry if ``accept`` takes it, else a new one once the former is disposed; `ctx` pins it.

        Raises:
            UnknownSession: the cache has an entry of a newer epoch.
        """
        key = address.key
        while True:
            self._idle.expire()
            entry = self.entry_of(key)
            if entry is None:
                entry = self._current[key] = self._make(*address)
            if address.epoch < entry.epoch:
                raise unknown_session(address, entry)
            if self._is_left_behind(entry, ctx):
                self._leave_behind(entry)
                continue
            if accept(entry):
                entry.users.append(id(ctx))
                entry.contexts[id(ctx)] = ctx
                self._idle.discard(key)
                return entry
            is_lost = entry.epoch < address.epoch
            self.retire(entry, "losses" if is_lost else None, keep=not is_lost)
            await self.dispose_retired()
            with anyio.move_on_after(RECHECK_SECONDS):  # its users may be left behind meanwhile
                await (entry.unused if entry.users else entry.gone).wait()

    def peek(self, address: Address) -> E:
        """The entry at this epoch, not pinned; it becomes the most recently used one.

        Raises:
            UnknownSession: there is none.
        """
        with self._idle.timer:  # time stands still, so that the entry does not expire between the two calls
            self._idle.expire()
            entry = self._current.get(address.key)
            if entry is None or not entry.is_hydrated or entry.epoch != address.epoch:
                self._counts["misses"] += 1
                raise unknown_session(address, self.entry_of(address.key))
            self._counts["hits"] += 1
            if not entry.users:
                self._idle[entry.key] = None  # last used now
            return entry

    async def unpin(self, entry: E, user: int) -> None:
        """`release`, then dispose what may be disposed."""
        self.release(entry, user)
        await self._make_room()

    def release(self, entry: E, user: int) -> None:
        """Remove one pin, from code that cannot await."""
        entry.users.remove(user)
        if user not in entry.users:
            entry.contexts.pop(user, None)
        if entry.users:
            return
        if entry.is_retired:
            entry.unused.set()
        elif not entry.is_hydrated:
            self._forget(entry)
        else:
            self._idle[entry.key] = None

    def _is_left_behind(self, entry: E, ctx: object) -> bool:
        """Whether the code of an activity that has ended still uses it, as it ignores its cancellation."""
        return any(other is not ctx and getattr(other, "ended", False) for other in entry.contexts.values())

    def _leave_behind(self, entry: E) -> None:
        """Leave the entry to its users: the session's next entry does not wait for them. It is disposed when they are
        gone, maybe after the next hydrate.
        """
        self.retire(entry, keep=True)
        self._left_behind.append(entry)
        self._forget(entry)

    def entry_of(self, key: SessionKey) -> E | None:
        """The session's entry, current or retired."""
        return self._retired.get(key) or self._current.get(key)

    def _entries_of(self, session_id: str, database: str | None) -> list[E]:
        """The entries of the session; None: of all sessions with this id, in whatever database."""
        if database is None:
            return [entry for entry in self._all() if entry.session_id == session_id]
        entry = self.entry_of((database, session_id))
        return [] if entry is None else [entry]

    def _all(self) -> list[E]:
        return [*self._current.values(), *self._retired.values()]

    # -- hydrating

    async def _hydrate(self, entry: E, hydrate: Callable[[E], Awaitable[None]]) -> None:
        try:
            await self._make_room()
            began = time.perf_counter()
            await hydrate(entry)
        except Exception:
            self._forget(entry)
            raise
        if entry.gone.is_set():  # nothing has waited for it any more
            entry.hydration.is_done = True
            await self._dispose_entry(entry)
            return
        self._counts["hydrations"] += 1
        hydrate_of = Hydrate(entry.epoch, time.perf_counter() - began, entry.bytes or None)
        self._hydrates.append((entry.database, hydrate_of))

    def note_load(self, entry: E, resource: str, seconds: float) -> None:
        """Note how long a session has waited for a resource that it did not use before."""
        epoch = entry.epoch if entry.home is None else entry.home[1]
        self._hydrates.append((entry.database, Hydrate(epoch, seconds, resource=resource)))

    def _take_hydrates(self, database: str | None) -> Iterator[Hydrate]:
        """Each hydrate, and each load of a resource, since the last call, of one database or, with None, of all."""
        for _ in range(len(self._hydrates)):
            found = self._hydrates.popleft()
            if database is None or found[0] == database:
                yield found[1]
            else:
                self._hydrates.append(found)

    def set_hydrated(self, entry: E) -> None:
        """Note that a new entry has got its state from the caller."""
        entry.hydration.is_done = True
        self._counts["hydrations"] += 1

    def set_size(self, entry: E, size: int) -> None:
        """Note the size of an entry in bytes; the next `unpin` makes room for it."""
        if self._current.get(entry.key) is entry:
            self._current_bytes += size - entry.bytes
        entry.bytes = size

    # -- removing

    def retire(self, entry: E, count: str | None = None, *, keep: bool = False) -> None:
        """Return the entry to no new caller. It is disposed when its last user unpins it, or by `dispose_retired`.
        ``keep``: its successor follows it, unless it is retired without that meanwhile.
        """
        entry.is_kept &= keep
        if entry.is_retired or self._current.get(entry.key) is not entry:
            return
        entry.is_retired, entry.is_kept = True, keep
        self._retired[entry.key] = self._current.pop(entry.key)
        self._current_bytes -= entry.bytes
        self._idle.discard(entry.key)
        if count is not None:
            self._counts[count] += 1

    async def lost(self, session_id: str, epoch: int | None, database: str | None) -> None:
        """Dispose the session's entry, and entries on its lease, of this epoch or an older one (None: of any epoch).
        Without a database: of all sessions with this id.
        """
        for entry in self._entries_of(session_id, database):
            if entry.home is None and (epoch is None or entry.epoch <= epoch):
                self.retire(entry, "losses")
        for guest in self.guests_of(session_id, database):
            if epoch is None or (guest.home is not None and guest.home[1] <= epoch):
                self.retire(guest, "losses")
        await self.dispose_retired()

    def guests_of(self, session_id: str, database: str | None) -> list[E]:
        """The entries of other sessions that are on this one's lease."""
        if not self.has_homes:
            return []
        guests = [entry for entry in self._all() if entry.home is not None and entry.home[0] == session_id]
        return [entry for entry in guests if database is None or entry.database == database]

    def entries(self, database: str | None) -> list[E]:
        """All entries of a database (None: of all), retired ones included."""
        return [entry for entry in self._all() if database is None or entry.database == database]

    def keeps(self, session_id: str, database: str | None) -> bool:
        """Whether a state of the session is in memory, or one on its lease."""
        current = any(entry.key in self for entry in self._entries_of(session_id, database))
        return current or bool(self.guests_of(session_id, database))

    async def _lost_all(self) -> None:
        """Dispose all entries, concurrently."""
        for entry in self._all():
            self.retire(entry, "losses")
        await self.dispose_retired()

    async def sweep(self) -> None:
        """Dispose entries that were idle for too long, exceed a bound, or were released."""
        self._idle.expire()
        await self._make_room()

    def _evict(self, key: SessionKey) -> None:
        self.retire(self._current[key], "evictions")

    async def _make_room(self) -> None:
        with self._idle.timer:  # time stands still, so that no entry expires between the two calls
            while self._is_over() and len(self._idle):
                self._evict(self._idle.popitem()[0])
        await self.dispose_retired()

    def _is_over(self) -> bool:
        return len(self._current) > self._max_sessions or self._current_bytes > self._max_bytes

    async def dispose_retired(self) -> None:
        """Dispose the retired entries that nothing pins and that no other task is disposing."""
        if not (self._retired or self._left_behind):
            return
        retired = (*self._retired.values(), *self._left_behind)
        unused = [entry for entry in retired if not entry.users and not entry.is_disposing]
        for entry in unused:
            entry.is_disposing = True
        if unused:
            await finish(partial(self._dispose_all, unused))

    async def _dispose_all(self, unused: Sequence[E]) -> None:
        async with anyio.create_task_group() as tasks:
            for entry in unused:  # what calls this may be code of another session
                entry.variables.run(tasks.start_soon, self._dispose, entry)

    async def _dispose(self, entry: E) -> None:
        enter_session(entry.session_id)
        try:
            await self._dispose_entry(entry)
        finally:
            self._forget(entry)

    def _forget(self, entry: E) -> None:
        if entry in self._left_behind and entry.gone.is_set():
            self._left_behind.remove(entry)
            return
        if self._current.get(entry.key) is entry:
            del self._current[entry.key]
            self._current_bytes -= entry.bytes
            entry.is_kept = True
        elif self._retired.get(entry.key) is entry:
            del self._retired[entry.key]
        if entry.is_kept and (successor := entry.successor()) is not None:
            self._current[entry.key] = successor
            self._idle[entry.key] = None
        entry.unused.set()
        entry.gone.set()


class CacheLeaseListener(Generic[E]):
    """Removes cached states when the worker loses their leases: a `SessionListener` of `affinity.orchestration.app`.

    Its methods are for the sessions of all databases; a worker calls those of `_in_database`.
    """

    _cache: StateCache[E]
    _movable: bool
    _database: str | None = None

    def _in_database(self, database: str) -> Self:
        """The listener for the leases of one database."""
        listener = copy(self)
        listener._database = database
        return listener

    def _may_move(self, session_id: str) -> bool:
        """Whether the worker may offer the session to another one while it is idle: any session if the object is
        ``movable``, else one without a state in memory.
        """
        return self._movable or not self._cache.keeps(session_id, self._database)

    def _costly_sessions(self) -> Collection[str]:
        """The sessions whose state here keeps a resource open, or has to be disposed by a callback; all with a state
        here, if the object is not ``movable``. They are the last to make room for others.
        """
        return {
            entry.session_id if entry.home is None else entry.home[0]
            for entry in self._cache.entries(self._database)
            if not self._movable or self._keeps_open(entry)
        }

    def _keeps_open(self, entry: E) -> bool:
        """Whether the state keeps something open in this process."""
        raise NotImplementedError

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        """Dispose the state of a session whose lease, up to ``epoch`` (None: any), has ended.

        Returns when the state is disposed, or when a block that is open keeps it until its end. A `SessionCache` does
        not save it any more; whether a staged change may still be written, the fences of the store decide.
        """
        await self._cache.lost(session_id, epoch, self._database)

    def _take_hydrates(self) -> Iterator[Hydrate]:
        """Each hydrate since the last call, for the worker's report."""
        return self._cache._take_hydrates(self._database)

    async def _lost_all(self) -> None:
        """Dispose all states, concurrently, since every lease has ended."""
        await self._cache._lost_all()

    async def sweep(self) -> None:
        """Dispose states that were idle for ``idle_timeout``, exceed a bound, or were released when their activity was
        settled. Each use does the same; the sweep does it while there are no uses.
        """
        await self._cache.sweep()

    def pass_time(self, seconds: float) -> None:
        """Move time forward for ``idle_timeout``: for tests whose clock jumps. The next use or sweep evicts."""
        self._cache.pass_time(seconds)

    async def aclose(self) -> None:
        """Dispose every state that is not in use; the others follow as their users leave.

        The object can be used again, by the next worker of this process.
        """
        await self._cache._lost_all()

    @property
    def stats(self) -> CacheStats:
        """The counters now; scripts do not count."""
        return self._cache.stats


def unknown_session(address: Address, other: CacheEntry[Any] | None) -> UnknownSession:
    """The error, which names the entry that this process has instead."""
    text = f"no state of session {address.session_id!r} at epoch {address.epoch} in this process"
    if other is not None:
        hint = "the session has moved on" if other.epoch > address.epoch else "hydrate it again"
        text += f", which has it at epoch {other.epoch}: {hint}"
    return UnknownSession(text)
