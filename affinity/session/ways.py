"""The ways to keep a state that is opened: staged for an activity's result, or written by a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio

from affinity.errors import SessionSaveFailed, SessionSelfConflict, SessionWriteConflict
from affinity.records import SessionState, SessionStore
from affinity.session.calls import problem_of
from affinity.session.copies import Copy
from affinity.session.loaded import Encoded, Loaded
from affinity.session.protocols import ActivityScope
from affinity.session.schema import StateSchema
from affinity.session.turns import Staged, Turn, Turns
from affinity.telemetry import session_scope

S = TypeVar("S")

_NO_SCOPE: Final = nullcontext()


class Way(Protocol[S]):
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

    async def enter(self, values: Mapping[str, Any]) -> Loaded[S]:
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


class InActivity(Generic[S]):
    """The change is staged, and goes with the activity's result."""

    def __init__(self, turns: Turns[S], ctx: ActivityScope, store: SessionStore | None) -> None:
        self._turns, self._ctx, self._store = turns, ctx, store
        self._turn: Turn[S] | None = None
        self._copy: Copy[Loaded[S]] | None = None
        self._fallback = Staged(None, None)  # what stays staged when this block fails

    @property
    def session_id(self) -> str | None:
        return self._ctx.session_id

    @property
    def already_applied(self) -> bool:
        return self._turn is not None and self._turn.already_applied

    def scope(self) -> AbstractContextManager[None]:
        return _NO_SCOPE  # the worker has named it

    async def enter(self, values: Mapping[str, Any]) -> Loaded[S]:
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

    def _open(self) -> tuple[Turn[S], Copy[Loaded[S]]]:
        assert self._turn is not None
        assert self._copy is not None
        return self._turn, self._copy


class InScript(Generic[S]):
    """Loaded at the beginning, written at the end, in nobody's memory in between.

    A session id of None, or no store, and the state is a new one that is nobody's afterwards.
    """

    already_applied = False

    def __init__(
        self,
        schema: StateSchema[S],
        turns: Turns[S],
        session_id: str | None,
        store: SessionStore | None,
        dispose: Callable[[str, S], Awaitable[None] | None] | None,
    ) -> None:
        self._schema, self._turns, self.session_id, self._dispose = schema, turns, session_id, dispose
        self._store = store if session_id is not None else None
        self._loaded: Loaded[S] | None = None

    def scope(self) -> AbstractContextManager[None]:
        return _NO_SCOPE if self.session_id is None else session_scope(self.session_id)

    async def enter(self, values: Mapping[str, Any]) -> Loaded[S]:
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

    async def _write(self, loaded: Loaded[S], store: SessionStore, encoded: Encoded, new: SessionState) -> None:
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
