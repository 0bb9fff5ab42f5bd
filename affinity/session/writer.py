"""Which activity may change a session's state, and what happens to the change with the activity's result.

One activity at a time writes the state of a session, first come, first served: it has a `SessionWriter`, and waits in
the `WriteQueue` for earlier writers. Activities of other sessions do not wait. The life of a writer::

    waiting ──► granted ──► enlisted ──► prepared ──► settled
        └───────────┴─ cancelled, or the load failed ────▲

*granted*: until it is settled, no other activity sees the state. *enlisted*: by the first block that opens the state.
At the end of a block without an error its change is *staged*: encoded, in memory only. *prepared*: the activity's code
has returned; the write goes with its result, or, to an external store, before it. *settled*: the outcome is known. If
the write was applied, the cached state stays, with the new version of the record. If not, or if that is not known, the
cached state is dropped, and the next writer hydrates. Either way the next writer is granted without an await between.

An activity may open the state again, within a block or after it, and sees its own change. An error in a block drops the
cached state and reverts to the state that was staged before the block, or by its `save`.

A *checkpoint* writes the state of a block to the store before the result. The writer, and a retry, then continue from
the record that it made, and no error reverts it. When the lease ends meanwhile, the cached state is dropped in the end;
the fences of the store decide on the write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import anyio

from affinity import errors
from affinity.errors import problem_of
from affinity.records import Participant, SessionState, SessionStore, StateWrite
from affinity.session.state import CachedState, EncodedState, RecordVersion, StateSchema, if_small, state_of
from affinity.session.state_cache import Address, SessionContext, SessionKey, StateCache, address_of

S = TypeVar("S")

CommitState: TypeAlias = Callable[[StateWrite | None], Awaitable[None]]
"""Writes a state together with other data; None: the other data only."""


class ActivityScope(SessionContext, Protocol):
    """The further parts of an activity's context that `Sessions` needs."""

    @property
    def instance_id(self) -> str:
        """Id of the instance that scheduled the activity."""
        ...

    @property
    def execution_id(self) -> int:
        """Execution of that instance."""
        ...

    @property
    def activity_id(self) -> int:
        """With instance and execution it identifies this activity, in all its attempts."""
        ...

    @property
    def session_store(self) -> SessionStore | None:
        """The worker's database: state that is staged for it commits with the activity's result."""
        ...

    @property
    def session_listeners(self) -> Collection[object] | None:
        """The objects that the worker notifies of leases that end; None: not known."""
        ...

    @property
    def error(self) -> BaseException | None:
        """The exception of its code."""
        ...

    def _enlist(self, participant: Participant, /) -> None:
        """Commit it together with the activity's result."""
        ...


class RunningActivity(ActivityScope, Protocol):
    """The context of an activity whose code is running."""

    @property
    def name(self) -> str:
        """Name of the activity."""
        ...

    @property
    def ended(self) -> bool:
        """Its run is over; code that it started may still be running."""
        ...


_activity: Final[ContextVar[RunningActivity | None]] = ContextVar("affinity.activity", default=None)

enter_activity: Final[Callable[[RunningActivity], object]] = _activity.set
"""Set the activity of the current task, until the task ends; for a worker, which starts a task for each."""


def current_activity() -> RunningActivity | None:
    """The activity of the calling code; None when there is none, or its run is over."""
    ctx = _activity.get()
    return None if ctx is None or ctx.ended else ctx


class SavePoint(NamedTuple):
    """The staged state of a writer at some moment: a block that fails later reverts to it."""

    staged: EncodedState | None = None
    base: RecordVersion | None = None  # the record that it is to be written over


