"""What the tests of the PostgreSQL provider share: provider objects, an administrator, and each hot verb once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final, LiteralString
from urllib.parse import quote

import anyio
import psycopg

from affinity.provider.conformance.builders import message_ids, timer, work_item
from affinity.provider.conformance.peer import Peer
from affinity.provider.contract import Incarnation, InstanceUpdate, NewMessage, OrchestrationItem, WorkerIdentity
from affinity.provider.postgres import PostgresProvider

PATIENCE: Final = 30.0
"""Seconds of real time after which a wait has failed; it ends as soon as there is what it waits for."""


@contextmanager
def administrator(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with psycopg.connect(url, autocommit=True, options="-c search_path=affinity") as connection:
        yield connection


@asynccontextmanager
async def opened(url: str, **settings: str) -> AsyncIterator[PostgresProvider]:
    """A provider object, with settings of the server for its connections."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    async with aclosing(await PostgresProvider.open(f"{url}?options={quote(options)}")) as provider:
        yield provider


async def registered(provider: PostgresProvider, worker_id: str = "a") -> Peer:
    """A worker on that provider object; always the same process of that name."""
    peer = Peer(provider, WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(f"{worker_id}-1")))
    await peer.register()
    return peer


async def until(admin: psycopg.Connection[Any], question: LiteralString) -> None:
    """Return when the database says yes; it has no way to call us."""
    with anyio.fail_after(PATIENCE):
        while not (admin.execute(question).fetchone() or [False])[0]:
            await anyio.sleep(0.005)


SOMEBODY_WAITS: Final = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
ALL_IDLE: Final = (
    "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'affinity%'"
    " AND (state <> 'idle' OR backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)"
)


def terminate(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'affinity%'"
    )


async def some_work(peer: Peer) -> list[OrchestrationItem]:
    """Two instances, one item of each kind in the queue, and three in hand."""
    first, second = await peer.own("i"), await peer.own("j")
    await peer.commit_one(first, work_items=[work_item(first, n, s) for n, s in enumerate(("s", "t", None), 1)])
    await peer.take(3)
    await peer.commit_one(second, work_items=[work_item(second, n, s) for n, s in enumerate(("s", None, "new"), 1)])
    return [replace(first, event_count=1), replace(second, event_count=1)]


def hot_verbs(peer: Peer, at: list[OrchestrationItem]) -> list[Callable[[], Awaitable[object]]]:
    """Each verb of the hot loop once, with something to do."""
    first, second = at
    hand: dict[int, Any] = {}

    async def fetch() -> None:
        hand.update({item.lock.key.activity_id: item for item in await peer.take(10)})
        assert len(hand) == 3

    async def fused() -> None:
        here = replace(work_item(second, 9, "s"), lock_here=True)
        assert (await peer.commit_one(second, acks=[hand[1].lock], work_items=[here])).placed[0].item is not None

    async def everything() -> None:
        messages = [timer(first, 7, 60), NewMessage(instance_id="j", payload="x")]
        step = {"consumed": message_ids(first), "messages": messages, "cancel_activities": [2], "cancel_timers": [8]}
        assert (await peer.commit_one(first, **step)).committed

    async def finish() -> None:
        at = replace(first, event_count=2)
        assert (await peer.commit_one(at, update=InstanceUpdate(status="completed"))).committed

    return [
        fetch,
        fused,
        peer.fetch,
        peer.fetch_instances,
        lambda: peer.renew(hand[2], hand[3]),
        lambda: peer.check(hand[2], hand[3]),
        lambda: peer.give_back(hand[3], release_session=True),
        lambda: peer.ack(hand[2]),
        peer.take,
        everything,
        finish,
        lambda: peer.provider.send_message([NewMessage(instance_id="j", payload="x")]),
        lambda: peer.provider.read_history([("j", 1)]),
        lambda: peer.provider.get_instance(["j"]),
        peer.renew_lease,
    ]
