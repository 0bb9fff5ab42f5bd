"""Batches as parameters: one typed array a column, packed into PostgreSQL's binary format in one go.

psycopg's own dumper for lists looks at every element to find their type. Here the type is known, and is the same for an
empty batch and for one of NULLs: a statement is prepared once, whatever it carries. A worker spends its time here, so
nothing is asked twice: a column is packed where it is made, and sent as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import ClassVar

from affinity.limits import MAX_BATCH

_EMPTY = struct.Struct("!iiI")  # dimensions, whether there are NULLs, element type
_HEAD = struct.Struct("!iiIii")  # the same, then length and lower bound
_LENGTH = struct.Struct("!i").pack
_BIGINT = struct.Struct("!q").pack
_INT = struct.Struct("!iq").pack
_FLOAT = struct.Struct("!id").pack
_NULL = _LENGTH(-1)
_BOOLS = {None: _NULL, False: _LENGTH(1) + b"\0", True: _LENGTH(1) + b"\1"}


@lru_cache(maxsize=8 * MAX_BATCH)
def _head(element: int, length: int) -> bytes:
    """The header before the elements. It always states that there may be NULLs, which the server checks."""
    return _HEAD.pack(1, 1, element, length, 1) if length else _EMPTY.pack(0, 0, element)


@lru_cache(maxsize=MAX_BATCH)
def _ints(length: int) -> Callable[..., bytes]:
    """Packs so many integers, each behind its size."""
    return struct.Struct("!" + length * "iq").pack


class Packed:
    """A parameter as PostgreSQL receives it: all values of one column of a batch, or one value."""

    __slots__ = ("packed",)

    oid: ClassVar[int]  # of its type
    packed: bytes | None


class Text(Packed):
    """``text``, in UTF-8, which is the encoding of every connection of ours.

    Raises:
        UnicodeEncodeError: the value is no text: it has half of a surrogate pair.
    """

    __slots__ = ()
    oid = 25

    def __init__(self, value: str | None) -> None:
        self.packed: bytes | None = None if value is None else value.encode()


class Int(Packed):
    """``bigint``."""

    __slots__ = ()
    oid = 20

    def __init__(self, value: int | None) -> None:
        self.packed: bytes | None = None if value is None else _BIGINT(value)


class Bool(Packed):
    """``boolean``."""

    __slots__ = ()
    oid = 16

    def __init__(self, value: bool) -> None:
        self.packed: bytes | None = b"\1" if value else b"\0"


class Blob(Packed):
    """``bytea``."""

    __slots__ = ()
    oid = 17

    def __init__(self, value: bytes) -> None:
        self.packed: bytes | None = bytes(value)


class Texts(Packed):
    """``text[]``; see `Text`."""

    __slots__ = ()
    oid = 1009

    def __init__(self, values: Iterable[str | None]) -> None:
        parts: list[bytes] = []
        length = 0
        for value in values:
            length += 1
            if value is None:
                parts.append(_NULL)
            else:
                raw = value.encode()
                parts += _LENGTH(len(raw)), raw
        self.packed: bytes | None = _head(25, length) + b"".join(parts)


class Blobs(Packed):
    """``bytea[]``."""

    __slots__ = ()
    oid = 1001

    def __init__(self, values: Iterable[bytes | None]) -> None:
        parts: list[bytes] = []
        length = 0
        for value in values:
            length += 1
            parts += (_NULL,) if value is None else (_LENGTH(len(value)), value)
        self.packed: bytes | None = _head(17, length) + b"".join(parts)


class Ints(Packed):
    """``bigint[]``."""

    __slots__ = ()
    oid = 1016

    def __init__(self, values: Iterable[int | None]) -> None:
        values = list(values)
        parts: list[int | None] = [8] * (2 * len(values))
        parts[1::2] = values
        try:
            packed = _ints(len(values))(*parts)
        except struct.error:  # for a NULL, which few columns have
            packed = b"".join([_NULL if value is None else _INT(8, value) for value in values])
        self.packed: bytes | None = _head(20, len(values)) + packed


class Floats(Packed):
    """``double precision[]``."""

    __slots__ = ()
    oid = 1022

    def __init__(self, values: Iterable[float | None]) -> None:
        parts = [_NULL if value is None else _FLOAT(8, value) for value in values]
        self.packed: bytes | None = _head(701, len(parts)) + b"".join(parts)


class Bools(Packed):
    """``boolean[]``."""

    __slots__ = ()
    oid = 1000

    def __init__(self, values: Iterable[bool | None]) -> None:
        parts = [_BOOLS[value] for value in values]
        self.packed: bytes | None = _head(16, len(parts)) + b"".join(parts)
