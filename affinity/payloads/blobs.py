"""Blob stores: large payloads, outside the database.

A store keeps blobs under names. A name is a prefix, which is the name of a database, and the digest of the blob:
``"q7c0a4ev/9f86d0…"``. So one store serves several databases, and a blob of a name has one content for ever.

`affinity.blobs.DirectoryStore` keeps blobs in a directory, `affinity.blobs.ObjectStore` in S3 or what speaks its
protocol. `affinity_conformance.blobs` has the rules as tests, for a store of your own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from datetime import datetime
from typing import Final, NamedTuple, Protocol, runtime_checkable

from affinity.errors import InvalidId
from affinity.records import frozen

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}/[0-9a-f]{64}")


class StoredBlob(NamedTuple):
    """A blob in a store."""

    name: str
    size: int
    """Bytes."""
    used_at: datetime
    """When it was put or touched, by the store's clock; with a time zone."""


@frozen(kw_only=True)
class BlobFigures:
    """The blobs of a database: see `Client.measure_blobs`."""

    count: int  # in the store
    bytes: int  # of these
    orphans: int  # of these, no row named when a collection looked last; they are deleted after the grace
    orphan_bytes: int  # of these
    oldest_orphan: float | None  # seconds since a collection has found it; None: there is none
    condemned: int  # a collection is deleting them now, or was killed while it did
    grace: float  # seconds, as this client was given it


@frozen(kw_only=True)
class BlobCollection:
    """Outcome of `Client.collect_blobs`."""

    deleted: int  # blobs; dry_run: would be deleted
    bytes: int  # of these
    orphans: int  # blobs that no row names now, with the deleted ones
    is_complete: bool  # False: more are to be deleted than one collection does, `limits.MAX_COLLECTED`


@runtime_checkable
class BlobStore(Protocol):
    """Keeps blobs. Its calls may run side by side, in several processes.

    Every call raises `affinity.errors.BlobStoreFailed` when the store refuses or fails, so that the caller tries again;
    and `affinity.errors.InvalidId` for a name that is none.
    """

    async def put(self, name: str, data: AsyncIterable[bytes]) -> None:
        """Keep these bytes, durably, and wholly or not at all. A blob of this name is replaced, and counts as used now.

        An exception of ``data`` is raised as it is, and nothing is kept.
        """
        ...

    def get(self, name: str) -> AsyncIterator[bytes]:
        """Return the bytes in parts of up to about 1 MiB.

        Raises:
            BlobNotFound: from the iterator: the store answers, and has no blob of this name.
        """
        ...

    async def touch(self, name: str) -> bool:
        """Have the blob count as used now. False: the store has none of this name."""
        ...

    async def find(self, name: str) -> StoredBlob | None:
        """Return the blob's size and when it was used last. It sees each put and touch that has returned."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the blob; if there is none, do nothing."""
        ...

    def list(self, prefix: str) -> AsyncIterator[StoredBlob]:
        """Return the blobs whose names begin with ``prefix`` and a slash, in any order.

        `StoredBlob.used_at` may be older here than in `find`. Blobs that come or go in between may be missing.
        """
        ...

    async def remove_unfinished(self, before: datetime) -> int:
        """Remove what is left of puts that began before this time and never ended; return how many."""
        ...


def is_blob_name(name: str) -> bool:
    """Return whether this is the name of a blob: what else is in a store, a collection leaves alone."""
    return _NAME.fullmatch(name) is not None


def check_blob_name(name: str) -> str:
    """Return the name of a blob.

    Raises:
        InvalidId: it is none: a prefix of lower-case letters, digits and hyphens, a slash, and 64 hexadecimal digits.
    """
    if not is_blob_name(name):
        raise InvalidId(f"{name!r} is no name of a blob: prefix/digest, with a digest of 64 hexadecimal digits")
    return name
