"""The schema's version: bringing a file up to date, and refusing a file that is not.

All pending migrations run in one transaction, under the lock that every writer needs, so ten processes may start at
once and one of them migrates. See `affinity.provider.schema`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from affinity.actions import Administration
from affinity.errors import SchemaMismatch
from affinity.provider.schema import (
    HOW_TO_MIGRATE,
    RECENT_RECORDS,
    Migration,
    Progress,
    SchemaReport,
    SchemaVersion,
    check_usable,
    load_migrations,
    log_progress,
    made_before_release,
    refuse_too_new,
    report,
    report_applied,
    report_repaired,
)
from affinity.provider.sqlite.driver import timeline
from affinity.provider.sqlite.driver.clock import Clock
from affinity.provider.sqlite.driver.database import MAX_WAIT, connect, retry_while_busy
from affinity.provider.sqlite.driver.errors import FAILURES, translate
from affinity.provider.sqlite.driver.transaction import Tokens, Tx
from affinity.provider.sqlite.parts import tell_guests
from affinity_workflows import VERSION

MIGRATIONS: Final = load_migrations(__package__)
"""All migrations; the schema version is their number."""

MIGRATION_WAIT: Final = 6 * MAX_WAIT
"""Seconds that a migration waits for the file: longer than an operation does, for another process may be migrating."""


def migrate(
    path: Path, migrations: Sequence[Migration] = MIGRATIONS, progress: Progress = log_progress
) -> tuple[int, int]:
    """Create the file if need be and apply the missing ``migrations``; ``progress`` gets lines for people.

    Returns:
        The version before and after.

    Raises:
        SchemaMismatch: the file is too new for this code.
        ConnectionLost: the directory does not exist.
    """
    with closing(connect(path, create=True)) as connection:
        try:
            retry_while_busy(lambda: _read(connection, path), MIGRATION_WAIT)  # a file that is refused stays as it is
            # The switch to WAL wants the file for itself for a moment; it stays with the file, so it is made once.
            retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall(), MIGRATION_WAIT)
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), MIGRATION_WAIT)
            return _upgrade(connection, path, migrations, progress)
        except FAILURES as error:
            raise translate(error, path) from error


def inspect(path: Path) -> SchemaReport:
    """Return the schema's state, and the migrations that `migrate` would apply; nothing is changed.

    Raises:
        SchemaMismatch: the file is not a SQLite database.
    """
    if not path.exists():
        return report(SchemaVersion(0, 0), MIGRATIONS, ())
    with closing(connect(path)) as connection:
        try:
            return inspect_open(connection, path)
        except FAILURES as error:
            raise translate(error, path) from error


def inspect_open(connection: sqlite3.Connection, path: Path) -> SchemaReport:
    """As `inspect`, of a file that is open."""
    found = retry_while_busy(lambda: _read(connection, path), MAX_WAIT)
    is_known = found.oldest_code <= len(MIGRATIONS)
    return report(found, MIGRATIONS, _find_behind(connection, found.version) if is_known else ())


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file whose schema this code may not use.

    Raises:
        SchemaMismatch: the schema is too new, too old, or not affinity's.
    """
    try:
        found = retry_while_busy(lambda: _read(connection, path), MAX_WAIT)
    except FAILURES as error:
        raise translate(error, path) from error
    check_usable(found, MIGRATIONS, _place(path))


def unmigrated(path: Path) -> SchemaMismatch:
    """Return the error for a file without our tables."""
    return SchemaMismatch(f"{_place(path)} was never migrated: {HOW_TO_MIGRATE}")


def _place(path: Path) -> str:
    return f"the SQLite file {path}"


def _upgrade(
    connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration], progress: Progress
) -> tuple[int, int]:
    found = _read(connection, path)  # under the lock: another process may have done the work
    refuse_too_new(found, migrations, _place(path))
    missing = migrations[found.version :]
    for migration in missing:
        for statement in _split(migration.script):
            connection.execute(statement)
        _record(connection, migration)
    after = found.version + len(missing)
    behind = _find_behind(connection, after)
    tx = Tx(connection, Clock().now(), Tokens())
    for migration in missing:
        tell_guests(tx, Administration("migrate", {"version": migration.version}))
    if behind:
        _repair(tx)
        tell_guests(tx, Administration("repair", {"behind": list(behind)}))
    connection.execute("COMMIT")
    for migration in missing:
        report_applied(progress, migration, found.version, after)
    if behind:
        report_repaired(progress, behind)
    return found.version, after


def _find_behind(connection: sqlite3.Connection, version: int) -> list[str]:
    """Return the sequence of epochs, if it has not issued all epochs in use. SQLite keeps ids of messages ahead."""
    if not version:
        return []
    (behind,) = connection.execute(timeline.SQL["is_behind"], {"limit": RECENT_RECORDS}).fetchone()
    return ["epochs"] if behind else []


def _repair(tx: Tx) -> None:
    tx.run(timeline.SQL["raise_to_used"])
    timeline.begin(tx)


def _record(connection: sqlite3.Connection, migration: Migration) -> None:
    row = (migration.version, migration.oldest_code, VERSION)
    connection.execute("INSERT INTO migrations (version, oldest_code, release) VALUES (?, ?, ?)", row)


def _read(connection: sqlite3.Connection, path: Path) -> SchemaVersion:
    named = "SELECT name FROM sqlite_master WHERE name IN ('migrations', 'workers')"
    tables = {name for (name,) in connection.execute(named)}
    if "migrations" in tables:
        applied = "SELECT version, oldest_code, release FROM migrations ORDER BY version"
        versions = [SchemaVersion(*row) for row in connection.execute(applied)]
        oldest = max(versions, key=attrgetter("oldest_code"))
        return replace(oldest, version=versions[-1].version)
    if "workers" in tables:
        raise made_before_release(_place(path))
    return SchemaVersion(0, 0)


def _split(script: str) -> list[str]:
    """Return the statements of a script, since ``executescript`` would commit our transaction first."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    assert not pending.strip(), "a migration ends in the middle of a statement"
    return statements
