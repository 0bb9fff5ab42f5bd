"""PostgreSQL: which calls share a connection, under which settings, what a subscription to hints learns there, and when
connections are made and closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Final

import anyio
import psycopg
import pytest
from psycopg import AsyncConnection

from affinity.errors import ConnectionLost
from affinity.provider.contract import Hint
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.attempts import FIRST_PAUSE, LONGEST_PAUSE, Attempts
from affinity.provider.postgres.driver.connections import Connection, Connections, Role
from affinity.provider.postgres.driver.target import COLD, HOT, Target
from tests.provider.postgres_stage import PATIENCE, SOMEBODY_WAITS, administrator, opened, registered, terminate, until

pytestmark = pytest.mark.anyio

PID: Final = "SELECT pg_backend_pid()"
WAIT: Final = "UPDATE gate SET passed = passed + 1 RETURNING passed"


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    with administrator(postgres_migrated) as connection:
        connection.execute("CREATE TABLE gate AS SELECT 0 AS passed")
        yield connection


@pytest.fixture
def watcher(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """Another, which is free while the first is in a transaction."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def pair(postgres_migrated: str) -> AsyncIterator[tuple[Connection, Connection]]:
    target = Target.parse(postgres_migrated)
    async with (
        aclosing(Connection(target, "affinity one", HOT)) as one,
        aclosing(Connection(target, "affinity two", COLD)) as two,
    ):
        yield one, two


# --- which connection -------------------------------------------------------------------------------------------------


