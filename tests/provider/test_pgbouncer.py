"""PostgreSQL behind a real PgBouncer: the provider refuses it, whatever its mode, and says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from affinity.errors import PoolerRefused, ProviderError
from affinity.provider import inspect_schema, migrate
from affinity.provider.contract import InstanceFilter
from affinity.provider.postgres import PostgresProvider
from tests.provider.postgres_stage import registered
from tests.servers.base import free_port, wait_until_ready

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer"),
]

CONFIGURATION: Final = """
[databases]
{dbname} = {server} {connect_query}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = {ignored}
{user}
"""

REFUSES = ""
IGNORES = "options"

SETTINGS = "SET search_path = affinity"
"""What an administrator may have made of the pooler, so that a schema is found without `options`."""


@contextmanager
def pooler(directory: Path, url: str, *, mode: str, ignored: str, query: str) -> Iterator[str]:
    """A PgBouncer before the database of ``url``, in a pool mode; ``query`` is run on each of its own connections."""
    server = conninfo_to_dict(url)
    port = free_port()
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(
            dbname=server["dbname"],
            server=" ".join(f"{key}={server[key]}" for key in ("host", "port", "user", "password") if key in server),
            connect_query=f"connect_query='{query}'" if query else "",
            port=port,
            mode=mode,
            ignored=ignored,
            user="user = nobody" if os.geteuid() == 0 else "",  # it does not run as root
        )
    )
    log = directory / "pgbouncer.log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(PROGRAM), configuration], stdout=output, stderr=output)
    try:
        pooled = f"postgresql://{server['user']}@127.0.0.1:{port}/{server['dbname']}"
        wait_until_ready(pooled, lambda: process.poll() is None, lambda: log.read_text(errors="replace"))
        yield pooled
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["session", "transaction", "statement"])
def mode(request: pytest.FixtureRequest) -> str:
    """What a client has a connection of the pooler for."""
    pool_mode: str = request.param
    return pool_mode


@pytest.fixture(params=[(REFUSES, ""), (IGNORES, ""), (IGNORES, SETTINGS)], ids=["refuses", "ignores", "replaces"])
def pooled(request: pytest.FixtureRequest, mode: str, postgres_migrated: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database by way of a pooler, which refuses, ignores or replaces the settings of clients."""
    ignored, query = request.param
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=ignored, query=query) as url:
        yield url


async def test_a_provider_is_not_opened_through_a_pooler(pooled: str, postgres_migrated: str) -> None:
    """Applications that need no session of their own go through; the provider names the remedy, which works."""
    with psycopg.connect(pooled, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    with pytest.raises(PoolerRefused, match="connect to the PostgreSQL server itself and not to a pooler") as caught:
        await PostgresProvider.open(pooled)
    assert caught.value.misconfigured  # a start gives up immediately
    async with aclosing(await PostgresProvider.open(postgres_migrated)) as provider:
        assert await provider.list_instances(InstanceFilter(), 1) == []


async def test_the_schema_is_not_changed_through_a_pooler(pooled: str, postgres_migrated: str) -> None:
    """Nor is it inspected: without its settings a connection may see the tables of another schema."""
    for call in (migrate, inspect_schema):
        with pytest.raises(PoolerRefused):
            await call(pooled)
    with psycopg.connect(postgres_migrated) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE tablename = 'schema_versions'"
        assert connection.execute(query).fetchall() == [(1,)]


async def test_a_provider_that_meets_a_pooler_later_tries_again(
    postgres_migrated: str, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls fail with an error that a worker survives, and succeed when the address is the server's again."""
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=REFUSES, query="") as pooled:
        async with aclosing(await PostgresProvider.open(postgres_migrated)) as provider:
            worker = await registered(provider)
            connection = provider._connections.fetch  # not made yet
            direct = connection._conninfo
            port = conninfo_to_dict(pooled)["port"]
            monkeypatch.setattr(connection, "_conninfo", psycopg.conninfo.make_conninfo(direct, port=port))
            with pytest.raises(ProviderError) as caught:
                await worker.take(1)
            assert caught.type is PoolerRefused
            assert caught.value.retryable
            monkeypatch.setattr(connection, "_conninfo", direct)
            assert await worker.take(1) == []
