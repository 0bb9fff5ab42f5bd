r"""The stored form of a `Blob`: a head, which lists the parts, and the parts, each encoded on its own.

The name of a blob is the digest of its head, and the head has the digest of each part. So a reader checks each part
before it passes it on, and holds one part in memory. What was altered, cut or exchanged is refused::

    AFB1 <size> <part size> <parts> <random> <codec's label>\n
    for each part: 4 bytes, the length of the stored part; 32 bytes, its SHA-256
    the stored parts
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from hashlib import sha256
from typing import IO, Final

from anyio.to_thread import run_sync

from affinity.errors import PayloadTooLarge, PayloadUnreadable
from affinity.limits import BLOB_PART_BYTES, MAX_BLOB_BYTES

Transform = Callable[[bytes, int], Awaitable[bytes]]
"""Encodes or decodes a part, of this number."""

_LINE: Final = b"AFB1 "
_LINE_BYTES: Final = 256
_ENTRY: Final = struct.Struct(">I32s")
_SPARE: Final = 64 * 1024
"""Bytes that a codec may add to a part."""


async def write_stream(
    data: AsyncIterable[bytes], file: IO[bytes], encode: Transform, label: str
) -> tuple[str, int, bytes]:
    """Write the parts of a blob to a file. Return its digest, its size, and its head.

    Raises:
        PayloadTooLarge: the content is larger than `limits.MAX_BLOB_BYTES`.
    """
    table, size, count = bytearray(), 0, 0
    async for part in _even_parts(data):
        size += len(part)
        if size > MAX_BLOB_BYTES:
            raise PayloadTooLarge(f"a blob has at most {MAX_BLOB_BYTES} bytes: divide it, each part a blob of its own")
        stored = await encode(part, count)
        count += 1
        table += _ENTRY.pack(len(stored), sha256(stored).digest())
        await run_sync(file.write, stored)
    # A random name is never one that a collection is about to delete.
    line = f"{size} {BLOB_PART_BYTES} {count} {secrets.token_hex(8)} {label}\n"
    head = b"%b%b%b" % (_LINE, line.encode(), bytes(table))
    return sha256(head).hexdigest(), size, head


async def read_stream(
    stored: AsyncIterator[bytes], digest: str, size: int, decode: Callable[[str], Transform]
) -> AsyncIterator[bytes]:
    """Return the content of a blob in parts; each was checked.

    Args:
        stored: what the store has.
        digest: of the blob.
        size: of its content.
        decode: returns what decodes parts of this label.

    Raises:
        PayloadUnreadable: it is not what was put.
    """
    reader = _Reader(stored)
    line = await reader.line()
    try:
        own_size, part_size, count, _, label = line[len(_LINE) : -1].decode().split(" ", 4)
        sizes = int(own_size), int(part_size), int(count)
    except ValueError as error:
        raise _altered(digest) from error
    if not line.startswith(_LINE) or sizes[0] != size or not 0 <= sizes[2] <= _most_parts(size, sizes[1]):
        raise _altered(digest)
    table = await reader.take(sizes[2] * _ENTRY.size)
    if sha256(line + table).hexdigest() != digest:
        raise _altered(digest)
    left, transform = size, decode(label)
    for number, (length, part_digest) in enumerate(_ENTRY.iter_unpack(table)):
        if length > sizes[1] + _SPARE + sizes[1] // 2:
            raise _altered(digest)
        encoded = await reader.take(length)
        if sha256(encoded).digest() != part_digest:
            raise _altered(digest)
        part = await transform(encoded, number)
        left -= len(part)
        if left < 0:
            raise _altered(digest)
        yield part
    if left or not await reader.is_over():
        raise _altered(digest)


def _most_parts(size: int, part_size: int) -> int:
    return -(-size // part_size) if part_size > 0 else -1


def _altered(digest: str) -> PayloadUnreadable:
    return PayloadUnreadable(f"blob {digest} was altered in its store: it is not what was put")


async def _even_parts(data: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The data in parts of `BLOB_PART_BYTES`; the last may be smaller."""
    buffer = bytearray()
    async for piece in data:
        view = memoryview(piece)
        while len(buffer) + len(view) >= BLOB_PART_BYTES:
            taken = BLOB_PART_BYTES - len(buffer)
            buffer += view[:taken]
            view = view[taken:]
            yield bytes(buffer)
            buffer.clear()
        buffer += view
    if buffer:
        yield bytes(buffer)


class _Reader:
    """Takes bytes from a stream of parts. What is missing at its end is missing in the result, whose digest differs."""

    def __init__(self, stored: AsyncIterator[bytes]) -> None:
        self._stored = stored
        self._buffer = bytearray()

    async def take(self, size: int) -> bytes:
        while len(self._buffer) < size and await self._fill():
            pass
        return self._cut(size)

    async def line(self) -> bytes:
        while b"\n" not in self._buffer and len(self._buffer) < _LINE_BYTES and await self._fill():
            pass
        return self._cut(self._buffer.find(b"\n", 0, _LINE_BYTES) + 1)

    async def is_over(self) -> bool:
        return not self._buffer and not await self._fill()

    async def _fill(self) -> bool:
        async for part in self._stored:
            self._buffer += part
            return True
        return False

    def _cut(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
