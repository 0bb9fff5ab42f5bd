"""Opening a session's state: the context managers that `Sessions.open` and `Sessions.open_sync` return.

A block opens the state through a `UnitOfWork`. In an activity that is its `affinity.session.writer.SessionWriter`: the
change goes with the activity's result. In a script it is a `StandaloneUnitOfWork`: the change is written at the end of
the block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar

import anyio
import anyio.from_thread
from tenacity import retry_if_exception_type, stop_after_attempt, wait_random_exponential

from affinity.async_block import AsyncBlock
from affinity.errors import (
    SessionError,
    SessionSaveFailed,
    SessionSelfConflict,
    SessionWriteConflict,
    problem_of,
)
from affinity.limits import MAX_LABELS, check_integer
from affinity.records import SessionStore, database_of
from affinity.session.durable import close_for_good, use_durable, use_local
from affinity.session.resources import OPEN, Resource, open_mark, shielded
from affinity.session.snapshots import Snapshots
from affinity.session.state import CachedState, StateSchema
from affinity.session.writer import CommitState, SavePoint, SessionWriter, WriteQueue

S = TypeVar("S")
T = TypeVar("T")


class UnitOfWork(Protocol[S]):
    """Loads the state of a session for a block, and writes or stages its changes."""

    already_applied: bool  # see `OpenSession.already_applied`

    @property
    def ctx(self) -> object:
        """The activity's context; None in a script."""
        ...

    async def open(self, overrides: Mapping[str, Any]) -> CachedState[S]:
        """The state for one block; a new one may need the ``overrides``."""
        ...

    async def save(self, cached: CachedState[S]) -> None:
        """Write or stage the state as it is now."""
        ...

    async def checkpoint(
        self, cached: CachedState[S], commit: CommitState | None, on_dump: Callable[[], None] | None = None
    ) -> None:
        """Write the state as it is now to the store, before the activity's result."""
        ...

    async def close(
        self, cached: CachedState[S], *, save: bool, error: BaseException | None, revert_to: SavePoint
    ) -> None:
        """End a block, with what it raised; called once after each `open` that returned."""
        ...

    def save_point(self) -> SavePoint:
        """The state to which a block that fails from here on reverts."""
        ...

    def note_load(self, cached: CachedState[S], resource: str, seconds: float) -> None:
        """Note how long the session has waited for a resource that it did not use before."""
        ...


RunOnLoop: TypeAlias = Callable[..., Any]
"""Calls an async function with arguments on the event loop of a store, from another thread; returns its result."""


class StoreOnLoop(Protocol):
    """A store for sync code, on an event loop in another thread: `affinity.sync.SessionStore`."""

    def on_loop(self) -> tuple[SessionStore, RunOnLoop]:
        """The async store, and what runs a function on its event loop."""
        ...


def run_shielded(function: Callable[..., Any], *args: Any) -> Any:
    """A `RunOnLoop` for a thread that anyio has started. Threads are not cancelled, so neither are its waits.

    Raises:
        SessionError: this is the thread of an event loop, which the call would stop.
        RuntimeError: this is no thread of anyio's.
    """
    if _is_on_a_loop():
        raise SessionError(
            "open_sync is for sync activities, which run in threads of their own, and for stores of `affinity.sync`: "
            "use `async with` and open"
        )
    return anyio.from_thread.run(partial(shielded, function), *args)


def repeat_conflicts(attempts: int) -> dict[str, Any]:
    """The options of tenacity for code that opens a session's state, changes it and saves it.

    Raises:
        InvalidOptions: ``attempts`` is no integer from 1.
    """
    return {
        "retry": retry_if_exception_type(SessionWriteConflict),
        "stop": stop_after_attempt(check_integer(attempts, "attempts", 1)),
        "wait": wait_random_exponential(multiplier=0.01, max=1.0),
        "reraise": True,
    }


