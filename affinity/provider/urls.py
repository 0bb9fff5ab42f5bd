"""Database URLs: ``sqlite:///relative/or//absolute/path`` and ``postgresql://…`` (libpq's syntax, several hosts
too).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from affinity.errors import InvalidOptions, InvalidUrl
from affinity.provider.contract import Provider
from affinity.provider.schema import Progress, SchemaReport, log_progress
from affinity.provider.timeline import Timeline

_PASSWORD = re.compile(r"(password=)('[^']*'|[^&\s]+)", re.IGNORECASE)
_USER = re.compile(r"://.*@")


def redact(url: str) -> str:
    """The URL without user and password, for logs. A password may hold any character: all up to the last @ goes.

    No error message has a URL in it, not even so.
    """
    return _USER.sub("://***@", _PASSWORD.sub(r"\1***", url))


def has_password(url: str) -> bool:
    """Whether somebody who reads the URL of a PostgreSQL database reads a password too."""
    user = _USER.search(url)
    return _PASSWORD.search(url) is not None or (user is not None and ":" in user[0][len("://") :])


async def open_provider(url: str, *, application_name: str = "affinity", timeline: Timeline | None = None) -> Provider:
    """Connect to the database of ``url``; its schema must be up to date (`migrate`).

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``; there ``?schema=name`` chooses another schema than ``affinity``.
        application_name: shown in PostgreSQL's activity view.
        timeline: of a worker: from now on the provider refuses any other database, or line of its history, than the one
            that this names, or that it finds first.

    Raises:
        DatabaseChanged: the database is another one than that of ``timeline``.
        InvalidUrl: no provider for the URL, or it is malformed.
        ConnectionLost: the database cannot be reached.
        AccessDenied: it refuses the credentials.
        SchemaMismatch: it was never migrated, or is too old or too new for this code.
    """
    if (path := _sqlite_path(url)) is not None:
        from affinity.provider.sqlite import SqliteProvider

        return await SqliteProvider.open(path, timeline=timeline)
    from affinity.provider.postgres import PostgresProvider  # imported late: an embedded user needs no libpq

    return await PostgresProvider.open(url, application_name=application_name, timeline=timeline)


async def migrate(url: str, progress: Progress = log_progress) -> tuple[int, int]:
    """Bring the schema up to date, under a lock; safe while workers run, and when many start together.

    It waits for as long as another transaction has a table locked, in short attempts that stop nobody. If what issues
    ids is behind the tables, as after some restores, it is moved past them, and a new timeline begins.

    Args:
        url: as for `open_provider`.
        progress: gets a line at each step, and while it waits; by default they are logged.

    Returns:
        The schema version before and after.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `open_provider`.
        SchemaMismatch: the database is too new for this code.
    """
    if (path := _sqlite_path(url)) is not None:
        from affinity.provider.sqlite import SqliteProvider

        return await SqliteProvider.migrate(path, progress)
    from affinity.provider.postgres import PostgresProvider

    return await PostgresProvider.migrate(url, progress)


async def inspect_schema(url: str) -> SchemaReport:
    """What `migrate` would find and do; nothing is changed.

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied: as for `open_provider`.
    """
    if (path := _sqlite_path(url)) is not None:
        from affinity.provider.sqlite import SqliteProvider

        return await SqliteProvider.inspect_schema(path)
    from affinity.provider.postgres import PostgresProvider

    return await PostgresProvider.inspect_schema(url)


async def change_rights(
    url: str, *, clients: Collection[str] = (), workers: Collection[str] = (), revoke: Collection[str] = ()
) -> None:
    """Give roles of PostgreSQL the rights of a client, or of a worker that may not migrate, and no others; or take all
    rights in the schema away. A later `migrate` gives them their rights to what it adds. Idempotent.

    Args:
        url: of a migrated database, for the role that migrates.
        clients: roles that start instances, send them events, cancel them, and read.
        workers: roles that run workers, and administer instances and session records.
        revoke: roles that lose their rights.

    Raises:
        InvalidOptions: SQLite has no roles; or a role is named twice, is not there, or owns the schema.
        InvalidUrl, ConnectionLost, AccessDenied: as for `open_provider`.
        SchemaMismatch: the database was never migrated.
    """
    if _sqlite_path(url) is not None:
        raise InvalidOptions("SQLite has no roles: who may write the file may do everything")
    from affinity.provider.postgres import PostgresProvider

    await PostgresProvider.change_rights(url, clients=clients, workers=workers, revoke=revoke)


def _sqlite_path(url: str) -> Path | None:
    """The file of an ``sqlite`` URL, None for PostgreSQL; refuses everything else."""
    parts = None
    with suppress(ValueError):  # its text quotes the URL, and so perhaps a password
        parts = urlsplit(url)
    if parts is None or (parts.scheme in {"postgresql", "postgres"} and _is_ambiguous(url)):
        raise InvalidUrl(
            "the database's URL is malformed: quote special characters in its user and password, such as @ by %40 and"
            " / by %2F"
        )
    if parts.scheme in {"postgresql", "postgres"}:
        return None
    if parts.scheme != "sqlite":
        raise InvalidUrl("use sqlite:///path or postgresql://user@host/database")
    if parts.netloc or len(parts.path) < len("/x") or parts.query or parts.fragment:
        raise InvalidUrl("an SQLite URL is sqlite:///relative/path or sqlite:////absolute/path, and nothing more")
    path = unquote(parts.path[1:])
    if path.startswith((":memory:", "file:")):
        raise InvalidUrl(
            "SQLite needs a file: a database in memory belongs to one connection, and workers and clients would each"
            " have one of their own; use a file in a temporary directory"
        )
    return Path(path)


def _is_ambiguous(url: str) -> bool:
    """Whether libpq would take a part of a password, one with an @, a / or a ?, for a host, a port or a database."""
    authority, _, path = url.partition("://")[2].partition("/")
    user = authority.rpartition("@")[0]
    return "@" in user or "?" in user or "@" in path.partition("?")[0]
