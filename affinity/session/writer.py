"""Whose turn it is to write a session's state, and what becomes of a turn with its activity's result.

One activity at a time has the *turn* of a session, first come, first served; other sessions go on side by side. Its
life::

    waiting ──► granted ──► enlisted ──► prepared ──► settled
        └───────────┴─ cancelled, or the load failed ────▲

From *granted* on nobody else sees the state. It is *enlisted* with the first block that opens; what a block changed is
*staged* at its clean end: encoded, in memory only. *prepared*: the activity's code has returned; the write goes with
its result, or, to a store elsewhere, before it. *settled*: the outcome is known. Applied: the copy stays, one version
on. Not applied, or not known: the copy is dropped, and the next turn hydrates. Either way the next turn is granted
at once, without awaiting anything.

An activity may open the state again, within a block or after it, and sees its own change. An error in a block drops the
copy and takes back what was changed in the block (what was staged before it, or by its `save`, stays). A *checkpoint*
writes the state of a block to the store before the result: the turn then builds on the record that it made, and so does
a retry; no error takes it back. A lease that
ends meanwhile changes nothing here but that the copy goes in the end: the fences of the store decide on the write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import uuid4

import anyio

from affinity.errors import (
    InvalidInput,
    InvalidOptions,
    SessionError,
    SessionSaveFailed,
    SessionSelfConflict,
    SessionWriteConflict,
    UnknownSession,
)
from affinity.records import SessionState, SessionStore, StateWrite
from affinity.session.callbacks import problem_of
from affinity.session.context import ActivityScope, address_of, current_activity
from affinity.session.state import CachedState, EncodedState, RecordVersion, StateSchema
from affinity.session.state_cache import CacheEntry, StateCache
from affinity.telemetry import session_scope

S = TypeVar("S")


class StagedWrite(NamedTuple):
    """What a turn has to write at some moment."""

    state: EncodedState | None
    base: RecordVersion | None  # the record that it builds on


class SessionWriter(Generic[S]):
    """One activity's turn on the state of its session. A `affinity.records.Participant`."""

    def __init__(self, turns: WriteQueue[S], ctx: ActivityScope, store: SessionStore | None) -> None:
        self._turns, self._pool = turns, turns.pool
        self._ctx = ctx
        self.user = id(ctx)
        self.address = address_of(ctx)
        self.store = store
        self.is_granted = False
        self._granted: anyio.Event | None = None  # rarely needed, and dear to make
        self.opens = 0  # blocks that are open, or on their way
        self._inside = 0  # blocks that have the state
        self.enlisted = False
        self.over = False  # the activity's code has ended
        self.already_applied = False
        self.staged: EncodedState | None = None
        self._copy: CacheEntry[CachedState[S]] | None = (
            None  # pinned until settled; None before, and when it was dropped
        )
        self._base: RecordVersion | None = None  # the record that the turn builds on
        self._ahead = False  # the memory has changes that are not staged
        self._sent = False  # a write went with the result
        self._version = 0  # of the record, once the write is applied

    @property
    def session_id(self) -> str:
        """Whose state it is."""
        return self.address[0]

    @property
    def key(self) -> str:
        """Names the activity in all its attempts."""
        return f"{self._ctx.instance_id}/{self._ctx.execution_id}/{self._ctx.activity_id}"

    @property
    def is_elsewhere(self) -> bool:
        """The store is not the worker's database, so the write cannot commit with the result."""
        return self.store is not None and self.store is not self._ctx.session_store

    def grant(self) -> None:
        """Its turn has come."""
        self.is_granted = True
        if self._granted is not None:
            self._granted.set()

    async def wait(self) -> None:
        """Wait until its turn has come."""
        if not self.is_granted:
            self._granted = self._granted or anyio.Event()
            await self._granted.wait()

    # -- blocks

    async def enter(self, values: Mapping[str, Any]) -> CacheEntry[CachedState[S]]:
        """The session's copy, pinned for a block.

        Raises:
            SessionLoadFailed: as `StateSchema.load`.
            SessionWriteConflict: this process has the session at a newer epoch.
            SessionError: a failed block of this activity still has it.
        """
        is_new = False

        async def load(copy: CacheEntry[CachedState[S]]) -> CachedState[S]:
            nonlocal is_new
            loaded = await self._load(values)
            self._turns.measure(copy, loaded)
            is_new = True
            return loaded

        try:
            copy = await self._pool.pin(self.address, self.user, load, lambda loaded: loaded.stored.store is self.store)
        except UnknownSession as error:
            self._pool.count("conflicts")
            raise SessionWriteConflict(self.session_id, None, None, str(error)) from error
        try:
            self._take(copy)
            self._inside += 1
            if self._inside == 1 and not is_new and self._turns.refresh is not None:
                await self._turns.refresh(copy.state)
        except BaseException:
            await self._pool.unpin(copy, self.user)
            raise
        return copy

    async def _load(self, values: Mapping[str, Any]) -> CachedState[S]:
        """From what is staged, if a later block has failed; else from the store."""
        if self.staged is not None and self.staged.new is not None and self._base is not None:
            return await self._turns.schema.again(self.staged.new, self._base)
        return await self._turns.schema.load(self.session_id, self.store, values)

    def _take(self, copy: CacheEntry[CachedState[S]]) -> None:
        if self.over:
            raise SessionError(f"the activity that opens session {self.session_id!r} has ended")
        if copy.state.broken:
            raise SessionError(f"{copy} was left half changed by another block of this activity: leave that one first")
        if self._copy is copy:
            return
        if not self.enlisted:
            self._ctx.enlist(self)
            self.enlisted = True
        self._pool.pin_again(copy, self.user)
        self._copy = copy
        self._base = copy.state.stored
        self.already_applied |= self.is_elsewhere and self._base.idempotency_key == self.key

    async def stage(self, copy: CacheEntry[CachedState[S]]) -> None:
        """Have the state as it is now go with the activity's result.

        Raises:
            SessionError: the activity has ended, or the state is half changed.
            InvalidInput: the state cannot be encoded.
        """
        if self._check(copy):
            encoded = await self._encode(copy)
            self.staged, self._ahead = (encoded if encoded.new is not None else None), False
        self._turns.measure(copy, copy.state)

    async def checkpoint(self, copy: CacheEntry[CachedState[S]]) -> None:
        """Write the state as it is now to the store, and build on that.

        Raises:
            SessionWriteConflict: the session or its record has been written since, or has a newer epoch.
            SessionSaveFailed: the store failed.
            SessionError, InvalidInput: as `stage`.
        """
        async with copy.saving:
            if not self._check(copy):
                return
            encoded, staged = await self._encode(copy), self.staged
            if encoded.new is not None:
                key = uuid4().hex  # of this checkpoint, in no other attempt
                version = await self._save(encoded.new, key)
                if self._copy is not copy:  # another block has failed meanwhile: what it goes back to is refused now
                    return
                copy.state.is_written(encoded, version, key)
                self._base = copy.state.stored
            if self.staged is staged:  # and no other block has staged more meanwhile
                self.staged, self._ahead = None, False
        self._turns.measure(copy, copy.state)

    async def leave_unsaved(self, copy: CacheEntry[CachedState[S]]) -> None:
        """A clean end without saving: the copy can stay only if there was nothing to save.

        Raises:
            SessionError: as `stage`.
        """
        if self._check(copy):
            try:
                encoded = await self._encode(copy)
                self._ahead = not encoded.same_as(self.staged)
            except InvalidInput:
                self._ahead = True
        self._turns.measure(copy, copy.state)

    def _check(self, copy: CacheEntry[CachedState[S]]) -> bool:
        """Whether there is anything to write to."""
        if self.over:
            raise SessionError(f"the activity that opened session {self.session_id!r} has ended")
        if copy.state.broken:
            raise SessionError(f"{copy} was left half changed by another block of this activity: nothing is saved")
        return self.store is not None and not self.already_applied

    async def _encode(self, copy: CacheEntry[CachedState[S]]) -> EncodedState:
        encoded = await self._turns.schema.encode(copy.state)
        copy.state.size = encoded.size
        return encoded

    async def leave(self, copy: CacheEntry[CachedState[S]]) -> None:
        """The block is over."""
        self.opens -= 1
        self._inside -= 1
        await self._pool.unpin(copy, self.user)

    def mark(self) -> StagedWrite:
        """What to go back to when a block fails, as of now."""
        return StagedWrite(self.staged, self._base)

    def drop(self, copy: CacheEntry[CachedState[S]], before: StagedWrite) -> None:
        """A block has failed: forget its change, and go back to what was staged before, or to a checkpoint since."""
        copy.state.broken = True
        self._pool.retire(copy)
        self.staged = before.state if before.base == self._base else None
        if self._copy is copy:
            self._copy, self._ahead = None, False
            self._pool.let_go(copy, self.user)

    # -- Participant

    async def prepare(self) -> StateWrite | None:
        """See `affinity.records.Participant`.

        Raises:
            SessionError: a block is still open.
            SessionWriteConflict: the store elsewhere has been written since, or under a newer epoch.
            SessionSaveFailed: the store elsewhere failed.
        """
        if self.opens:
            raise SessionError(f"the activity has returned while the state of session {self.session_id!r} was open")
        self.over = True
        if self.staged is None or self.staged.new is None or self._base is None or self.already_applied:
            return None
        if self.is_elsewhere:
            self._version = await self._save(self.staged.new, self.key)
            return None
        self._version, self._sent = self._base.version + 1, True
        return StateWrite(new=self.staged.new, base_version=self._base.version, epoch=self.address[1])

    async def _save(self, new: SessionState, key: str) -> int:
        assert self.store is not None
        assert self._base is not None
        version, epoch = self._base.version, self.address[1]
        birth = self._base.birth if self.is_elsewhere else None  # else the epoch tells what was made anew
        try:
            return await self.store.save(new, expected_version=version, birth=birth, epoch=epoch, idempotency_key=key)
        except SessionWriteConflict:
            self._pool.count("conflicts")
            raise
        except Exception as error:
            state = (await self._last(new)).state
            raise SessionSaveFailed(self.session_id, state, f"the store failed: {problem_of(error)}") from error

    async def _last(self, new: SessionState) -> CachedState[S]:
        """What was to be written, as a state: that of the copy, unless another block has spoilt it."""
        if self._copy is not None:
            return self._copy.state
        assert self._base is not None
        return await self._turns.schema.again(new, self._base)

    def settled(self, applied: bool) -> None:
        """See `affinity.records.Participant`. The next turn is granted before this returns."""
        self.over = True
        if self._sent and not applied:
            self._pool.count("conflicts")
        copy, self._copy = self._copy, None
        if copy is not None:
            if applied and not (self.already_applied or self._ahead):
                self._commit(copy.state)
            else:
                self._pool.retire(copy)
            self._pool.let_go(copy, self.user)
        self._turns.end(self)

    def _commit(self, loaded: CachedState[S]) -> None:
        if self.staged is not None and self.staged.new is not None:
            loaded.is_written(self.staged, self._version, self.key if self.is_elsewhere else None)


