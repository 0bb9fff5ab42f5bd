"""PostgreSQL: connections that are dead without a word, distinguished from a server that is slow and from an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Final

import anyio
import psycopg
import pytest

from affinity.errors import ConnectionLost
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.connections import Connection, Connections, Role
from affinity.provider.postgres.driver.target import HOT, Target
from tests.provider.postgres_stage import PATIENCE, SOMEBODY_WAITS, until
from tests.servers.proxy import ProxiedConnection, Proxy, proxy

pytestmark = pytest.mark.anyio

NAME: Final = "affinity connection"
PROBE: Final = f"{NAME} probe"
PROBE_AFTER: Final = 1.0

PID: Final = "SELECT pg_backend_pid()"
COUNT: Final = "UPDATE gate SET times = times + 1 RETURNING times"
COUNTED: Final = "SELECT times FROM affinity.gate"
GONE: Final = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"


@pytest.fixture
def admin(postgres_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection, which can keep others from the table."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA affinity")
        connection.execute("CREATE TABLE affinity.gate AS SELECT 0 AS times")
        yield connection


@pytest.fixture
def network(postgres_database: str) -> Iterator[Proxy]:
    with proxy(postgres_database) as network:
        yield network


@pytest.fixture
async def connection(network: Proxy, admin: psycopg.Connection[Any]) -> AsyncIterator[Connection]:
    async with aclosing(Connection(Target.parse(network.url), NAME, HOT, probe_after=PROBE_AFTER)) as connection:
        yield connection


def probes(network: Proxy) -> int:
    """Probes so far, also unanswered ones."""
    return sum(f"\0{PROBE}\0".encode() in line.startup for line in network.lines)


async def until_probed(network: Proxy, times: int) -> None:
    with anyio.fail_after(PATIENCE):
        while probes(network) < times:
            await anyio.sleep(0.02)


async def until_gone(admin: psycopg.Connection[Any], pid: int) -> None:
    with anyio.fail_after(PATIENCE):
        while admin.execute(GONE, [pid]).fetchone() != (True,):
            await anyio.sleep(0.02)


async def until_seen(admin: psycopg.Connection[Any], number: int) -> None:
    """Until the server has executed the call so many times."""
    with anyio.fail_after(PATIENCE):
        while admin.execute(COUNTED).fetchone() != (number,):
            await anyio.sleep(0.02)


# --- one connection ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only_replies", [False, True], ids=["the request is lost", "the reply is lost"])
async def test_a_short_call_on_a_dead_connection_is_lost_once_a_new_connection_is_answered(
    connection: Connection, network: Proxy, admin: psycopg.Connection[Any], only_replies: bool
) -> None:
    """Its server session ends, so that it executes nothing later. The next call has another connection."""
    await connection.run(COUNT)
    ((pid,),) = await connection.run(PID)
    network.lose(only_replies=only_replies)
    with anyio.fail_after(PATIENCE), pytest.raises(ConnectionLost, match="unknown whether the call took effect"):
        await connection.run(COUNT)
    await until_gone(admin, pid)
    done = 2 if only_replies else 1
    assert admin.execute(COUNTED).fetchone() == (done,)
    assert await connection.run(COUNT) == [(done + 1,)]
    assert probes(network) == 1


async def test_a_call_that_waits_for_a_lock_is_slow_and_not_lost(
    connection: Connection, network: Proxy, admin: psycopg.Connection[Any]
) -> None:
    """However often it is asked about."""
    pid = await connection.run(PID)
    with admin.transaction():
        admin.execute("LOCK TABLE affinity.gate")
        slow = asyncio.create_task(connection.run(COUNT))
        await until_probed(network, 2)
        assert not slow.done()
    assert await slow == [(1,)]
    assert await connection.run(PID) == pid


async def test_a_connection_that_dies_while_the_server_is_at_work_is_noticed_when_it_has_answered(
    connection: Connection, network: Proxy, admin: psycopg.Connection[Any], postgres_database: str
) -> None:
    await connection.run(COUNT)  # prepared: that would wait too, and would be all that goes on
    with psycopg.connect(postgres_database, autocommit=True) as watcher:
        with admin.transaction():
            admin.execute("LOCK TABLE affinity.gate")
            slow = asyncio.create_task(connection.run(COUNT))
            await until(watcher, SOMEBODY_WAITS)
            network.lose()
            await until_probed(network, 1)
            assert not slow.done()
        await until_seen(watcher, 2)
    with anyio.fail_after(PATIENCE), pytest.raises(ConnectionLost, match="while a new connection is answered"):
        await slow
    assert await connection.run(COUNT) == [(3,)]


async def test_a_probe_without_an_answer_is_an_outage_and_changes_nothing(
    connection: Connection, network: Proxy
) -> None:
    """The call has its answer, on its connection, when the network is back. A probe that is late ends nothing."""
    pid = await connection.run(PID)
    for name in (NAME, PROBE):
        network.hold(name)
    call = asyncio.create_task(connection.run(COUNT))
    await until_probed(network, 2)
    assert not call.done()
    network.let_go(NAME)
    assert await call == [(1,)]
    network.let_go(PROBE)
    assert connection._probing is not None
    with anyio.fail_after(PATIENCE):
        await connection._probing
    assert await connection.run(PID) == pid


async def test_silence_does_not_end_a_call_that_may_take_long(
    connection: Connection, network: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the time of any call, and no probe is made."""
    monkeypatch.setattr(connections, "CALL_TIMEOUT", 2.5 * PROBE_AFTER)
    await connection.run(PID)
    network.lose()
    with pytest.raises(ConnectionLost, match="no answer within"):
        await Role((connection,), HOT, is_short=False).run(PID)
    assert not probes(network)


