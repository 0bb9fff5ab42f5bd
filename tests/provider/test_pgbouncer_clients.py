"""Clients through a real PgBouncer in transaction or statement mode, where workers are refused without a direct URL."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import anyio
import psycopg
import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Worker, migrate, open_store
from affinity.conversation import UserMessage
from affinity.errors import ConnectionLost, DataRefused, PoolerRefused, ReadOnly
from affinity.provider import check_database
from affinity.provider.contract import InstanceFilter, NewInstance, PlannedMove
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import poolers
from affinity.provider.timeline import Timeline
from affinity.testing import Env
from tests.servers.pgbouncer import HOSTILE, IGNORES, PROGRAM, REFUSES, PgBouncer, pooler
from tests.servers.programs import LocalServer, programs
from tests.servers.proxy import proxy
from tests.support import smoke
from tests.support.waiting import run_on_a_thread

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer"),
]

PATIENCE: Final = 30.0

SETTINGS = "SET search_path = public"
"""What another client may have left in a session."""

WAYS: Final = {"refuses": (REFUSES, ""), "ignores": (IGNORES, ""), "pretends": (IGNORES, SETTINGS)}
"""What becomes of the settings with which a client connects."""

app = App("through")


@app.orchestration
async def echo(ctx: OrchestrationContext, text: str) -> str:
    told = await ctx.schedule_wait("told", str)
    return f"{text} {told}"


@app.orchestration
async def naps(ctx: OrchestrationContext) -> str:
    await ctx.schedule_timer(3600)
    return "rested"


@pytest.fixture
def pooled(postgres_migrated: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database by way of a pooler with one session of the server, for all clients."""
    with pooler(tmp_path, postgres_migrated, mode="transaction", default_pool_size=1) as url:
        yield url


def with_direct(pooled: str, direct: str) -> str:
    """One URL for workers and clients."""
    return f"{pooled}{'&' if '?' in pooled else '?'}direct={quote(direct, safe='')}"


async def opened(url: str, name: str = "affinity client") -> PostgresProvider:
    """A provider as a client opens it."""
    return await PostgresProvider.open(url, application_name=name, one_connection=True)


def new_instance(instance_id: str) -> NewInstance:
    return NewInstance(instance_id=instance_id, name="echo", version="1.0.0", start="{}")


# --- what works -------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("statement|ignores|pretends")
@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("way", WAYS)
async def test_one_url_serves_workers_and_clients(postgres_migrated: str, tmp_path: Path, mode: str, way: str) -> None:
    """Whatever the pooler does with the settings of a connection."""
    ignored, query = WAYS[way]
    with pooler(tmp_path, postgres_migrated, mode=mode, ignored=ignored, query=query) as url:
        await smoke.smoke(with_direct(url, postgres_migrated))


async def test_an_env_moves_the_clock_past_the_pooler(postgres_database: str, tmp_path: Path) -> None:
    """Its client goes through, and its workers do not."""
    with pooler(tmp_path, postgres_database, mode="transaction") as url:
        async with Env(app, url=with_direct(url, postgres_database)) as env:
            handle = await env.client.start(naps)
            assert await handle.wait() == "rested"
            assert env.now() - env.started >= timedelta(hours=1)
            assert env._own.connections.fetch._protocol.is_shared  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("has_direct", [True, False], ids=["direct", "poll"])
