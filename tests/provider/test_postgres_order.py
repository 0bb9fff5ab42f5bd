"""PostgreSQL: the order of a session while several transactions add to it and remove from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final, LiteralString

import psycopg
import pytest

from affinity.provider.contract import WorkKey
from affinity.testing.conformance.providers.cluster import concurrently
from affinity.testing.conformance.providers.ordering import drained, ordered, queue
from affinity.testing.conformance.providers.peer import Peer
from tests.provider.postgres_stage import SOMEBODY_WAITS, Stage, administrator, opened, registered, staged, until

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
