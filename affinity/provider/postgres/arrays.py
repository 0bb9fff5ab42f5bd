"""Batches as parameters: one typed array a column, packed into PostgreSQL's binary format in one go.

psycopg's own dumper for lists looks at every element to find their type. Here the type is known, and is the same for an
empty batch and for one of NULLs: a statement is prepared once, whatever it carries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format

from affinity.limits import MAX_BATCH

T = TypeVar("T")

_EMPTY = struct.Struct("!iiI")  # dimensions, whether there are NULLs, element type
_HEAD = struct.Struct("!iiIii")  # the same, then length and lower bound
_LENGTH = struct.Struct("!i").pack
_INT = struct.Struct("!iq").pack
_FLOAT = struct.Struct("!id").pack
_NULL = _LENGTH(-1)
_BOOLS = (_LENGTH(1) + b"\0", _LENGTH(1) + b"\1")


@lru_cache(maxsize=8 * MAX_BATCH)
def _head(element: int, length: int) -> bytes:
    """What comes before the elements. It always says that there may be NULLs: the server looks itself."""
    return _HEAD.pack(1, 1, element, length, 1) if length else _EMPTY.pack(0, 0, element)


class Column(Generic[T]):
    """The values of one column of a batch."""

    __slots__ = ("values",)

    element: ClassVar[int]  # oid of the element type
    array: ClassVar[int]  # oid of the array type

    def __init__(self, values: Iterable[T | None] = ()) -> None:
        self.values = values if isinstance(values, list) else list(values)

    def packed(self) -> bytes:
        """The column as PostgreSQL receives an array."""
        return _head(self.element, len(self.values)) + b"".join(self.elements())

    def elements(self) -> list[bytes]:
        """The elements, each with its length before it: a worker spends its time here."""
        raise NotImplementedError


class Texts(Column[str]):
    """``text[]``, in UTF-8, which is the encoding of every connection of ours."""

    __slots__ = ()
    element, array = 25, 1009

    def elements(self) -> list[bytes]:
        parts = []
        for value in self.values:
            if value is None:
                parts.append(_NULL)
            else:
                raw = value.encode()
                parts += _LENGTH(len(raw)), raw
        return parts


class Blobs(Column[bytes]):
    """``bytea[]``."""

    __slots__ = ()
    element, array = 17, 1001

    def elements(self) -> list[bytes]:
        parts: list[bytes] = []
        for value in self.values:
            parts += (_NULL,) if value is None else (_LENGTH(len(value)), value)
        return parts


class Ints(Column[int]):
    """``bigint[]``."""

    __slots__ = ()
    element, array = 20, 1016

    def elements(self) -> list[bytes]:
        return [_NULL if value is None else _INT(8, value) for value in self.values]


class Floats(Column[float]):
    """``double precision[]``."""

    __slots__ = ()
    element, array = 701, 1022

    def elements(self) -> list[bytes]:
        return [_NULL if value is None else _FLOAT(8, value) for value in self.values]


class Bools(Column[bool]):
    """``boolean[]``."""

    __slots__ = ()
    element, array = 16, 1000

    def elements(self) -> list[bytes]:
        return [_NULL if value is None else _BOOLS[value] for value in self.values]


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
