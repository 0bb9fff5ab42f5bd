"""Batches as parameters: one typed array a column, packed into PostgreSQL's binary format in one go.

psycopg's own dumper for lists looks at every element to find their type. Here the type is known, and is the same for an
empty batch and for one of NULLs: a statement is prepared once, whatever it carries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format

T = TypeVar("T")

_EMPTY = struct.Struct("!iiI")  # dimensions, whether there are NULLs, element type
_HEAD = struct.Struct("!iiIii")  # the same, then length and lower bound
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)


class Column(Generic[T]):
    """The values of one column of a batch."""

    __slots__ = ("values",)

    element: ClassVar[int]  # oid of the element type
    array: ClassVar[int]  # oid of the array type

    def __init__(self, values: Iterable[T | None] = ()) -> None:
        self.values = tuple(values)

    def packed(self) -> bytes:
        """The column as PostgreSQL receives an array."""
        if not self.values:
            return _EMPTY.pack(0, 0, self.element)
        head = _HEAD.pack(1, None in self.values, self.element, len(self.values), 1)
        return head + b"".join([_NULL if value is None else self.pack(value) for value in self.values])

    @staticmethod
    def pack(value: Any) -> bytes:
        """One element, with its length before it."""
        raise NotImplementedError


class Texts(Column[str]):
    """``text[]``."""

    __slots__ = ()
    element, array = 25, 1009

    @staticmethod
    def pack(value: str) -> bytes:
        """UTF-8, which is the encoding of every connection of ours."""
        raw = value.encode()
        return _LENGTH(len(raw)) + raw


class Blobs(Column[bytes]):
    """``bytea[]``."""

    __slots__ = ()
    element, array = 17, 1001

    @staticmethod
    def pack(value: bytes) -> bytes:
        """As they are."""
        return _LENGTH(len(value)) + value


class Ints(Column[int]):
    """``bigint[]``."""

    __slots__ = ()
    element, array = 20, 1016
    _packer = struct.Struct("!iq").pack

    @staticmethod
    def pack(value: int) -> bytes:
        """Eight bytes."""
        return Ints._packer(8, value)


class Floats(Column[float]):
    """``double precision[]``."""

    __slots__ = ()
    element, array = 701, 1022
    _packer = struct.Struct("!id").pack

    @staticmethod
    def pack(value: float) -> bytes:
        """Eight bytes."""
        return Floats._packer(8, value)


class Bools(Column[bool]):
    """``boolean[]``."""

    __slots__ = ()
    element, array = 16, 1000
    _values = (_LENGTH(1) + b"\0", _LENGTH(1) + b"\1")

    @staticmethod
    def pack(value: bool) -> bytes:
        """One byte."""
        return Bools._values[value]


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
