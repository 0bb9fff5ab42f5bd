"""Two stores of session records: `MemorySessionStore`, and `RetryingStore` around the store of a database."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from affinity.errors import SessionWriteConflict
from affinity.limits import check_condition, check_text
from affinity.records import (
    ChildCursor,
    KeepNamed,
    RecordTimes,
    ResourceStore,
    SessionFilter,
    SessionRecord,
    SessionState,
    SessionStore,
    SessionSummary,
    child_cursor,
    copied,
    copied_metadata,
    database_of,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Fence:
    """The conditions under which a writer may replace a record."""

    expected_version: int | None
    generation: str | None
    epoch: int | None

    def check(self, session_id: str, found: SessionRecord | None) -> None:
        version, epoch = (found.version, found.epoch) if found else (None, None)
        if found and self.generation not in {None, found.generation}:
            message = (
                "its record was deleted, and another one was created"
                if self.expected_version
                else "another writer has created its record meanwhile"
            )
        elif self.expected_version is not None and self.expected_version != (version or 0):
            message = f"its record has version {version or 0}, not {self.expected_version}"
        elif self.epoch is not None and epoch is not None and epoch > self.epoch:
            message = f"its record was written under epoch {epoch}, which is newer than {self.epoch}"
        else:
            return
        raise SessionWriteConflict(session_id, self.expected_version, version, message)


@dataclass(frozen=True, slots=True)
class _SeenRecords:
    """The versions and generations of the records that a deletion may remove."""

    versions: Mapping[str, int]
    generations: Mapping[str, str]

    def is_still(self, found: SessionRecord) -> bool:
        """Whether the record has not changed since it was seen."""
        name = found.session_id
        return self.versions.get(name, found.version) == found.version and (
            self.generations.get(name, found.generation) == found.generation
        )


class MemorySessionStore:
    """Records in the memory of one process, for tests and for scripts that need no storage. They are lost when it ends.

    For one event loop: nothing in it is locked. It has no leases: a filter by ``holder`` finds nothing, ``idle_only``
    spares nothing, and the epoch fence compares with the record alone.

    Args:
        clock: the time as an aware UTC instant; a test may pass its own.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._records: dict[str, SessionRecord] = {}

    async def load(self, session_id: str) -> SessionRecord | None:
        found = self._records.get(session_id)
        return found and replace(found, metadata=copied_metadata(found.metadata))

    async def save(
        self,
        new: SessionState,
        *,
        expected_version: int | None = None,
        generation: str | None = None,
        epoch: int | None = None,
        idempotency_key: str | None = None,
        times: RecordTimes | None = None,
    ) -> int:
        found = self._records.get(new.session_id)
        if found is not None and idempotency_key is not None and found.idempotency_key == idempotency_key:
            return found.version
        _Fence(expected_version, generation, epoch).check(new.session_id, found)
        written = self._written(new, found, generation, epoch, idempotency_key)
        if times is not None:
            now = written.updated_at
            written = replace(written, created_at=min(times.created_at, now), updated_at=min(times.updated_at, now))
        self._records[new.session_id] = written
        return written.version

    async def delete(
        self,
        session_ids: Collection[str],
        *,
        idle_only: bool = False,
        versions: Mapping[str, int] | None = None,
        generations: Mapping[str, str] | None = None,
        families: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Sequence[str]:
        seen = _SeenRecords(versions or {}, generations or {})
        named = [session_id for session_id in dict.fromkeys(session_ids) if session_id in self._records]
        kept = {session_id for session_id in named if not seen.is_still(self._records[session_id])}
        if families is not None:
            with_others = {record.metadata.parent for name, record in self._records.items() if name not in named}
            stay = {families[session_id] for session_id in named if session_id in kept | with_others}
            kept = {session_id for session_id in named if families[session_id] in stay}
        removed = [session_id for session_id in named if session_id not in kept]
        for session_id in [] if dry_run else removed:
            del self._records[session_id]
        return removed

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        now = self._clock()
        found = self._matching(where, now)
        found.sort(key=_place, reverse=True)
        return [_summary(record, now) for record in found[:limit]]

    async def count(self, where: SessionFilter) -> int:
        return len(self._matching(where, self._clock()))

    async def children(
        self, session_ids: Collection[str], limit: int, *, after: ChildCursor | None = None
    ) -> Sequence[SessionSummary]:
        now, parents = self._clock(), {*session_ids}
        found = [
            record
            for record in self._records.values()
            if record.metadata.parent in parents and (after is None or child_cursor(record) > after)
        ]
        found.sort(key=child_cursor)
        return [_summary(record, now) for record in found[:limit]]

    async def ancestors(self, session_id: str, limit: int) -> Sequence[SessionSummary]:
        now = self._clock()
        found: dict[str, SessionSummary] = {}
        at: str | None = session_id
        while at in self._records and at not in found and len(found) < limit:
            found[at] = _summary(self._records[at], now)
            at = found[at].metadata.parent
        return list(found.values())

    def _matching(self, where: SessionFilter, now: datetime) -> builtins.list[SessionRecord]:
        return [
            record
            for record in self._records.values()
            if _matches(record, where, now) and self._has_place(record.metadata.parent, where)
        ]

    def _has_place(self, parent: str | None, where: SessionFilter) -> bool:
        is_orphaned = parent is not None and parent not in self._records
        return (is_orphaned or not where.orphaned) and (is_orphaned or parent is None or not where.heads)

    def _written(
        self,
        new: SessionState,
        found: SessionRecord | None,
        generation: str | None,
        epoch: int | None,
        idempotency_key: str | None,
    ) -> SessionRecord:
        now = self._clock()
        kept = found.epoch if found else None
        return SessionRecord(
            session_id=new.session_id,
            state=bytes(new.state),
            encoding=new.encoding,
            schema_version=new.schema_version,
            metadata=copied_metadata(new.metadata),
            version=found.version + 1 if found else 1,
            generation=found.generation if found else generation or uuid4().hex,
            epoch=kept if epoch is None else epoch,
            idempotency_key=idempotency_key,
            created_at=found.created_at if found else now,
            updated_at=now,
        )


def _place(record: SessionRecord) -> tuple[datetime, str]:
    return record.updated_at, record.session_id


def _matches(record: SessionRecord, where: SessionFilter, now: datetime) -> bool:
    about = record.metadata
    return (
        where.holder is None
        and where.schema_version in {None, record.schema_version}
        and where.kind in {None, about.kind}
        and where.name in {None, about.name}
        and where.parent in {None, about.parent}
        and (where.participant is None or where.participant in about.participants)
        and where.labels.items() <= dict(about.labels).items()
        and record.session_id.startswith(where.prefix or "")
        and _in_time(record, where, now)
    )


def _in_time(record: SessionRecord, where: SessionFilter, now: datetime) -> bool:
    return (
        (where.updated_after is None or record.updated_at > where.updated_after)
        and (where.created_after is None or record.created_at > where.created_after)
        and (where.idle_for is None or record.updated_at <= now - timedelta(seconds=where.idle_for))
        and (where.after is None or _place(record) < where.after)
    )


def _summary(record: SessionRecord, now: datetime) -> SessionSummary:
    idle = (now - record.updated_at).total_seconds()
    size, metadata = len(record.state), copied_metadata(record.metadata)
    return copied(SessionSummary, record, metadata=metadata, size=size, holder=None, idle=idle)


class RetryingCall(Protocol):
    """Awaits a call, and repeats it where that is safe."""

    def __call__(self, verb: Callable[[], Awaitable[T]], /) -> Awaitable[T]:
        """The result of ``verb()``, once it succeeds."""
        ...


class RetryingStore:
    """A store that repeats calls: ``reading`` may do so after any transient failure, ``writing`` only after one that
    changed nothing. A save with an idempotency key is repeated as reading is. A text that no store can keep is refused
    with `InvalidId` before a store has it.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        reading: RetryingCall,
        writing: RetryingCall,
        resources: ResourceStore | None = None,
        keep_named: KeepNamed | None = None,
    ) -> None:
        self._store = store
        self.resources: RetryingResources | None = None if resources is None else RetryingResources(resources, reading)
        """The resources of the same database."""
        self.keep_named: KeepNamed | None = keep_named
        """Keeps the blobs that exports of records name."""
        self._reading, self._writing = reading, writing

    @property
    def database(self) -> str:
        """Name of the store's database."""
        return database_of(self._store)

    async def load(self, session_id: str) -> SessionRecord | None:
        return await self._reading(partial(self._store.load, check_text(session_id, "session id")))

    async def save(self, new: SessionState, **options: Any) -> int:
        check_condition(options, "an option")
        # The store recognises the key of a write that it has done, so this may be repeated after a lost reply.
        call = self._writing if options.get("idempotency_key") is None else self._reading
        return await call(partial(self._store.save, new, **options))

    async def delete(self, session_ids: Collection[str], **options: Any) -> Sequence[str]:
        check_condition((session_ids, options), "session id")
        # Repeated after a lost reply, it would not return what it has removed.
        return await self._writing(partial(self._store.delete, session_ids, **options))

    async def list(self, where: SessionFilter, limit: int) -> Sequence[SessionSummary]:
        return await self._reading(partial(self._store.list, where, limit))

    async def count(self, where: SessionFilter) -> int:
        return await self._reading(partial(self._store.count, where))

    async def children(
        self, session_ids: Collection[str], limit: int, *, after: ChildCursor | None = None
    ) -> Sequence[SessionSummary]:
        check_condition((session_ids, after), "session id")
        return await self._reading(partial(self._store.children, session_ids, limit, after=after))

    async def ancestors(self, session_id: str, limit: int) -> Sequence[SessionSummary]:
        return await self._reading(partial(self._store.ancestors, check_text(session_id, "session id"), limit))


class RetryingResources:
    """A `ResourceStore` that repeats calls: each of them may be repeated after a lost reply. Texts are checked as by
    `RetryingStore`.
    """

    def __init__(self, store: ResourceStore, call: RetryingCall) -> None:
        self._store, self._call = store, call

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._store, verb)

        async def checked(*args: Any, **named: Any) -> Any:
            check_condition((args, named), "what describes a resource")
            return await self._call(partial(call, *args, **named))

        return checked
