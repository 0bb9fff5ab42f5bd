"""The blobs of one database: large payloads, and the data of `affinity.Blob`."""

from __future__ import annotations

import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from cachetools import LRUCache

from affinity.blob import MARK, Blob, BlobPath, BlobSource
from affinity.errors import BlobNotFound, BlobStoreFailed, CodecFailed, InvalidInput, InvalidOptions, PayloadUnreadable
from affinity.limits import (
    BLOB_CACHE_BYTES,
    BLOB_GRACE,
    BLOB_PART_BYTES,
    BLOB_TRANSFERS,
    MAX_BLOB_BYTES,
    MAX_RETENTION_SECONDS,
    MIN_BLOB_BOUND,
    MIN_BLOB_GRACE,
)
from affinity.payloads.blobs import BlobStore
from affinity.payloads.contract import PayloadCodec, PayloadContext, label_of
from affinity.payloads.streams import Transform, read_stream, write_stream
from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.blobs")

T = TypeVar("T")

_SALT: Final = 16
_REFERENCE: Final = re.compile(f"{MARK}([0-9a-f]{{64}}):([0-9]{{1,19}})")
_PREFIX: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SPOOLED: Final = 4 * BLOB_PART_BYTES
_FIELD: Final = "blob"
SUSPECT_SECONDS: Final = 300.0
"""From so long on, a blob that cannot be read each time, while its store answers, is unreadable: it hurts what names
it, and not the whole worker.
"""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_KNOWN: Final = 10_000
"""Blobs of which a process remembers when it has used them."""


class Blobs:
    """A blob store, and what goes there: ``Worker(…, blobs=Blobs(store))``, ``Client(…, blobs=Blobs(store))``.

    Args:
        store: a `DirectoryStore`, an `ObjectStore`, or one of yours.
        over: payloads that have more bytes than this, as they are stored, go to the store; at least
            `limits.MIN_BLOB_BOUND`. None, the default: only the data of `affinity.Blob` does.
        grace: seconds, by the database's clock, that a blob is kept after its last use though no row names it; at
            least `limits.MIN_BLOB_GRACE`.
            A client has to use a `Blob` within this time after it has put it. All workers and clients of a database
            have the same.
        collect: whether workers delete the blobs that no row names. False: for a copy of the database that shares the
            store with its original.

    Raises:
        InvalidOptions: an option is out of bounds.
    """

    def __init__(
        self, store: BlobStore, *, over: int | None = None, grace: float = BLOB_GRACE, collect: bool = True
    ) -> None:
        if not isinstance(store, BlobStore):
            raise InvalidOptions(f"a {type(store).__name__} is no blob store: it lacks methods of BlobStore")
        if over is not None and (type(over) is not int or over < MIN_BLOB_BOUND):
            raise InvalidOptions(f"over is an integer from {MIN_BLOB_BOUND}, in bytes, or None; not {over!r}")
        if not isinstance(grace, int | float) or not MIN_BLOB_GRACE <= grace <= MAX_RETENTION_SECONDS:
            raise InvalidOptions(f"grace is from {MIN_BLOB_GRACE:.0f} to {MAX_RETENTION_SECONDS:.0f} seconds")
        self.store: BlobStore = store
        self.over: int | None = over
        self.grace: float = float(grace)
        self.collect: bool = collect

    def __repr__(self) -> str:
        return f"Blobs({self.store!r}, over={self.over}, grace={self.grace:.0f}, collect={self.collect})"


class TellsCondemned(Protocol):
    """The part of a provider that a vault uses; `affinity.blobs.store.contract.BlobProvider` has all of it."""

    async def get_condemned_blobs(self, digests: Collection[str] | None = None) -> Collection[str]:
        """Return those of these digests that are being deleted."""
        ...


