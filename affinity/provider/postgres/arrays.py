"""Batches as parameters: one typed array a column, packed into PostgreSQL's binary format in one go.

psycopg's own dumper for lists looks at every element to find their type. Here the type is known, and is the same for an
empty batch and for one of NULLs: a statement is prepared once, whatever it carries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any, ClassVar, Generic, TypeVar

from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format

T = TypeVar("T")

_EMPTY = struct.Struct("!iiI")  # dimensions, whether there are NULLs, element type
_HEAD = struct.Struct("!iiIii")  # the same, then length and lower bound
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)
_INT = struct.Struct("!iq").pack
_FLOAT = struct.Struct("!id").pack
_BOOLS = (_LENGTH(1) + b"\0", _LENGTH(1) + b"\1")


class Column(Generic[T]):
    """The values of one column of a batch."""

    __slots__ = ("values",)

    element: ClassVar[int]  # oid of the element type
    array: ClassVar[int]  # oid of the array type

    def __init__(self, values: Iterable[T | None] = ()) -> None:
        self.values = values if isinstance(values, list) else list(values)

    def packed(self) -> bytes:
        """The column as PostgreSQL receives an array."""
        values = self.values
        if not values:
            return _EMPTY.pack(0, 0, self.element)
        if None in values:
            elements = b"".join([_NULL if value is None else self.pack((value,)) for value in values])
            return _HEAD.pack(1, 1, self.element, len(values), 1) + elements
        return _HEAD.pack(1, 0, self.element, len(values), 1) + self.pack(values)

    @staticmethod
    def pack(values: Sequence[Any]) -> bytes:
        """Elements, each with its length before it. A worker spends its time here: no line of Python for each value."""
        raise NotImplementedError


class Texts(Column[str]):
    """``text[]``."""

    __slots__ = ()
    element, array = 25, 1009

    @staticmethod
    def pack(values: Sequence[str]) -> bytes:
        """UTF-8, which is the encoding of every connection of ours."""
        return Blobs.pack(list(map(str.encode, values)))


class Blobs(Column[bytes]):
    """``bytea[]``."""

    __slots__ = ()
    element, array = 17, 1001

    @staticmethod
    def pack(values: Sequence[bytes]) -> bytes:
        """As they are."""
        return b"".join(chain.from_iterable(zip(map(_LENGTH, map(len, values)), values, strict=True)))


class Ints(Column[int]):
    """``bigint[]``."""

    __slots__ = ()
    element, array = 20, 1016

    @staticmethod
    def pack(values: Sequence[int]) -> bytes:
        """Eight bytes."""
        return b"".join(map(_INT, repeat(8), values))


class Floats(Column[float]):
    """``double precision[]``."""

    __slots__ = ()
    element, array = 701, 1022

    @staticmethod
    def pack(values: Sequence[float]) -> bytes:
        """Eight bytes."""
        return b"".join(map(_FLOAT, repeat(8), values))


class Bools(Column[bool]):
    """``boolean[]``."""

    __slots__ = ()
    element, array = 16, 1000

    @staticmethod
    def pack(values: Sequence[bool]) -> bytes:
        """One byte."""
        return b"".join(map(_BOOLS.__getitem__, values))


def _dumper(column: type[Column[Any]]) -> type[Dumper]:
    class ColumnDumper(Dumper):
        format = Format.BINARY
        oid = column.array

        def dump(self, obj: Column[Any]) -> bytes:
            return obj.packed()

    return ColumnDumper


_DUMPERS = {column: _dumper(column) for column in (Texts, Blobs, Ints, Floats, Bools)}


def register_arrays(connection: AsyncConnection[Any]) -> None:
    """Teach a connection to send columns."""
    for column, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(column, dumper)
