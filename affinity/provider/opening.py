"""From a database's URL to the provider that serves it; each engine is imported when a URL asks for it."""

from __future__ import annotations

from collections.abc import Collection

from affinity.errors import InvalidOptions
from affinity.limits import PROBE_AFTER
from affinity.provider.contract import Provider
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.timeline import Timeline
from affinity.provider.urls import sqlite_path


async def open_provider(
    url: str,
    *,
    application_name: str = "affinity",
    timeline: Timeline | None = None,
    one_connection: bool = False,
    as_client: bool = False,
    probe_after: float = PROBE_AFTER,
) -> Provider:
    """Connect to the database of ``url``; its schema must be up to date (`migrate`).

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``; there ``?schema=name`` chooses another schema than ``affinity``.
        application_name: shown in PostgreSQL's activity view.
        timeline: of a worker: from now on the provider refuses any other database, or line of its history, than the one
            that this names, or that it finds first.
        one_connection: all calls share one connection to PostgreSQL, and wait for each other there. By default there
            are up to three, for the loop of a worker.
        as_client: PostgreSQL checks that what is started, sent and appended is what a client may say. That needs the
            rights of a client; without it these calls need the rights of a worker.
        probe_after: seconds without a byte from PostgreSQL after which a short call is asked about on a new connection.
            If the server answers there, and does not work on the call, the call raises `ConnectionLost`.

    Raises:
        DatabaseChanged: the database has another timeline than ``timeline``.
        InvalidUrl: no provider for the URL, or it is malformed.
        ConnectionLost: the database cannot be reached.
        AccessDenied: it refuses the credentials.
        PoolerRefused: it is reached through a connection pooler.
        SchemaMismatch: it was never migrated, or is too old or too new for this code; or its encoding is not UTF8.
    """
    if (path := sqlite_path(url)) is not None:
        from affinity.provider.sqlite import SqliteProvider

        return await SqliteProvider.open(path, timeline=timeline)
    from affinity.provider.postgres import PostgresProvider  # imported late: an embedded user needs no libpq

    return await PostgresProvider.open(
        url,
        application_name=application_name,
        timeline=timeline,
        one_connection=one_connection,
        as_client=as_client,
        probe_after=probe_after,
    )


async def migrate(url: str, progress: Progress = log_progress) -> tuple[int, int]:
    """Bring the schema up to date, under a lock; safe while workers run, and when many start together.

    It waits while another transaction has a table locked, in short attempts that block no other transaction. Sequences
    that are behind their tables, as after some restores, are moved past them, and a new timeline begins.

    Args:
        url: as for `affinity.provider.open_provider`.
        progress: receives a line at each step, and while it waits; by default they are logged.

    Returns:
        The schema version before and after.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
        SchemaMismatch: the database is too new for this code.
    """
    if (path := sqlite_path(url)) is not None:
        from affinity.provider.sqlite import SqliteProvider

        return await SqliteProvider.migrate(path, progress)
    from affinity.provider.postgres import PostgresProvider

    return await PostgresProvider.migrate(url, progress)


async def inspect_schema(url: str) -> SchemaReport:
    """The schema's state, and the migrations that `migrate` would apply; nothing is changed.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
    """
    if (path := sqlite_path(url)) is not None:
        from affinity.provider.sqlite import SqliteProvider

        return await SqliteProvider.inspect_schema(path)
    from affinity.provider.postgres import PostgresProvider

    return await PostgresProvider.inspect_schema(url)


async def change_rights(
    url: str,
    *,
    clients: Collection[str] = (),
    workers: Collection[str] = (),
    scalers: Collection[str] = (),
    readers: Collection[str] = (),
    revoke: Collection[str] = (),
) -> None:
    """Give roles of PostgreSQL the rights of a client, of a worker that may not migrate, of an autoscaler, or of a
    reader, and no others; or take all rights in the schema away. A later `migrate` gives these roles their rights to
    what it adds. Idempotent.

    Args:
        url: of a migrated database, for the role that migrates.
        clients: roles that start instances, send them events, cancel them, and read.
        workers: roles that run workers, and administer instances and session records.
        scalers: roles that read the view ``desired_workers``.
        readers: roles that read all that a client reads, and write nothing, as for a console.
        revoke: roles that lose their rights.

    Raises:
        InvalidOptions: SQLite has no roles; or a role is named twice, is not there, or owns the schema.
        InvalidUrl, ConnectionLost, AccessDenied: as for `affinity.provider.open_provider`.
        SchemaMismatch: the database was never migrated.
    """
    if sqlite_path(url) is not None:
        raise InvalidOptions("SQLite has no roles: a user who may write the file may do everything")
    from affinity.provider.postgres import PostgresProvider

    roles = {"clients": clients, "workers": workers, "scalers": scalers, "readers": readers}
    await PostgresProvider.change_rights(url, **roles, revoke=revoke)
