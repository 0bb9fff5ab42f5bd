"""Translates SQLite's errors to classes of `affinity.errors`: by result code, never by text.

The rule is the same as for PostgreSQL: an error is the environment's fault (`DatabaseFailure`, retried) unless its code
is on the short list of codes that speak of the data.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, TypeAlias

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    Duplicate,
    ProviderError,
    ReadOnly,
    SchemaMismatch,
    StatementTimeout,
)

FAILURES: Final = (sqlite3.Error, MemoryError, OverflowError)
"""Errors of Python's module: `MemoryError` for SQLITE_NOMEM, `OverflowError` for an integer of more than 64 bits."""

Failure: TypeAlias = sqlite3.Error | MemoryError | OverflowError

_PRIMARY: Final = 0xFF  # an extended result code carries its primary one in the low byte

_KINDS: Final[dict[int, type[ProviderError]]] = {
    # The data's own fault, and nothing else: the list is short on purpose.
    sqlite3.SQLITE_CONSTRAINT: DataRefused,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: Duplicate,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Duplicate,
    sqlite3.SQLITE_CONSTRAINT_ROWID: Duplicate,
    sqlite3.SQLITE_TOOBIG: DataRefused,
    sqlite3.SQLITE_MISMATCH: DataRefused,
    # The environment's.
    sqlite3.SQLITE_BUSY: Contention,
    sqlite3.SQLITE_LOCKED: Contention,
    sqlite3.SQLITE_INTERRUPT: StatementTimeout,
    sqlite3.SQLITE_CANTOPEN: ConnectionLost,
    sqlite3.SQLITE_READONLY: ReadOnly,
    sqlite3.SQLITE_PERM: AccessDenied,
    sqlite3.SQLITE_AUTH: AccessDenied,
    sqlite3.SQLITE_NOTADB: SchemaMismatch,
}

# What Python's module refuses before SQLite sees it has no code: a value that cannot be bound.
_UNSENDABLE: Final = (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError, OverflowError)


def primary_code(error: Failure) -> int:
    """The result code without its extension; `SQLITE_ERROR` when the module itself raised."""
    return _code(error) & _PRIMARY


def is_busy(error: Failure) -> bool:
    """Whether another connection was in the way."""
    return primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def translate(error: Failure, path: Path | None = None) -> ProviderError:
    """Our error for one of SQLite's; the message names the file, if it is given. Errors of calls do not name it: an
    instance may record them.
    """
    place = "SQLite" if path is None else f"SQLite file {path}"
    if isinstance(error, MemoryError):
        return DatabaseFailure(f"{place}: out of memory (SQLITE_NOMEM)", "SQLITE_NOMEM")
    name: str | None = getattr(error, "sqlite_errorname", None)
    return _classify(error)(f"{place}: {error} ({name or type(error).__name__})", name)


def _classify(error: Failure) -> type[ProviderError]:
    if not hasattr(error, "sqlite_errorcode"):
        return DataRefused if isinstance(error, _UNSENDABLE) else DatabaseFailure
    return _KINDS.get(_code(error)) or _KINDS.get(primary_code(error)) or DatabaseFailure


def _code(error: Failure) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
