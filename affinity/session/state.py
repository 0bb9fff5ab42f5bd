"""One kind of session state: how a record becomes a state of this code's schema, and how a state becomes a record."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import anyio.to_thread

from affinity.errors import (
    InvalidInput,
    InvalidOptions,
    NotSerializable,
    SessionError,
    SessionLoadFailed,
    SessionMigrationMissing,
    SessionRecordTooNew,
)
from affinity.limits import MAX_LABELS, MAX_PARTICIPANTS, check_id, check_integer
from affinity.records import SessionMetadata, SessionRecord, SessionState, SessionStore
from affinity.session.callbacks import DISPOSE_SECONDS, problem_of, run_bounded
from affinity.session.codec import StateCodec, pack, unpack
from affinity.session.fields import FieldOverrides, Projection
from affinity.session.migrations import Migrations
from affinity.session.resources import Resource

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordVersion:
    """What a store has of a session, without the state."""

    store: SessionStore | None = None  # which store; None: there is none
    version: int = 0  # of the record; 0: there is none
    birth: str | None = None  # of the record, or the one to make it with; None: not known, or not needed
    idempotency_key: str | None = None  # idempotency key of the last write
    digest: bytes | None = None  # of the state; None: it must be written, being new or migrated
    metadata: SessionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedState:
    """A state as it would be written, and whether that is needed."""

    size: int  # bytes, before they are packed
    digest: bytes
    new: SessionState | None  # None: the store has just this

    def same_as(self, staged: EncodedState | None) -> bool:
        """Whether writing this after ``staged`` would change nothing."""
        if staged is None or staged.new is None or self.new is None:
            return staged is None and self.new is None
        return self.digest == staged.digest and self.new.metadata == staged.new.metadata


class CachedState(Generic[S]):
    """One copy of a session's state."""

    def __init__(self, session_id: str | None, state: S, stored: RecordVersion, size: int = 0) -> None:
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
            self.metadata = override_metadata(self.metadata, self.session_id, parent, labels)

    def is_written(self, encoded: EncodedState, version: int, idempotency_key: str | None) -> None:
        """The store has it now."""
        assert encoded.new is not None
        self.stored = RecordVersion(
            store=self.stored.store,
            version=version,
            birth=self.stored.birth,
            idempotency_key=idempotency_key,
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


IN_THREAD_ABOVE: Final = 128 * 1024
"""Bytes from which hashing and packing go to a thread: they take over a millisecond then, and let go of the GIL. Making
JSON of a state, and a state of JSON, would hold the GIL in a thread too, so they stay on the event loop.
"""

_DEFLATED: Final = 8  # about how much shorter JSON gets


@dataclass(frozen=True, slots=True)
class _Decoded(Generic[S]):
    state: S
    digest: bytes  # of its bytes in the record
    size: int


@dataclass(frozen=True, kw_only=True)
class StateSchema(Generic[S]):
    """Everything that says how a state of this kind is kept."""

    kind: str
    version: int
    codec: StateCodec[Any]  # of the state, or of the projection's record
    projection: Projection[S] | None
    initial: Callable[[str], S] | None  # state of a session that has no record
    describe: Callable[[S], SessionMetadata] | None
    overrides: FieldOverrides[S]
    migrations: Migrations = field(default_factory=Migrations)

    # -- reading

    async def load(self, session_id: str, store: SessionStore | None, values: Mapping[str, Any]) -> CachedState[S]:
        """The session's state from the store, or a new one, made with ``values`` where they are needed.

        Raises:
            SessionLoadFailed: the store failed, or the record is of another kind, damaged, or cannot be migrated.
        """
        record = None if store is None else await self._record(session_id, store)
        if record is None:
            return self.new(session_id, store, values)
        decoded = await self._decode(session_id, record)
        stored = RecordVersion(
            store=store,
            version=record.version,
            birth=record.birth,
            idempotency_key=record.idempotency_key,
            digest=decoded.digest if record.schema_version == self.version else None,
            metadata=normalize_metadata(record.metadata),
        )
        return CachedState(session_id, decoded.state, stored, decoded.size)

    def new(self, session_id: str | None, store: SessionStore | None, values: Mapping[str, Any]) -> CachedState[S]:
        """The initial state of a session.

        Raises:
            InvalidOptions: the type has no such state, and no ``initial`` says what it is.
        """
        state = self.overrides.new(values) if self.initial is None else self.initial(session_id or "")
        birth = None if store is None else uuid4().hex
        return CachedState(
            session_id, state, RecordVersion(store=store, birth=birth, metadata=SessionMetadata(kind=self.kind))
        )

    async def again(self, new: SessionState, stored: RecordVersion) -> CachedState[S]:
        """The state from what is to be written and is not in the store yet."""
        decoded = await self._decode(new.session_id, new)
        loaded = CachedState(new.session_id, decoded.state, stored, decoded.size)
        loaded.metadata = new.metadata
        return loaded

    async def refresh(self, loaded: CachedState[S]) -> S:
        """The state made anew from what would be written of it: what is scratch in it starts from its default.

        Raises:
            NotSerializable: the codec does not take it.
        """
        return await self._state(loaded.session_id or "", self._dump(loaded), self.version)

    async def _record(self, session_id: str, store: SessionStore) -> SessionRecord | None:
        try:
            return await store.load(session_id)
        except Exception as error:
            raise SessionLoadFailed(session_id, f"the store failed: {problem_of(error)}") from error

    async def _decode(self, session_id: str, record: SessionRecord | SessionState) -> _Decoded[S]:
        if record.metadata.kind != self.kind:
            raise SessionLoadFailed(session_id, f"it is of kind {record.metadata.kind!r}, not {self.kind!r}")
        self._refuse_too_new(session_id, record.schema_version)
        try:
            growth = 1 if record.encoding == "plain" else _DEFLATED
            raw, digest = await _off_loop(len(record.state) * growth, _unpacked, record.state, record.encoding)
            return _Decoded(await self._state(session_id, raw, record.schema_version), digest, len(raw))
        except SessionLoadFailed:
            raise
        except Exception as error:
            raise SessionLoadFailed(session_id, f"its record cannot be read: {problem_of(error)}") from error

    def _refuse_too_new(self, session_id: str, version: int) -> None:
        """Before anything of the record is read: later code may have packed and encoded it in another way."""
        if version > self.version:
            try:
                self.migrations.check(session_id, version, self.version)
            except SessionMigrationMissing as missing:
                raise SessionRecordTooNew(self.kind, missing) from None

    async def _state(self, session_id: str, raw: bytes, version: int) -> S:
        read = getattr(self.codec, "read", None)
        if version == self.version and read is not None:
            kept = read(raw)
        else:
            plain = await self.migrations.apply(session_id, self.codec.parse(raw), version, self.version)
            kept = self.codec.build(plain)
        return kept if self.projection is None else self.projection.from_record(kept)

    # -- writing

    async def encode(self, loaded: CachedState[S]) -> EncodedState:
        """The state as it would be written.

        Raises:
            NotSerializable: the codec does not take it, or could not read it back.
            PayloadTooLarge: it is over the limit.
            InvalidInput: its metadata is out of bounds.
        """
        assert loaded.session_id is not None
        raw = self._dump(loaded)
        described = loaded.metadata
        if self.describe is not None:
            described = describe_metadata(described, self.describe(loaded.state))
        digest = await _off_loop(len(raw), _digest, raw)
        if digest == loaded.stored.digest and described == loaded.stored.metadata:
            return EncodedState(size=len(raw), digest=digest, new=None)
        self._read_back(loaded, raw)
        packed, encoding = await _off_loop(len(raw), pack, raw)
        new = SessionState(
            session_id=loaded.session_id,
            state=packed,
            encoding=encoding,
            schema_version=self.version,
            metadata=described,
        )
        return EncodedState(size=len(raw), digest=digest, new=new)

    def _dump(self, loaded: CachedState[S]) -> bytes:
        state = loaded.state if self.projection is None else self.projection.to_record(loaded.state)
        try:
            return self.codec.dump(state)
        except InvalidInput:
            raise
        except Exception as error:
            raise NotSerializable(f"the state of session {loaded.session_id!r}: {problem_of(error)}") from error

    def _read_back(self, loaded: CachedState[S], raw: bytes) -> None:
        """What nobody could load again would make the session useless for ever."""
        read = getattr(self.codec, "read", None)
        if read is None:
            return
        try:
            read(raw)
        except Exception as error:
            raise NotSerializable(
                f"the state of session {loaded.session_id!r} could not be read back: {problem_of(error)}"
            ) from error


def _unpacked(state: bytes, encoding: str) -> tuple[bytes, bytes]:
    raw = unpack(state, encoding)
    return raw, _digest(raw)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


async def _off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call it, in a thread when there is much to do."""
    if size <= IN_THREAD_ABOVE:
        return function(*args)
    return await anyio.to_thread.run_sync(partial(function, *args))


def override_metadata(
    stored: SessionMetadata, session_id: str | None, parent: str | None, labels: Mapping[str, str] | None
) -> SessionMetadata:
    """The record's metadata, with the parent and the labels that were given.

    Raises:
        InvalidId: the parent, or a label, is no valid id.
        InvalidOptions: too many labels, or the session would be its own parent.
    """
    if parent is not None:
        if check_id(parent, "parent") == session_id:
            raise InvalidOptions(f"session {session_id!r} cannot be its own parent")
        stored = replace(stored, parent=parent)
    return stored if labels is None else replace(stored, labels=_checked_labels(labels))


def describe_metadata(metadata: SessionMetadata, said: SessionMetadata) -> SessionMetadata:
    """The metadata with what the application's function says of the state; what it leaves out stays.

    Its labels are added to the others and win; kind and parent are not the state's to say.

    Raises:
        InvalidId: a name, label or participant is no valid id.
        InvalidOptions: too many labels or participants, or a message count that is no integer or out of range.
    """
    if said.message_count is not None:
        check_integer(said.message_count, "message_count")
    return replace(
        metadata,
        name=metadata.name if said.name is None else check_id(said.name, "session name"),
        message_count=metadata.message_count if said.message_count is None else said.message_count,
        participants=_checked_participants(said.participants) if said.participants else metadata.participants,
        labels=_checked_labels({**metadata.labels, **said.labels}),
    )


def normalize_metadata(metadata: SessionMetadata) -> SessionMetadata:
    """The same in types that compare: stores may give lists for tuples."""
    return replace(metadata, labels=dict(metadata.labels), participants=tuple(metadata.participants))


def _checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise InvalidOptions(f"{len(labels)} labels, over the limit of {MAX_LABELS}")
    return {check_id(key, "label key"): check_id(value, f"label {key!r}") for key, value in labels.items()}


def _checked_participants(participants: object) -> tuple[str, ...]:
    if isinstance(participants, str) or not hasattr(participants, "__iter__"):
        raise InvalidOptions(f"participants must be several ids, not {participants!r}")
    checked = tuple(check_id(each, "participant") for each in participants)
    if len(checked) > MAX_PARTICIPANTS:
        raise InvalidOptions(f"{len(checked)} participants, over the limit of {MAX_PARTICIPANTS}")
    return checked
