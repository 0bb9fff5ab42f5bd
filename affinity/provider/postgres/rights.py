"""Rights of roles other than the one that migrates: clients, workers without DDL, and autoscalers.

A client reads, and writes through seven functions of the schema, which run with the rights of the role that migrated:
so it creates instances, restarts ended ones, sends messages, appends to journals and creates journals from others, and
nothing else. A worker changes rows of all tables but those that describe the schema and the rights. An autoscaler reads
the view ``desired_workers``.

The table ``granted_roles`` lists clients and workers: a migration grants them their rights to the objects that it adds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, LiteralString

from psycopg import AsyncConnection, sql

from affinity.errors import InvalidOptions
from affinity.limits import LOCK_TIMEOUT_SECONDS
from affinity.provider.postgres.driver.connections import connect
from affinity.provider.postgres.driver.errors import translated
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Row

_FUNCTIONS: Final[LiteralString] = (
    "GRANT EXECUTE ON FUNCTION {s}.create_instances_1, {s}.restart_instances_1, {s}.send_messages_1,"
    " {s}.send_keyed_messages_1, {s}.append_input_1, {s}.append_journals_3, {s}.bear_journal_1 TO {r}"
)
_GRANTS: Final[dict[str, Sequence[LiteralString]]] = {
    "client": (
        "GRANT USAGE ON SCHEMA {s} TO {r}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA {s} TO {r}",
        _FUNCTIONS,
    ),
    "worker": (
        "GRANT USAGE ON SCHEMA {s} TO {r}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {s} TO {r}",
        "REVOKE INSERT, UPDATE, DELETE ON {s}.schema_versions, {s}.applied_migrations, {s}.timeline, {s}.quotas,"
        " {s}.granted_roles FROM {r}",
        "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {s} TO {r}",
        _FUNCTIONS,
        "GRANT EXECUTE ON FUNCTION {s}.bear_journal_2 TO {r}",
    ),
    "scaler": (
        "GRANT USAGE ON SCHEMA {s} TO {r}",
        "GRANT SELECT ON {s}.desired_workers TO {r}",
    ),
}
_VACUUM: Final[LiteralString] = "GRANT MAINTAIN ON {s}.worker_queue, {s}.orchestrator_queue TO {r}"
_WITH_MAINTAIN: Final = 170_000
"""The first version of PostgreSQL in which vacuuming is a right that can be given."""

_REVOKES: Final[Sequence[LiteralString]] = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA {s} FROM {r}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {s} FROM {r}",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {s} FROM {r}",
    "REVOKE ALL ON SCHEMA {s} FROM {r}",
)

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('affinity rights ' || %s, 0))"
_KNOWN: Final = "SELECT to_regclass('granted_roles') IS NOT NULL"
_TOLD: Final = "SELECT g.role, g.kind FROM granted_roles g JOIN pg_roles r ON r.rolname = g.role ORDER BY g.role"
_OWNER: Final = """
SELECT r.rolname, r.oid = n.nspowner OR r.oid = c.relowner
FROM pg_roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.rolname = ANY (%s) AND c.oid = 'granted_roles'::regclass"""
_REMEMBER: Final = "INSERT INTO granted_roles (role, kind) VALUES (%s, %s)"
_FORGET: Final = "DELETE FROM granted_roles WHERE role = %s"


async def change_rights(
    target: Target,
    application_name: str,
    *,
    clients: Collection[str],
    workers: Collection[str],
    scalers: Collection[str],
    revoke: Collection[str],
) -> None:
    """Give roles the rights of a client, a worker or an autoscaler, and no others; or take them away. All or nothing.

    Raises:
        InvalidOptions: a role is named twice, is not there, or owns the schema.
    """
    settings = {"lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s"}
    with translated(target):
        connection = await connect(target.connect(f"{application_name} migrate", settings))
        async with connection, connection.transaction():
            await connection.execute(_LOCK, [target.schema])
            await _check(connection, [*clients, *workers, *scalers, *revoke])
            for role in [*revoke, *clients, *workers, *scalers]:
                await _take(connection, target, role)
            for role, kind in [*((role, "client") for role in clients), *((role, "worker") for role in workers)]:
                await connection.execute(_REMEMBER, [role, kind])
                await _give(connection, target, role, kind)
            for role in scalers:
                await _give(connection, target, role, "scaler")


async def renew_rights(connection: AsyncConnection[Row], target: Target) -> None:
    """Give the roles that are remembered their rights to what the transaction of the connection adds."""
    await connection.execute(_LOCK, [target.schema])
    ((known,),) = await _rows(connection, _KNOWN)
    for role, kind in await _rows(connection, _TOLD) if known else ():
        await _give(connection, target, role, kind)


async def _check(connection: AsyncConnection[Row], roles: Sequence[str]) -> None:
    owners: dict[str, bool] = dict(await _rows(connection, _OWNER, list(roles)))
    for role in roles:
        if roles.count(role) > 1:
            raise InvalidOptions(f"role {role!r} is named twice: a role has the rights of one kind")
        if role not in owners:
            raise InvalidOptions(f"PostgreSQL has no role {role!r}: CREATE ROLE first")
        if owners[role]:
            raise InvalidOptions(f"role {role!r} owns the schema, and has all rights: name another one")


async def _give(connection: AsyncConnection[Row], target: Target, role: str, kind: str) -> None:
    for statement in _GRANTS[kind]:
        await _run(connection, statement, target, role)
    if kind == "worker" and connection.info.server_version >= _WITH_MAINTAIN:
        await _run(connection, _VACUUM, target, role)


async def _take(connection: AsyncConnection[Row], target: Target, role: str) -> None:
    for statement in _REVOKES:
        await _run(connection, statement, target, role)
    await connection.execute(_FORGET, [role])


async def _run(connection: AsyncConnection[Row], statement: LiteralString, target: Target, role: str) -> None:
    names = {"s": sql.Identifier(target.schema), "r": sql.Identifier(role)}
    await connection.execute(sql.SQL(statement).format(**names), prepare=False)


async def _rows(connection: AsyncConnection[Row], statement: LiteralString, *params: object) -> list[Row]:
    return await (await connection.execute(statement, params or None)).fetchall()
