"""The schema and its versions: numbered migrations, each applied once, in order, under a lock."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final, LiteralString, Protocol

from psycopg import AsyncConnection, sql

from affinity.errors import SchemaMismatch
from affinity.provider.postgres.connections import connect
from affinity.provider.postgres.conversation import Params, Row
from affinity.provider.postgres.errors import translated
from affinity.provider.postgres.target import Target
from affinity.provider.statements import load_migrations

MIGRATIONS: Final = load_migrations(__package__)
"""All there are; the schema version is their number."""


class Ask(Protocol):
    """One statement; its rows."""

    def __call__(self, statement: LiteralString, params: Params | None = None) -> Awaitable[list[Row]]: ...


_PATIENCE: Final = {
    "lock_timeout": "0",
    "statement_timeout": "0",
}  # a migrator waits for the one before it, however long

_LOCK: Final[LiteralString] = "SELECT pg_advisory_xact_lock(hashtextextended('affinity migration ' || %s, 0))"
_CREATE_VERSIONS: Final[LiteralString] = """
CREATE TABLE IF NOT EXISTS schema_versions (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
_IS_THERE: Final[LiteralString] = "SELECT to_regclass(quote_ident(%(schema)s) || '.schema_versions') IS NOT NULL"
_VERSION: Final[LiteralString] = "SELECT coalesce(max(version), 0) FROM schema_versions"
_RECORD: Final[LiteralString] = "INSERT INTO schema_versions (version) VALUES (%s)"


async def migrate_target(target: Target, application_name: str) -> tuple[int, int]:
    """Apply what is missing; the versions before and after.

    Raises:
        SchemaMismatch: the database is newer than this code.
    """
    with translated(target):
        async with await connect(target.connect(f"{application_name} migrate", _PATIENCE)) as connection:
            before = await _version(partial(_ask, connection), target)
            version = _not_newer(before, target)
            while version < len(MIGRATIONS):
                version = await _step(connection, target)
            return before, version


async def check_version(ask: Ask, target: Target) -> None:
    """Refuse a schema that this code does not fit.

    Raises:
        SchemaMismatch: it is newer, older, or not there at all.
    """
    version = _not_newer(await _version(ask, target), target)
    if version < len(MIGRATIONS):
        found = f"is at version {version}" if version else "was never migrated"
        raise SchemaMismatch(
            f"PostgreSQL: schema {target.schema!r} {found}, this code needs version {len(MIGRATIONS)}; "
            "run `affinity migrate`"
        )


async def _step(connection: AsyncConnection[Row], target: Target) -> int:
    """Apply the next migration that is missing, which another migrator may have done meanwhile; the version then."""
    async with connection.transaction():
        await connection.execute(_LOCK, [target.schema])
        await _create_schema(connection, target)
        await connection.execute(_CREATE_VERSIONS)
        version = _not_newer(await _read_version(partial(_ask, connection)), target)
        if version == len(MIGRATIONS):
            return version
        await connection.execute(MIGRATIONS[version], prepare=False)  # several statements
        await connection.execute(_RECORD, [version + 1])
        return version + 1


async def _create_schema(connection: AsyncConnection[Row], target: Target) -> None:
    """Asked first, so that a role without the right to create schemas may use one that it was given."""
    cursor = await connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [target.schema])
    if not cursor.rowcount:
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(target.schema)))


async def _version(ask: Ask, target: Target) -> int:
    ((there,),) = await ask(_IS_THERE, {"schema": target.schema})
    return await _read_version(ask) if there else 0


async def _read_version(ask: Ask) -> int:
    ((version,),) = await ask(_VERSION)
    return int(version)


async def _ask(connection: AsyncConnection[Row], statement: LiteralString, params: Params | None = None) -> list[Row]:
    return await (await connection.execute(statement, params)).fetchall()


def _not_newer(version: int, target: Target) -> int:
    if version > len(MIGRATIONS):
        raise SchemaMismatch(
            f"PostgreSQL: schema {target.schema!r} is at version {version}, newer than this code, which knows "
            f"{len(MIGRATIONS)}; upgrade affinity"
        )
    return version
