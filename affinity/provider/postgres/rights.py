"""Rights of other roles than the owner, which migrates: clients, readers, workers without DDL, and autoscalers.

`RIGHTS` is the kernel's table of role, object and right; guests add theirs. PUBLIC has no rights: each migration
revokes the right that PostgreSQL grants by default, EXECUTE on every function, and gives each role of the table
``granted_roles`` its rights again.

A client reads, and writes through functions that run with the rights of the role that migrated: it creates instances,
restarts ended instances, raises events and asks instances to cancel. Guests add functions of their own. These functions
check all their arguments in the database, so the right to call them allows nothing that a client may not do
(``schema/12_clients.sql``). A reader has the rights of a client without these functions. A worker changes rows of all
tables, except those that describe the schema and the rights. An autoscaler reads the view ``desired_workers`` and the
numbers of the migrations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, LiteralString

from psycopg import AsyncConnection, sql

from affinity.actions import Administration
from affinity.errors import InvalidOptions
from affinity.limits import LOCK_TIMEOUT_SECONDS
from affinity.provider.postgres.driver.connections import connect
from affinity.provider.postgres.driver.errors import translated
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.postgres.parts import CHANGE, READ, RUN, Rights, parts

ROLE_KINDS: Final = ("client", "worker", "scaler", "reader")


RIGHTS: Final[tuple[Rights, ...]] = (
    Rights("SCHEMA", "", client="USAGE", worker="USAGE", scaler="USAGE"),
    # The identity of the database, its limits, and the granted roles.
    Rights("TABLE", "timeline quotas granted_roles", client=READ, worker=READ),
    Rights("TABLE", "database_identity", client=READ, worker="SELECT, UPDATE"),
    Rights("TABLE", "migrations", client=READ, worker=READ, scaler=READ),
    Rights("TABLE", "worker_queue orchestrator_queue", client=READ, worker=f"{CHANGE}, MAINTAIN"),
    Rights(
        "TABLE",
        "activity_waits parked_items ended_executions history instance_counts instance_sizes instances"
        " failures instance_values instances_by_status instance_labels message_keys resources rounds session_holds"
        " session_moves session_orders"
        " session_states session_watches sessions suspensions sweeps workers",
        client=READ,
        worker=CHANGE,
    ),
    # Views.
    Rights("TABLE", "desired_workers", client=READ, worker=READ, scaler=READ),
    Rights(
        "TABLE",
        "alive_workers held_sessions message_routes newer_workers planned_moves session_routes",
        client=READ,
        worker=READ,
    ),
    Rights("TABLE", "deliverable_items", client=READ, worker="SELECT, UPDATE"),  # whose rows a fetch locks
    Rights("SEQUENCE", "epochs orchestrator_queue_id_seq", worker="USAGE, SELECT"),
    # The view `desired_workers` calls it with the rights of its reader.
    Rights("FUNCTION", "clock", client=RUN, worker=RUN, scaler=RUN),
    # The functions with which a client writes. Each runs with the owner's rights, and checks all its arguments.
    Rights(
        "FUNCTION",
        "client_create_instances client_restart_instances client_send_messages",
        client=RUN,
        worker=RUN,
        reader="",
    ),
    # Called by reads.
    Rights("FUNCTION", "activity_runs is_alive", client=RUN, worker=RUN),
    # With the owner's rights: the first call of each connection. It begins a timeline if the server was replaced.
    Rights("FUNCTION", "read_timeline", client=RUN, worker=RUN),
    # With the owner's rights: a timeline begins for the number that a worker gives.
    Rights("FUNCTION", "establish_timeline", worker=RUN),
    Rights(
        "FUNCTION",
        "add_instances commit_turn commit_turns consume_messages create_instances end_start_waits"
        " begin_next_starts replace_start restart_instances start_time"
        " send_keyed_messages send_messages delete_instances end_work free_items holds_session instance_bytes"
        " is_outdated keep_failures keeps_session label_instances latest_hold lock_order lower_worker_has_room"
        " measure_instances passes_fence pass_gates phase_of places_in_order refuse release_busy release_sessions"
        " reply_messages reset_instance restrict_items version_since write_values",
        worker=RUN,
    ),
    # The owner's alone. Triggers run for each role that changes the row.
    Rights("FUNCTION", "begin_timeline database_place timeline_place timeline_reached set_quotas"),
    Rights(
        "FUNCTION",
        "are_headers check_client_ids check_client_labels check_client_messages check_client_starts deny_client"
        " has_fields"
        " read_client_gates read_client_json read_client_message",
    ),
    Rights(
        "FUNCTION",
        "check_gate count_instances keep_session move_labels move_status notify_watchers promote_next"
        " record_ended_execution record_session_move tag_route",
    ),
)
"""Each table, view, sequence and function of the kernel's schema has a row here, those of a guest in its part: a test
compares them with the database.
"""


def all_rights() -> tuple[Rights, ...]:
    """Return the rights to the objects of the kernel and of the guests."""
    return (*RIGHTS, *(rights for part in parts().values() for rights in part.rights))


_WITH_MAINTAIN: Final = 170_000
"""The first version of PostgreSQL in which vacuuming is a right that can be given."""

_CLOSE: Final[Sequence[LiteralString]] = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA {s} FROM {r}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {s} FROM {r}",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {s} FROM {r}",
    "REVOKE ALL ON SCHEMA {s} FROM {r}",
)
_GRANTS: Final = """
SELECT format('GRANT %%s ON %%s %%s TO %%I', w.privilege, w.kind, string_agg(o.identity, ', '), %(role)s::text)
FROM unnest(%(kinds)s::text[], %(names)s::text[], %(privileges)s::text[]) AS w (kind, name, privilege)
JOIN (
    SELECT 'SCHEMA', '', quote_ident(current_schema)
    UNION ALL
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname, c.oid::regclass::text
    FROM pg_class c WHERE c.relnamespace = current_schema::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
    UNION ALL
    SELECT 'FUNCTION', p.proname, p.oid::regprocedure::text
    FROM pg_proc p WHERE p.pronamespace = current_schema::regnamespace
) AS o (kind, name, identity) USING (kind, name)
GROUP BY w.kind, w.privilege"""
_IS_OPEN: Final = """
SELECT EXISTS (
    SELECT FROM pg_proc p
    WHERE p.pronamespace = current_schema::regnamespace AND pg_has_role(p.proowner, 'USAGE')
      AND has_function_privilege('public', p.oid, 'EXECUTE'))"""

_LOCK: Final = "LOCK TABLE granted_roles IN SHARE ROW EXCLUSIVE MODE"
"""No role but the owner can take a lock that this one waits for, as it could with an advisory lock."""
_KNOWN: Final = "SELECT to_regclass('granted_roles') IS NOT NULL"
_REMEMBERED: Final = "SELECT g.role, g.kind FROM granted_roles g JOIN pg_roles r ON r.rolname = g.role ORDER BY g.role"
_OWNER: Final = """
SELECT r.rolname, r.oid = n.nspowner OR r.oid = c.relowner
FROM pg_roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.rolname = ANY (%s) AND c.oid = 'granted_roles'::regclass"""
_REMEMBER: Final = """
INSERT INTO granted_roles (role, kind) VALUES (%s, %s) ON CONFLICT (role) DO UPDATE SET kind = excluded.kind"""
_FORGET: Final = "DELETE FROM granted_roles WHERE role = %s"


async def change_rights(
    target: Target,
    application_name: str,
    *,
    clients: Collection[str],
    workers: Collection[str],
    scalers: Collection[str],
    readers: Collection[str],
    revoke: Collection[str],
) -> None:
    """Give roles the rights of a client, a worker, an autoscaler or a reader, and no others; or take them away. All or
    nothing.

    Raises:
        InvalidOptions: a role is named twice, does not exist, or owns the schema.
    """
    settings = {"lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s"}
    with translated(target):
        connection = await connect(target, target.connect(f"{application_name} migrate", settings))
        async with connection, connection.transaction():
            await connection.execute(_LOCK)
            await _check(connection, [*clients, *workers, *scalers, *readers, *revoke])
            for role in revoke:
                await _close(connection, target, sql.Identifier(role))
                await connection.execute(_FORGET, [role])
            await tell_guests(connection, Administration("revoke", {}, "role", revoke))
            for kind, roles in zip(ROLE_KINDS, (clients, workers, scalers, readers), strict=True):
                for role in roles:
                    await connection.execute(_REMEMBER, [role, kind])
                    await _grant(connection, target, role, kind)
                await tell_guests(connection, Administration("grant", {"rights_of": kind}, "role", roles))


async def tell_guests(connection: AsyncConnection[Row], done: Administration) -> None:
    """Run the statements of guests in the open transaction."""
    for part in parts().values():
        if part.administered is not None and (asked := part.administered(done)) is not None:
            await connection.execute(*asked)


async def renew_rights(connection: AsyncConnection[Row], target: Target) -> None:
    """Revoke the default rights of PUBLIC, and give each remembered role its rights and no others; within a
    transaction.
    """
    ((known,),) = await _rows(connection, _KNOWN)
    if known:
        await connection.execute(_LOCK)
    await _run(connection, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {s} FROM PUBLIC", target)
    for role, kind in await _rows(connection, _REMEMBERED) if known else ():
        await _grant(connection, target, role, kind)


async def is_open(connection: AsyncConnection[Row]) -> bool:
    """Return whether PUBLIC may execute a function on which this role could revoke that: as after a restore without
    rights.
    """
    ((found,),) = await _rows(connection, _IS_OPEN)
    return bool(found)


async def _check(connection: AsyncConnection[Row], roles: Sequence[str]) -> None:
    owners: dict[str, bool] = dict(await _rows(connection, _OWNER, list(roles)))
    for role in roles:
        if roles.count(role) > 1:
            raise InvalidOptions(f"role {role!r} is named twice: a role has the rights of one kind")
        if role not in owners:
            raise InvalidOptions(f"PostgreSQL has no role {role!r}: CREATE ROLE first")
        if owners[role]:
            raise InvalidOptions(f"role {role!r} owns the schema, and has all rights: name another one")


async def _grant(connection: AsyncConnection[Row], target: Target, role: str, kind: str) -> None:
    """Give a role the rights of its kind to the existing objects, and no others."""
    await _close(connection, target, sql.Identifier(role))
    kinds, names, privileges = zip(*privileges_of(kind, connection.info.server_version), strict=True)
    params = {"role": role, "kinds": list(kinds), "names": list(names), "privileges": list(privileges)}
    for (statement,) in await (await connection.execute(_GRANTS, params)).fetchall():
        await connection.execute(statement.encode(), prepare=False)


def privileges_of(role_kind: str, server_version: int) -> Iterator[tuple[str, str, str]]:
    """Yield what a kind of role has: the kind and the name of an object, and a privilege."""
    for row in all_rights():
        for privilege in row.of(role_kind):
            if privilege != "MAINTAIN" or server_version >= _WITH_MAINTAIN:
                yield from ((row.kind, name, privilege) for name in row.objects.split(" "))


async def _close(connection: AsyncConnection[Row], target: Target, role: sql.Identifier) -> None:
    for statement in _CLOSE:
        await _run(connection, statement, target, r=role)


async def _run(
    connection: AsyncConnection[Row], statement: LiteralString, target: Target, **names: sql.Identifier
) -> None:
    composed = sql.SQL(statement).format(s=sql.Identifier(target.schema), **names)
    await connection.execute(composed, prepare=False)


async def _rows(connection: AsyncConnection[Row], statement: LiteralString, *params: object) -> list[Row]:
    return await (await connection.execute(statement, params or None)).fetchall()
