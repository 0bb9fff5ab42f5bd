"""The session cache: expensive state in memory, next to the lease that says where it may be used.

For applications that save and load by themselves; `affinity.session.Sessions` commits the state with the result. What
becomes of a copy, and what always holds, is said in `affinity.session.state_cache`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio.from_thread

from affinity.errors import InvalidOptions, SessionError, SessionWriteConflict, UnknownSession
from affinity.session.callbacks import DISPOSE_SECONDS, result_of, run_bounded, shielded
from affinity.session.context import SessionContext, address_of
from affinity.session.state_cache import CacheEntry, CacheLeaseListener, StateCache, unknown_session

S = TypeVar("S")


class SessionCache(CacheLeaseListener[S]):
    """Session state in the memory of this process, bounded, and never served under another lease than its own.

    ::

        chats = SessionCache[Chat](hydrate=load_chat, checkpoint=save_chat, dispose=close_chat, max_sessions=50)

        @app.activity
        async def run_turn(ctx: ActivityContext, message: Message) -> Reply:
            async with chats.use(ctx) as chat:
                return await chat.answer(message)

    Callbacks may be async (awaited) or sync; a sync one runs on the event loop and must not block it. One cache serves
    one event loop. It is a `SessionListener` (of `affinity.orchestration.app`): a worker that is given it tells it
    which leases end.
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
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """A cache without copies.

        Args:
            hydrate: makes the state of a session from where it is kept. Without it, a use that misses is refused.
            checkpoint: saves the state at the end of a clean `use`.
            dispose: frees what the state holds; called once for each copy, also for one whose checkpoint failed. What
                it raises is logged; it has `DISPOSE_SECONDS`.
            max_sessions: copies at most, unless more are in use at once.
            max_bytes: of all copies at most, unless those in use have more; by ``size_of``. None: no bound.
            size_of: how many bytes of memory a state takes; asked after each hydrate and each clean `use`.
            idle_timeout: seconds without use after which a copy is given up; None: never.
            timer: a monotonic clock in seconds, of this process: it decides on memory only, never on a lease.

        Raises:
            InvalidOptions: a bound that is not positive, or ``max_bytes`` without ``size_of``.
        """
        if max_bytes is not None and size_of is None:
            raise InvalidOptions(f"max_bytes = {max_bytes!r} needs size_of: nothing else says how large a state is")
        self._hydrate_state, self._checkpoint_state, self._dispose_state = hydrate, checkpoint, dispose
        self._size_of = size_of
        self._pool = StateCache[S](
            dispose=self._dispose,
            max_sessions=max_sessions,
            max_bytes=max_bytes,
            idle_timeout=idle_timeout,
            timer=timer,
        )

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
        copy = await self._pool.pin(address_of(ctx), id(ctx), self._load)
        try:
            yield copy.state
            if checkpoint:
                await self._save(copy)
            self._weigh(copy, copy.state)
        except BaseException:
            self._pool.retire(copy)
            raise
        finally:
            await self._pool.unpin(copy, id(ctx))

    @contextmanager
    def use_sync(self, ctx: SessionContext, *, checkpoint: bool = True) -> Iterator[S]:
        """`use` for a sync activity, in its thread, which anyio started; the callbacks run on the event loop as ever.

        A thread is not cancelled, so neither is its use: what it hydrates and saves is carried to the end.

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
        """The state, if this process has it: for code that detects a migration itself (option A of the v1 document).

        Not pinned: once the activity awaits something, the copy may be evicted and disposed. Prefer `use`.

        Raises:
            UnknownSession: no copy at the context's epoch.
            SessionError: the context is bound to no session.
        """
        return self._pool.peek(*address_of(ctx)).state

    async def put(self, ctx: SessionContext, state: S) -> None:
        """Give the cache a state that an activity has hydrated itself (option A); an earlier copy is disposed first.

        Raises:
            UnknownSession: the cache knows a newer epoch of the session; the state stays the caller's to dispose.
            SessionError: the context is bound to no session, or uses the copy that it would replace.
        """
        session_id, epoch = address_of(ctx)

        def is_this(copy: CacheEntry[S]) -> bool:
            if id(ctx) in copy.users:
                raise SessionError(f"{copy} is in use by the very activity that would replace it")
            return copy.is_new or (copy.hydrated and not copy.leaving and copy.state is state and copy.epoch == epoch)

        copy = await self._pool.find(session_id, epoch, id(ctx), is_this)
        try:
            if not copy.hydrated:
                self._pool.fill(copy, state)
            self._weigh(copy, state)
        finally:
            await self._pool.unpin(copy, id(ctx))

    # -- the application's callbacks

    async def _load(self, copy: CacheEntry[S]) -> S:
        if self._hydrate_state is None:
            raise unknown_session(copy.session_id, copy.epoch, None)
        state = await result_of(self._hydrate_state(copy.session_id))
        self._weigh(copy, state)
        return state

    async def _save(self, copy: CacheEntry[S]) -> None:
        if self._checkpoint_state is None:
            return
        async with copy.saving:
            if copy.leaving:  # the store belongs to a later lease, or another user left the state half changed
                raise UnknownSession(f"{copy} was lost while in use: its state was not saved; hydrate it again")
            try:
                await result_of(self._checkpoint_state(copy.session_id, copy.state))
            except SessionWriteConflict:
                self._pool.count("conflicts")
                raise

    def _weigh(self, copy: CacheEntry[S], state: S) -> None:
        if self._size_of is not None:
            self._pool.weigh(copy, self._size_of(state))

    async def _dispose(self, copy: CacheEntry[S]) -> None:
        if self._dispose_state is not None:
            dispose = self._dispose_state
            await run_bounded(f"dispose of {copy}", lambda: dispose(copy.session_id, copy.state), DISPOSE_SECONDS)
