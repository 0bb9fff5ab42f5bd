"""`SessionCache`: session state in memory, for applications that load and save it themselves.

With `affinity.Sessions` the state commits together with the activity's result. `affinity.session.state_cache`
describes the life of an entry, and the invariants of both caches.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, TypeVar

import anyio.from_thread

from affinity.errors import InvalidOptions, SessionError, SessionWriteConflict, UnknownSession
from affinity.session.resources import run_bounded, shielded
from affinity.session.state_cache import (
    Address,
    CacheEntry,
    CacheLeaseListener,
    SessionContext,
    StateCache,
    address_of,
    unknown_session,
)
from affinity.tasks import call_here, call_inline
from affinity.user_code import call_sync, check_function

S = TypeVar("S")


class SessionCache(CacheLeaseListener[CacheEntry[S]], Generic[S]):
    """Session state in the memory of this process, bounded, and never used under another lease than its own.

    ::

        chats = SessionCache[Chat](hydrate=load_chat, checkpoint=save_chat, dispose=close_chat, max_sessions=50)

        @app.activity
        async def run_turn(ctx: ActivityContext, message: Message) -> Reply:
            async with chats.use(ctx) as chat:
                return await chat.answer(message)

    Callbacks may be async (awaited) or sync; a sync one runs on the event loop and must not block it. One cache serves
    one event loop. It is a `SessionListener` (of `affinity.orchestration.app`): a worker that includes it notifies it
    of the leases that end.
    """

    def __init__(
        self,
        *,
        hydrate: Callable[[str], Awaitable[S] | S] | None = None,
        checkpoint: Callable[[str, S], Awaitable[None] | None] | None = None,
        dispose: Callable[[str, S], Awaitable[None] | None] | None = None,
        max_sessions: int = 100,
        max_bytes: int | None = None,
        size_of: Callable[[S], int] | None = None,
        idle_timeout: float | None = 600.0,
        movable: bool = True,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """An empty cache.

        Args:
            hydrate: loads the state of a session, given its id. Without it, a use that misses is refused.
            checkpoint: saves the state at the end of a `use` without an error.
            dispose: frees what the state holds; called once for each state in the cache, also after a failed
                checkpoint. What it raises is logged; it has `affinity.session.resources.DISPOSE_SECONDS`.
            max_sessions: states in memory at most, unless more are in use at the same time.
            max_bytes: of all states at most, unless the states in use have more; by ``size_of``. None: no bound.
            size_of: how many bytes of memory a state takes; called after each hydrate and each `use` without an error.
            idle_timeout: seconds without use after which a state is removed; None: never.
            movable: whether a session may be offered to a worker with more room while its state is idle in memory here.
            timer: a monotonic clock in seconds, of this process: it decides on memory only, never on a lease.

        Raises:
            InvalidOptions: a bound that is not positive, ``max_bytes`` without ``size_of``, or a function that takes
                other arguments.
        """
        if max_bytes is not None and size_of is None:
            raise InvalidOptions(f"max_bytes = {max_bytes!r} needs size_of, which measures a state")
        for function, what, parameters in (
            (hydrate, "hydrate", ("session_id",)),
            (checkpoint, "checkpoint", ("session_id", "state")),
            (dispose, "dispose", ("session_id", "state")),
            (size_of, "size_of", ("state",)),
        ):
            if function is not None:
                check_function(function, what, *parameters)
        self._hydrate_state, self._checkpoint_state, self._dispose_state = hydrate, checkpoint, dispose
        self._size_of = size_of
        self._movable = movable
        self._cache = StateCache[CacheEntry[S]](
            CacheEntry,
            dispose=self._dispose,
            max_sessions=max_sessions,
            max_bytes=max_bytes,
            idle_timeout=idle_timeout,
            timer=timer,
        )

    # -- for activities

    @asynccontextmanager
    async def use(self, ctx: SessionContext, *, checkpoint: bool = True) -> AsyncIterator[S]:
        """The state of the context's session, hydrated if need be, and pinned until the block ends.

        At an end without an error the ``checkpoint`` callback, if there is one, saves the state; ``checkpoint=False``
        leaves that to a later use. After an error in the block, a cancellation included, or in the checkpoint, the
        state may be half changed: it is dropped, and the next use hydrates. Concurrent uses of one session share the
        state, and a hydrate.

        Waits while an earlier lease's state of this session is still in use here, and until it is disposed.

        Raises:
            UnknownSession: the cache has a newer epoch of the session than the context's; or it has no state and no
                ``hydrate``; or, at the end, the state was lost or dropped while in use and so was not saved.
            SessionError: the context is bound to no session.
            Exception: what ``hydrate`` raised, in every use that waited for it (nothing is cached), or ``checkpoint``.
        """
        entry = await self._cache.pin(address_of(ctx), ctx, self._hydrate)
        try:
            yield entry.state
            if checkpoint:
                await self._checkpoint(entry)
            self._measure(entry)
        except BaseException:
            self._cache.retire(entry)
            raise
        finally:
            await self._cache.unpin(entry, id(ctx))

    @contextmanager
    def use_sync(self, ctx: SessionContext, *, checkpoint: bool = True) -> Iterator[S]:
        """`use` for a sync activity, in the thread that anyio started for it; callbacks still run on the event loop.

        A thread is not cancelled, so what it hydrates and saves here is always completed.

        Raises:
            RuntimeError: not in a thread of anyio's. Otherwise as `use`.
        """
        pinned = self.use(ctx, checkpoint=checkpoint)
        state = anyio.from_thread.run(shielded, pinned.__aenter__)
        try:
            yield state
        except BaseException as error:
            anyio.from_thread.run(shielded, pinned.__aexit__, type(error), error, error.__traceback__)
            raise
        else:
            anyio.from_thread.run(shielded, pinned.__aexit__, None, None, None)

    def peek(self, ctx: SessionContext) -> S:
        """The state, if this process has it: for code that itself detects a move of the session.

        Not pinned: once the activity awaits something, the state may be evicted and disposed. Prefer `use`.

        Raises:
            UnknownSession: no state at the context's epoch.
            SessionError: the context is bound to no session.
        """
        return self._cache.peek(address_of(ctx)).state

    async def put(self, ctx: SessionContext, state: S) -> None:
        """Add a state that an activity has hydrated itself; an earlier one is disposed first.

        Raises:
            UnknownSession: the cache has a newer epoch of the session; the state stays the caller's to dispose.
            SessionError: the context is bound to no session, or uses the state that it would replace.
        """
        address = address_of(ctx)

        def accept(entry: CacheEntry[S]) -> bool:
            if id(ctx) in entry.users:
                raise SessionError(f"{entry} is in use by the very activity that would replace it")
            if entry.is_new:
                return True
            return entry.is_hydrated and not entry.is_retired and entry.state is state and entry.epoch == address.epoch

        entry = await self._cache.pin_entry(address, ctx, accept)
        try:
            if not entry.is_hydrated:
                entry.state = state
                self._cache.set_hydrated(entry)
            self._measure(entry)
        finally:
            await self._cache.unpin(entry, id(ctx))

    # -- the application's callbacks

    async def _hydrate(self, entry: CacheEntry[S]) -> None:
        if self._hydrate_state is None:
            raise unknown_session(Address(entry.session_id, entry.epoch, entry.database), None)
        entry.state = await call_inline(self._hydrate_state, entry.session_id)
        self._measure(entry)

    async def _checkpoint(self, entry: CacheEntry[S]) -> None:
        if self._checkpoint_state is None:
            return
        async with entry.saving:
            if entry.is_retired:  # a later lease may have written the store, or another user has failed half-way
                raise UnknownSession(f"{entry} was lost while in use: its state was not saved; hydrate it again")
            try:
                await call_here(self._checkpoint_state, entry.session_id, entry.state)
            except SessionWriteConflict:
                self._cache.count("conflicts")
                raise

    def _measure(self, entry: CacheEntry[S]) -> None:
        if self._size_of is not None:
            self._cache.set_size(entry, call_sync(self._size_of, entry.state))

    def _keeps_open(self, entry: CacheEntry[S]) -> bool:
        return self._dispose_state is not None

    async def _dispose(self, entry: CacheEntry[S]) -> None:
        if self._dispose_state is not None and entry.is_hydrated:  # its hydrate may have been cancelled
            await run_bounded(f"dispose of {entry}", self._dispose_state, entry.session_id, entry.state)