class SessionWriter(Generic[S]):
    """One activity's access to the state of its session. A `UnitOfWork`, and a `affinity.session.Participant`."""

    def __init__(
        self, queue: WriteQueue[S], ctx: ActivityScope, store: SessionStore | None, is_new: bool = False
    ) -> None:
        self._queue, self._schema, self._cache = queue, queue.schema, queue.cache
        self._ctx = ctx
        self.user: int = id(ctx)
        self.address: Address = address_of(ctx)
        self.store = store
        self._is_new = is_new  # the store has no record, unless this writer has made a checkpoint
        self.is_granted: bool = False
        self._granted: anyio.Event | None = None  # made when a block has to wait: an event costs several microseconds
        self._pending_blocks = 0  # that are open, or wait, or load
        self._open_blocks = 0
        self._is_enlisted = False
        self._has_ended = False  # the activity's code
        self.already_applied: bool = False
        self._cached: CachedState[S] | None = None  # pinned until settled; None before, and when it was dropped
        self._staged: EncodedState | None = None
        self._base: RecordVersion | None = None  # the record that the next write replaces
        self._has_unstaged = False  # the cached state has changes that are not staged
        self._sent_with_result = False
        self._version = 0  # of the record, once the write is applied

    @property
    def session_id(self) -> str:
        """Whose state it is."""
        return self.address.session_id

    @property
    def ctx(self) -> ActivityScope:
        """Context of the activity."""
        return self._ctx

    @property
    def key(self) -> str:
        """Identifies the activity in all its attempts, and never one of a later instance of the same id."""
        key = f"{self._ctx.instance_id}/{self._ctx.execution_id}/{self._ctx.activity_id}"
        generation = getattr(self._ctx, "instance_generation", None)
        return key if generation is None else f"{key}/{generation}"

    @property
    def is_external(self) -> bool:
        """The store is not the worker's database, so the write cannot commit with the result."""
        return self.store is not None and self.store is not self._ctx.session_store

    def grant(self) -> None:
        """Let the writer's blocks open."""
        self.is_granted = True
        if self._granted is not None:
            self._granted.set()

    # -- blocks: UnitOfWork

    async def open(self, overrides: Mapping[str, Any]) -> CachedState[S]:
        """Wait for the writers before this one, and pin the session's cached state for one block.

        Raises:
            SessionLoadFailed, InvalidOptions: as `StateSchema.load`.
            SessionStateTampered: code has changed the state since it was saved; the next opening reads it again.
            SessionWriteConflict: this process has the session at a newer epoch.
            SessionError: the activity has ended, or a failed block of it still has the state.
        """
        self._pending_blocks += 1
        try:
            if not self.is_granted:
                self._granted = self._granted or anyio.Event()
                await self._granted.wait()
            return await self._pin(overrides)
        except BaseException:
            self._pending_blocks -= 1
            if not self._pending_blocks and not self._is_enlisted:
                self._queue.remove(self)
            raise

    async def _pin(self, overrides: Mapping[str, Any]) -> CachedState[S]:
        hydrate = partial(self._hydrate, overrides)
        try:
            cached = await self._cache.pin(self.address, self._ctx, hydrate, lambda found: found.store is self.store)
        except errors.UnknownSession as error:
            self._cache.count("conflicts")
            raise errors.SessionWriteConflict(self.session_id, None, None, str(error)) from error
        self._open_blocks += 1
        try:
            if self._cached is None and not (self._has_ended or cached.is_fresh or cached.is_broken):
                await self._check_untouched(cached)
            self._attach(cached)
            if self._open_blocks == 1 and self._schema.fresh_scratch and not cached.is_fresh:
                await self._schema.reset_scratch(cached)
            cached.is_fresh = False
        except BaseException:
            self._open_blocks -= 1
            await self._cache.unpin(cached, self.user)
            raise
        return cached

    async def _check_untouched(self, cached: CachedState[S]) -> None:
        """Refuse a state that code has changed since it was saved. It is encoded for that: so not each time."""
        cached.openings += 1
        if cached.is_sample and not await self._schema.is_as_saved(cached):
            self._cache.retire(cached, keep=True)
            raise errors.SessionStateTampered(self.session_id)

    async def _hydrate(self, overrides: Mapping[str, Any], cached: CachedState[S]) -> None:
        """From the staged state, if a later block has failed; else from the store."""
        await cached.resources.release_failed()  # what an activity that is left behind has put in doubt
        cached.home = getattr(self._ctx, "home", None)
        self._cache.has_homes |= cached.home is not None
        if self._staged is not None and self._base is not None:
            await self._schema.restore(cached, self.store, self._staged.new, self._base)
        else:
            await self._schema.load(cached, self.store, overrides, is_new=self._is_new)
        self._measure(cached)

    def _attach(self, cached: CachedState[S]) -> None:
        """Make it the state that this writer changes, pinned until the activity is settled."""
        if self._has_ended:
            raise errors.SessionError(f"the activity that opens session {self.session_id!r} has ended")
        if cached.is_broken:
            raise errors.SessionError(
                f"{cached} was left half changed by another block of this activity: leave that one first"
            )
        if self._cached is cached:
            return
        if not self._is_enlisted:
            self._ctx._enlist(self)
            self._is_enlisted = True
        self._cache.pin_again(cached, self.user)
        self._cached, self._base = cached, cached.record
        self.already_applied |= self.is_external and cached.record.idempotency_key == self.key

    async def save(self, cached: CachedState[S]) -> None:
        """Stage the state as it is now for the activity's result.

        Raises:
            SessionError: the activity has ended, or the state is half changed.
            InvalidInput: the state cannot be encoded.
        """
        async with cached.saving:  # a large state is packed in a thread: an older one must not be staged after a newer
            if self._can_write(cached):
                self._staged, self._has_unstaged = await self._schema.encode(cached), False
        self._measure(cached)

    async def checkpoint(
        self, cached: CachedState[S], commit: CommitState | None, on_dump: Callable[[], None] | None = None
    ) -> None:
        """Write the state as it is now to the store, and continue from the record that this makes. ``commit`` and
        ``on_dump``: see `OpenSession.checkpoint`.

        Raises:
            SessionWriteConflict: the session or its record has been written since, or has a newer epoch.
            SessionSaveFailed: the store failed.
            SessionError, InvalidInput: as `save`.
        """
        async with cached.saving:
            can_write, staged = self._can_write(cached), self._staged
            dumped = self._schema.dump(cached) if can_write else None
            if on_dump is not None:
                on_dump()
            encoded = None if dumped is None else await self._schema.encode_dumped(cached, dumped)
            if commit is not None and (encoded is None or self.is_external):
                await commit(None)
            if encoded is not None:
                self._is_new = False
                key: str | None = None
                if commit is not None and not self.is_external:
                    version = await self._commit(encoded.new, commit)
                else:
                    version = await self._write(encoded.new, key := uuid4().hex)  # of this checkpoint alone
                if self._cached is not cached:  # another block has failed meanwhile; its save point is refused now
                    return
                cached.set_written(encoded, version, key)
                self._base = cached.record
            if can_write and self._staged is staged:  # no other block has staged more meanwhile
                self._staged, self._has_unstaged = None, False
        self._measure(cached)

    async def recorded(self, cached: CachedState[S]) -> SessionState:
        """The state that the record has, or that a session without a record begins with.

        Raises:
            SessionWriteConflict: the record has been written since, or removed.
            Exception: the store failed.
        """
        if not cached.record.version:
            return (await self._schema.new_state(self.session_id)).new
        if cached.record.state is not None:
            return cached.record.state
        assert self.store is not None
        record = await self.store.load(self.session_id)
        if record is None or (record.version, record.generation) != (cached.record.version, cached.record.generation):
            text = "its record was written, or removed, since it was read"
            found = None if record is None else record.version
            raise errors.SessionWriteConflict(self.session_id, cached.record.version, found, text)
        return state_of(record)

    async def write_labels(self, cached: CachedState[S], commit: CommitState) -> None:
        """Write the labels that name resources, with the state that the record has. ``commit``: see
        `OpenSession.checkpoint`.

        Raises:
            SessionWriteConflict, SessionSaveFailed, SessionError: as `checkpoint`.
        """
        async with cached.saving:
            if not self._can_write(cached):
                return await commit(None)
            before = await self.recorded(cached)
            new = replace(before, metadata=replace(before.metadata, labels=cached.metadata.labels))
            if self.is_external:
                await commit(None)
                version = await self._write(new, key := uuid4().hex)
            else:
                version, key = await self._commit(new, commit), None
            self._is_new = False
            cached.record = replace(
                cached.record, version=version, idempotency_key=key, metadata=new.metadata, state=if_small(new)
            )
            self._base = cached.record

    async def close(
        self, cached: CachedState[S], *, save: bool, error: BaseException | None, revert_to: SavePoint
    ) -> None:
        """End a block: stage its change, or, after an error, drop the cached state and revert to the save point.

        Raises:
            SessionError, InvalidInput: as `save`.
        """
        try:
            if error is None:
                await (self.save(cached) if save else self._note_unsaved(cached))
        except BaseException as refused:
            error = refused
            raise
        finally:
            if error is not None:
                self._revert(cached, revert_to, error)
            self._pending_blocks -= 1
            self._open_blocks -= 1
            await self._cache.unpin(cached, self.user)

    def note_load(self, cached: CachedState[S], resource: str, seconds: float) -> None:
        """Note how long the session has waited for a resource that it did not use before."""
        self._cache.note_load(cached, resource, seconds)

    def save_point(self) -> SavePoint:
        """The state to which a block reverts when it fails, as of now."""
        return SavePoint(self._staged, self._base)

    async def _note_unsaved(self, cached: CachedState[S]) -> None:
        """A block ends without saving: the cached state can stay only if there was nothing to save."""
        if self._can_write(cached):
            try:
                self._has_unstaged = await self._schema.encode(cached) != self._staged
            except errors.InvalidInput:
                self._has_unstaged = True
        self._measure(cached)

    def _revert(self, cached: CachedState[S], to: SavePoint, error: BaseException) -> None:
        """Drop the cached state. The staged state is reset to the save point, unless a checkpoint has been written."""
        cached.is_broken = True
        self._drop(cached, error)
        self._staged = to.staged if to.base == self._base else None
        if self._cached is cached:
            self._cached, self._has_unstaged = None, False
            self._cache.release(cached, self.user)

    def _drop(self, cached: CachedState[S], error: BaseException | None) -> None:
        """Drop only the state: the session's resources stay, as far as the error allows."""
        cached.resources.fail(error)
        self._cache.retire(cached, keep=True)

    def _can_write(self, cached: CachedState[S]) -> bool:
        if self._has_ended:
            raise errors.SessionError(f"the activity that opened session {self.session_id!r} has ended")
        if cached.is_broken:
            raise errors.SessionError(
                f"{cached} was left half changed by another block of this activity: nothing is saved"
            )
        return self.store is not None and not self.already_applied

    def _measure(self, cached: CachedState[S]) -> None:
        self._cache.set_size(cached, self._schema.size(cached))

    # -- the activity's result: Participant

    async def prepare(self) -> StateWrite | None:
        """The write that goes with the activity's result; to an external store it is written here.

        Raises:
            SessionError: a block is still open.
            SessionWriteConflict: the external store has been written since, or under a newer epoch.
            SessionSaveFailed: the external store failed.
        """
        if self._pending_blocks:
            raise errors.SessionError(
                f"the activity has returned while the state of session {self.session_id!r} was open"
            )
        self._has_ended = True
        if self._staged is None or self._base is None or self.already_applied:
            return None
        if self.is_external:
            self._version = await self._write(self._staged.new, self.key)
            return None
        self._version, self._sent_with_result = self._base.version + 1, True
        return StateWrite(new=self._staged.new, base_version=self._base.version, epoch=self.address.epoch)

    async def _commit(self, new: SessionState, commit: CommitState) -> int:
        assert self._base is not None
        version = self._base.version
        try:
            await commit(StateWrite(new=new, base_version=version, epoch=self.address.epoch))
        except errors.SessionWriteConflict:
            self._cache.count("conflicts")
            raise
        return version + 1

    async def _write(self, new: SessionState, key: str) -> int:
        assert self.store is not None
        assert self._base is not None
        version, epoch = self._base.version, self.address.epoch
        # In the worker's database the epoch fences a new record.
        generation = self._base.generation if self.is_external else None
        try:
            return await self.store.save(
                new, expected_version=version, generation=generation, epoch=epoch, idempotency_key=key
            )
        except errors.SessionWriteConflict:
            self._cache.count("conflicts")
            raise
        except Exception as error:
            unsaved = await self._unsaved_state(new, self._base)
            raise errors.SessionSaveFailed(
                self.session_id, unsaved, f"the store failed: {problem_of(error)}"
            ) from error

    async def _unsaved_state(self, new: SessionState, base: RecordVersion) -> S:
        """The state that was to be written: the cached one, unless another block has failed and dropped it."""
        cached = self._cached
        if cached is None:
            cached = CachedState(*self.address)
            await self._schema.restore(cached, self.store, new, base)
        return cached.state

    def settled(self, applied: bool) -> None:
        """Keep the cached state if the write was applied, else drop it; grant the next writer before returning."""
        self._has_ended = True
        if self._sent_with_result and not applied:
            self._cache.count("conflicts")
        cached, self._cached = self._cached, None
        if cached is not None:
            if applied and not (self.already_applied or self._has_unstaged):
                if self._staged is not None:
                    cached.set_written(self._staged, self._version, self.key if self.is_external else None)
            else:
                self._drop(cached, self._ctx.error)
            self._cache.release(cached, self.user)
        self._queue.remove(self)


