"""A session's state in memory, how it is made from a stored record, and how it becomes one."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar
from uuid import uuid4

import anyio.to_thread

from affinity import errors
from affinity.errors import problem_of
from affinity.limits import MAX_PARTICIPANTS, check_id, check_integer, check_labels
from affinity.records import SessionMetadata, SessionRecord, SessionState, SessionStore, SessionSummary, copied_metadata
from affinity.session.codec import FieldOverrides, Projection, StateCodec, pack, unpack
from affinity.session.in_place import assign, exchange
from affinity.session.migrations import Migrations
from affinity.session.resources import RESOURCE_LABEL, HeldResources, run_bounded
from affinity.session.state_cache import CacheEntry
from affinity.user_code import as_error, call_sync

S = TypeVar("S")
T = TypeVar("T")

IN_THREAD_ABOVE: Final = 128 * 1024
"""Bytes above which hashing and packing run in a thread: they take over a millisecond then, and release the GIL.
Encoding and decoding JSON would hold the GIL in a thread too, so they stay on the event loop.
"""

REMEMBERED_BYTES: Final = 64 * 1024
"""Bytes up to which the stored form of a state is kept beside it, for code that needs the state before its changes."""

_DEFLATE_RATIO: Final = 8  # of JSON, roughly


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordVersion:
    """The stored record that a state was made from, without the state."""

    version: int = 0  # 0: the session has no record
    generation: str | None = None  # of the record, or the one to create it with; None: not known, or not needed
    idempotency_key: str | None = None  # of the last write
    digest: bytes | None = None  # of the state's bytes; None: it must be written, being new or migrated
    metadata: SessionMetadata
    state: SessionState | None = None  # as it is stored; None: it is not known, or larger than `REMEMBERED_BYTES`


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedState:
    """A state that differs from its record, in the form in which it is written."""

    digest: bytes
    new: SessionState


CHECKED_OPENINGS: Final = 16
"""This number of first openings of a state in memory, and later one in this number, check that it is as it was saved. A
check costs one more encoding. To check some is enough: code that changes a state outside its block does so in each run.
"""


class DumpedState(NamedTuple):
    """A state, or its record, and its bytes at some moment."""

    given: Any
    raw: bytes


class CachedState(CacheEntry[S]):
    """The state of one session in memory, with its record's version and its resources.

    An activity's is an entry of the `StateCache`. A script's is in no cache and has epoch 0, and an empty session id if
    the script names no session.
    """

    record: RecordVersion  # set with the state

    def __init__(self, session_id: str, epoch: int, database: str = "") -> None:
        super().__init__(session_id, epoch, database)
        self.store: SessionStore | None = None  # of the record; None: the state is stored nowhere
        self.metadata: SessionMetadata = SessionMetadata()  # to be written, before `StateSchema.describe` adds to it
        self.encoded_bytes = 0  # size of the encoded state, when last encoded or decoded
        self.is_fresh = True  # no block has had it
        self.is_broken = False  # half changed: a block has failed
        self.openings = 0  # by activities that have found it in memory
        self.replaced: list[S] = []  # objects with the content of before `StateSchema.put`, to dispose
        self.resources: HeldResources = HeldResources(database)

    @property
    def is_sample(self) -> bool:
        """Whether checks of some openings are to be made at this one: the first ones, and later one in this number."""
        return self.openings <= CHECKED_OPENINGS or not self.openings % CHECKED_OPENINGS

    def describe(self, parent: str | None, labels: Mapping[str, str] | None) -> None:
        """Set the metadata that was passed when the session was opened.

        Raises:
            InvalidInput: it is out of bounds.
        """
        if parent is not None or labels is not None:
            self.metadata = override_metadata(self.metadata, self.session_id, parent, labels)

    def set_written(self, encoded: EncodedState, version: int, idempotency_key: str | None) -> None:
        """Note that the store has this version of the record now."""
        self.record = RecordVersion(
            version=version,
            generation=self.record.generation,
            idempotency_key=idempotency_key,
            digest=encoded.digest,
            metadata=encoded.new.metadata,
            state=if_small(encoded.new),
        )

    def successor(self) -> Self | None:
        if not self.resources:
            return None
        successor = type(self)(self.session_id, self.epoch, self.database)
        successor.resources = self.resources
        self.resources = HeldResources(self.database)
        successor.home = self.home
        return successor


@dataclass(frozen=True, kw_only=True)
class StateSchema(Generic[S]):
    """How the states of one kind are made, decoded, migrated, encoded and disposed: the options of `Sessions`."""

    kind: str
    version: int
    codec: StateCodec[Any]  # of the state, or of the projection's record
    projection: Projection[S] | None
    initial: Callable[[str], S] | None  # the state of a session without a record
    metadata_of: Callable[[S], SessionMetadata] | None
    size_of: Callable[[S], int] | None
    dispose: Callable[[str, S], Awaitable[None] | None] | None
    fresh_scratch: bool
    overrides: FieldOverrides[S]
    migrations: Migrations = field(default_factory=Migrations)

    # -- loading

    async def load(
        self, cached: CachedState[S], store: SessionStore | None, overrides: Mapping[str, Any], *, is_new: bool = False
    ) -> None:
        """Read the session's record and decode its state into ``cached``; without a record, make a new state.

        Args:
            cached: whose state to load.
            store: where the record is; None: nowhere.
            overrides: fields that a new state may need.
            is_new: there was no record a moment ago: it is not looked for.

        Raises:
            SessionLoadFailed: the store failed, or the record is of another kind, damaged, or cannot be migrated.
            InvalidOptions: a new state needs fields that it does not get.
        """
        cached.store = store
        record = None if store is None or is_new else await self._read(cached.session_id, store)
        if record is None:
            cached.state = (
                self.overrides.new(overrides) if self.initial is None else call_sync(self.initial, cached.session_id)
            )
            generation = None if store is None else uuid4().hex
            cached.record = RecordVersion(generation=generation, metadata=SessionMetadata(kind=self.kind))
        else:
            digest = await self._decode(cached, record)
            cached.record = RecordVersion(
                version=record.version,
                generation=record.generation,
                idempotency_key=record.idempotency_key,
                digest=digest if record.schema_version == self.version else None,
                metadata=copied_metadata(record.metadata),
                state=if_small(state_of(record)),
            )
        cached.metadata = cached.record.metadata

    def new(self, session_id: str, state: S) -> CachedState[S]:
        """A state of a session that has no record."""
        cached = CachedState[S](session_id, epoch=0)
        cached.state = state
        cached.record = RecordVersion(metadata=SessionMetadata(kind=self.kind))
        cached.metadata = cached.record.metadata
        return cached

    async def restore(
        self, cached: CachedState[S], store: SessionStore | None, encoded: SessionState, record: RecordVersion
    ) -> None:
        """Decode into ``cached`` a state that is to be written over ``record`` and is not in the store yet."""
        await self._decode(cached, encoded)
        cached.store, cached.record, cached.metadata = store, record, encoded.metadata

    async def check(self, record: SessionRecord | SessionState) -> None:
        """Load a record, and drop its state. It is not disposed: `dispose` may end what a live session of this id uses.

        Raises:
            SessionRecordRefused: it could not be loaded.
        """
        loaded = CachedState[S](record.session_id, epoch=0)
        try:
            await self._decode(loaded, record)
        except errors.SessionLoadFailed as error:
            raise errors.SessionRecordRefused(record.session_id, error.reason) from error

    def check_version(self, record: SessionRecord | SessionSummary) -> None:
        """Compare the kind and the schema version of a record; a later version is for workers with later code.

        Raises:
            SessionRecordRefused: it is of another kind, or no migration leads from its version to this one.
        """
        session_id, kind = record.session_id, record.metadata.kind
        if kind != self.kind:
            raise errors.SessionRecordRefused(session_id, f"it is of kind {kind!r}, not {self.kind!r}")
        if record.schema_version >= self.version:
            return
        try:
            self.migrations.check(session_id, record.schema_version, self.version)
        except errors.SessionMigrationMissing as error:
            raise errors.SessionRecordRefused(session_id, error.reason) from error

    async def reset_scratch(self, cached: CachedState[S]) -> None:
        """Encode and decode the state, so that its scratch fields have their defaults; dispose the former.

        Raises:
            NotSerializable: the codec does not accept it.
        """
        fresh = await self._build(cached.session_id, self._dump(cached), self.version)
        former, cached.state = cached.state, fresh
        await self._dispose(cached.session_id, former)

    async def _read(self, session_id: str, store: SessionStore) -> SessionRecord | None:
        try:
            return await store.load(session_id)
        except Exception as error:
            raise errors.SessionLoadFailed(session_id, f"the store failed: {problem_of(error)}") from error

    async def _decode(self, cached: CachedState[S], record: SessionRecord | SessionState) -> bytes:
        """Set the state and its size; returns the digest of its bytes."""
        session_id = cached.session_id
        if record.metadata.kind != self.kind:
            raise errors.SessionLoadFailed(session_id, f"it is of kind {record.metadata.kind!r}, not {self.kind!r}")
        self._refuse_too_new(session_id, record.schema_version)
        try:
            ratio = 1 if record.encoding == "plain" else _DEFLATE_RATIO
            raw, digest = await _off_loop(len(record.state) * ratio, _unpack, record.state, record.encoding)
            cached.state = await self._build(session_id, raw, record.schema_version)
        except errors.SessionLoadFailed:
            raise
        except Exception as error:
            raise errors.SessionLoadFailed(session_id, f"its record cannot be read: {problem_of(error)}") from error
        cached.encoded_bytes = len(raw)
        return digest

    def _refuse_too_new(self, session_id: str, version: int) -> None:
        """Checked before the state's bytes are read: later code may have packed and encoded them in another way."""
        if version > self.version:
            try:
                self.migrations.check(session_id, version, self.version)
            except errors.SessionMigrationMissing as missing:
                raise errors.SessionRecordTooNew(self.kind, missing) from None

    async def _build(self, session_id: str, raw: bytes, version: int) -> S:
        if version == self.version:
            return call_sync(self._read_back, raw)
        plain = call_sync(self.codec.parse, raw)
        plain = await self.migrations.apply(session_id, plain, version, self.version)
        return call_sync(lambda: self._restored(self.codec.build(plain)))

    def _read_back(self, raw: bytes) -> S:
        return self._restored(self._kept(raw))

    def _kept(self, raw: bytes) -> Any:
        """The state that these bytes are of, or its record."""
        read = getattr(self.codec, "read", None)
        return self.codec.build(self.codec.parse(raw)) if read is None else read(raw)

    def _restored(self, kept: Any) -> S:
        return kept if self.projection is None else self.projection.from_record(kept)

    # -- saving

    async def encode(self, cached: CachedState[S]) -> EncodedState | None:
        """The state in the form in which it is written; None when the store has exactly this.

        Raises:
            NotSerializable: the codec does not accept it, or could not read it back.
            PayloadTooLarge: it is over the limit.
            InvalidInput: its metadata is out of bounds.
        """
        return await self.encode_dumped(cached, self.dump(cached))

    def dump(self, cached: CachedState[S]) -> DumpedState:
        """The state as it is now, for `encode_dumped` or `snapshot`.

        Raises:
            NotSerializable, InvalidInput: as `encode`.
        """
        return DumpedState(*self._given(cached))

    async def encode_dumped(self, cached: CachedState[S], dumped: DumpedState) -> EncodedState | None:
        """As `encode`, of a state as it was."""
        return await self._encode(cached, dumped, cached.record.digest, cached.record.metadata)

    async def snapshot(
        self, cached: CachedState[S], dumped: DumpedState, known: bytes | None = None
    ) -> EncodedState | None:
        """As `encode`, of a state as it was; None when it has this digest."""
        return await self._encode(cached, dumped, known, None)

    async def _encode(
        self, cached: CachedState[S], dumped: DumpedState, known: bytes | None, described: SessionMetadata | None
    ) -> EncodedState | None:
        """A state in the form in which it is written; None when it has this digest, and this metadata."""
        given, raw = dumped
        digest = await _off_loop(len(raw), _digest, raw)
        if digest != known or self._may_change(cached):
            kept = self._check_readable(cached, raw)
            if self._is_to_match(cached, raw) and self._match(cached, given, raw, kept):
                raw = self._dump(cached)
                digest = await _off_loop(len(raw), _digest, raw)
        cached.encoded_bytes = len(raw)
        metadata = cached.metadata
        if self.metadata_of is not None:
            # Kept, as a hydrate would find it: what a later state leaves out stays.
            metadata = cached.metadata = _add_described(metadata, call_sync(self.metadata_of, cached.state))
        if digest == known and (described is None or metadata == described):
            return None
        packed, encoding = await _off_loop(len(raw), pack, raw)
        new = SessionState(
            session_id=cached.session_id,
            state=packed,
            encoding=encoding,
            schema_version=self.version,
            metadata=metadata,
        )
        return EncodedState(digest=digest, new=new)

    # -- snapshots

    def digest(self, cached: CachedState[S]) -> bytes:
        """The digest of the state's bytes as it is now.

        Raises:
            NotSerializable: the codec does not accept it.
        """
        return _digest(self._dump(cached))

    async def new_state(self, session_id: str) -> EncodedState:
        """The state of a session without a record, in the form in which it is written."""
        cached = CachedState[S](session_id, epoch=0)
        await self.load(cached, None, {})
        encoded = await self.snapshot(cached, self.dump(cached))
        assert encoded is not None
        await self._dispose(session_id, cached.state)
        return encoded

    def plain(self, cached: CachedState[S]) -> Any:
        """The plain form of the state as it is now."""
        return self.codec.parse(self._dump(cached))

    async def plain_of(self, state: SessionState) -> Any:
        """The plain form of a state, migrated.

        Raises:
            SessionLoadFailed: it is damaged, or cannot be migrated.
        """
        self._refuse_too_new(state.session_id, state.schema_version)
        try:
            plain = self.codec.parse(unpack(state.state, state.encoding))
            if state.schema_version == self.version:
                return plain
            return await self.migrations.apply(state.session_id, plain, state.schema_version, self.version)
        except errors.SessionLoadFailed:
            raise
        except Exception as error:
            text = f"a saved state cannot be read: {problem_of(error)}"
            raise errors.SessionLoadFailed(state.session_id, text) from error

    def put(self, cached: CachedState[S], plain: Any) -> None:
        """Give the state this content. Code that has the state, or a part of it, sees it, if its type can be changed.

        Raises:
            SessionLoadFailed: it cannot be read.
        """
        try:
            new = self._restored(self.codec.build(plain))
        except Exception as error:
            text = f"a saved state cannot be read: {problem_of(error)}"
            raise errors.SessionLoadFailed(cached.session_id, text) from error
        if assign(cached.state, new) is cached.state:
            return
        if exchange(cached.state, new):
            cached.replaced.append(new)
        else:
            cached.state = new

    async def is_as_saved(self, cached: CachedState[S]) -> bool:
        """Whether a state that was saved, and that no block has now, still has the bytes of its record.

        True where bytes cannot be compared: of a projection, whose record may hold the time, and of a codec that does
        not give equal bytes for one state.
        """
        if cached.record.digest is None or self.projection is not None:
            return True
        try:
            raw = self._dump(cached)
            return await _off_loop(len(raw), _digest, raw) == cached.record.digest or self._dump(cached) != raw
        except errors.InvalidInput:  # what was saved could be encoded
            return False

    def _dump(self, cached: CachedState[S]) -> bytes:
        return self._given(cached)[1]

    def _given(self, cached: CachedState[S]) -> tuple[Any, bytes]:
        """The state, or its record, and its bytes."""
        try:
            given = cached.state if self.projection is None else self.projection.to_record(cached.state)
            return given, self.codec.dump(given)
        except errors.InvalidInput:
            raise
        except BaseException as error:
            problem = problem_of(as_error(error))
            raise errors.NotSerializable(f"the state of session {cached.session_id!r}: {problem}") from error

    def _may_change(self, cached: CachedState[S]) -> bool:
        """Whether a state with the bytes of its record is to be compared with it: some of them are."""
        return cached.is_sample and self.projection is None and getattr(self.codec, "may_change", False)

    def _check_readable(self, cached: CachedState[S], raw: bytes) -> Any:
        """The state that these bytes are of, or its record; refused if no later opening could load it."""
        try:
            kept = self._kept(raw)
            self._restored(kept)
        except BaseException as error:
            raise _unreadable(cached, as_error(error)) from error
        return kept

    def _is_to_match(self, cached: CachedState[S], raw: bytes) -> bool:
        """Whether the state is to be compared with what was read from its bytes."""
        is_certain = getattr(self.codec, "is_certain", None)
        if not hasattr(self.codec, "match") or (is_certain is not None and is_certain(raw)):
            return False
        return len(raw) <= IN_THREAD_ABOVE or self._dump(cached) == raw  # else another block has changed it meanwhile

    def _match(self, cached: CachedState[S], given: Any, raw: bytes, kept: Any) -> bool:
        """Refuse a state that a later opening would load as another one. True: the state had another form than the one
        that is read, which it has now.
        """
        try:
            given, has_changed = self.codec.match(given, raw, kept)  # type: ignore[attr-defined]
        except BaseException as error:
            raise _unreadable(cached, as_error(error)) from error
        if self.projection is not None:
            return False
        cached.state = given
        return bool(has_changed)

    # -- memory

    def size(self, cached: CachedState[S]) -> int:
        """Bytes that the state counts for in the cache: by the application's function, or its encoded size."""
        return cached.encoded_bytes if self.size_of is None else call_sync(self.size_of, cached.state)

    async def close(self, cached: CachedState[S]) -> None:
        """Dispose the state, if it was loaded, then release its resources.

        If the entry has a successor, only resources that a failure has put in doubt are released. Raises nothing, and
        each step is bounded in time.
        """
        if hasattr(cached, "state"):
            await self._dispose(cached.session_id, cached.state)
        for state in cached.replaced:
            await self._dispose(cached.session_id, state)
        await cached.resources.release_failed()
        if not cached.is_kept:
            await cached.resources.release_all()

    async def _dispose(self, session_id: str, state: S) -> None:
        if self.dispose is not None:
            await run_bounded(f"dispose of session {session_id!r}", self.dispose, session_id, state)


