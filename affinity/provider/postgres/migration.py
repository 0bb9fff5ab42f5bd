"""Bringing the schema up to date: numbered migrations, each applied once, in order, under a lock.

Workers go on meanwhile. A migration that needs a table for itself waits for the transactions that read it, and other
calls wait behind the migration. So it waits for `LOCK_TIMEOUT_SECONDS` only, lets the others pass, and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, LiteralString, Protocol, TypeVar

from psycopg import AsyncConnection, sql
from psycopg.errors import DeadlockDetected, LockNotAvailable

from affinity.actions import Administration
from affinity.errors import PoolerRefused
from affinity.limits import LOCK_TIMEOUT_SECONDS, MIGRATION_PAUSES
from affinity.provider.postgres import sequences
from affinity.provider.postgres.driver.connections import connect
from affinity.provider.postgres.driver.errors import WITHOUT_POOLER, translated
from affinity.provider.postgres.driver.target import MARKER, Target
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.rights import is_open, renew_rights, tell_guests
from affinity.provider.schema import (
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
from affinity_workflows import VERSION

T = TypeVar("T")

MIGRATIONS: Final = load_migrations(__package__)
"""All there are; the schema version is their number."""


class RunStatement(Protocol):
    """One statement; its rows."""

    def __call__(self, statement: LiteralString, params: Params | None = None) -> Awaitable[list[Row]]: ...


_LOCK: Final[LiteralString] = "LOCK TABLE migrations IN SHARE ROW EXCLUSIVE MODE"
"""Only the owner can take a lock that this one waits for."""
_LOCK_EMPTY: Final[LiteralString] = "SELECT pg_advisory_xact_lock(hashtextextended('affinity migration ' || %s, 0))"
"""Taken while the table does not exist yet. Each role can take it, and then a new schema has to wait."""
_IS_THERE: Final[LiteralString] = "SELECT to_regclass(quote_ident(%(schema)s) || '.migrations') IS NOT NULL"
_TABLES: Final[LiteralString] = """
SELECT to_regclass(quote_ident(%(schema)s) || '.migrations') IS NOT NULL,
    to_regclass(quote_ident(%(schema)s) || '.schema_versions') IS NOT NULL, current_setting(%(marker)s, true)"""
_VERSION: Final[LiteralString] = """
SELECT max(version), max(oldest_code), (array_agg(release ORDER BY oldest_code DESC, version))[1] FROM migrations"""
_RECORD: Final[LiteralString] = "INSERT INTO migrations (version, oldest_code, release) VALUES (%s, %s, %s)"


async def migrate_target(target: Target, application_name: str, progress: Progress = log_progress) -> tuple[int, int]:
    """Apply the missing migrations; returns the versions before and after.

    Raises:
        SchemaMismatch: the database is too new for this code.
    """
    async with _connected(target, application_name) as connection:
        before = await _read(partial(_ask, connection), target)
        refuse_too_new(before, MIGRATIONS, _place(target))
        version = before.version
        while version < len(MIGRATIONS):
            version = await _retry(partial(_step, connection, target, before.version, progress), progress)
        if await _find_behind(connection, version):
            await _retry(partial(_repair, connection, target, progress), progress)
        if await is_open(connection):
            await _retry(partial(_close, connection, target), progress)
        return before.version, version


async def inspect_target(target: Target) -> SchemaReport:
    """Return the schema's state, and the migrations that `migrate_target` would apply; nothing is changed."""
    async with _connected(target, "affinity") as connection:
        return await inspect_connected(connection, target)


async def inspect_connected(connection: AsyncConnection[Row], target: Target) -> SchemaReport:
    """As `inspect_target`, on a connection with the settings of one of ours."""
    found = await _read(partial(_ask, connection), target)
    is_known = found.oldest_code <= len(MIGRATIONS)
    return report(found, MIGRATIONS, await _find_behind(connection, found.version) if is_known else ())


async def check_version(ask: RunStatement, target: Target) -> None:
    """Refuse a schema that this code may not use.

    Raises:
        SchemaMismatch: the schema is too new, too old, or does not exist.
    """
    check_usable(await _read(ask, target), MIGRATIONS, _place(target))