class WriteQueue(Generic[S]):
    """The turns of all sessions, and the copies that they work on."""

    def __init__(
        self,
        schema: StateSchema[S],
        pool: StateCache[CachedState[S]],
        size_of: Callable[[S], int] | None,
        refresh: Callable[[CachedState[S]], Awaitable[None]] | None,
    ) -> None:
        """``refresh`` is called with a copy that is opened again, unless a block of the same activity has it open."""
        self.schema, self.pool, self.refresh = schema, pool, refresh
        self._size_of = size_of
        self._by_ctx: dict[int, SessionWriter[S]] = {}
        self._lines: dict[str, deque[SessionWriter[S]]] = {}  # the first of each line has its turn

    async def open(
        self, ctx: ActivityScope, store: SessionStore | None, values: Mapping[str, Any]
    ) -> tuple[SessionWriter[S], CacheEntry[CachedState[S]]]:
        """The context's turn, once it is granted, and the copy for one block of it.

        Raises:
            InvalidOptions: the activity has opened the session with another store.
            Exception: as `SessionWriter.enter`.
        """
        turn = self._by_ctx.get(id(ctx)) or self._begin(ctx, store)
        if turn.store is not store:
            raise InvalidOptions(f"session {turn.session_id!r} is open with another store in this activity")
        turn.opens += 1
        try:
            await turn.wait()
            return turn, await turn.enter(values)
        except BaseException:
            turn.opens -= 1
            if not turn.opens and not turn.enlisted:
                self.end(turn)
            raise

    def _begin(self, ctx: ActivityScope, store: SessionStore | None) -> SessionWriter[S]:
        turn = self._by_ctx[id(ctx)] = SessionWriter(self, ctx, store)
        line = self._lines.setdefault(turn.session_id, deque())
        line.append(turn)
        if line[0] is turn:
            turn.grant()
        return turn

    def end(self, turn: SessionWriter[S]) -> None:
        """The turn is over, whether it was granted or not: the next may begin."""
        line = self._lines[turn.session_id]
        line.remove(turn)
        del self._by_ctx[turn.user]
        if line:
            line[0].grant()
        else:
            del self._lines[turn.session_id]

    def would_conflict(self, session_id: str, store: SessionStore) -> bool:
        """Whether a write of that session as by a script would be one against the running activity's own."""
        ctx = current_activity()
        if ctx is None or ctx.session_id != session_id:
            return False
        turn = self._by_ctx.get(id(ctx))
        return store is ctx.session_store or (turn is not None and store is turn.store)

    def measure(self, copy: CacheEntry[CachedState[S]], loaded: CachedState[S]) -> None:
        """Note the size of a copy: by the application's function, or that of its encoded form as last seen."""
        self.pool.weigh(copy, loaded.size if self._size_of is None else self._size_of(loaded.state))


