"""PostgreSQL behind a real PgBouncer: the provider works in session mode; else it refuses, and says what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from affinity import migrate
from affinity.errors import ConnectionLost, PoolerRefused, ProviderError
from affinity.provider import inspect_schema
from affinity.provider.contract import Hint, InstanceFilter
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import poolers
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.driver.wire import ServerConnection
from tests.provider.postgres_stage import registered
from tests.servers.pgbouncer import IGNORES, PROGRAM, REFUSES, pooler
from tests.support.smoke import smoke

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer"),
]

SETTINGS = "SET search_path = affinity"
"""What an administrator may have made of the pooler, so that a schema is found without `options`."""


@pytest.fixture(params=["transaction", "statement"])
def mode(request: pytest.FixtureRequest) -> str:
    """What a client has a connection of the pooler for, where it is refused."""
    pool_mode: str = request.param
    return pool_mode


WAYS: Final = {"refuses": (REFUSES, ""), "ignores": (IGNORES, ""), "replaces": (IGNORES, SETTINGS)}
"""What becomes of the settings with which a client connects."""


@pytest.fixture(params=WAYS)
def pooled(request: pytest.FixtureRequest, mode: str, postgres_migrated: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database by way of a pooler that is refused."""
    ignored, query = WAYS[request.param]
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=ignored, query=query) as url:
        yield url


@pytest.fixture(params=WAYS)
def session_pooled(request: pytest.FixtureRequest, postgres_migrated: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database by way of a pooler in session mode."""
    ignored, query = WAYS[request.param]
    with pooler(tmp_path, postgres_migrated, mode="session", ignored=ignored, query=query) as url:
        yield url


# --- transaction and statement mode -----------------------------------------------------------------------------------


async def test_a_provider_is_not_opened_through_a_pooler(pooled: str, postgres_migrated: str) -> None:
    """Applications that need no session of their own go through; the provider names the remedy, which works."""
    with psycopg.connect(pooled, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    with pytest.raises(PoolerRefused, match="connect to the PostgreSQL server itself, or to a pooler in ses") as caught:
        await PostgresProvider.open(pooled)
    assert caught.value.misconfigured  # a start gives up immediately
    async with aclosing(await PostgresProvider.open(postgres_migrated)) as provider:
        assert await provider.list_instances(InstanceFilter(), 1) == []


async def test_the_schema_is_not_changed_through_a_pooler(pooled: str, postgres_migrated: str) -> None:
    """Nor is it inspected: without its settings a connection may see the tables of another schema. Nor does the pooler
    keep a setting for the next client.
    """
    for call in (migrate, inspect_schema):
        with pytest.raises(PoolerRefused):
            await call(pooled)
    with psycopg.connect(postgres_migrated) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE tablename = 'migrations'"
        assert connection.execute(query).fetchall() == [(1,)]
    with psycopg.connect(pooled, autocommit=True) as connection:
        kept = connection.execute("SELECT current_setting('affinity.options', true)").fetchall()
        assert kept in ([(None,)], [("",)])
        assert connection.execute("SELECT count(*) FROM pg_listening_channels()").fetchall() == [(0,)]


async def test_a_pooler_that_gives_each_client_another_session(
    postgres_migrated: str, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out all the same: what is sent to the first session never comes."""
    monkeypatch.setattr(poolers, "NOTIFIED_WITHIN", 0.5)
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=IGNORES, server_round_robin=1, min_pool_size=5) as url:
        with ExitStack() as stack:
            clients = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(4)]
            if mode == "transaction":
                for client in clients:
                    stack.enter_context(client.transaction())
                    client.execute("SELECT 1")
        with pytest.raises(PoolerRefused):
            await PostgresProvider.open(url)


def listening(url: str, sessions: int) -> int:
    """How many channels the sessions of a pool listen to."""
    with ExitStack() as stack:
        found = []
        for _ in range(sessions):
            client = stack.enter_context(psycopg.connect(url, autocommit=True))
            stack.enter_context(client.transaction())
            query = "SELECT pg_backend_pid(), array(SELECT pg_listening_channels())"
            found += client.execute(query).fetchall()
        assert len({pid for pid, _ in found}) == sessions
        return sum(len(channels) for _, channels in found)


