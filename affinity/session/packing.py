"""How the bytes of a state are packed for a store: as they are when short, deflated above a threshold."""

from __future__ import annotations

import zlib
from typing import Final

from affinity.errors import PayloadTooLarge
from affinity.limits import COMPRESS_STATE_ABOVE, MAX_STATE_BYTES
from affinity.records import StateEncoding

_LEVEL: Final = 1  # most of the space for a fraction of the time: a state is packed after every turn

_SAMPLE: Final = 64 * 1024


def pack(state: bytes) -> tuple[bytes, StateEncoding]:
    """The bytes to store and how they are packed. Compresses above `limits.COMPRESS_STATE_ABOVE`, where that helps.

    Raises:
        PayloadTooLarge: more than `limits.MAX_STATE_BYTES`, which `unpack` would not give back.
    """
    if len(state) > MAX_STATE_BYTES:
        raise PayloadTooLarge(
            f"the state has {len(state)} bytes, over the limit of {MAX_STATE_BYTES}: keep large data elsewhere"
        )
    if len(state) <= COMPRESS_STATE_ABOVE or not _shrinks(state[:_SAMPLE]):
        return state, "plain"
    packed = zlib.compress(state, _LEVEL)
    return (packed, "zlib") if len(packed) < len(state) else (state, "plain")


def _shrinks(sample: bytes) -> bool:
    """Whether it is worth the time: a saved model cache, or an image, is not."""
    return len(zlib.compress(sample, _LEVEL)) < 0.9 * len(sample)


def unpack(state: bytes, encoding: str) -> bytes:
    """The bytes of a state, as they were before `pack`.

    Raises:
        ValueError: the encoding is unknown, the bytes are damaged, or they would grow over `limits.MAX_STATE_BYTES`.
    """
    if encoding == "plain":
        return state
    if encoding != "zlib":
        raise ValueError(f"the state is packed as {encoding!r}, which this version of affinity does not know")
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(state, MAX_STATE_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"the packed state is damaged: {error}") from None
    if len(plain) > MAX_STATE_BYTES:
        raise ValueError(f"the packed state grows over the limit of {MAX_STATE_BYTES} bytes")
    if not reader.eof or reader.unused_data:
        raise ValueError("the packed state is damaged: it does not end where it should")
    return plain
