"""PostgreSQL: how a connection finds out which database it is, and who may begin a timeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from typing import Any

import anyio
import psycopg
import pytest
from psycopg import sql

from affinity import Client, migrate, sync
from affinity.errors import DatabaseChanged
from affinity.provider import change_rights
from affinity.provider.postgres import PostgresProvider
from affinity.provider.timeline import SeenTimeline, Timeline
from affinity.records import database_of
from tests.provider.postgres_stage import administrator, registered
from tests.provider.roles import as_role, plain_role
from tests.servers import PostgresServer

pytestmark = pytest.mark.anyio

ANOTHER = "UPDATE timeline SET place = 'elsewhere'"


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    with administrator(postgres_migrated) as connection:
        yield connection


@asynccontextmanager
async def following(url: str, timeline: Timeline) -> AsyncIterator[PostgresProvider]:
    async with aclosing(await PostgresProvider.open(url, timeline=timeline)) as provider:
        yield provider


async def test_a_role_with_the_rights_of_a_worker_begins_a_timeline(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    with plain_role(admin) as role:
        await change_rights(postgres_migrated, workers=[role])
        before = Timeline()
        async with following(as_role(postgres_migrated, role), before) as provider:
            worker = await registered(provider)
            admin.execute(ANOTHER)
            with pytest.raises(DatabaseChanged):
                await worker.renew_lease()
        after = Timeline(before)
        async with following(as_role(postgres_migrated, role), after):
            assert after.token not in {None, before.token}


async def test_connections_that_come_together_begin_one_timeline(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    admin.execute(ANOTHER)
    timelines = [Timeline() for _ in range(10)]
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        for timeline in timelines:
            tasks.start_soon(stack.enter_async_context, following(postgres_migrated, timeline))
    assert len({timeline.token for timeline in timelines}) == 1


async def test_a_new_connection_of_an_open_provider_notices(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Before anything else is asked on it, whichever verb it is made for."""
    async with following(postgres_migrated, Timeline()) as provider:
        worker = await registered(provider)
        admin.execute(ANOTHER)
        for _ in range(2):
            with pytest.raises(DatabaseChanged):
                await worker.take(1)  # the first call on the connection for fetches


async def test_a_database_keeps_its_name_at_a_new_timeline(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """A call of a user is recorded, though another client has seen the new timeline, and that of the user has not."""

    def start() -> None:
        with sync.Client(postgres_migrated) as other:
            other.start("flow", instance_id="i")

    async with Client(postgres_migrated) as client, aclosing(await PostgresProvider.open(postgres_migrated)) as before:
        await client.list_instances()
        admin.execute(ANOTHER)
        with client.acting_as("ann"):
            await anyio.to_thread.run_sync(start)
        async with aclosing(await PostgresProvider.open(postgres_migrated)) as after:
            assert before.timeline != after.timeline
            assert before.database == database_of(before.states) == after.database == database_of(after.states)
        assert [(each.user, each.action) for each in await client.audit()] == [("ann", "start")]


async def test_a_copy_of_a_database_has_another_name(postgres_server: PostgresServer, postgres_migrated: str) -> None:
    names = [sql.Identifier(postgres_migrated.rsplit("/", 1)[1].partition("?")[0]), sql.Identifier("copied")]
    with closing(psycopg.connect(postgres_server.url(), autocommit=True)) as server:
        server.execute(sql.SQL("CREATE DATABASE {1} TEMPLATE {0}").format(*names))
        try:
            async with (
                aclosing(await PostgresProvider.open(postgres_migrated)) as original,
                aclosing(await PostgresProvider.open(postgres_server.url("copied"))) as copy,
            ):
                assert (await original.read_identity()).name == (await copy.read_identity()).name
                assert original.database != copy.database
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[1]))


async def test_a_service_that_hides_its_timeline(postgres_database: str) -> None:
    """Nothing is compared that it does not report; another database is noticed all the same."""
    with administrator(postgres_database) as admin, plain_role(admin) as role:
        admin.execute(sql.SQL("CREATE SCHEMA affinity AUTHORIZATION {}").format(sql.Identifier(role)))
        for function in ("pg_control_system()", "pg_current_wal_flush_lsn()", "pg_walfile_name(pg_lsn)"):
            admin.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
        url = as_role(postgres_database, role)
        await migrate(url)
        timeline = Timeline()
        async with following(url, timeline) as provider:
            worker = await registered(provider)
            assert await worker.renew_lease() is not None
            assert timeline.reached == 0
            admin.execute(ANOTHER)
            with pytest.raises(DatabaseChanged):
                await worker.renew_lease()


async def test_a_database_that_is_set_back_twice_to_one_moment_issues_no_id_again(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Though its ids are ahead of the clock, because of a timeline that began shortly before that moment."""
    reached = []
    for _ in range(2):
        for sequence in ("epochs", "orchestrator_queue_id_seq"):
            admin.execute("SELECT setval(%s, 1::bigint << 52)", [sequence])
        admin.execute("SELECT begin_timeline()")
        for question in ("SELECT last_value FROM epochs", "SELECT last_value FROM orchestrator_queue_id_seq"):
            reached += admin.execute(question).fetchall()
    assert len(set(reached[::2])) == len(set(reached[1::2])) == 2
    assert min(reached) > (2**52,)


def test_a_client_that_is_ahead_of_the_database_names_the_timeline_itself() -> None:
    """Until a worker begins one: what it has seen is lost, though the database says the same token."""
    seen = SeenTimeline()
    seen.note("a", 10, 0)
    seen.note("a", None, 10)  # a standby does not say how far it is
    seen.note("a", 9, 8)  # asked before it was as far as 10
    assert (seen.token, seen.reached) == ("a", 10)
    seen.note("a", 5, 10)
    own = seen.token
    assert own not in {None, "a"}
    seen.note("a", 6, 5)
    assert seen.token == own
    seen.note("b", 7, 6)
    assert (seen.token, seen.reached) == ("b", 7)
