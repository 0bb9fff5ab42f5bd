"""PostgreSQL: the order of a session while several transactions add to it and remove from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final, LiteralString

import anyio
import psycopg
import pytest

from affinity import migrate
from affinity.provider import change_rights
from affinity.provider.contract import WorkKey
from affinity_conformance.providers.cluster import concurrently
from affinity_conformance.providers.kernel.ordering import drained, ordered, queue
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import SOMEBODY_WAITS, Stage, administrator, opened, registered, staged, until
from tests.provider.roles import plain_role

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def stage(postgres_migrated: str, admin: psycopg.Connection[Any]) -> AsyncIterator[Stage]:
    async with staged(postgres_migrated, admin) as stage:
        yield stage


REMOVE: Final[LiteralString] = "DELETE FROM worker_queue WHERE instance_id = 'j' AND activity_id = "


async def test_an_item_behind_one_that_is_being_removed(stage: Stage) -> None:
    """The commit waits for the removal, and then its item is the first, and locked here."""
    peer = stage.peer
    await queue(peer, await peer.own("j"), 1)
    result = await stage.overtaken(REMOVE + "1", stage.commit(work_items=[ordered(stage.at, 2, lock_here=True)]))
    (place,) = result.placed
    assert place.item is not None
    assert await peer.ack(place.item) == [True]


async def test_the_first_is_removed_while_the_next_one_is(stage: Stage) -> None:
    """The removal of the first item waits for the removal of the second, and makes way for the third."""
    peer = stage.peer
    await queue(peer, await peer.own("j"), 1, 2, 3)
    (first,) = [item for item in await peer.take(10) if item.ordered]
    assert await stage.overtaken(REMOVE + "2", peer.ack(first)) == [True]
    assert await drained(peer) == [WorkKey("j", 1, 3)]


async def test_a_removal_that_is_rolled_back(stage: Stage) -> None:
    """The removal of the first item waits, and makes way for the second, which is there after all."""
    peer = stage.peer
    await queue(peer, await peer.own("j"), 1, 2, 3)
    (first,) = [item for item in await peer.take(10) if item.ordered]
    with psycopg.connect(stage.url, autocommit=True) as watcher:
        with stage.rival.transaction(force_rollback=True):
            stage.rival.execute(REMOVE + "2")
            task = asyncio.ensure_future(peer.ack(first))
            await until(watcher, SOMEBODY_WAITS)
        assert await task == [True]
    assert await drained(peer) == [WorkKey("j", 1, 2), WorkKey("j", 1, 3)]


async def test_acks_and_commits_of_two_orders_do_not_deadlock(stage: Stage, admin: psycopg.Connection[Any]) -> None:
    """Two workers add to two orders, each in another sequence, while the items of both are acked."""
    async with opened(stage.url) as provider:
        peer, other = stage.peer, await registered(provider, "other")
        at = {one.worker_id: await one.own(f"of {one.worker_id}") for one in (peer, other)}

        async def add(worker: Peer, *names: str) -> None:
            now = at[worker.worker_id]
            items = [ordered(now, 2 * now.event_count + n, name) for n, name in enumerate(names)]
            at[worker.worker_id] = await worker.go_on(now, work_items=items)

        async def ack() -> None:
            await peer.ack(*[item for item in await peer.take(10) if item.ordered])

        for _ in range(40):
            await concurrently(partial(add, peer, "u", "t"), partial(add, other, "t", "u"), ack)
    assert _deadlocks(admin) == 0


def _deadlocks(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    count: int = row[0]
    return count


ADVISORY: Final[LiteralString] = """
SELECT p.proname FROM pg_proc p
WHERE p.pronamespace = current_schema::regnamespace AND p.prosrc LIKE '%advisory%'"""


async def test_no_lock_is_waited_for_that_any_role_can_take(stage: Stage, admin: psycopg.Connection[Any]) -> None:
    """An advisory lock is for all roles of the database. None is in the schema; a migration asks for one while there is
    no schema, and for the owner's tables later: a role that holds its key stops no migration.
    """
    assert admin.execute(ADVISORY).fetchall() == []
    with plain_role(admin) as role, psycopg.connect(f"{stage.url}?user={role}", autocommit=True) as stranger:
        for name in ("order affinity s", "migration affinity", "rights affinity"):
            stranger.execute("SELECT pg_advisory_lock(hashtextextended('affinity ' || %s, 0))", [name])
        for statement in ("BEGIN; LOCK TABLE affinity.migrations", "SELECT FROM affinity.session_orders FOR UPDATE"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute(statement)
            stranger.execute("ROLLBACK")
        with anyio.fail_after(4):  # less than the timeout of a lock
            peer = stage.peer
            await queue(peer, await peer.own("j"), 1, 2)
            assert await drained(peer) == [WorkKey("j", 1, 1), WorkKey("j", 1, 2)]
            admin.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA affinity TO PUBLIC")  # which a migration takes back
            await migrate(stage.url)
            await change_rights(stage.url, clients=[role])


async def test_an_order_without_items_goes_with_its_session(stage: Stage, admin: psycopg.Connection[Any]) -> None:
    """The row that additions lock is swept with the session's row, and comes again with the next item."""
    peer = stage.peer
    at = await peer.own("j")
    at = await queue(peer, at, 1, session_id="t")
    assert await drained(peer) == [WorkKey("j", 1, 1)]
    assert admin.execute("SELECT count(*) FROM session_orders").fetchone() == (1,)
    for _ in range(2):
        await peer.provider.sweep(interval=0.0, session_retention=-1000.0, worker_retention=1000.0)
    assert admin.execute("SELECT count(*) FROM session_orders").fetchone() == (0,)
    await queue(peer, at, 2, session_id="t")
    assert admin.execute("SELECT count(*) FROM session_orders").fetchone() == (1,)
