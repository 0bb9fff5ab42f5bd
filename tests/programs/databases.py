"""PostgreSQL databases for programs: copies of a migrated one, in a fraction of the time that migrations take."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol
from urllib.parse import quote

import anyio
import anyio.to_thread
import psycopg

from affinity import migrate
from affinity.provider.contract import Provider
from affinity.provider.postgres.driver.target import Target
from affinity.provider.timeline import Timeline
from affinity.testing.env.postgres import PostgresDatabase
from affinity.testing.env.waiting import EnvDatabase
from tests.programs.gate import Gate, open_gated
from tests.servers import PostgresServer
from tests.servers.pgbouncer import HOSTILE, PgBouncer
from tests.support.waiting import run_on_a_thread


class Databases(Protocol):
    """Where each program has a database of its own."""

    has_outages: bool
    """Whether attempts of what workers run fail with the database."""

    async def create(self) -> EnvDatabase:
        """A new one."""
        ...

    def faults(self) -> AbstractAsyncContextManager[None]:
        """What happens to the newest one while its clients play."""
        ...


class Copies:
    """Databases on one server, each for one `Env`."""

    has_outages = False

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._template = server.create_database()
        run_on_a_thread(migrate, server.url(self._template))

    async def create(self) -> EnvDatabase:
        """A new one."""
        database = _Copy(url := await self._copy(), "affinity", await _Copy._connect(url))
        database.server = self._server
        await database.begin()
        return database

    async def _copy(self) -> str:
        """The URL of a new database."""
        name = await anyio.to_thread.run_sync(self._server.create_database, self._template)
        return self._server.url(name)

    def faults(self) -> AbstractAsyncContextManager[None]:
        """None."""
        return nullcontext()


class _Copy(PostgresDatabase):
    server: PostgresServer

    async def aclose(self) -> None:
        await self._connection.close()
        name = Target.parse(self.url).with_sessions.conninfo["dbname"]
        await anyio.to_thread.run_sync(self.server.drop_database, name)


@asynccontextmanager
async def _repeated(fault: Callable[[], Awaitable[None]], rests: Iterable[float]) -> AsyncIterator[None]:
    """Within the block a fault happens again and again, each time behind the next of these rests, in seconds."""
    is_over = False

    async def fail() -> None:
        for rest in cycle(rests):
            await anyio.sleep(rest)
            if is_over:
                return
            with anyio.CancelScope(shield=True):
                await fault()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
        yield
        is_over = True


class GatedDatabase(PostgresDatabase):
    """One that fails: calls of its clients pass a gate."""

    gate: Gate

    async def open(
        self, timeline: Timeline | None = None, *, one_connection: bool = False, as_client: bool = False
    ) -> Provider:
        opening = partial(super().open, timeline, one_connection=one_connection, as_client=as_client)
        is_of_client = one_connection and timeline is None
        return await (open_gated(opening, self.gate) if is_of_client else opening())


class GatedCopy(GatedDatabase, _Copy):
    """A copy that fails."""


class Replaced(Copies):
    """As `Copies`; all connections end and a timeline begins, again and again, as at failovers that lose nothing."""

    has_outages = True

    RESTS: Final = (0.1, 2.0, 0.5)
    """Seconds before one of them."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        self.done = 0
        """New timelines."""

    async def create(self) -> EnvDatabase:
        """A new one."""
        self._newest = await self._copy()
        self._gate = Gate()
        database = GatedCopy(self._newest, "affinity", await GatedCopy._connect(self._newest))
        database.server, database.gate = self._server, self._gate
        await database.begin()
        return database

    @asynccontextmanager
    async def faults(self) -> AsyncIterator[None]:
        """See the class."""

        async def fail() -> None:
            async with self._gate.shut():
                await anyio.to_thread.run_sync(_replace, self._newest)
            self.done += 1

        async with _repeated(fail, self.RESTS):
            yield


def _replace(url: str) -> None:
    """New connections wait meanwhile, since each reads the timeline."""
    with closing(psycopg.connect(url, options="-c search_path=affinity")) as connection, connection.transaction():
        connection.execute("LOCK TABLE timeline IN ACCESS EXCLUSIVE MODE")
        connection.execute(END_OTHERS, [connection.info.dbname])
        connection.execute("UPDATE timeline SET place = 'elsewhere'")


END_OTHERS: Final = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


class Pooled(Copies):
    """As `Copies`; clients reach each through a PgBouncer in transaction mode, and workers go past it."""

    SESSIONS: Final = 3
    """Of the server, with settings of a stranger; each transaction has the next one."""

    REST: Final = 0.1
    """Seconds between two faults."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        self._faults = cycle(_FAULTS)
        self.done = 0
        """Faults of poolers so far."""

    async def create(self) -> EnvDatabase:
        """A new one, behind a pooler of its own."""
        folder = TemporaryDirectory()
        direct = await self._copy()
        self._newest = bouncer = PgBouncer(
            Path(folder.name),
            direct,
            mode="transaction",
            query="; ".join(HOSTILE),
            min_pool_size=self.SESSIONS,
            server_round_robin=1,
            server_login_retry=0,
        )
        url = f"{bouncer.url}?direct={quote(direct, safe='')}"
        self._gate = Gate()
        database = _Pooled(url, "affinity", await _Pooled._connect(url))
        database.server, database.bouncer, database.folder, database.gate = self._server, bouncer, folder, self._gate
        await anyio.to_thread.run_sync(bouncer.start)
        await database.begin()
        return database

    @asynccontextmanager
    async def faults(self) -> AsyncIterator[None]:
        """The pooler stands still, of which a client sees nothing; connects to the server anew, which fails the calls
        that wait for a connection; ends the connections of its clients; and is killed: again and again.
        """

        async def fail() -> None:
            fault = next(self._faults)
            async with nullcontext() if fault is _stand_still else self._gate.shut():
                await anyio.to_thread.run_sync(fault, self._newest)
            self.done += 1

        async with _repeated(fail, [self.REST]):
            yield


def _reconnect(bouncer: PgBouncer) -> None:
    bouncer.command("RECONNECT")


def _stand_still(bouncer: PgBouncer) -> None:
    bouncer.pause()
    time.sleep(0.05)
    bouncer.resume()


def _disconnect(bouncer: PgBouncer) -> None:
    bouncer.command(f"KILL {bouncer.name}")
    bouncer.command(f"RESUME {bouncer.name}")


def _restart(bouncer: PgBouncer) -> None:
    bouncer.kill()
    bouncer.start()


_FAULTS: Final = (_stand_still, _reconnect, _disconnect, _stand_still, _reconnect, _restart)


class _Pooled(GatedDatabase, _Copy):
    bouncer: PgBouncer
    folder: TemporaryDirectory[str]

    async def aclose(self) -> None:
        self.bouncer.kill()
        self.folder.cleanup()
        await super().aclose()
