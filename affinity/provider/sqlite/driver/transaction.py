"""A transaction on the file, as the operations of the provider see it.

Every operation of the provider is a plain function of a `Tx` and its arguments. It runs without interruption between
``BEGIN`` and ``COMMIT``: no lock is ever held across a wait of the event loop. The clock is read once the write lock is
there.

Each step of a statement hands the interpreter lock over and takes it again, which is slow while the event loop is busy:
a hundred small steps cost far more than one large step. So batches go in and come out as JSON, in one step each.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, Final, LiteralString, TypeAlias

from affinity.provider.contract import Token

Row: TypeAlias = tuple[Any, ...]
Arguments: TypeAlias = Mapping[str, Any] | Sequence[Any]

PORTION: Final = 128
"""Rows that go in or come out as one JSON value: at the payload limit, and with every character of them escaped, they
stay below the billion bytes that SQLite takes."""

NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})


class Tokens:
    """Tokens of locks that no other database object issues: a random prefix and a counter, since a random number for
    each costs more.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = count(1)

    def next(self) -> Token:
        """A token that was never issued."""
        return Token(f"{self._prefix}:{next(self._numbers):x}")


class Tx:
    """A transaction: statements, the instant at which it runs, and tokens for locks."""

    __slots__ = ("_connection", "now", "tokens")

    def __init__(self, connection: sqlite3.Connection, now: float, tokens: Tokens) -> None:
        self._connection = connection
        self.now: float = now
        self.tokens: Tokens = tokens

    def rows(self, sql: LiteralString, arguments: Arguments = ()) -> list[Row]:
        """All rows of a statement."""
        return self._connection.execute(sql, arguments).fetchall()

    def row(self, sql: LiteralString, arguments: Arguments = ()) -> Row | None:
        """The only row of a statement, if there is one."""
        rows = self.rows(sql, arguments)  # to the end, so that no statement stays open behind us
        return rows[0] if rows else None

    def value(self, sql: LiteralString, arguments: Arguments = ()) -> Any:
        """The only column of the only row of a statement; None when it has no row."""
        (value,) = self.row(sql, arguments) or (None,)
        return value

    def run(self, sql: LiteralString, arguments: Arguments = ()) -> int:
        """Run a statement; the number of rows that it changed."""
        return self._connection.execute(sql, arguments).rowcount

    def many(self, sql: LiteralString, rows: Sequence[Any], arguments: Mapping[str, Any] = NO_ARGUMENTS) -> int:
        """Run a statement over all ``rows``, which it reads as JSON from ``:rows``; the number of rows it changed."""
        changed = 0
        for start in range(0, len(rows), PORTION):
            changed += self.run(sql, {**arguments, "rows": to_json(rows[start : start + PORTION])})
        return changed

    def each(self, sql: LiteralString, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each of ``rows``: for values that are too large for JSON, or no text."""
        self._connection.executemany(sql, rows)

    def gather(self, sql: LiteralString, arguments: Arguments = ()) -> list[Any]:
        """The rows of a statement that gathers them into one JSON array."""
        gathered: list[Any] = json.loads(self.value(sql, arguments))
        return gathered


to_json: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
"""JSON as a statement takes it; ids and payloads stay the text that they are."""