def _unreadable(cached: CachedState[Any], error: Exception) -> errors.NotSerializable:
    return errors.NotSerializable(
        f"the state of session {cached.session_id!r} could not be read back: {problem_of(error)}"
    )


def state_of(record: SessionRecord) -> SessionState:
    """The state of a record."""
    return SessionState(
        session_id=record.session_id,
        state=record.state,
        encoding=record.encoding,
        schema_version=record.schema_version,
        metadata=record.metadata,
    )


def if_small(state: SessionState) -> SessionState | None:
    """The state if it is kept in memory in its stored form too, else None."""
    return state if len(state.state) <= REMEMBERED_BYTES else None


def _unpack(state: bytes, encoding: str) -> tuple[bytes, bytes]:
    raw = unpack(state, encoding)
    return raw, _digest(raw)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


async def _off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call ``function``: in a thread when the data is large."""
    if size <= IN_THREAD_ABOVE:
        return function(*args)
    return await anyio.to_thread.run_sync(partial(function, *args))


# --- metadata ---------------------------------------------------------------------------------------------------------


def override_metadata(
    stored: SessionMetadata, session_id: str | None, parent: str | None, labels: Mapping[str, str] | None
) -> SessionMetadata:
    """The record's metadata with another parent and other labels, where these are not None.

    Raises:
        InvalidId: the parent, or a label, is not a valid id.
        InvalidOptions: too many labels, one that names a resource, or the session would be its own parent.
    """
    if parent is not None:
        if check_id(parent, "parent") == session_id:
            raise errors.InvalidOptions(f"session {session_id!r} cannot be its own parent")
        stored = replace(stored, parent=parent)
    if labels is None:
        return stored
    kept = {key: value for key, value in stored.labels.items() if key.startswith(RESOURCE_LABEL)}
    return replace(stored, labels=check_labels({**_own(labels), **kept}))


def _add_described(metadata: SessionMetadata, described: SessionMetadata) -> SessionMetadata:
    """The metadata with the values that the application's function returned for the state; other values stay.

    Its labels are added to the others and win.

    Raises:
        InvalidOptions: it has a kind or a parent, which are set elsewhere.
        InvalidId: a name, label or participant is not a valid id.
        InvalidOptions: too many labels or participants, a label that names a resource, or a message
            count that is no integer or out of range.
    """
    if described.kind not in {"", metadata.kind} or described.parent not in {None, metadata.parent}:
        raise errors.InvalidOptions(
            f"metadata= has returned kind={described.kind!r}, parent={described.parent!r}: a session has the kind of"
            " its Sessions, and the parent that open(..., parent=) names"
        )
    if described.message_count is not None:
        check_integer(described.message_count, "message_count")
    return replace(
        metadata,
        name=metadata.name if described.name is None else check_id(described.name, "session name"),
        message_count=metadata.message_count if described.message_count is None else described.message_count,
        participants=_checked_participants(described.participants) if described.participants else metadata.participants,
        labels=check_labels({**metadata.labels, **_own(described.labels)}),
    )


def _own(labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels that an application gives: none of them names a resource."""
    found = next((key for key in labels if isinstance(key, str) and key.startswith(RESOURCE_LABEL)), None)
    if found is not None:
        raise errors.InvalidOptions(
            f"label {found!r:.80}: labels that begin with {RESOURCE_LABEL!r} name the resources of a session"
        )
    return labels


def _checked_participants(participants: object) -> tuple[str, ...]:
    if isinstance(participants, str) or not hasattr(participants, "__iter__"):
        raise errors.InvalidOptions(f"participants must be several ids, not {participants!r}")
    checked = tuple(check_id(each, "participant") for each in participants)
    if len(checked) > MAX_PARTICIPANTS:
        raise errors.InvalidOptions(f"{len(checked)} participants, over the limit of {MAX_PARTICIPANTS}")
    return checked
