"""A blob store in memory, for random programs."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from datetime import UTC, datetime
from typing import Final

import anyio

from affinity.blob import digests_in
from affinity.blobs import Blobs, StoredBlob
from affinity.errors import BlobNotFound

_SALT: Final = 16
"""Bytes before a payload, as `affinity.payloads.vault` writes them."""


class MemoryStore:
    """Keeps blobs in memory. Each call gives way to other tasks, as a call over the network does."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self._used: dict[str, datetime] = {}

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def put(self, name: str, data: AsyncIterable[bytes]) -> None:
        content = b"".join([part async for part in data])
        await anyio.lowlevel.checkpoint()
        self.kept[name], self._used[name] = content, datetime.now(UTC)

    async def get(self, name: str) -> AsyncIterator[bytes]:
        await anyio.lowlevel.checkpoint()
        if name not in self.kept:
            raise BlobNotFound(name)
        yield self.kept[name]

    async def touch(self, name: str) -> bool:
        await anyio.lowlevel.checkpoint()
        if name in self.kept:
            self._used[name] = datetime.now(UTC)
        return name in self.kept

    async def find(self, name: str) -> StoredBlob | None:
        await anyio.lowlevel.checkpoint()
        return StoredBlob(name, len(self.kept[name]), self._used[name]) if name in self.kept else None

    async def delete(self, name: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.kept.pop(name, None)
        self._used.pop(name, None)

    async def list(self, prefix: str) -> AsyncIterator[StoredBlob]:
        for name in [name for name in self.kept if name.startswith(f"{prefix}/")]:
            if (blob := await self.find(name)) is not None:
                yield blob

    async def remove_unfinished(self, before: datetime) -> int:
        return 0

    @property
    def digests(self) -> set[str]:
        """Of all blobs."""
        return {name.partition("/")[2] for name in self.kept}

    def payload(self, reference: str) -> bytes:
        """The payload that a reference in a row names."""
        (digest,) = digests_in(reference)
        (content,) = [content for name, content in self.kept.items() if name.endswith(digest)]
        return content[_SALT:]


STORE: Final = MemoryStore()
"""Of the program that runs."""


def small_blobs(over: int = 40) -> Blobs:
    """Return `STORE`, empty, with a bound below `limits.MIN_BLOB_BOUND`: payloads of programs are small."""
    STORE.__init__()  # type: ignore[misc]
    blobs = Blobs(STORE)
    blobs.over = over
    return blobs
