"""The schema's version: bringing a file up to date, and refusing one that is not.

The version is SQLite's ``user_version``. All pending migrations run in one transaction, under the lock that every
writer needs, so ten processes may start at once and one of them migrates.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from affinity.errors import SchemaMismatch
from affinity.provider.sqlite.database import MAX_WAIT, connect, patiently
from affinity.provider.sqlite.failures import FAILURES, translate
from affinity.provider.statements import load_migrations

MIGRATIONS: Final = load_migrations(__package__)

MIGRATION_WAIT: Final = 6 * MAX_WAIT
"""Seconds that a migration waits for the file: longer than a verb, for somebody else may be migrating."""


def migrate(path: Path, target: int = len(MIGRATIONS)) -> tuple[int, int]:
    """Create the file if need be and bring its schema to version ``target``.

    Returns:
        The version before and after.

    Raises:
        SchemaMismatch: the file is newer than this code.
        ConnectionLost: there is no such directory.
    """
    with closing(connect(path, create=True)) as connection:
        try:
            # The switch to WAL wants the file for itself for a moment; it stays with the file, so it is made once.
            patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall(), MIGRATION_WAIT)
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), MIGRATION_WAIT)
            return _upgrade(connection, target)
        except FAILURES as error:
            raise translate(error) from error


def check_schema(connection: sqlite3.Connection) -> None:
    """Refuse a file whose schema is not the one that this code was written for.

    Raises:
        SchemaMismatch: it is newer, older, or no schema of ours.
    """
    try:
        version = patiently(lambda: _version(connection), MAX_WAIT)
    except FAILURES as error:
        raise translate(error) from error
    _refuse_newer(version)
    if version == 0:
        raise unmigrated()
    if version < len(MIGRATIONS):
        raise SchemaMismatch(
            f"the SQLite file has schema version {version}, this code needs {len(MIGRATIONS)}: run `affinity migrate`"
        )


def unmigrated() -> SchemaMismatch:
    """The error for a file without our tables."""
    return SchemaMismatch("the SQLite file was never migrated: run `affinity migrate`")


def _upgrade(connection: sqlite3.Connection, target: int) -> tuple[int, int]:
    before = _version(connection)  # read under the lock: whoever was here first has done the work
    _refuse_newer(before)
    for migration in MIGRATIONS[before:target]:
        for statement in _split(migration):
            connection.execute(statement)
    after = max(before, target)
    connection.execute(f"PRAGMA user_version = {after}")  # a pragma takes no parameters
    connection.execute("COMMIT")
    return before, after


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _refuse_newer(version: int) -> None:
    if version > len(MIGRATIONS):
        raise SchemaMismatch(
            f"the SQLite file has schema version {version}, newer than the {len(MIGRATIONS)} of this code: "
            "upgrade affinity"
        )


def _split(script: str) -> list[str]:
    """Statements of a script, since ``executescript`` would commit our transaction first."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    assert not pending.strip(), "a migration ends in the middle of a statement"
    return statements