@pytest.mark.parametrize("looks", [3, 0], ids=["seen", "by chance unseen"])
async def test_no_session_of_a_pool_goes_on_listening(
    postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """A pool whose sessions change hands is found out immediately, before one listens; else all are told to forget."""
    monkeypatch.setattr(poolers, "_LOOKS", looks)
    monkeypatch.setattr(poolers, "NOTIFIED_WITHIN", 0.1)
    waits = []
    is_notified = poolers._is_notified

    async def counted(*args: Any) -> bool:
        waits.append(args)
        return await is_notified(*args)

    monkeypatch.setattr(poolers, "_is_notified", counted)
    with pooler(tmp_path, postgres_migrated, mode="transaction", server_round_robin=1, min_pool_size=5) as url:
        assert listening(url, 5) == 0
        with pytest.raises(PoolerRefused):
            await PostgresProvider.open(url)
        assert listening(url, 5) == 0
    assert (waits == []) is (looks > 0)


async def test_a_provider_that_meets_a_pooler_later_tries_again(
    postgres_migrated: str, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls fail with an error that a worker survives, and succeed when the address is the server's again."""
    with pooler(tmp_path, postgres_migrated, mode=mode) as pooled:
        async with aclosing(await PostgresProvider.open(postgres_migrated)) as provider:
            worker = await registered(provider)
            connection = provider.connections.fetch  # not made yet
            direct = connection._conninfo
            port = conninfo_to_dict(pooled)["port"]
            monkeypatch.setattr(connection, "_conninfo", psycopg.conninfo.make_conninfo(direct, port=port))
            with pytest.raises(ProviderError) as caught:
                await worker.take(1)
            assert caught.type is PoolerRefused
            assert caught.value.retryable
            monkeypatch.setattr(connection, "_conninfo", direct)
            assert await worker.take(1) == []


# --- session mode -----------------------------------------------------------------------------------------------------


async def test_workers_and_clients_work_in_session_mode(session_pooled: str) -> None:
    """As do migrations. What waits for a hint receives it."""
    assert (await inspect_schema(session_pooled)).is_usable
    assert await migrate(session_pooled) == (1, 1)
    await smoke(session_pooled)
    async with aclosing(await PostgresProvider.open(session_pooled)) as provider:
        worker = await registered(provider)
        async with provider.hints(worker.identity) as hints:
            await provider.notify_workers({worker.identity.worker_id: Hint(work=True)})
            found = await hints.wait(30.0)
        assert found is not None
        assert found.work


async def test_connections_have_the_settings_of_those_without_a_pooler(
    session_pooled: str, postgres_migrated: str
) -> None:
    """All of them: `HOT` and `COLD`, the timeouts, the schema, what is pinned, and those in the URL."""
    settings = "SELECT name, setting FROM pg_settings ORDER BY name"
    ours = "?options=-cgeqo%3Doff%20--work-mem%3D1234%20-c%20IntervalStyle%3Diso_8601"
    for opened in (session_pooled, postgres_migrated):
        found = []
        async with aclosing(await PostgresProvider.open(opened + ours, application_name="same")) as provider:
            for calls in (provider.connections.commit, provider.connections.misc):
                rows: dict[str, str] = dict(await calls.run_once(settings))
                found.append(rows)
                assert (rows["geqo"], rows["work_mem"], rows["IntervalStyle"]) == ("off", "1234", "postgres")
        if opened == session_pooled:
            through = found
    assert found == through


async def test_options_that_are_no_settings(session_pooled: str) -> None:
    with pytest.raises(PoolerRefused, match=r"leave '-d' out"):
        await PostgresProvider.open(f"{session_pooled}?options=-d%203")


async def test_a_call_is_asked_about_by_the_servers_number(session_pooled: str) -> None:
    """Of its server session; the pooler gives its clients another one. A slow call is not taken for a lost one."""
    async with aclosing(await PostgresProvider.open(session_pooled, probe_after=0.2)) as provider:
        (row,) = await provider.connections.fetch.run_once("SELECT pg_backend_pid()")
        protocol = provider.connections.fetch._protocol
        assert protocol is not None
        assert protocol.server_session[0] == row[0] != protocol._pgconn.backend_pid
        assert await provider.connections.fetch.run_once("SELECT pg_sleep(1.0)::text") == [("",)]


@pytest.mark.parametrize("behind", ["LISTEN", "pg_backend_pid"])
async def test_a_connection_that_is_cut_off_is_not_taken_for_a_shared_one(
    postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """The pooler gives its session to the next client, which is the one that sends."""
    execute = ServerConnection.execute

    async def cut(connection: ServerConnection, query: Any, *args: Any, **options: Any) -> Any:
        cursor = await execute(connection, query, *args, **options)
        if behind in repr(query):
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
                end.shutdown(socket.SHUT_RDWR)
            await anyio.sleep(0.2)
        return cursor

    with pooler(tmp_path, postgres_migrated, mode="session", ignored=IGNORES) as url:
        monkeypatch.setattr(ServerConnection, "execute", cut)
        with pytest.raises(ConnectionLost):
            await inspect_schema(url)


async def test_the_second_connection_goes_to_the_same_of_several_poolers(
    postgres_migrated: str, tmp_path: Path
) -> None:
    """Else nothing that is sent would come where the servers behind them differ."""
    with ExitStack() as stack:
        ports = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            url = stack.enter_context(pooler(tmp_path / name, postgres_migrated, mode="session"))
            ports.append(str(conninfo_to_dict(url)["port"]))
        hosts = f"?host=127.0.0.1,127.0.0.1&port={','.join(ports)}&load_balance_hosts=random"
        target = Target.parse(url.partition("?")[0] + hosts)
        conninfo = target.connect("affinity test", {})
        found = set()
        for _ in range(12):
            async with (
                await poolers.open_connection(target, conninfo) as first,
                await poolers.open_another(first, target, conninfo) as second,
            ):
                assert second.pgconn.port == first.pgconn.port
                found.add(first.pgconn.port.decode())
        assert found == {*ports}
        async with aclosing(await PostgresProvider.open(url.partition("?")[0] + hosts)) as provider:
            assert await provider.list_instances(InstanceFilter(), 1) == []


async def test_a_notification_of_another_client_proves_nothing(
    postgres_migrated: str, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared session may listen to what another client has asked for, and its news come to whoever has it."""
    monkeypatch.setattr(poolers, "NOTIFIED_WITHIN", 0.5)
    elsewhere = postgres_database  # what is sent in another database never comes
    async with (
        await psycopg.AsyncConnection.connect(postgres_migrated, autocommit=True) as listener,
        await psycopg.AsyncConnection.connect(postgres_migrated, autocommit=True) as stranger,
        await psycopg.AsyncConnection.connect(elsewhere, autocommit=True) as sender,
    ):
        await listener.execute("LISTEN stray")
        await stranger.execute("NOTIFY stray")
        assert not await poolers.receives(listener, sender)
        assert await poolers.receives(listener, stranger)


@pytest.mark.slow
async def test_a_pool_without_room(postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again, as a server without room is: nothing is wrong with the configuration."""
    monkeypatch.setattr(poolers, "PROOF_TIMEOUT", 0.5)
    with pooler(tmp_path, postgres_migrated, mode="session", default_pool_size=1) as url:
        with pytest.raises(ConnectionLost, match="no second connection") as caught:
            await PostgresProvider.open(url)
        assert not caught.value.misconfigured


async def test_a_pooler_that_ends(postgres_migrated: str, tmp_path: Path) -> None:
    """A call of an open provider fails as when the server ends."""
    with pooler(tmp_path, postgres_migrated, mode="session") as url:
        provider = await PostgresProvider.open(url)
        worker = await registered(provider)
        assert await worker.take(1) == []
    with pytest.raises(ConnectionLost):
        await worker.take(1)
    await provider.aclose()


# --- what a pooler passes on, as docs/run/databases.md says -----------------------------------------------------------


@pytest.fixture(params=["session", "transaction"])
def passing(request: pytest.FixtureRequest, postgres_migrated: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The mode and the URL of a pooler that ignores settings."""
    with pooler(tmp_path, postgres_migrated, mode=request.param, ignored=IGNORES, query="") as url:
        yield request.param, url


def test_notifications_are_sent_in_each_mode_and_received_in_session_mode(
    passing: tuple[str, str], postgres_migrated: str
) -> None:
    """In transaction mode LISTEN is accepted, and nothing comes: a server session that no client has is not read."""
    mode, url = passing
    with (
        psycopg.connect(postgres_migrated, autocommit=True) as direct,
        psycopg.connect(url, autocommit=True) as pooled,
    ):
        direct.execute("LISTEN a")
        pooled.execute("LISTEN b")
        pooled.execute("NOTIFY a")
        assert [notice.channel for notice in direct.notifies(timeout=30.0, stop_after=1)] == ["a"]
        direct.execute("NOTIFY b")
        came = [notice.channel for notice in pooled.notifies(timeout=30.0 if mode == "session" else 1.0, stop_after=1)]
        assert came == (["b"] if mode == "session" else [])


def test_settings_stay_with_a_client_in_session_mode_only(passing: tuple[str, str]) -> None:
    """In transaction mode the next client has them, and the first one misses them on another server session."""
    mode, url = passing
    show = "SELECT current_setting('search_path')"
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as two:
        one.execute("SET search_path = kept")
        assert two.execute(show).fetchone() == (("kept",) if mode == "transaction" else ('"$user", public',))
        with two.transaction():  # takes the server session that the first one had
            two.execute("SELECT 1")
            assert one.execute(show).fetchone() == (("kept",) if mode == "session" else ('"$user", public',))


def test_a_message_of_several_statements_is_one_transaction_in_each_mode(passing: tuple[str, str]) -> None:
    """With a lock of the transaction, and the name of the application."""
    _, url = passing
    with psycopg.connect(url, autocommit=True, application_name="through a pooler") as client:
        cursor = client.execute(
            "SELECT pg_advisory_xact_lock(7); SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
        )
        cursor.nextset()
        assert cursor.fetchone() == (1,)
        assert client.execute("SELECT current_setting('application_name')").fetchone() == ("through a pooler",)


def test_two_statements_without_a_wait_are_two_transactions_in_each_mode(passing: tuple[str, str]) -> None:
    """Also if the first one fails."""
    _, url = passing
    with psycopg.connect(url, autocommit=True) as client:
        for divisor in (1, 0):
            client.pgconn.enter_pipeline_mode()
            for statement in (f"SELECT pg_current_xact_id(), 1 / {divisor}", "SELECT pg_current_xact_id()"):
                client.pgconn.send_query_params(statement.encode(), None)
                client.pgconn.pipeline_sync()
            found = [
                client.pgconn.get_result() for _ in range(6)
            ]  # of each: the result, its end, the end of the transaction
            client.pgconn.exit_pipeline_mode()
            first, second = found[0], found[3]
            assert first is not None
            assert second is not None
            assert (first.error_message != b"") is (divisor == 0)
            assert second.get_value(0, 0) not in (None, first.get_value(0, 0))


def test_statements_stay_prepared_in_session_mode_only(passing: tuple[str, str]) -> None:
    """By SQL; later versions of PgBouncer prepare statements of the protocol again, on any server session."""
    mode, url = passing
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as two:
        one.execute("PREPARE kept AS SELECT 1")
        with two.transaction():
            two.execute("SELECT 1")
            if mode == "session":
                assert one.execute("EXECUTE kept").fetchone() == (1,)
            else:
                with pytest.raises(psycopg.errors.InvalidSqlStatementName):
                    one.execute("EXECUTE kept")