_NO_SCOPE: Final = nullcontext()


class UnitOfWork(Protocol[S]):
    """How a state comes to a block, and what becomes of it."""

    @property
    def session_id(self) -> str | None:
        """Whose state it is; None: nobody's."""
        ...

    @property
    def already_applied(self) -> bool:
        """See `OpenSession.already_applied`."""
        ...

    def scope(self) -> AbstractContextManager[None]:
        """Names the session in logs and traces, from before the load to after the save."""
        ...

    async def enter(self, values: Mapping[str, Any]) -> CachedState[S]:
        """The state, for one block; ``values`` are fields of a new one."""
        ...

    async def save(self) -> int:
        """Keep the state as it is now; returns the version of the record, as far as it is known."""
        ...

    async def checkpoint(self) -> int:
        """Write the state as it is now to the store, before anything else; returns as `save`."""
        ...

    async def leave(self, *, failed: bool, save: bool) -> int:
        """The block is over; called once after each `enter` that returned. Returns as `save`."""
        ...


class ActivityUnitOfWork(Generic[S]):
    """The change is staged, and goes with the activity's result."""

    def __init__(self, turns: WriteQueue[S], ctx: ActivityScope, store: SessionStore | None) -> None:
        self._turns, self._ctx, self._store = turns, ctx, store
        self._turn: SessionWriter[S] | None = None
        self._copy: CacheEntry[CachedState[S]] | None = None
        self._fallback = StagedWrite(None, None)  # what stays staged when this block fails

    @property
    def session_id(self) -> str | None:
        return self._ctx.session_id

    @property
    def already_applied(self) -> bool:
        return self._turn is not None and self._turn.already_applied

    def scope(self) -> AbstractContextManager[None]:
        return _NO_SCOPE  # the worker has named it

    async def enter(self, values: Mapping[str, Any]) -> CachedState[S]:
        self._turn, self._copy = await self._turns.open(self._ctx, self._store, values)
        self._fallback = self._turn.mark()
        return self._copy.state

    async def save(self) -> int:
        turn, copy = self._open()
        await turn.stage(copy)
        self._fallback = turn.mark()
        return copy.state.stored.version

    async def checkpoint(self) -> int:
        turn, copy = self._open()
        await turn.checkpoint(copy)
        self._fallback = turn.mark()
        return copy.state.stored.version

    async def leave(self, *, failed: bool, save: bool) -> int:
        turn, copy = self._open()
        try:
            if not failed:
                await (turn.stage(copy) if save else turn.leave_unsaved(copy))
        except BaseException:
            failed = True
            raise
        finally:
            if failed:
                turn.drop(copy, self._fallback)
            await turn.leave(copy)
        return copy.state.stored.version

    def _open(self) -> tuple[SessionWriter[S], CacheEntry[CachedState[S]]]:
        assert self._turn is not None
        assert self._copy is not None
        return self._turn, self._copy


