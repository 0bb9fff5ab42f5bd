"""The one edge where SQLite's errors become ours: by result code, never by text."""

from __future__ import annotations

import sqlite3
from typing import Final

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    Duplicate,
    ProviderError,
)

_PRIMARY: Final = 0xFF  # an extended result code carries its primary one in the low byte

_KINDS: Final[dict[int, type[ProviderError]]] = {
    sqlite3.SQLITE_BUSY: Contention,
    sqlite3.SQLITE_LOCKED: Contention,
    sqlite3.SQLITE_CONSTRAINT: Duplicate,
    sqlite3.SQLITE_CANTOPEN: ConnectionLost,
    sqlite3.SQLITE_IOERR: ConnectionLost,
    sqlite3.SQLITE_READONLY: AccessDenied,
    sqlite3.SQLITE_PERM: AccessDenied,
    sqlite3.SQLITE_AUTH: AccessDenied,
}


def primary_code(error: sqlite3.Error) -> int:
    """The result code without its extension; `SQLITE_ERROR` when the module itself raised."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection was in the way."""
    return primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def translate(error: sqlite3.Error) -> ProviderError:
    """Our error for one of SQLite's; a damaged or full file, or anything unforeseen, is a `DatabaseFailure`."""
    kind = _KINDS.get(primary_code(error), DatabaseFailure)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return kind(f"SQLite: {error} ({name})")
