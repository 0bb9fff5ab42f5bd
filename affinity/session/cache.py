"""The session cache: expensive state in memory, next to the lease that says where it may be used.

A copy belongs to one epoch of one session. Its life::

    hydrating ──► current ──► leaving ──► gone
        └── hydrate failed ────────────────▲

*current*: served to whoever asks with its epoch. While nobody uses it, it lies on the shelf, ordered by last use, from
which the least recently used are evicted for room, and the idle ones for age. *leaving*: served to nobody new; it is
disposed as soon as its last user has left. *gone*: ``dispose`` has run, exactly once.

Invariants
    * A session has at most one copy at any time, in `_current` or in `_leaving`: the next one is hydrated after the old
      one is gone, so that ``dispose`` and ``hydrate`` of a session never overlap (one closes the file the other opens).
    * `_retire` decides and never awaits; `_settle` acts. Between finding a copy and pinning it nothing is awaited.
    * A copy in use is never disposed. When all are in use, the bound is exceeded rather than work refused.

Epochs are compared, never interpreted: the provider promises that a change of holder has a greater one.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.from_thread

from affinity.errors import InvalidOptions, SessionError, UnknownSession
from affinity.session.copies import Copy, Shelf
from affinity.session.protocols import SessionContext

S = TypeVar("S")
T = TypeVar("T")

DISPOSE_SECONDS: Final = 30.0
"""A ``dispose`` that takes longer is cancelled and logged: it must not keep a worker from stopping."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the cache was made, and its size now."""

    hits: int = 0  # uses and peeks that found the state in memory
    misses: int = 0  # uses and peeks that did not
    hydrations: int = 0  # copies that came to be, by ``hydrate`` or by ``put``
    evictions: int = 0  # copies given up for room or for idleness
    losses: int = 0  # copies given up because their lease had ended
    size: int = 0  # copies in memory, those that wait for their last user included