class WriteQueue(Generic[S]):
    """The writers of all sessions of one kind, in the order in which they may write."""

    def __init__(self, schema: StateSchema[S], cache: StateCache[CachedState[S]]) -> None:
        self.schema: StateSchema[S] = schema
        self.cache: StateCache[CachedState[S]] = cache
        self._by_ctx: dict[int, SessionWriter[S]] = {}
        self._by_session: dict[SessionKey, deque[SessionWriter[S]]] = {}  # the first of each queue is granted

    def join(self, ctx: ActivityScope, store: SessionStore | None, *, is_new: bool = False) -> SessionWriter[S]:
        """The activity's writer; if it has none, a new one at the end of its session's queue. ``is_new``: see
        `StateSchema.load`.

        Raises:
            InvalidOptions: the activity has opened the session with another store.
        """
        writer = self._by_ctx.get(id(ctx))
        if writer is None:
            return self._add(SessionWriter(self, ctx, store, is_new))
        if writer.store is not store:
            raise errors.InvalidOptions(f"session {writer.session_id!r} is open with another store in this activity")
        return writer

    def _add(self, writer: SessionWriter[S]) -> SessionWriter[S]:
        self._by_ctx[writer.user] = writer
        queue = self._by_session.setdefault(writer.address.key, deque())
        queue.append(writer)
        if queue[0] is writer:
            writer.grant()
        return writer

    def remove(self, writer: SessionWriter[S]) -> None:
        """Remove a writer, granted or not, and grant the next one."""
        queue = self._by_session[writer.address.key]
        queue.remove(writer)
        del self._by_ctx[writer.user]
        if queue:
            queue[0].grant()
        else:
            del self._by_session[writer.address.key]

    async def would_conflict(self, session_id: str, store: SessionStore, generation: str | None) -> bool:
        """Whether a standalone write over this generation would conflict with the running activity's own."""
        ctx = current_activity()
        if ctx is None or ctx.session_id != session_id:
            return False
        writer = self._by_ctx.get(id(ctx))
        if store is ctx.session_store or (writer is not None and store is writer.store):
            return True
        # Another object may be of the worker's database too, such as one from `open_store`: no other database has a
        # record of this generation.
        record = None if ctx.session_store is None else await ctx.session_store.load(session_id)
        return record is not None and record.generation == generation
