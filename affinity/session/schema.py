"""One kind of session state: how a record becomes a state of this code's schema, and how a state becomes a record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import anyio.to_thread

from affinity.errors import (
    InvalidInput,
    NotSerializable,
    SessionLoadFailed,
    SessionMigrationMissing,
    SessionRecordTooNew,
)
from affinity.records import SessionMetadata, SessionRecord, SessionState, SessionStore
from affinity.session import metadata
from affinity.session.calls import problem_of
from affinity.session.codec import StateCodec
from affinity.session.folding import Folding
from affinity.session.loaded import Encoded, Loaded, Stored
from affinity.session.migrations import Migrations
from affinity.session.packing import pack, unpack
from affinity.session.projection import Projection

S = TypeVar("S")
T = TypeVar("T")

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
    folding: Folding[S]
    migrations: Migrations = field(default_factory=Migrations)

    # -- reading

    async def load(self, session_id: str, store: SessionStore | None, values: Mapping[str, Any]) -> Loaded[S]:
        """The session's state from the store, or a new one, made with ``values`` where they are needed.

        Raises:
            SessionLoadFailed: the store failed, or the record is of another kind, damaged, or cannot be migrated.
        """
        record = None if store is None else await self._record(session_id, store)
        if record is None:
            return self.new(session_id, store, values)
        decoded = await self._decode(session_id, record)
        stored = Stored(
            store=store,
            version=record.version,
            birth=record.birth,
            turn=record.turn,
            digest=decoded.digest if record.schema_version == self.version else None,
            metadata=metadata.normal(record.metadata),
        )
        return Loaded(session_id, decoded.state, stored, decoded.size)

    def new(self, session_id: str | None, store: SessionStore | None, values: Mapping[str, Any]) -> Loaded[S]:
        """The initial state of a session.

        Raises:
            InvalidOptions: the type has no such state, and no ``initial`` says what it is.
        """
        state = self.folding.new(values) if self.initial is None else self.initial(session_id or "")
        birth = None if store is None else uuid4().hex
        return Loaded(session_id, state, Stored(store=store, birth=birth, metadata=SessionMetadata(kind=self.kind)))

    async def again(self, new: SessionState, stored: Stored) -> Loaded[S]:
        """The state from what is to be written and is not in the store yet."""
        decoded = await self._decode(new.session_id, new)
        loaded = Loaded(new.session_id, decoded.state, stored, decoded.size)
        loaded.metadata = new.metadata
        return loaded

    async def refresh(self, loaded: Loaded[S]) -> S:
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

    async def encode(self, loaded: Loaded[S]) -> Encoded:
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
            described = metadata.described(described, self.describe(loaded.state))
        digest = await _off_loop(len(raw), _digest, raw)
        if digest == loaded.stored.digest and described == loaded.stored.metadata:
            return Encoded(size=len(raw), digest=digest, new=None)
        self._read_back(loaded, raw)
        packed, encoding = await _off_loop(len(raw), pack, raw)
        new = SessionState(
            session_id=loaded.session_id,
            state=packed,
            encoding=encoding,
            schema_version=self.version,
            metadata=described,
        )
        return Encoded(size=len(raw), digest=digest, new=new)

    def _dump(self, loaded: Loaded[S]) -> bytes:
        state = loaded.state if self.projection is None else self.projection.to_record(loaded.state)
        try:
            return self.codec.dump(state)
        except InvalidInput:
            raise
        except Exception as error:
            raise NotSerializable(f"the state of session {loaded.session_id!r}: {problem_of(error)}") from error

    def _read_back(self, loaded: Loaded[S], raw: bytes) -> None:
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