class SessionCache(Generic[S]):
    """Session state in the memory of this process, bounded, and never served under another lease than its own.

    ::

        chats = SessionCache[Chat](hydrate=load_chat, checkpoint=save_chat, dispose=close_chat, max_sessions=50)

        @app.activity
        async def run_turn(ctx: ActivityContext, message: Message) -> Reply:
            async with chats.use(ctx) as chat:
                return await chat.answer(message)

    Callbacks may be async (awaited) or sync; a sync one runs on the event loop and must not block it. One cache serves
    one event loop. It is a `SessionListener` (of `affinity.orchestration.registry`): a worker that is given it tells it
    which leases end.
    """

    def __init__(
        self,
        *,
        hydrate: Callable[[str], Awaitable[S] | S] | None = None,
        checkpoint: Callable[[str, S], Awaitable[None] | None] | None = None,
        dispose: Callable[[str, S], Awaitable[None] | None] | None = None,
        max_sessions: int = 100,
        idle_timeout: float | None = 600.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """A cache without copies.

        Args:
            hydrate: makes the state of a session from where it is kept. Without it, a use that misses is refused.
            checkpoint: saves the state at the end of a clean `use`.
            dispose: frees what the state holds; called once for each copy, also for one whose checkpoint failed. What
                it raises is logged; it has `DISPOSE_SECONDS`.
            max_sessions: copies at most, unless more are in use at once.
            idle_timeout: seconds without use after which a copy is given up; None: never.
            timer: a monotonic clock in seconds, of this process: it decides on memory only, never on a lease.

        Raises:
            InvalidOptions: a bound that is not positive.
        """
        if max_sessions < 1:
            raise InvalidOptions(f"max_sessions = {max_sessions!r}: a cache holds at least one session")
        if idle_timeout is not None and not idle_timeout > 0:
            raise InvalidOptions(f"idle_timeout = {idle_timeout!r}: must be a positive number of seconds, or None")
        self._hydrate_state, self._checkpoint_state, self._dispose_state = hydrate, checkpoint, dispose
        self._max_sessions = max_sessions
        self._shelf = Shelf(math.inf if idle_timeout is None else idle_timeout, timer, self._expired)
        self._current: dict[str, Copy[S]] = {}
        self._leaving: dict[str, Copy[S]] = {}
        self._counts = {"hits": 0, "misses": 0, "hydrations": 0, "evictions": 0, "losses": 0}

    # -- for activities

    @asynccontextmanager
    async def use(self, ctx: SessionContext, *, checkpoint: bool = True) -> AsyncIterator[S]:
        """The state of the context's session, hydrated if need be, and pinned: it stays until the block ends.

        At a clean end the ``checkpoint`` callback, if there is one, saves the state; ``checkpoint=False`` leaves that
        to a later use. After an error in the block, a cancellation included, or in the checkpoint, the copy may be half
        changed: it is dropped, and the next use hydrates. Concurrent uses of one session share the copy, and a hydrate.

        Waits while an earlier lease's copy of this session is still in use here, and until it is disposed.

        Raises:
            UnknownSession: the cache knows a newer epoch of the session than the context's; or there is no copy and no
                ``hydrate``; or, at the end, the copy was lost or dropped while in use and so was not saved.
            SessionError: the context is bound to no session.
            Exception: what ``hydrate`` raised, in every use that waited for it (nothing is cached), or ``checkpoint``.
        """
        copy = await self._pin(ctx)
        try:
            yield copy.state
            if checkpoint:
                await self._save(copy)
        except BaseException:
            self._retire(copy)
            raise
        finally:
            await self._unpin(copy, ctx)

    @contextmanager
    def use_sync(self, ctx: SessionContext, *, checkpoint: bool = True) -> Iterator[S]:
        """`use` for a sync activity, in its thread, which anyio started; the callbacks run on the event loop as ever.

        A thread is not cancelled, so neither is its use: what it hydrates and saves is carried to the end.

        Raises:
            RuntimeError: not in a thread of anyio's. Otherwise as `use`.
        """
        pinned = self.use(ctx, checkpoint=checkpoint)
        state = anyio.from_thread.run(_shielded, pinned.__aenter__)
        try:
            yield state
        except BaseException as error:
            anyio.from_thread.run(_shielded, pinned.__aexit__, type(error), error, error.__traceback__)
            raise
        else:
            anyio.from_thread.run(_shielded, pinned.__aexit__, None, None, None)

    def peek(self, ctx: SessionContext) -> S:
        """The state, if this process has it: for code that detects a migration itself (option A of the v1 document).

        Not pinned: once the activity awaits something, the copy may be evicted and disposed. Prefer `use`.

        Raises:
            UnknownSession: no copy at the context's epoch.
            SessionError: the context is bound to no session.
        """
        session_id, epoch = _address(ctx)
        with self._shelf.timer:  # or the copy might expire between the two calls
            self._shelf.expire()
            copy = self._current.get(session_id)
            if copy is None or not copy.hydrated or copy.epoch != epoch:
                self._counts["misses"] += 1
                raise _unknown(session_id, epoch, self._copy_of(session_id))
            self._counts["hits"] += 1
            if not copy.users:
                self._shelf[session_id] = None  # last used now
            return copy.state

    async def put(self, ctx: SessionContext, state: S) -> None:
        """Give the cache a state that an activity has hydrated itself (option A); an earlier copy is disposed first.

        Raises:
            UnknownSession: the cache knows a newer epoch of the session; the state stays the caller's to dispose.
            SessionError: the context is bound to no session, or uses the copy that it would replace.
        """
        session_id, epoch = _address(ctx)

        def is_this(copy: Copy[S]) -> bool:
            if id(ctx) in copy.users:
                raise SessionError(f"{copy} is in use by the very activity that would replace it")
            return copy.is_new or (copy.hydrated and not copy.leaving and copy.state is state and copy.epoch == epoch)

        copy = await self._find(session_id, epoch, id(ctx), is_this)
        if not copy.hydrated:
            self._fill(copy, state)
        await self._unpin(copy, ctx)

    # -- for a worker (SessionListener)

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        """The session's lease, up to ``epoch`` (None: whichever), ended: dispose its copy, now or after its last user.

        Returns when that is done, or when it is left to the last user. A use that goes on keeps its copy and may end,
        but it cannot save any more.
        """
        copy = self._current.get(session_id)
        if copy is not None and (epoch is None or copy.epoch <= epoch):
            self._retire(copy, "losses")
        await self._settle()

    async def lost_all(self) -> None:
        """Every lease ended: as `lost`, for all; the copies are disposed side by side."""
        for copy in list(self._current.values()):
            self._retire(copy, "losses")
        await self._settle()

    async def sweep(self) -> None:
        """Dispose what has been idle for ``idle_timeout``. Uses do it too, but only while there are uses."""
        self._shelf.expire()
        await self._settle()

    async def aclose(self) -> None:
        """Dispose every copy that is not in use; the others follow as their users leave.

        The cache can be used again, by the next worker of this process.
        """
        await self.lost_all()

    @property
    def stats(self) -> CacheStats:
        """The counters now."""
        return CacheStats(**self._counts, size=len(self._current) + len(self._leaving))

    # -- finding and pinning

    async def _pin(self, ctx: SessionContext) -> Copy[S]:
        session_id, epoch = _address(ctx)

        def is_served(copy: Copy[S]) -> bool:
            # An activity that has the copy already gets it again even while it is leaving: it would wait for itself.
            return copy.epoch == epoch and (not copy.leaving or id(ctx) in copy.users)

        copy = await self._find(session_id, epoch, id(ctx), is_served)
        self._counts["hits" if copy.hydrated else "misses"] += 1
        try:
            await self._ensure_hydrated(copy)
        except BaseException:
            await self._unpin(copy, ctx)
            raise
        return copy

    async def _find(self, session_id: str, epoch: int, user: int, accept: Callable[[Copy[S]], bool]) -> Copy[S]:
        """A copy that ``accept`` takes, which may be a new one once the former is gone; pinned by ``user``."""
        while True:
            self._shelf.expire()
            copy = self._copy_of(session_id)
            if copy is None:
                copy = self._current[session_id] = Copy(session_id, epoch)
            if epoch < copy.epoch:
                raise _unknown(session_id, epoch, copy)
            if accept(copy):
                copy.users.append(user)
                self._shelf.discard(session_id)
                return copy
            self._retire(copy, "losses" if copy.epoch < epoch else None)
            await self._settle()
            await copy.gone.wait()

    async def _unpin(self, copy: Copy[S], ctx: SessionContext) -> None:
        copy.users.remove(id(ctx))
        if not copy.users and not copy.hydrated:
            self._forget(copy)
        elif not copy.users and not copy.leaving:
            self._shelf[copy.session_id] = None
        await self._make_room()

    def _copy_of(self, session_id: str) -> Copy[S] | None:
        return self._leaving.get(session_id) or self._current.get(session_id)

    # -- hydrate and save

    async def _ensure_hydrated(self, copy: Copy[S]) -> None:
        """One of the users hydrates and the others wait; when that one is cancelled, another takes over."""
        while not copy.hydrated:
            if copy.failure is not None:
                raise copy.failure
            if copy.ready is None:
                await self._hydrate(copy)
            else:
                await copy.ready.wait()

    async def _hydrate(self, copy: Copy[S]) -> None:
        copy.ready = ready = anyio.Event()
        try:
            await self._make_room()
            self._fill(copy, await self._load(copy))
        except Exception as error:
            copy.failure = error
            self._forget(copy)
            raise
        finally:
            copy.ready = None
            ready.set()

    async def _load(self, copy: Copy[S]) -> S:
        if self._hydrate_state is None:
            raise _unknown(copy.session_id, copy.epoch, None)
        return await _result(self._hydrate_state(copy.session_id))

    def _fill(self, copy: Copy[S], state: S) -> None:
        copy.state, copy.hydrated = state, True
        self._counts["hydrations"] += 1

    async def _save(self, copy: Copy[S]) -> None:
        if self._checkpoint_state is None:
            return
        async with copy.saving:
            if copy.leaving:  # the store belongs to a later lease, or another user left the state half changed
                raise UnknownSession(f"{copy} was lost while in use: its state was not saved; hydrate it again")
            await _result(self._checkpoint_state(copy.session_id, copy.state))

    # -- giving up

    def _retire(self, copy: Copy[S], count: str | None = None) -> None:
        """Serve the copy to nobody new. `_settle` disposes it, at the latest when its last user leaves."""
        if copy.leaving or self._current.get(copy.session_id) is not copy:
            return
        copy.leaving = True
        self._leaving[copy.session_id] = self._current.pop(copy.session_id)
        self._shelf.discard(copy.session_id)
        if count is not None:
            self._counts[count] += 1

    def _expired(self, session_id: str) -> None:
        self._retire(self._current[session_id], "evictions")

    async def _make_room(self) -> None:
        with self._shelf.timer:  # or the last copy on the shelf might expire between the two calls
            while len(self._current) > self._max_sessions and len(self._shelf):
                self._expired(self._shelf.popitem()[0])
        await self._settle()

    async def _settle(self) -> None:
        """Dispose all leaving copies that have no users and that no other task is disposing."""
        if not self._leaving:
            return
        unused = [copy for copy in self._leaving.values() if not copy.users and not copy.disposing]
        for copy in unused:
            copy.disposing = True
        with anyio.CancelScope(shield=True):  # a user may leave because it was cancelled; the bound is in `_dispose`
            async with anyio.create_task_group() as tasks:
                for copy in unused:
                    tasks.start_soon(self._dispose, copy)

    async def _dispose(self, copy: Copy[S]) -> None:
        try:
            if self._dispose_state is not None:
                with anyio.fail_after(DISPOSE_SECONDS):
                    await _result(self._dispose_state(copy.session_id, copy.state))
        except Exception:
            logger.exception("dispose failed for %s", copy)
        finally:
            self._forget(copy)

    def _forget(self, copy: Copy[S]) -> None:
        for copies in (self._current, self._leaving):
            if copies.get(copy.session_id) is copy:
                del copies[copy.session_id]
        copy.gone.set()


def _address(ctx: SessionContext) -> tuple[str, int]:
    if ctx.session_id is None or ctx.session_epoch is None:
        raise SessionError("this work is bound to no session: schedule it with .on_session(session_id)")
    return ctx.session_id, ctx.session_epoch


def _unknown(session_id: str, epoch: int, other: Copy[Any] | None) -> UnknownSession:
    text = f"no state of session {session_id!r} at epoch {epoch} in this process"
    if other is not None:
        hint = "the session has moved on" if other.epoch > epoch else "hydrate it again"
        text += f", which has it at epoch {other.epoch}: {hint}"
    return UnknownSession(text)


async def _result(value: Awaitable[T] | T) -> T:
    """What a callback returned, awaited if it is async."""
    return await value if inspect.isawaitable(value) else value


async def _shielded(function: Callable[..., Awaitable[T]], *args: object) -> T:
    # From the thread of an activity that is cancelled already, anyio's checkpoints would spin on its scope for ever.
    with anyio.CancelScope(shield=True):
        result = await function(*args)
    return result