class Vault:
    """The blobs of one database.

    Args:
        blobs: the store and its options.
        database: name of the database: the prefix of the names of its blobs.
        provider: tells which blobs are condemned.
        codec: encodes what leaves the process.
        over: bytes above which a payload goes to the store; None: none does.
        patience: seconds for which a read is tried again while the store fails; None: for ever, as in a worker, which
            may not lose what it has fetched.
    """

    def __init__(
        self,
        blobs: Blobs,
        database: str,
        provider: TellsCondemned,
        codec: PayloadCodec | None,
        *,
        over: int | None = None,
        patience: float | None = None,
    ) -> None:
        self._over = over
        self.blobs: Blobs = blobs
        self.prefix: str = database if _PREFIX.fullmatch(database) else sha256(database.encode()).hexdigest()[:32]
        self._database = database
        self._provider = provider
        self._codec = codec
        self._patience = patience
        self._transfers = anyio.CapacityLimiter(BLOB_TRANSFERS)
        self._used: LRUCache[str, float] = LRUCache(_KNOWN)  # by digest: when this process has used it
        self._stored: LRUCache[bytes, str] = LRUCache(_KNOWN)  # by the digest of a payload: its reference
        self._payloads: LRUCache[str, bytes] = LRUCache(BLOB_CACHE_BYTES, getsizeof=len)
        self._is_failing = False

    # -- payloads

    def is_large(self, stored: str | bytes) -> bool:
        """Return whether a payload goes to the store, as it would be stored otherwise."""
        return self._over is not None and len(stored) > self._over

    async def offload(self, data: bytes) -> str:
        """Keep a payload in the store; return the reference that is stored in its place.

        Raises:
            BlobStoreFailed: the store fails.
        """
        known = sha256(data).digest()
        reference = self._stored.get(known)
        if reference is not None and self._is_fresh(_parse(reference)[0]):
            return reference
        whole = secrets.token_bytes(_SALT) + data
        digest = sha256(whole).hexdigest()
        at = time.monotonic()
        async with self._transfers:
            await self.blobs.store.put(self._name(digest), _parts_of(whole))
        self._used[digest] = at
        reference = f"{MARK}{digest}:{len(whole)}"
        self._stored[known] = reference
        self._keep(digest, data)
        return reference

    async def fetch(self, reference: str) -> bytes:
        """Return the payload of a reference.

        Raises:
            PayloadUnreadable: the blob is lost, or was altered.
            BlobStoreFailed: the store fails for longer than `patience`.
        """
        digest, size = _parse(reference)
        if (data := self._payloads.get(digest)) is not None:
            return data
        try:
            whole = await self._patiently(partial(self._read, digest, size), digest)
        except BlobNotFound as error:
            raise PayloadUnreadable(f"blob {digest} is lost: the store has none of this name") from error
        if len(whole) != size or sha256(whole).hexdigest() != digest:
            raise PayloadUnreadable(f"blob {digest} was altered in its store: it is not what was put")
        data = whole[_SALT:]
        self._keep(digest, data)
        return data

    async def _read(self, digest: str, size: int) -> bytes:
        whole = bytearray()
        async with self._transfers:
            async for part in self.blobs.store.get(self._name(digest)):
                whole += part
                if len(whole) > size:
                    break
        return bytes(whole)

    async def _answers(self) -> bool:
        """Return whether the store says that it does not have a blob which nobody has put there."""
        try:
            await self._read(secrets.token_hex(32), 1)
        except BlobNotFound:
            return True
        except BlobStoreFailed:
            return False
        return True

    def _keep(self, digest: str, data: bytes) -> None:
        if len(data) <= BLOB_CACHE_BYTES // 4:
            self._payloads[digest] = data

    # -- blobs of the application

    async def put(self, source: BlobSource) -> Blob:
        """Keep the data of a source, of up to `limits.MAX_BLOB_BYTES`.

        Raises:
            PayloadTooLarge: it has more.
            InvalidInput: the source is none.
            BlobStoreFailed: the store fails.
            CodecFailed: the codec does.
        """
        label = "" if self._codec is None else label_of(self._codec)
        with tempfile.SpooledTemporaryFile(_SPOOLED) as file:
            digest, size, head = await write_stream(_read_source(source), file, self._encode, label)
            at = time.monotonic()
            async with self._transfers:
                await self.blobs.store.put(self._name(digest), _stored_parts(head, file))
        self._used[digest] = at
        return Blob(digest, size)

    async def open(self, blob: Blob) -> AsyncIterator[bytes]:
        """Return the data of a blob in parts of up to 1 MiB, each checked before it is returned.

        Raises:
            PayloadUnreadable: from the iterator: the blob is lost, was altered, or has no key here.
            BlobStoreFailed: from the iterator: the store fails. What was read before is right.
        """
        stored = self.blobs.store.get(self._name(blob.digest))
        try:
            async for part in read_stream(stored, blob.digest, blob.size, self._decoder):
                yield part
        except BlobNotFound as error:
            raise PayloadUnreadable(f"blob {blob.digest} is lost: the store has none of this name") from error

    async def save(self, blob: Blob, path: BlobPath) -> None:
        """Write the data of a blob to a file. It is there when all of it was checked, or not at all.

        Raises:
            PayloadUnreadable, BlobStoreFailed: see `open`.
            OSError: the file cannot be written.
        """
        target = Path(path)
        incoming = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        file = await run_sync(incoming.open, "xb")
        try:
            async for part in self.open(blob):
                await run_sync(file.write, part)
            await run_sync(file.close)
            await run_sync(incoming.replace, target)
        finally:
            file.close()
            incoming.unlink(missing_ok=True)

    async def use(self, digests: Collection[str]) -> None:
        """Have blobs count as used, since a payload that names them is about to be written. One that is lost is logged:
        whoever opens it gets the error.

        Raises:
            BlobStoreFailed: the store fails.
        """
        stale = [digest for digest in digests if not self._is_fresh(digest)]
        if not stale:
            return
        touched = []
        for digest in stale:
            at = time.monotonic()
            async with self._transfers:
                if await self.blobs.store.touch(self._name(digest)):
                    touched.append((digest, at))
                else:
                    logger.warning("a payload names blob %s, which is not in the store", digest)
        condemned = await self._provider.get_condemned_blobs([digest for digest, _ in touched]) if touched else ()
        for digest, at in touched:
            if digest in condemned:
                logger.warning("a payload names blob %s, which is being deleted: it was not used for too long", digest)
            else:
                self._used[digest] = at

    def _is_fresh(self, digest: str) -> bool:
        at = self._used.get(digest)
        return at is not None and time.monotonic() - at < self.blobs.grace / 4

    def _name(self, digest: str) -> str:
        return f"{self.prefix}/{digest}"

    # -- the codec and the store

    async def _encode(self, part: bytes, number: int) -> bytes:
        if self._codec is None:
            return part
        try:
            return await self._codec.encode(part, self._context(number))
        except Exception as error:
            raise CodecFailed(f"the codec has failed: {type(error).__name__}: {error}") from error

    def _decoder(self, label: str) -> Transform:
        codec = self._codec
        if codec is None:
            if label:
                raise PayloadUnreadable(f"encrypted, {label}")
            return _as_it_is
        if not label and codec.reads_plain:
            return _as_it_is
        if not label:
            raise PayloadUnreadable("it is stored in the clear, which its codec does not accept")

        async def decode(part: bytes, number: int) -> bytes:
            try:
                return await codec.decode(part, self._context(number))
            except PayloadUnreadable:
                raise
            except Exception as error:
                raise CodecFailed(f"the codec has failed: {type(error).__name__}: {error}") from error

        return decode

    def _context(self, number: int) -> PayloadContext:
        return PayloadContext(self._database, str(number), _FIELD)

    async def _patiently(self, call: Callable[[], Awaitable[T]], digest: str = "") -> T:
        """Try again while the store fails, with one line of the log when it begins and one when it ends.

        Raises:
            PayloadUnreadable: the store answers, but for this blob.
            BlobStoreFailed: the patience is over.
        """
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                result = await call()
            except BlobStoreFailed as error:
                if not self._is_failing:
                    self._is_failing = True
                    logger.warning("blobs cannot be read, and will be tried again: %s", redacted(error))
                if self._patience is not None and time.monotonic() - began > self._patience:
                    raise
                if digest and time.monotonic() - began > SUSPECT_SECONDS and await self._answers():
                    text = f"blob {digest} cannot be read, and its store answers: {error}"
                    raise PayloadUnreadable(text) from error
            else:
                if self._is_failing:
                    self._is_failing = False
                    logger.info("blobs can be read again")
                return result
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def vault_of(provider: Any) -> Vault | None:
    """Return the blobs of a provider; None: it was opened without a blob store."""
    found = getattr(provider, "vault", None)
    return found if isinstance(found, Vault) else None