async def test_many_clients_share_two_sessions(
    postgres_migrated: str, tmp_path: Path, has_direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They start, tell, ask, wait, list and read; without a direct URL they poll, and say so."""
    options = RuntimeOptions(worker_node_id="direct")
    app.include(smoke.talks)
    with pooler(tmp_path, postgres_migrated, mode="transaction", default_pool_size=2) as url:
        given = with_direct(url, postgres_migrated) if has_direct else url
        async with Worker(app, postgres_migrated, options, migrate=False):

            async def use(number: int) -> None:
                async with Client(given) as client:
                    handle = await client.start(echo, f"hello {number}", instance_id=f"echo {number}")
                    await handle.raise_event("told", "world")
                    assert await handle.wait(PATIENCE) == f"hello {number} world"
                    talk = client.conversation(smoke.talks, f"talk {number}")
                    for question in ("one", "two"):
                        reply = await talk.ask(UserMessage(f"{question} {number}"), timeout=PATIENCE)
                        assert reply.text == f"{question} {number}"
                    assert await client.list_instances(prefix=f"echo {number}") != []

            async with anyio.create_task_group() as group:
                for number in range(12):
                    group.start_soon(use, number)
        with psycopg.connect(postgres_migrated) as admin:
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'affinity client'"
            assert admin.execute(sessions).fetchone() in [(1,), (2,)]  # the pooler's
    said = [each.getMessage() for each in caplog.records if "asking once a second" in each.getMessage()]
    assert len(said) == (0 if has_direct else 12)  # each once


async def test_an_action_of_several_statements(pooled: str, postgres_migrated: str) -> None:
    """They have one transaction, with the settings of its beginning."""
    async with aclosing(await opened(with_direct(pooled, postgres_migrated))) as provider:
        move = PlannedMove(session_id="it's {a}", to="nobody", within=1.0, reason="moved")
        assert await provider.move_session([move]) == ["not_held"]


async def test_an_error_leaves_the_connection_usable(pooled: str) -> None:
    """A value that cannot be sent, and an error of the statement, one division by zero among them."""
    async with aclosing(await opened(pooled)) as provider:
        calls, protocol = provider.connections.quick, provider.connections.fetch._protocol
        for statement, value in (("SELECT %(value)s::text", "\ud800"), ("SELECT 1 / %(value)s::int4", 0)):
            for call in (calls.run, calls.run_once):
                with pytest.raises((DataRefused, UnicodeEncodeError)):
                    await call(statement, {"value": value})
                assert await provider.list_instances(InstanceFilter(), 1) == []
                assert await calls.run_once("SELECT 1") == [(1,)]
        assert provider.connections.fetch._protocol is protocol


async def test_a_store_of_session_states(pooled: str) -> None:
    async with open_store(pooled) as store:
        assert await store.load("none") is None


async def test_times_are_utc(postgres_migrated: str, tmp_path: Path) -> None:
    """Also where the pooler shows another time zone: that of its own sessions."""
    with psycopg.connect(postgres_migrated, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET TimeZone = 'Asia/Tokyo'".encode())
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET DateStyle = 'German'".encode())
    with pooler(tmp_path, postgres_migrated, mode="transaction") as url:
        async with aclosing(await opened(url)) as provider:
            await provider.create_instance([new_instance("a")])
            (found,) = await provider.get_instance(["a"])
    assert found is not None
    assert found.created_at.utcoffset() == timedelta(0)


async def test_a_pooler_that_is_killed_and_started_again(postgres_migrated: str, tmp_path: Path) -> None:
    """The call that meets it is lost, as on a direct connection; the next ones connect again."""
    with PgBouncer(tmp_path, postgres_migrated, mode="transaction") as bouncer:
        async with aclosing(await opened(bouncer.url)) as provider:
            for call in (provider.connections.quick.run, provider.connections.misc.run_once):
                bouncer.kill()
                with pytest.raises(ConnectionLost):
                    await call("SELECT 1")
                bouncer.start()
                assert await call("SELECT 1") == [(1,)]


async def test_a_slow_call_is_not_taken_for_a_lost_one(pooled: str) -> None:
    """No session of the server belongs to a client, so none is asked about."""
    async with aclosing(await PostgresProvider.open(pooled, one_connection=True, probe_after=0.1)) as provider:
        assert await provider.connections.quick.run("SELECT pg_sleep(0.6)::text") == [("",)]
        assert provider.connections.fetch._probing is None


# --- no cross-talk ----------------------------------------------------------------------------------------------------


async def test_settings_do_not_leak(pooled: str) -> None:
    """Neither ours to other clients, nor those of other clients to ours."""
    settings = "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' AND name NOT LIKE '%%.%%'"
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        for commands in ((), HOSTILE):
            for command in commands:
                other.execute(command)
            before = other.execute(settings, {}).fetchall()
            async with aclosing(await opened(pooled)) as provider:
                await provider.create_instance([new_instance(f"after {len(commands)}")])
                calls = provider.connections
                found = [await calls.quick.run(settings), await calls.misc.run_once(settings)]
                for rows, plans in zip(found, ("force_generic_plan", "force_custom_plan"), strict=True):
                    ours: dict[str, str] = dict(rows)
                    assert ours["search_path"] == "affinity"
                    assert ours["plan_cache_mode"] == plans
                    assert ours["transaction_isolation"] == "read committed"
                    assert ours["transaction_read_only"] == "off"
                    assert ours["session_replication_role"] == "origin"
                    assert ours["statement_timeout"] == "30000"
            assert other.execute(settings, {}).fetchall() == before
        assert other.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)
        assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


async def test_two_schemas_share_a_session(pooled: str, postgres_migrated: str) -> None:
    """The same statement finds the tables of its own client."""
    await migrate(f"{postgres_migrated}?schema=second")
    async with aclosing(await opened(pooled)) as one, aclosing(await opened(f"{pooled}?schema=second")) as two:
        for round_number in range(3):
            await one.create_instance([new_instance(f"one {round_number}")])
            assert await two.list_instances(InstanceFilter(), 10) == []
            assert len(await one.list_instances(InstanceFilter(), 10)) == round_number + 1


# --- workers and LISTEN -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_worker_is_refused_without_a_direct_url(postgres_migrated: str, tmp_path: Path, mode: str) -> None:
    """So is its lease, and a direct URL that leads to such a pooler."""
    options = RuntimeOptions(worker_node_id="refused", startup_timeout=0.1)
    with pooler(tmp_path, postgres_migrated, mode=mode) as url:
        for given in (url, with_direct(postgres_migrated, url)):
            with pytest.raises(PoolerRefused, match=r"by \?direct= in the URL"):
                async with Worker(app, given, options, migrate=False):
                    pass
        with pytest.raises(PoolerRefused):
            await PostgresProvider.open(url, one_connection=True, timeline=Timeline())


async def test_a_client_without_a_direct_url_says_once_that_it_polls(
    pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(await opened(pooled)) as provider:
        for _ in range(2):
            async with provider.watch_changes() as watch:
                assert await watch.wait(0.01) is None
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "by asking once a second" in said
    assert "?direct=" in said


async def test_a_client_listens_over_the_direct_url(pooled: str, postgres_migrated: str) -> None:
    """The connection is there while the client waits."""
    url = with_direct(pooled, postgres_migrated)
    async with aclosing(await opened(url)) as provider, aclosing(await opened(url)) as other:
        assert provider.connections.listening._protocol is None
        async with provider.watch_changes() as watch:
            await other.notify_changes(["a"])
            assert await watch.wait(PATIENCE) == {"a": True}


async def test_a_direct_url_that_fails_is_said_once(pooled: str, caplog: pytest.LogCaptureFixture) -> None:
    """Calls go on, and changes are found by asking."""
    async with aclosing(await opened(with_direct(pooled, "postgresql://nobody@127.0.0.1:1/none"))) as provider:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                async with provider.watch_changes():
                    pass
        assert await provider.list_instances(InstanceFilter(), 1) == []
    said = [each.getMessage() for each in caplog.records if "over the direct URL" in each.getMessage()]
    assert len(said) == 1


async def test_a_pool_that_is_shared_is_found_out_once(pooled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later connection asks nothing, and with a direct URL none does."""
    proofs = []
    receives = poolers.receives

    async def counted(*args: object) -> bool:
        proofs.append(args)
        return await receives(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(poolers, "receives", counted)
    async with aclosing(await opened(pooled)) as provider:
        provider.connections.fetch._drop(ConnectionLost("a test"))
        assert await provider.list_instances(InstanceFilter(), 1) == []
    assert len(proofs) == 1
    async with aclosing(await opened(with_direct(pooled, "postgresql://nobody@127.0.0.1:1/none"))):
        assert len(proofs) == 1


async def test_the_check_looks_at_both_urls(pooled: str, postgres_migrated: str, postgres_database: str) -> None:
    found = {one.check: one for one in await check_database(with_direct(pooled, postgres_migrated))}
    assert {one.level for one in found.values()} == {"ok"}
    assert found["pooler"].found == "none"
    assert "through the pooler" in found["direct"].found
    for other, said in ((postgres_database, "different databases"), ("postgresql://127.0.0.1:1/x", "cannot connect")):
        found = {one.check: one for one in await check_database(with_direct(other, postgres_migrated))}
        assert found["direct"].level == "error"
        assert said in found["direct"].found


# --- a server that the pooler changes ---------------------------------------------------------------------------------


async def test_a_new_timeline_is_noticed_by_the_call_that_meets_it(pooled: str, postgres_migrated: str) -> None:
    """The client's connection lives on."""
    async with aclosing(await opened(pooled)) as provider:
        await provider.list_instances(InstanceFilter(), 1)
        before, protocol = provider.timeline, provider.connections.fetch._protocol
        await provider.create_instance([new_instance("before")])
        assert provider.timeline == before
        with psycopg.connect(postgres_migrated, autocommit=True) as admin:
            admin.execute("DROP SCHEMA affinity CASCADE")
        await migrate(postgres_migrated)
        assert await provider.get_instance(["before"]) == [None]
        assert provider.timeline != before
        assert provider.connections.fetch._protocol is protocol


@pytest.mark.slow
async def test_a_failover_that_the_pooler_hides(tmp_path: Path) -> None:
    """A standby that has not all is promoted; the first call on it has its effect there, and the client knows."""
    with ExitStack() as stack:
        server = stack.enter_context(next(programs()).open())
        assert isinstance(server, LocalServer)
        database = server.create_database()
        run_on_a_thread(migrate, server.url(database))
        standby = stack.enter_context(server.standby())
        network = stack.enter_context(proxy(server.url(database)))
        url = stack.enter_context(pooler(tmp_path, network.url, mode="transaction", server_login_retry=1))
        async with aclosing(await opened(url)) as provider, aclosing(await opened(url)) as early:
            await provider.create_instance([new_instance("kept")])
            standby.cut()
            await provider.create_instance([new_instance("lost")])
            before, protocol = provider.timeline, provider.connections.fetch._protocol
            network._url = urlsplit(standby.url(database))
            for line in network.lines:
                line.close()
            with pytest.raises(ReadOnly):
                await early.create_instance([new_instance("early")])
            standby.promote()
            await provider.create_instance([new_instance("late")])
            assert provider.timeline != before
            found = await provider.get_instance(["kept", "lost", "early", "late"])
            assert [one is not None for one in found] == [True, False, False, True]
            assert provider.connections.fetch._protocol is protocol
