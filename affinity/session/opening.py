"""One opening of a session's state: the handle that `Sessions.open` gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
import anyio.from_thread

from affinity.errors import SessionError
from affinity.session.callbacks import shielded
from affinity.session.resources import Resource
from affinity.session.state import CachedState, StateSchema
from affinity.session.writer import UnitOfWork

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What the caller says at an opening."""

    parent: str | None
    labels: Mapping[str, str] | None
    values: Mapping[str, Any]  # fields of the state
    save: bool  # at a clean end


class _Handle(Generic[S]):
    """What both kinds of handle show."""

    def __init__(self, schema: StateSchema[S], way: UnitOfWork[S], given: OpenOptions) -> None:
        self._schema, self._way, self._given = schema, way, given
        self._loaded: CachedState[S] | None = None
        self._used = self._is_open = self._was_new = False
        self._version = 0
        self._scope = way.scope()

    @property
    def session_id(self) -> str | None:
        """Whose state it is; None for work that is bound to no session."""
        return self._way.session_id

    @property
    def state(self) -> S:
        """The state; may be set, to replace it as a whole, while the block is open.

        Raises:
            SessionError: before the block.
        """
        return self._seen().state

    @state.setter
    def state(self, state: S) -> None:
        self._opened().state = state

    @property
    def version(self) -> int:
        """Of the record that the state was made from, or last saved to by a script or a checkpoint; 0 when there is
        none.

        Raises:
            SessionError: before the block.
        """
        self._seen()
        return self._version

    @property
    def is_new(self) -> bool:
        """The session had no record when it was opened.

        Raises:
            SessionError: before the block.
        """
        self._seen()
        return self._was_new

    @property
    def already_applied(self) -> bool:
        """An earlier attempt of this very activity has written its change to the store elsewhere, and its result was
        lost: the state has the change, and nothing is written at the end.

        Only the last write of a record is known. When another activity of the session has written since, or the change
        had effects besides the state, nobody notices here.
        """
        return self._way.already_applied

    def _begin(self) -> None:
        """Name the session in logs and traces, up to `_end`."""
        if self._used:
            raise SessionError(f"this opening of session {self.session_id!r} was used before: open it again")
        self._used = True
        self._scope.__enter__()

    def _end(self) -> None:
        self._scope.__exit__(None, None, None)

    async def _enter(self) -> S:
        self._loaded = loaded = await self._way.enter(self._given.values)
        self._is_open, self._version, self._was_new = True, loaded.stored.version, loaded.stored.version == 0
        try:
            if not self.already_applied:
                loaded.describe(self._given.parent, self._given.labels)
                loaded.state = self._schema.overrides.apply(loaded.state, self._given.values)
        except BaseException:
            await self._leave(failed=True)
            raise
        return loaded.state

    async def _leave(self, *, failed: bool) -> None:
        self._is_open = False
        self._version = await self._way.leave(failed=failed, save=self._given.save)

    async def _save(self) -> None:
        self._opened()
        self._version = await self._way.save()

    async def _checkpoint(self) -> None:
        self._opened()
        self._version = await self._way.checkpoint()

    async def _resource(self, resource: Resource[T]) -> T:
        return await self._opened().resource(resource)

    def _seen(self) -> CachedState[S]:
        if self._loaded is None:
            raise SessionError(f"the state of session {self.session_id!r} is not open yet")
        return self._loaded

    def _opened(self) -> CachedState[S]:
        loaded = self._seen()
        if not self._is_open:
            raise SessionError(f"the state of session {self.session_id!r} is not open any more")
        return loaded


class OpenSession(_Handle[S]):
    """One opening of a state, for one ``async with``; made by `Sessions.open`, which says what happens when."""

    async def __aenter__(self) -> S:
        """The state, when it is this opening's turn."""
        self._begin()
        try:
            return await self._enter()
        except BaseException:
            self._end()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._leave(failed=kind is not None)
        finally:
            self._end()

    async def save(self) -> None:
        """Save what the block has changed so far; an error later in the block does not take it back.

        In a script it is written now. In an activity it is staged: it is committed with the activity's result, and not
        at all when the activity fails.

        Raises:
            SessionError: outside the block.
            Exception: as at the end of the block; see `Sessions.open`.
        """
        await self._save()

    async def checkpoint(self) -> None:
        """Save what the block has changed so far, now: for progress that a retry of the activity must not repeat.

        In an activity it is written to the store immediately, fenced by the version of the record and the epoch of the
        lease, and not with the result. It stays when the activity fails, is cancelled, or its worker dies, and the next
        attempt opens the state as it is here. So the state itself has to say how far the activity has come. What the
        block changes later goes with the result as ever. In a script it is `save`. Unchanged state is not written.

        Raises:
            SessionError: outside the block, or in an activity that has ended.
            SessionWriteConflict: another worker holds the session now, or somebody else has written its record. Let it
                pass: the activity runs again, on the state in the store.
            SessionSaveFailed: the store failed, and may have written or not; the error carries the state.
            NotSerializable, PayloadTooLarge, InvalidInput: as at the end of the block; see `Sessions.open`.
        """
        await self._checkpoint()

    async def resource(self, resource: Resource[T]) -> T:
        """The process-local resource of this session, opened if need be; it stays until the copy of the state goes.

        Raises:
            SessionError: outside the block, or there is no session.
            Exception: what its ``open`` raised.
        """
        return await self._resource(resource)


class SyncOpenSession(_Handle[S]):
    """`OpenSession` for a sync activity, for one ``with`` in the thread that anyio started for it.

    All callbacks run on the event loop as ever. A thread is not cancelled, so neither is what it waits for here.
    """

    def __enter__(self) -> S:
        """See `OpenSession`; RuntimeError when this is no thread of anyio's."""
        self._begin()
        try:
            return anyio.from_thread.run(shielded, self._enter)
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            anyio.from_thread.run(_left, self, kind is not None)
        finally:
            self._end()

    def save(self) -> None:
        """See `OpenSession.save`."""
        anyio.from_thread.run(shielded, self._save)

    def checkpoint(self) -> None:
        """See `OpenSession.checkpoint`."""
        anyio.from_thread.run(shielded, self._checkpoint)

    def resource(self, resource: Resource[T]) -> T:
        """See `OpenSession.resource`."""
        value: T = anyio.from_thread.run(shielded, self._resource, resource)
        return value


async def _left(opening: SyncOpenSession[S], failed: bool) -> None:
    with anyio.CancelScope(shield=True):
        await opening._leave(failed=failed)