class StandaloneUnitOfWork(Generic[S]):
    """Loaded at the beginning, written at the end, in nobody's memory in between.

    A session id of None, or no store, and the state is a new one that is nobody's afterwards.
    """

    already_applied = False

    def __init__(
        self,
        schema: StateSchema[S],
        turns: WriteQueue[S],
        session_id: str | None,
        store: SessionStore | None,
        dispose: Callable[[str, S], Awaitable[None] | None] | None,
    ) -> None:
        self._schema, self._turns, self.session_id, self._dispose = schema, turns, session_id, dispose
        self._store = store if session_id is not None else None
        self._loaded: CachedState[S] | None = None

    def scope(self) -> AbstractContextManager[None]:
        return _NO_SCOPE if self.session_id is None else session_scope(self.session_id)

    async def enter(self, values: Mapping[str, Any]) -> CachedState[S]:
        if self.session_id is None:
            self._loaded = self._schema.new(None, None, values)
        else:
            self._loaded = await self._schema.load(self.session_id, self._store, values)
        return self._loaded

    async def save(self) -> int:
        assert self._loaded is not None
        if self._store is not None:
            encoded = await self._schema.encode(self._loaded)
            if encoded.new is not None:
                await self._write(self._loaded, self._store, encoded, encoded.new)
        return self._loaded.stored.version

    async def checkpoint(self) -> int:
        return await self.save()

    async def _write(
        self, loaded: CachedState[S], store: SessionStore, encoded: EncodedState, new: SessionState
    ) -> None:
        if self._turns.would_conflict(new.session_id, store):
            raise SessionSelfConflict(new.session_id)
        stored = loaded.stored
        try:
            version = await store.save(new, expected_version=stored.version, birth=stored.birth)
        except SessionWriteConflict:
            raise
        except Exception as error:
            said = f"the store failed: {problem_of(error)}"
            raise SessionSaveFailed(new.session_id, loaded.state, said) from error
        loaded.is_written(encoded, version, None)

    async def leave(self, *, failed: bool, save: bool) -> int:
        assert self._loaded is not None
        try:
            if save and not failed:
                await self.save()
        finally:
            with anyio.CancelScope(shield=True):  # bounded by itself
                await self._loaded.aclose(self._dispose)
        return self._loaded.stored.version