class StandaloneUnitOfWork(Generic[S]):
    """The `UnitOfWork` of a script or web handler: loads the state, writes it at the end, and keeps it in no cache.

    Without a session id, or without a store, the state is a new one that is written nowhere.
    """

    already_applied = False
    ctx = None

    def __init__(
        self, schema: StateSchema[S], queue: WriteQueue[S], session_id: str | None, store: SessionStore | None
    ) -> None:
        self._schema, self._queue, self._session_id = schema, queue, session_id or ""
        self._store = store if session_id is not None else None

    async def open(self, overrides: Mapping[str, Any]) -> CachedState[S]:
        cached = CachedState[S](self._session_id, 0, database_of(self._store))
        await self._schema.load(cached, self._store, overrides)
        return cached

    async def save(self, cached: CachedState[S]) -> None:
        encoded = None if self._store is None else await self._schema.encode(cached)
        if self._store is None or encoded is None:
            return
        base = cached.record
        if await self._queue.would_conflict(self._session_id, self._store, base.generation):
            raise SessionSelfConflict(self._session_id)
        try:
            version = await self._store.save(encoded.new, expected_version=base.version, generation=base.generation)
        except SessionWriteConflict:
            raise
        except Exception as error:
            text = f"the store failed: {problem_of(error)}"
            raise SessionSaveFailed(self._session_id, cached.state, text) from error
        cached.set_written(encoded, version, None)

    async def checkpoint(
        self, cached: CachedState[S], commit: CommitState | None, on_dump: Callable[[], None] | None = None
    ) -> None:
        if on_dump is not None:
            on_dump()
        await self.save(cached)
        if commit is not None:
            await commit(None)

    async def close(
        self, cached: CachedState[S], *, save: bool, error: BaseException | None, revert_to: SavePoint
    ) -> None:
        try:
            if save and error is None:
                await self.save(cached)
        finally:
            with anyio.CancelScope(shield=True):  # each step of it is bounded in time
                await self._schema.close(cached)

    def save_point(self) -> SavePoint:
        return SavePoint()

    def note_load(self, cached: CachedState[S], resource: str, seconds: float) -> None:
        """Nothing: a script holds no session, so no move has caused the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """The arguments of `Sessions.open`, checked."""

    session_id: str | None
    parent: str | None
    labels: Mapping[str, str] | None
    overrides: Mapping[str, Any]
    save: bool  # at the end of a block without an error


class _Opening(Generic[S]):
    """The common part of the handles for async and for sync code."""

    _block = "async with"

    def __init__(
        self,
        schema: StateSchema[S],
        begin_work: Callable[[], UnitOfWork[S]],
        scope: AbstractContextManager[None],
        options: OpenOptions,
    ) -> None:
        """``scope`` names the session in logs and traces, from before the load to after the save."""
        self._schema, self._begin_work, self._scope, self._options = schema, begin_work, scope, options
        self._work: UnitOfWork[S] | None = None  # set while the state is loaded, and from then on
        self._cached: CachedState[S] | None = None  # set once it is loaded
        self._is_used = self._is_open = self._was_new = False
        self._version = 0
        self._save_point = SavePoint()

    if not TYPE_CHECKING:  # a type checker knows the attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}: the state is what its block gives, as in "
                f"`{self._block} chats.open{'_sync' if self._block == 'with' else ''}(ctx) as chat`"
            )

    @property
    def session_id(self) -> str | None:
        """Whose state it is; None for work that is bound to no session."""
        return self._options.session_id

    @property
    def state(self) -> S:
        """The state; may be set, to replace it as a whole, while the block is open.

        Raises:
            SessionError: before the block.
        """
        return self._loaded().state

    @state.setter
    def state(self, state: S) -> None:
        self._opened()[1].state = state

    @property
    def version(self) -> int:
        """Version of the record that the state was made from, or last saved to by a script or a checkpoint; 0: no
        record.

        Raises:
            SessionError: before the block.
        """
        self._loaded()
        return self._version

    @property
    def is_new(self) -> bool:
        """The session had no record when it was opened.

        Raises:
            SessionError: before the block.
        """
        self._loaded()
        return self._was_new

    @property
    def already_applied(self) -> bool:
        """An earlier attempt of this very activity has written its change to the external store, and its result was
        lost: the state has the change, and nothing is written at the end.

        Only the last write of a record is known. It stays False when another activity of the session has written since,
        or when the attempt had other effects only.
        """
        return self._work is not None and self._work.already_applied

    def _begin(self) -> None:
        if self._is_used:
            raise SessionError(f"this opening of session {self.session_id!r} was used before: open it again")
        self._is_used = True
        self._scope.__enter__()

    def _end(self) -> None:
        self._scope.__exit__(None, None, None)

    async def _enter(self) -> S:
        options = self._options
        self._work = work = self._begin_work()
        self._cached = cached = await work.open(options.overrides)
        self._is_open, self._was_new = True, cached.record.version == 0
        self._note_saved(work, cached)
        try:
            if not work.already_applied:
                cached.describe(options.parent, options.labels)
                cached.state = self._schema.overrides.apply(cached.state, options.overrides)
        except BaseException as error:
            await self._leave(error)
            raise
        return cached.state

    async def _leave(self, error: BaseException | None) -> None:
        work, cached = self._opened()
        self._is_open = False
        await work.close(cached, save=self._options.save, error=error, revert_to=self._save_point)
        self._version = cached.record.version

    async def _save(self) -> None:
        work, cached = self._opened()
        await work.save(cached)
        self._note_saved(work, cached)

    async def _checkpoint(self, commit: CommitState | None = None, on_dump: Callable[[], None] | None = None) -> None:
        work, cached = self._opened()
        await work.checkpoint(cached, commit, on_dump)
        self._note_saved(work, cached)

    def _note_saved(self, work: UnitOfWork[S], cached: CachedState[S]) -> None:
        self._version, self._save_point = cached.record.version, work.save_point()

    async def _resource(self, resource: Resource[T]) -> T:
        work, cached = self._opened()
        is_load, began = cached.resources.key_of(resource) is None, time.perf_counter()
        value = await (use_durable(resource, cached, work.ctx) if resource.is_durable else use_local(resource, cached))
        if is_load:
            work.note_load(cached, resource.label, time.perf_counter() - began)
        return value

    def _mark_open(self) -> None:
        """Note in the labels of the record that the session has a resource of this process open, under this lease."""
        _, cached = self._opened()
        mark = open_mark(*(cached.home or (cached.session_id, cached.epoch)))
        labels = {**cached.metadata.labels, OPEN: mark}
        if len(labels) <= MAX_LABELS and labels != dict(cached.metadata.labels):
            cached.metadata = replace(cached.metadata, labels=labels)

    async def _close_resource(self, resource: Resource[Any]) -> None:
        await close_for_good(resource, self._opened()[1])

    def _snapshots(self) -> Snapshots[S]:
        """See `snapshots_of`."""
        work, cached = self._opened()
        if not isinstance(work, SessionWriter):
            raise SessionError("only an activity has snapshots of its state")
        return Snapshots(self._schema, work, cached, self._note_saved)

    def _loaded(self) -> CachedState[S]:
        if self._cached is None:
            raise SessionError(f"the state of session {self.session_id!r} is not open yet")
        return self._cached

    def _opened(self) -> tuple[UnitOfWork[S], CachedState[S]]:
        cached = self._loaded()
        if not self._is_open or self._work is None:
            raise SessionError(f"the state of session {self.session_id!r} is not open any more")
        return self._work, cached


def snapshots_of(opening: _Opening[S]) -> Snapshots[S]:
    """For code that is repeated, and puts the state in place that it had before.

    Raises:
        SessionError: outside the block, or in a script.
    """
    return opening._snapshots()


class OpenSession(AsyncBlock, _Opening[S]):
    """An opened session state, for one ``async with``. `Sessions.open` says when it loads and saves."""

    _instead = "in a sync activity, use open_sync"

    async def __aenter__(self) -> S:
        """The state, once no other activity of the session writes it."""
        self._begin()
        try:
            return await self._enter()
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._leave(error)
        finally:
            self._end()

    async def save(self) -> None:
        """Save the block's changes so far; an error later in the block does not revert them.

        In a script it is written now. In an activity it is staged: it is committed with the activity's result, and not
        at all when the activity fails.

        Raises:
            SessionError: outside the block.
            Exception: as at the end of the block; see `Sessions.open`.
        """
        await self._save()

    async def checkpoint(self, *, commit: CommitState | None = None, on_dump: Callable[[], None] | None = None) -> None:
        """Write the block's changes so far to the store now: progress that a retry of the activity keeps.

        In an activity the state is written immediately, fenced by the version of the record and the epoch of the lease,
        and not with the result. It stays when the activity fails, is cancelled, or its worker dies, and the next
        attempt opens the state as it is here. So the state itself has to say how far the activity has come. Later
        changes of the block go with the result as always. In a script it is `save`. Unchanged state is not written.

        Args:
            commit: writes the state in place of the store, together with something else (as
                ``ActivityContext._commit_now``). It is called once; with None when the state is unchanged, or was
                written to a store of its own.
            on_dump: called when the state has been read, before anything is awaited: what ``commit`` adds as of then
                belongs to this state.

        Raises:
            SessionError: outside the block, or in an activity that has ended.
            SessionWriteConflict: another worker holds the session now, or its record was written by other code. Do not
                catch it: the activity runs again, on the state in the store.
            SessionSaveFailed: the store failed, and may have written or not; the error carries the state.
            NotSerializable, PayloadTooLarge, InvalidInput: as at the end of the block; see `Sessions.open`.
        """
        await self._checkpoint(commit, on_dump)

    async def resource(self, resource: Resource[T]) -> T:
        """The process-local resource of this session, opened if need be; held as long as the session is in memory. An
        error drops the state and keeps the resource, unless the error, or its ``on_error``, disposes of it.

        Raises:
            SessionError: outside the block, or there is no session.
            ResourceClosed: `close_resource` has closed it.
            Exception: what its ``open`` raised.
        """
        return await self._resource(resource)

    async def close_resource(self, resource: Resource[Any]) -> None:
        """End the session's use of a resource that has a name: from now on `resource` raises `ResourceClosed`, in each
        process, also of copies of the session that are made afterwards. It is closed unless another session uses it.
        A second time changes nothing.

        Raises:
            SessionError: outside the block.
            InvalidOptions: the resource has no name, or the session has as many labels as it may have.
        """
        await self._close_resource(resource)


class SyncOpenSession(_Opening[S]):
    """`OpenSession` for sync code, for one ``with``: in the thread that anyio started for a sync activity; or in any
    thread, with a store of `affinity.sync`. All callbacks run on the event loop.
    """

    _block = "with"

    def __init__(
        self,
        schema: StateSchema[S],
        begin_work: Callable[[], UnitOfWork[S]],
        scope: AbstractContextManager[None],
        options: OpenOptions,
        run: RunOnLoop,
    ) -> None:
        super().__init__(schema, begin_work, scope, options)
        self._run = run

    def __enter__(self) -> S:
        """See `OpenSession`.

        Raises:
            SessionError, RuntimeError: as for `run_shielded`, unless the store is of `affinity.sync`.
        """
        self._begin()
        try:
            state: S = self._run(self._enter)
        except BaseException:
            self._end()
            raise
        return state

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._run(_leave_shielded, self, error)
        finally:
            self._end()

    def save(self) -> None:
        """See `OpenSession.save`."""
        self._run(self._save)

    def checkpoint(self) -> None:
        """See `OpenSession.checkpoint`."""
        self._run(self._checkpoint)

    def resource(self, resource: Resource[T]) -> T:
        """See `OpenSession.resource`."""
        value: T = self._run(self._resource, resource)
        return value

    def close_resource(self, resource: Resource[Any]) -> None:
        """See `OpenSession.close_resource`."""
        self._run(self._close_resource, resource)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _leave_shielded(opening: SyncOpenSession[S], error: BaseException | None) -> None:
    with anyio.CancelScope(shield=True):
        await opening._leave(error)
