"""PostgreSQL: calls that are cut short, overlap, or must leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anyio
import psycopg
import pytest

from affinity.errors import ConnectionLost
from affinity.provider.contract import Hint, Incarnation, WorkerIdentity
from affinity.provider.postgres.driver import connections
from affinity_conformance.providers.builders import turn, work_item
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import (
    ALL_IDLE,
    PATIENCE,
    SOMEBODY_WAITS,
    administrator,
    hot_verbs,
    opened,
    registered,
    session_verbs,
    some_sessions,
    some_work,
    terminate,
    until,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


# --- abandoned calls --------------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_returns_immediately_and_the_provider_stays_usable(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the database does not answer; a call that had not begun never does."""
    monkeypatch.setattr(connections, "CANCELLED_CALL_TIMEOUT", 0.05)
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE workers")
            stuck, queued = (asyncio.create_task(peer.renew_lease()) for _ in range(2))
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
                for task in (stuck, queued):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
        assert await peer.renew_lease() is not None


async def test_an_abandoned_call_comes_to_its_end(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Within the grace; on the same connection the next one follows."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE instances")
            with anyio.move_on_after(0.05):
                await provider.delete_instance(["i"])
        assert await peer.renew_lease() is not None


async def test_closing_ends_calls_under_way(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """With an error that says so."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE workers")
            stuck = asyncio.create_task(peer.renew_lease())
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
            await provider.aclose()
            with pytest.raises(ConnectionLost, match="closed"):
                await stuck
        with pytest.raises(ConnectionLost, match="closed"):
            await peer.renew_lease()


async def test_no_verb_leaves_a_transaction_open(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """So a worker that is paused between two calls holds no lock and holds up no vacuum."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        for verb in hot_verbs(peer, await some_work(peer)):
            await verb()
            await until(admin, ALL_IDLE)
        for verb in session_verbs(peer, await some_sessions(peer)):
            await verb()
            await until(admin, ALL_IDLE)


# --- hints ------------------------------------------------------------------------------------------------------------


async def test_a_broken_subscription_raises(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """And a new one works."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        async with provider.hints(peer.identity) as source:
            terminate(admin)
            with pytest.raises(ConnectionLost):
                await source.wait(PATIENCE)
        async with provider.hints(peer.identity) as source:
            await provider.notify_workers({"other": Hint(), "a": Hint(work=False, cancel=True)})
            assert await source.wait(PATIENCE) == Hint(work=False, cancel=True)


# --- marks ------------------------------------------------------------------------------------------------------------


async def test_a_fetch_puts_marks_of_messages_right(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Marked for anyone, though owned; marked for one who does not own it; and of an instance that is gone."""
    async with opened(postgres_migrated) as provider:
        a, b = await registered(provider, "a"), await registered(provider, "b")
        for name in ("1", "2", "3"):
            await a.own(name)
        admin.execute("UPDATE orchestrator_queue SET route = CASE instance_id WHEN '1' THEN 'new' ELSE 'w:b' END")
        admin.execute("DELETE FROM instances WHERE instance_id = '3'")
        assert await b.take_instances() == []
        found = admin.execute("SELECT instance_id, route FROM orchestrator_queue ORDER BY 1").fetchall()
        assert found == [("1", "w:a"), ("2", "w:a")]
        assert len(await a.take_instances()) == 2


# --- deadlocks --------------------------------------------------------------------------------------------------------


async def test_overlapping_batches_in_opposite_order_do_not_deadlock(postgres_migrated: str) -> None:
    """Two provider objects, the same instances, items and sessions, renewals in between; no deadlock, no lost turn."""
    async with opened(postgres_migrated) as one, opened(postgres_migrated) as other:
        left, right = await registered(one), Peer(other, WorkerIdentity(worker_id="a", incarnation=Incarnation("a-1")))
        owned = [await left.own(f"i{number}") for number in range(12)]
        for at in owned:
            await left.commit_one(at, work_items=[work_item(at, 1, f"s{at.instance_id}")])
        items = await left.take(len(owned))
        locks = [item.lock for item in items]
        shuffle = random.Random(7).shuffle
        for round_ in range(1, 30):
            steps = [turn(replace(at, event_count=round_), acks=()) for at in owned]
            again = list(reversed(steps))
            shuffle(items)
            renewals = [asyncio.create_task(peer.renew(*items)) for peer in (right, left)]
            mine, theirs = await asyncio.gather(left.commit(*steps), right.commit(*again))
            won = [(a.committed, b.committed) for a, b in zip(mine, reversed(theirs), strict=True)]
            assert all(a != b for a, b in won)
            assert await asyncio.gather(*renewals) == [[True] * len(items)] * 2
        assert await left.provider.check_work_item(locks) == [True] * len(locks)