@asynccontextmanager
async def _connected(target: Target, application_name: str) -> AsyncIterator[AsyncConnection[Row]]:
    settings = {"lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s", "statement_timeout": "0"}
    with translated(target):
        async with await connect(target, target.connect(f"{application_name} migrate", settings)) as connection:
            yield connection


async def _retry(step: Callable[[], Awaitable[T]], progress: Progress) -> T:
    """Repeat a step for as long as another transaction is in its way."""
    for pause in _pauses():
        try:
            return await step()
        except (LockNotAvailable, DeadlockDetected):
            progress(f"migration: another transaction, or migration, is in the way; trying again in {pause:g} s")
        await asyncio.sleep(pause)
    raise AssertionError("endless")


def _pauses() -> Iterator[float]:
    yield from MIGRATION_PAUSES
    while True:
        yield MIGRATION_PAUSES[-1]


async def _step(connection: AsyncConnection[Row], target: Target, before: int, progress: Progress) -> int:
    """Apply the next migration that is missing, which another migrator may have done meanwhile; the version then.
    ``before`` is the version before the first step.
    """
    async with connection.transaction():
        await _lock(connection, target)
        await _create_schema(connection, target)
        found = await _read(partial(_ask, connection), target)
        refuse_too_new(found, MIGRATIONS, _place(target))
        if found.version >= len(MIGRATIONS):
            return found.version
        migration = MIGRATIONS[found.version]
        await connection.execute(migration.script, prepare=False)  # several statements
        await _record(connection, migration)
        await renew_rights(connection, target)
        await tell_guests(connection, Administration("migrate", {"version": migration.version}))
    report_applied(progress, migration, before, len(MIGRATIONS))
    return migration.version


async def _lock(connection: AsyncConnection[Row], target: Target) -> None:
    """Wait until no other migrator is at work, until the end of the transaction."""
    for first in (None, _LOCK_EMPTY):
        if first is not None:
            await connection.execute(first, [target.schema])
        ((is_there,),) = await _ask(connection, _IS_THERE, {"schema": target.schema})
        if is_there:
            await connection.execute(_LOCK)
            return


async def _record(connection: AsyncConnection[Row], migration: Migration) -> None:
    await connection.execute(_RECORD, [migration.version, migration.oldest_code, VERSION])


async def _find_behind(connection: AsyncConnection[Row], version: int) -> Sequence[str]:
    return await sequences.find_behind(connection) if version else ()


async def _repair(connection: AsyncConnection[Row], target: Target, progress: Progress) -> None:
    async with connection.transaction():
        await _lock(connection, target)
        behind = await sequences.find_behind(connection)  # another migrator may have been first
        if not behind:
            return
        await sequences.repair(connection)
        await tell_guests(connection, Administration("repair", {"behind": list(behind)}))
    report_repaired(progress, behind)


async def _close(connection: AsyncConnection[Row], target: Target) -> None:
    async with connection.transaction():
        await renew_rights(connection, target)


async def _create_schema(connection: AsyncConnection[Row], target: Target) -> None:
    """Asked first, so that a role without the right to create schemas may use one that it was given."""
    cursor = await connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [target.schema])
    if not cursor.rowcount:
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(target.schema)))


async def _read(ask: RunStatement, target: Target) -> SchemaVersion:
    name, value = MARKER
    ((there, is_unreleased, found),) = await ask(_TABLES, {"schema": target.schema, "marker": name})
    if found != value:
        raise PoolerRefused(f"PostgreSQL: a pooler ignores the settings of the connection; {WITHOUT_POOLER}")
    if is_unreleased:
        raise made_before_release(_place(target))
    if not there:
        return SchemaVersion(0, 0)
    ((version, oldest, release),) = await ask(_VERSION)
    return SchemaVersion(version, oldest, release)


async def _ask(connection: AsyncConnection[Row], statement: LiteralString, params: Params | None = None) -> list[Row]:
    return await (await connection.execute(statement, params, prepare=False)).fetchall()


def _place(target: Target) -> str:
    return f"PostgreSQL: schema {target.schema!r}"