async def _as_it_is(part: bytes, number: int) -> bytes:
    return part


def _parse(reference: str) -> tuple[str, int]:
    found = _REFERENCE.fullmatch(reference)
    if found is None or not _SALT <= int(found[2]) <= MAX_BLOB_BYTES:
        raise PayloadUnreadable("the reference to a payload in the blob store is damaged")
    return found[1], int(found[2])


async def _parts_of(data: bytes) -> AsyncIterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(view), BLOB_PART_BYTES):
        yield bytes(view[start : start + BLOB_PART_BYTES])


async def _stored_parts(head: bytes, file: IO[bytes]) -> AsyncIterator[bytes]:
    yield head
    await run_sync(file.seek, 0)
    while part := await run_sync(file.read, BLOB_PART_BYTES):
        yield part


async def _read_source(source: BlobSource) -> AsyncIterator[bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        yield bytes(source)
    elif isinstance(source, os.PathLike):
        file = await run_sync(Path(source).open, "rb")
        try:
            while part := await run_sync(file.read, BLOB_PART_BYTES):
                yield part
        finally:
            file.close()
    elif hasattr(source, "__aiter__"):
        async for part in source:
            yield _checked(part)
    elif hasattr(source, "read"):
        while part := _checked(await run_sync(source.read, BLOB_PART_BYTES)):
            yield part
    else:
        raise InvalidInput(f"a blob is made from bytes, a Path, an open file or an async iterator, not {source!r:.80}")


def _checked(part: Any) -> bytes:
    if not isinstance(part, bytes | bytearray | memoryview):
        raise InvalidInput(f"the data of a blob is bytes, not {type(part).__name__}: open the file as 'rb'")
    return bytes(part)
