"""PostgreSQL databases for programs: copies of a migrated one, in a fraction of the time that migrations take."""

from __future__ import annotations

from typing import Protocol

import anyio.to_thread

from affinity import migrate
from affinity.provider.postgres.driver.connections import connect
from affinity.provider.postgres.driver.target import Target
from affinity.testing.env.postgres import SETTINGS, PostgresDatabase
from affinity.testing.env.waiting import EnvDatabase
from tests.servers import PostgresServer
from tests.support.waiting import run_on_a_thread


class Databases(Protocol):
    """Where each program has a database of its own."""

    async def create(self) -> EnvDatabase:
        """A new one."""
        ...


class Copies:
    """Databases on one server, each for one `Env`."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._template = server.create_database()
        run_on_a_thread(migrate, server.url(self._template))

    async def create(self) -> EnvDatabase:
        """A new one."""
        name = await anyio.to_thread.run_sync(self._server.create_database, self._template)
        url = self._server.url(name)
        target = Target.parse(url)
        connection = await connect(target, target.connect("affinity env", SETTINGS))
        database = _Copy(url, target.schema, connection)
        database.server, database.name = self._server, name
        await database.begin()
        return database


class _Copy(PostgresDatabase):
    server: PostgresServer
    name: str

    async def aclose(self) -> None:
        await self._connection.close()
        await anyio.to_thread.run_sync(self.server.drop_database, self.name)