async def test_a_short_call_does_not_wait_for_a_long_one(
    pair: tuple[Connection, Connection], admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """It goes to the connection that is free; while none is, it waits for the first."""
    one, two = pair
    (on_one,), (on_two,) = await one.run(PID), await two.run(PID)
    role = Role((one, two), HOT)
    assert await role.run(PID) == [on_one]
    with admin.transaction():
        admin.execute("LOCK TABLE gate")
        first = asyncio.create_task(one.run(WAIT))
        await until(watcher, SOMEBODY_WAITS)
        assert await role.run(PID) == [on_two]
        second = asyncio.create_task(two.run(WAIT))
        await asyncio.sleep(0)
        third = asyncio.create_task(role.run(PID))
        await asyncio.sleep(0)
    assert {(await first)[0], (await second)[0]} == {(1,), (2,)}
    assert await third == [on_one]


async def test_a_connection_is_not_made_while_another_is_free(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    (on_two,) = await two.run(PID)
    assert await Role((one, two), HOT).run(PID) == [on_two]
    assert not one.is_free


async def test_each_call_runs_under_its_settings(pair: tuple[Connection, Connection]) -> None:
    """Prepared or not; and the connection's own settings come back with its own calls."""
    one, _ = pair
    cold = Role((one,), COLD)
    assert set(HOT) == set(COLD)
    for _ in range(2):
        for calls, settings in ((one, HOT), (cold, COLD), (cold, COLD)):
            for name, value in settings.items():
                assert await calls.run("SELECT current_setting(%(name)s)", {"name": name}) == [(value,)]
                assert await calls.simple_query("SELECT current_setting(%(name)s)", {"name": name}) == [[(value,)]]


# --- hints ------------------------------------------------------------------------------------------------------------


async def test_hints_come_between_calls_and_with_them(
    postgres_migrated: str, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """On the connection of the fetches, also while it waits for a reply."""
    async with opened(postgres_migrated) as provider, opened(postgres_migrated) as other:
        peer = await registered(provider)
        async with provider.hints(peer.identity) as source:
            for _ in range(3):
                await other.notify_workers({"a": Hint()})
                assert await source.wait(PATIENCE) == Hint()
            with admin.transaction():
                admin.execute("LOCK TABLE gate")
                stuck = asyncio.create_task(provider.connections.fetch.run(WAIT))
                await until(watcher, SOMEBODY_WAITS)
                await other.notify_workers({"a": Hint(work=False, cancel=True)})
            assert await stuck == [(1,)]
            assert await source.wait(PATIENCE) == Hint(work=False, cancel=True)
            assert await source.wait(0.0) is None
            await other.notify_workers({}, ["an instance"])  # that no worker owns: a hint to all
            assert await source.wait(PATIENCE) == Hint(only_messages=True, to_all=True)
            await other.notify_workers({"a": Hint()}, ["an instance"])
            assert await source.wait(PATIENCE) in {Hint(), Hint(only_messages=True, to_all=True)}
        await other.notify_workers({"a": Hint()})
        assert await peer.take(1) == []
        assert watcher.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchone() == (0,)


async def test_the_end_of_a_link_is_noticed_immediately_while_listening(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Without a call; the next subscription has a connection of its own, and so has the next fetch."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        for _ in range(2):
            async with provider.hints(peer.identity) as source:
                waiting = asyncio.create_task(source.wait(PATIENCE))
                await asyncio.sleep(0)
                terminate(admin)
                with pytest.raises(ConnectionLost), anyio.fail_after(PATIENCE / 2):
                    await waiting
        assert await peer.take(1) == []


async def test_a_subscription_ends_with_a_call_that_breaks(
    postgres_migrated: str, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        async with provider.hints(peer.identity) as source:
            with admin.transaction():
                admin.execute("LOCK TABLE gate")
                stuck = asyncio.create_task(provider.connections.fetch.run(WAIT))
                await until(watcher, SOMEBODY_WAITS)
                terminate(watcher)
                with pytest.raises(ConnectionLost):
                    await stuck
            with pytest.raises(ConnectionLost):
                await source.wait(PATIENCE)


# --- making and closing -----------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_and_made_again(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Not one that is in use, however long its call takes."""
    target = Target.parse(postgres_migrated)
    async with aclosing(Connection(target, "affinity idle", HOT, idle_timeout=0.2)) as connection:
        (first,) = await connection.run(PID)
        _, after = await asyncio.gather(connection.run("SELECT pg_sleep(0.6)"), connection.run(PID))
        assert after == [first]
        await until(admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'affinity idle'")
        assert await connection.run(PID) != [first]


def test_attempts_to_connect_are_spread() -> None:
    """The first one waits for nothing; attempts after a loss or failures wait for random times, up to a bound."""
    attempts = Attempts()
    assert attempts.pause() == 0.0
    attempts.lost()
    pauses = {attempts.pause() for _ in range(50)}
    assert len(pauses) > 25
    assert 0 <= min(pauses) < FIRST_PAUSE / 2 < max(pauses) <= FIRST_PAUSE
    for _ in range(20):
        attempts.failed()
    pauses = {attempts.pause() for _ in range(50)}
    assert LONGEST_PAUSE / 2 <= min(pauses) < max(pauses) <= LONGEST_PAUSE
    attempts.succeeded()
    assert attempts.pause() == 0.0


async def test_calls_that_wait_for_a_connection_share_its_attempts(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server is away, a hundred calls that come together are one attempt for each connection."""
    attempts = 0

    async def refuse(*_: object) -> AsyncConnection[Any]:
        nonlocal attempts
        attempts += 1
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(connections, "connect", refuse)
    async with aclosing(Connections(Target.parse(postgres_migrated), "affinity herd")) as links:
        calls = [each.run(PID) for each in (links.commit, links.fetch, links.quick, links.states, links.misc)]
        calls += [links.quick.run(PID) for _ in range(95)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(failure) for failure in failures} == {ConnectionLost}
    assert attempts == 3


@pytest.mark.parametrize("one", [True, False])
async def test_how_many_connections_there_are(
    postgres_migrated: str, admin: psycopg.Connection[Any], one: bool
) -> None:
    """One for all roles, or three."""
    async with aclosing(Connections(Target.parse(postgres_migrated), "affinity some", one_connection=one)) as links:
        for _ in range(2):
            for calls in (links.commit, links.fetch, links.quick, links.states, links.misc):
                await calls.run(PID)
        names = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'affinity some%' ORDER BY 1"
        found = [name for (name,) in admin.execute(names)]
    assert found == (["affinity some"] if one else [f"affinity some {role}" for role in ("commit", "fetch", "misc")])
