"""Where databases come from: a PostgreSQL server, thrown away or given, or a folder for SQLite files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from bench.systems.base import Dialect, System
from tests.servers import PostgresServer, find_postgres
from tests.servers.external import ExternalServer

SHOWN_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "wal_level")
"""Settings of a server that decide what a commit costs."""


class NoServer(RuntimeError):
    """There is no PostgreSQL of the version that was asked for."""


class Place(Protocol):
    """Gives each measurement an empty database with the schema of its system."""

    @property
    def dialect(self) -> Dialect:
        """The kind of database."""
        ...

    def database(self, system: System) -> AbstractContextManager[str]:
        """The URL of a new database, which is gone afterwards."""
        ...

    def describe(self) -> dict[str, Any]:
        """What it is, for the record."""
        ...


class PostgresPlace:
    """Databases on one server, copied from a template for each system."""

    dialect: Dialect = "postgresql"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._templates: dict[str, str] = {}

    @contextmanager
    def database(self, system: System) -> Iterator[str]:
        name = self._server.create_database(self._template(system))
        try:
            yield self._server.url(name)
        finally:
            self._server.drop_database(name)

    def describe(self) -> dict[str, Any]:
        with psycopg.connect(self._server.url()) as connection:
            found = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s) ORDER BY name",
                [list(SHOWN_SETTINGS)],
            )
            settings: dict[str, str] = dict(found.fetchall())
            version = connection.execute("SELECT version()").fetchone()
        assert version is not None
        return {"database": version[0], "settings": settings}

    def close(self) -> None:
        """Remove the templates."""
        for name in self._templates.values():
            self._server.drop_database(name)

    def _template(self, system: System) -> str:
        if system.name not in self._templates:
            self._templates[system.name] = self._server.create_database()
            system.prepare(self._server.url(self._templates[system.name]))
        return self._templates[system.name]


class SqlitePlace:
    """Files in a folder."""

    dialect: Dialect = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def database(self, system: System) -> Iterator[str]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        url = f"sqlite:///{folder / 'bench.db'}"
        try:
            system.prepare(url)
            yield url
        finally:
            shutil.rmtree(folder)

    def describe(self) -> dict[str, Any]:
        import sqlite3

        return {"database": f"SQLite {sqlite3.sqlite_version}", "settings": {"folder": str(self._folder)}}


@contextmanager
def postgres_place(url: str | None, major: int | None) -> Iterator[PostgresPlace]:
    """Databases on the server at ``url``, else on one that is started for it, with fsync and default settings.

    Raises:
        NoServer: none of that major version can be started here.
    """
    with ExitStack() as stack:
        place = PostgresPlace(stack.enter_context(_given(url) if url else _started(major)))
        stack.callback(place.close)
        yield place


@contextmanager
def sqlite_place() -> Iterator[SqlitePlace]:
    """Files in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="affinity-bench-") as folder:
        yield SqlitePlace(Path(folder))


def _given(url: str) -> PostgresServer:
    with psycopg.connect(url) as connection:
        return ExternalServer(url, connection.info.server_version // 10_000, fsync=True)


def _started(major: int | None) -> PostgresServer:
    offers = [offer for offer in find_postgres() if major in {None, offer.major}]
    if not offers:
        wanted = "PostgreSQL" if major is None else f"PostgreSQL {major}"
        have = ", ".join(str(offer.major) for offer in find_postgres()) or "none"
        raise NoServer(f"{wanted} cannot be started here (found: {have}); install it, or give --url")
    return offers[0].open(fsync=True)
