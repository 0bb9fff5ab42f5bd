"""A state in memory, with what its record said of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from affinity.errors import SessionError
from affinity.records import SessionMetadata, SessionState, SessionStore
from affinity.session import metadata
from affinity.session.calls import DISPOSE_SECONDS, run_bounded
from affinity.session.resources import Resource

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a store has of a session, without the state."""

    store: SessionStore | None = None  # which store; None: there is none
    version: int = 0  # of the record; 0: there is none
    birth: str | None = None  # of the record, or the one to make it with; None: not known, or not needed
    turn: str | None = None  # idempotency key of the last write
    digest: bytes | None = None  # of the state; None: it must be written, being new or migrated
    metadata: SessionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A state as it would be written, and whether that is needed."""

    size: int  # bytes, before they are packed
    digest: bytes
    new: SessionState | None  # None: the store has just this

    def same_as(self, staged: Encoded | None) -> bool:
        """Whether writing this after ``staged`` would change nothing."""
        if staged is None or staged.new is None or self.new is None:
            return staged is None and self.new is None
        return self.digest == staged.digest and self.new.metadata == staged.new.metadata


class Loaded(Generic[S]):
    """One copy of a session's state."""

    def __init__(self, session_id: str | None, state: S, stored: Stored, size: int = 0) -> None:
        self.session_id = session_id
        self.state = state
        self.stored = stored
        self.size = size  # bytes of its encoded form, as last seen
        self.metadata = stored.metadata  # as it shall be, before the state itself is asked
        self.broken = False  # half changed: an error came in between
        self._resources: dict[Resource[Any], str] = {}

    def describe(self, parent: str | None, labels: Mapping[str, str] | None) -> None:
        """Take over what was given when the session was opened.

        Raises:
            InvalidInput: it is out of bounds.
        """
        if parent is not None or labels is not None:
            self.metadata = metadata.wanted(self.metadata, self.session_id, parent, labels)

    def is_written(self, encoded: Encoded, version: int, turn: str | None) -> None:
        """The store has it now."""
        assert encoded.new is not None
        self.stored = Stored(
            store=self.stored.store,
            version=version,
            birth=self.stored.birth,
            turn=turn,
            digest=encoded.digest,
            metadata=encoded.new.metadata,
        )

    async def resource(self, resource: Resource[T]) -> T:
        """The resource of this session, held until the copy goes.

        Raises:
            SessionError: there is no session to tell which.
        """
        if self.session_id is None:
            raise SessionError("a resource belongs to a session, and this work is bound to none")
        key = self._resources.setdefault(resource, resource.key(self.session_id))
        return await resource.acquire(key, self)

    async def replace(self, state: S, dispose: Callable[[str, S], Awaitable[None] | None] | None) -> None:
        """Have another object as the state, and free what the former one holds."""
        former, self.state = self.state, state
        await self._free(former, dispose)

    async def aclose(self, dispose: Callable[[str, S], Awaitable[None] | None] | None) -> None:
        """Free what the state holds, then its resources. Raises nothing, and each step is bounded."""
        await self._free(self.state, dispose)
        while self._resources:
            resource, key = self._resources.popitem()
            await resource.release(key, self)

    async def _free(self, state: S, dispose: Callable[[str, S], Awaitable[None] | None] | None) -> None:
        session_id = self.session_id or ""
        if dispose is not None:
            await run_bounded(f"dispose of session {session_id!r}", lambda: dispose(session_id, state), DISPOSE_SECONDS)