async def test_silence_counts_from_the_last_byte(
    connection: Connection, network: Proxy, admin: psycopg.Connection[Any]
) -> None:
    """Not from the call: the first row is larger than what the server gathers before it sends."""
    statement = "SELECT repeat('x', 100000), pg_advisory_lock(n) FROM generate_series(1, 2) n"
    await connection.run(statement)  # prepared
    await connection.run("SELECT pg_advisory_unlock_all()")
    admin.execute("SELECT pg_advisory_lock(2)")
    call = asyncio.create_task(connection.run(statement))
    with anyio.fail_after(PATIENCE):
        await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'advisory'")
        while connection._silent_from() <= connection._began:
            await anyio.sleep(0.001)
    assert not call.done()
    admin.execute("SELECT pg_advisory_unlock(2)")
    assert len(await call) == 2


async def test_what_listens_on_a_dead_connection_is_notified(connection: Connection, network: Proxy) -> None:
    ended: list[Exception] = []

    class Listener:
        def receive(self, channel: str, payload: str) -> None:
            raise AssertionError

        def end(self, error: Exception) -> None:
            ended.append(error)

    await connection.subscribe(["channel"], Listener())
    network.lose()
    with anyio.fail_after(PATIENCE), pytest.raises(ConnectionLost):
        await connection.run(PID)
    assert [type(error) for error in ended] == [ConnectionLost]


async def test_closing_does_not_wait_for_a_probe(connection: Connection, network: Proxy) -> None:
    await connection.run(PID)
    network.hold(PROBE)
    network.lose()
    call = asyncio.create_task(connection.run(PID))
    await until_probed(network, 1)
    with anyio.fail_after(PATIENCE / 2):
        await connection.aclose()
    with pytest.raises(ConnectionLost, match="closed"):
        await call


CHECK: Final = "SELECT 'the check'"


async def check(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(CHECK, prepare=False)


async def test_a_connection_that_dies_between_its_handshake_and_its_check_is_replaced(
    network: Proxy, postgres_database: str
) -> None:
    """The call waits for the second attempt, and not for the end of the first."""

    def lose_the_first(line: ProxiedConnection, data: bytes) -> bytes:
        if CHECK.encode() in data and line is network.lines[0]:
            line.loses_requests = line.loses_replies = True
        return data

    network.inspect = lose_the_first
    link = Connection(Target.parse(network.url), NAME, HOT, check, probe_after=PROBE_AFTER)
    async with aclosing(link) as connection:
        with anyio.fail_after(PATIENCE):
            assert len(await connection.run(PID)) == 1
        assert len(network.lines) >= 2  # a request to cancel what the first one waits for has one too
        assert connection._protocol is not None


async def test_a_connection_that_dies_in_its_handshake_is_replaced(network: Proxy, postgres_database: str) -> None:
    network.hold(NAME)
    link = Connection(Target.parse(network.url), NAME, HOT, check, probe_after=PROBE_AFTER)
    async with aclosing(link) as connection:
        call = asyncio.create_task(connection.run(PID))
        with anyio.fail_after(PATIENCE):
            while not any(line.startup for line in network.lines):
                await anyio.sleep(0.01)
            network.lose()
            network.let_go(NAME)
            assert len(await call) == 1
        assert len(network.lines) == 2


async def test_an_attempt_to_connect_that_ends_late_closes_its_connection(
    network: Proxy, admin: psycopg.Connection[Any]
) -> None:
    """The first one is answered after the second has begun; of the two one remains."""
    network.hold(NAME)
    link = Connection(Target.parse(network.url), NAME, HOT, check, probe_after=PROBE_AFTER)
    async with aclosing(link) as connection:
        call = asyncio.create_task(connection.run(PID))
        with anyio.fail_after(PATIENCE):
            while sum(bool(line.startup) for line in network.lines) < 2:
                await anyio.sleep(0.01)
            network.let_go(NAME)
            assert len(await call) == 1
            await until(admin, f"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '{NAME}'")


async def test_every_socket_has_keepalives_and_a_timeout_of_its_own_unless_the_url_sets_them(
    postgres_database: str,
) -> None:
    """Also connections that only listen: they send nothing, and would wait forever."""
    names = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    for query, expected in [("", ["1", "10", "5", "3", "25000"]), ("?keepalives_idle=7&tcp_user_timeout=9000", None)]:
        async with aclosing(Connections(Target.parse(postgres_database + query), "affinity")) as links:
            for each in links._all:
                await each.run(PID)
                assert each._protocol is not None
                found = {option.keyword.decode(): option.val for option in each._protocol._pgconn.info}
                values = [(found[name] or b"1").decode() for name in names]
                assert values == (expected or ["1", "7", "5", "3", "9000"])
