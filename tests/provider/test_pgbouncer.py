"""PostgreSQL behind a real PgBouncer: the provider refuses it, whatever its mode, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from affinity import migrate
from affinity.errors import PoolerRefused, ProviderError
from affinity.provider import inspect_schema
from affinity.provider.contract import InstanceFilter
from affinity.provider.postgres import PostgresProvider
from tests.provider.postgres_stage import registered
from tests.servers.pgbouncer import IGNORES, PROGRAM, REFUSES, pooler

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer"),
]

SETTINGS = "SET search_path = affinity"
"""What an administrator may have made of the pooler, so that a schema is found without `options`."""


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
        query = "SELECT count(*) FROM pg_tables WHERE tablename = 'migrations'"
        assert connection.execute(query).fetchall() == [(1,)]


async def test_a_provider_that_meets_a_pooler_later_tries_again(
    postgres_migrated: str, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls fail with an error that a worker survives, and succeed when the address is the server's again."""
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=REFUSES, query="") as pooled:
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
