"""How states are packed."""

from __future__ import annotations

import random
import zlib

import pytest

from affinity.errors import PayloadTooLarge
from affinity.limits import COMPRESS_STATE_ABOVE, MAX_STATE_BYTES
from affinity.session.codec import pack, unpack


@pytest.mark.parametrize("size", [0, 1, COMPRESS_STATE_ABOVE, COMPRESS_STATE_ABOVE + 1, MAX_STATE_BYTES])
def test_what_is_packed_is_unpacked(size: int) -> None:
    packed, encoding = pack(bytes(size))
    assert encoding == ("plain" if size <= COMPRESS_STATE_ABOVE else "zlib")
    assert len(packed) == size if encoding == "plain" else len(packed) < size / 100
    assert unpack(packed, encoding) == bytes(size)


def test_what_does_not_shrink_stays_as_it_is() -> None:
    noise = random.Random(1).randbytes(2 * COMPRESS_STATE_ABOVE)
    assert pack(noise) == (noise, "plain")


def test_a_state_over_the_limit_is_refused_where_it_is_written() -> None:
    with pytest.raises(PayloadTooLarge, match=str(MAX_STATE_BYTES)):
        pack(bytes(MAX_STATE_BYTES + 1))


def test_what_would_grow_over_the_limit_is_refused() -> None:
    bomb = zlib.compress(bytes(MAX_STATE_BYTES + 1), 9)
    with pytest.raises(ValueError, match="grows over the limit"):
        unpack(bomb, "zlib")


@pytest.mark.parametrize("damaged", [b"", b"not zlib", zlib.compress(b"tea")[:-1], zlib.compress(b"tea") + b"x"])
def test_damaged_bytes_are_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        unpack(damaged, "zlib")


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ValueError, match="'lzma'"):
        unpack(b"", "lzma")
