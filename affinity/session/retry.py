"""A session store that repeats calls which a busy or restarting database has failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from affinity.records import SessionFilter, SessionRecord, SessionState, SessionStore, SessionSummary

T = TypeVar("T")


class RetryingCall(Protocol):
    """Awaits a call, and repeats it where that is safe."""

    def __call__(self, verb: Callable[[], Awaitable[T]], /) -> Awaitable[T]:
        """The result of ``verb()``, once it succeeds."""
        ...


class RetryingStore:
    """A store that repeats calls: ``reading`` may do so after any transient failure, ``writing`` only after one that
    changed nothing. A save with an idempotency key is repeated as reading is.
    """

    def __init__(self, store: SessionStore, *, reading: RetryingCall, writing: RetryingCall) -> None:
        self._store = store
        self._reading, self._writing = reading, writing

    async def load(self, session_id: str) -> SessionRecord | None:
        return await self._reading(partial(self._store.load, session_id))

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        birth: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        save = partial(
            self._store.save,
            new,
            expected_version=expected_version,
            birth=birth,
            epoch=epoch,
            idempotency_key=idempotency_key,
        )
        # The store recognises the key of a write that it has done, so this may be repeated after a lost reply.
        return await (self._writing if idempotency_key is None else self._reading)(save)

    async def delete(
        self,
        session_ids: Collection[str],
        *,
        cascade: bool = False,
        idle_only: bool = False,
        versions: Mapping[str, int] | None = None,
        births: Mapping[str, str] | None = None,
        whole: bool = False,
        dry_run: bool = False,
    ) -> Sequence[str]:
        which = {"cascade": cascade, "idle_only": idle_only, "whole": whole, "dry_run": dry_run}
        delete = partial(self._store.delete, session_ids, versions=versions, births=births, **which)
        return await self._writing(delete)  # repeated after a lost reply, it would not return what it has removed

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        return await self._reading(partial(self._store.list, where, limit))

    async def count(self, where: SessionFilter) -> int:
        return await self._reading(partial(self._store.count, where))

    async def families(self, session_ids: Collection[str]) -> Sequence[Sequence[SessionSummary]]:
        return await self._reading(partial(self._store.families, session_ids))
