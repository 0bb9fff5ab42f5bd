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
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

import anyio

from affinity.errors import (
    InvalidInput,
    InvalidOptions,
    SessionError,
    SessionSaveFailed,
    SessionWriteConflict,
    UnknownSession,
)
from affinity.records import SessionState, SessionStore, StateWrite
from affinity.session.calls import problem_of
from affinity.session.copies import Copy
from affinity.session.loaded import Encoded, Loaded, Stored
from affinity.session.pool import CopyPool
from affinity.session.protocols import ActivityScope, address_of, current_activity
from affinity.session.schema import StateSchema

S = TypeVar("S")


class Staged(NamedTuple):
    """What a turn has to write at some moment."""

    state: Encoded | None
    base: Stored | None  # the record that it builds on


class Turn(Generic[S]):
    """One activity's turn on the state of its session. A `affinity.records.Participant`."""

    def __init__(self, turns: Turns[S], ctx: ActivityScope, store: SessionStore | None) -> None:
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
        self.staged: Encoded | None = None
        self._copy: Copy[Loaded[S]] | None = None  # pinned until settled; None before, and when it was dropped
        self._base: Stored | None = None  # the record that the turn builds on
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

    async def enter(self, values: Mapping[str, Any]) -> Copy[Loaded[S]]:
        """The session's copy, pinned for a block.

        Raises:
            SessionLoadFailed: as `StateSchema.load`.
            SessionWriteConflict: this process has the session at a newer epoch.
            SessionError: a failed block of this activity still has it.
        """
        is_new = False

        async def load(copy: Copy[Loaded[S]]) -> Loaded[S]:
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

    async def _load(self, values: Mapping[str, Any]) -> Loaded[S]:
        """From what is staged, if a later block has failed; else from the store."""
        if self.staged is not None and self.staged.new is not None and self._base is not None:
            return await self._turns.schema.again(self.staged.new, self._base)
        return await self._turns.schema.load(self.session_id, self.store, values)

    def _take(self, copy: Copy[Loaded[S]]) -> None:
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
        self.already_applied |= self.is_elsewhere and self._base.turn == self.key

    async def stage(self, copy: Copy[Loaded[S]]) -> None:
        """Have the state as it is now go with the activity's result.

        Raises:
            SessionError: the activity has ended, or the state is half changed.
            InvalidInput: the state cannot be encoded.
        """
        if self._check(copy):
            encoded = await self._encode(copy)
            self.staged, self._ahead = (encoded if encoded.new is not None else None), False
        self._turns.measure(copy, copy.state)

    async def checkpoint(self, copy: Copy[Loaded[S]]) -> None:
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

    async def leave_unsaved(self, copy: Copy[Loaded[S]]) -> None:
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

    def _check(self, copy: Copy[Loaded[S]]) -> bool:
        """Whether there is anything to write to."""
        if self.over:
            raise SessionError(f"the activity that opened session {self.session_id!r} has ended")
        if copy.state.broken:
            raise SessionError(f"{copy} was left half changed by another block of this activity: nothing is saved")
        return self.store is not None and not self.already_applied

    async def _encode(self, copy: Copy[Loaded[S]]) -> Encoded:
        encoded = await self._turns.schema.encode(copy.state)
        copy.state.size = encoded.size
        return encoded

    async def leave(self, copy: Copy[Loaded[S]]) -> None:
        """The block is over."""
        self.opens -= 1
        self._inside -= 1
        await self._pool.unpin(copy, self.user)

    def mark(self) -> Staged:
        """What to go back to when a block fails, as of now."""
        return Staged(self.staged, self._base)

    def drop(self, copy: Copy[Loaded[S]], before: Staged) -> None:
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
            return await self.store.save(new, expected_version=version, birth=birth, epoch=epoch, turn=key)
        except SessionWriteConflict:
            self._pool.count("conflicts")
            raise
        except Exception as error:
            state = (await self._last(new)).state
            raise SessionSaveFailed(self.session_id, state, f"the store failed: {problem_of(error)}") from error

    async def _last(self, new: SessionState) -> Loaded[S]:
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

    def _commit(self, loaded: Loaded[S]) -> None:
        if self.staged is not None and self.staged.new is not None:
            loaded.is_written(self.staged, self._version, self.key if self.is_elsewhere else None)


class Turns(Generic[S]):
    """The turns of all sessions, and the copies that they work on."""

    def __init__(
        self,
        schema: StateSchema[S],
        pool: CopyPool[Loaded[S]],
        size_of: Callable[[S], int] | None,
        refresh: Callable[[Loaded[S]], Awaitable[None]] | None,
    ) -> None:
        """``refresh`` is called with a copy that is opened again, unless a block of the same activity has it open."""
        self.schema, self.pool, self.refresh = schema, pool, refresh
        self._size_of = size_of
        self._by_ctx: dict[int, Turn[S]] = {}
        self._lines: dict[str, deque[Turn[S]]] = {}  # the first of each line has its turn

    async def open(
        self, ctx: ActivityScope, store: SessionStore | None, values: Mapping[str, Any]
    ) -> tuple[Turn[S], Copy[Loaded[S]]]:
        """The context's turn, once it is granted, and the copy for one block of it.

        Raises:
            InvalidOptions: the activity has opened the session with another store.
            Exception: as `Turn.enter`.
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

    def _begin(self, ctx: ActivityScope, store: SessionStore | None) -> Turn[S]:
        turn = self._by_ctx[id(ctx)] = Turn(self, ctx, store)
        line = self._lines.setdefault(turn.session_id, deque())
        line.append(turn)
        if line[0] is turn:
            turn.grant()
        return turn

    def end(self, turn: Turn[S]) -> None:
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

    def measure(self, copy: Copy[Loaded[S]], loaded: Loaded[S]) -> None:
        """Note the size of a copy: by the application's function, or that of its encoded form as last seen."""
        self.pool.weigh(copy, loaded.size if self._size_of is None else self._size_of(loaded.state))
