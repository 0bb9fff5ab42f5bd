"""Common parts of the PostgreSQL provider's tests: provider objects, an administrator, a stage, each hot verb once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, LiteralString
from urllib.parse import quote

import anyio
import psycopg

from affinity.provider.contract import (
    Hint,
    HistoryCursor,
    Incarnation,
    InstanceUpdate,
    NewMessage,
    OrchestrationItem,
    SessionHold,
    SessionWatch,
    TurnResult,
    WorkAck,
    WorkerIdentity,
    WorkerTags,
    WorkItem,
)
from affinity.provider.postgres import PostgresProvider
from affinity.session import SessionMetadata, SessionState, StateWrite
from affinity_conformance.providers.builders import TIMEOUTS, message_ids, timer, work_item
from affinity_conformance.providers.kernel.ordering import ordered
from affinity_conformance.providers.kernel.resets import reset
from affinity_conformance.providers.peer import Peer

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


async def registered(provider: PostgresProvider, worker_id: str = "a", tags: Sequence[str] = ()) -> Peer:
    """A worker on that provider object; always the same process of that name."""
    identity = WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(f"{worker_id}-1"))
    peer = Peer(provider, identity, WorkerTags(tags=tags))
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

    async def fetch_own() -> None:
        hand.update({item.lock.key.activity_id: item for item in await peer.take(10, only_own=True)})
        assert list(hand) == [1]

    async def fetch() -> None:
        hand.update({item.lock.key.activity_id: item for item in await peer.take(10)})
        assert len(hand) == 3

    async def stay_here(at: OrchestrationItem, *numbers: int) -> None:
        """With one item it is a fused turn."""
        here = [replace(work_item(at, number, "s"), lock_here=True) for number in numbers]
        place, *_ = (await peer.commit_one(at, acks=[hand[1].lock], work_items=here)).placed
        assert place.item is not None
        hand[1] = place.item

    async def elsewhere() -> None:
        here = replace(work_item(second, 20, "other1"), lock_here=True)
        (place,) = (await peer.commit_one(replace(second, event_count=3), work_items=[here])).placed
        assert place.item is None

    async def everything() -> None:
        messages = [timer(first, 7, 60), NewMessage(instance_id="j", payload="x")]
        step = {"consumed": message_ids(first), "messages": messages, "cancel_activities": [2], "cancel_timers": [8]}
        assert (await peer.commit_one(first, **step)).committed

    async def finish() -> None:
        at = replace(first, event_count=2)
        assert (await peer.commit_one(at, update=InstanceUpdate(status="completed"))).committed

    return [
        fetch_own,
        fetch,
        partial(stay_here, second, 10),
        partial(stay_here, replace(second, event_count=2), 11, 12),
        partial(peer.fetch, only_own=True),
        peer.fetch,
        peer.fetch_instances,
        lambda: peer.renew(hand[2], hand[3]),
        lambda: peer.check(hand[2], hand[3]),
        lambda: peer.give_back(hand[3], release_session=True),
        lambda: peer.ack(hand[2]),
        peer.take,
        elsewhere,
        everything,
        finish,
        lambda: peer.provider.send_message([NewMessage(instance_id="j", payload="x")]),
        lambda: peer.provider.notify_workers({None: Hint()}, ["i", "j"]),
        lambda: peer.provider.notify_workers({None: Hint(), "a": Hint()}),
        lambda: peer.provider.read_history([HistoryCursor("j", 1)]),
        lambda: peer.provider.get_instance(["j"]),
        peer.renew_lease,
    ]


async def some_sessions(peer: Peer) -> OrchestrationItem:
    """An instance with items of two sessions; the first of them has a record."""
    at = await peer.own("m")
    await peer.commit_one(at, work_items=[work_item(at, n, session) for n, session in enumerate(("u", "v"), 1)])
    await peer.provider.states.save(SessionState(session_id="u", state=b"1"))
    return replace(at, event_count=1)


def session_verbs(peer: Peer, at: OrchestrationItem) -> list[Callable[[], Awaitable[object]]]:
    """Each verb that has to do with session state, holds or watches once; in the end another worker takes a session."""
    states = peer.provider.states
    other = replace(peer, identity=WorkerIdentity(worker_id="c", incarnation=Incarnation("c-1")))
    hand: dict[str, WorkItem] = {}

    async def fetch() -> None:
        hand.update({item.session_id or "": item for item in await peer.take(10)})
        assert {"u", "v"} <= set(hand)  # and what the verbs before have left in the queue

    def write(session_id: str, base_version: int) -> StateWrite:
        new = SessionState(session_id=session_id, state=b"2", metadata=SessionMetadata(kind="chat", parent="u"))
        return StateWrite(new=new, base_version=base_version, epoch=hand[session_id].session_epoch or 0)

    async def fused() -> None:
        again = replace(work_item(at, 3, "u"), lock_here=True)
        writes = [write("u", 1), write("v", 0)]
        placed = (await peer.commit_one(at, acks=[hand["u"].lock], work_items=[again], states=writes)).placed
        assert placed[0].item is not None
        hand["u"] = placed[0].item

    async def ack() -> None:
        acks = [WorkAck(lock=hand["v"].lock, message="done", state=write("v", 1))]
        assert await peer.provider.ack_work_item(peer.identity, acks, TIMEOUTS) == [True]

    async def hold(event_count: int, **step: Any) -> None:
        assert (await peer.commit_one(replace(at, event_count=event_count), **step)).committed

    async def move() -> None:
        assert (await other.take_one()).session_id == "u"

    async def notified() -> None:
        messages = [message.payload for found in await peer.take_instances() for message in found.messages]
        assert messages.count("moved") == 1

    async def planned() -> None:
        assert await peer.plan("v", "c") == "planned"

    async def taken() -> None:
        assert list((await other.fetch()).assigned) == ["v"]
        assert await other.take_moved("v") == ["v"]

    return [
        fetch,
        fused,
        ack,
        lambda: states.load("u"),
        lambda: states.save(SessionState(session_id="u", state=b"3"), epoch=hand["u"].session_epoch),
        lambda: peer.provider.list_sessions(["u", "v", "w"]),
        partial(hold, 2, holds=[SessionHold("u", 7, 600.0)], watches=[SessionWatch("u", "moved")]),
        partial(hold, 3, ended_holds=[7]),
        other.register,
        planned,
        taken,
        lambda: peer.provider.list_sessions(["v"]),
        lambda: peer.give_back(hand["u"], release_session=True),
        move,
        notified,
        lambda: states.delete(["u"], families={"u": "u"}),
        lambda: peer.provider.delete_instance(["m"], force=True),
    ]


async def some_order(peer: Peer) -> list[OrchestrationItem]:
    """Two instances; the second one has the first two items of the order of a session that the worker holds."""
    first, second = await peer.own("p"), await peer.own("q")
    await peer.commit_one(second, work_items=[ordered(second, n, "ordered") for n in (1, 2)])
    return [replace(first, event_count=0), replace(second, event_count=1)]


def order_verbs(peer: Peer, at: list[OrchestrationItem]) -> list[Callable[[], Awaitable[object]]]:
    """Each verb that adds to an order or removes the first of it, with something to do."""
    first, second = at

    async def taken() -> WorkItem:
        (item,) = [item for item in await peer.take(10) if item.ordered]
        return item

    async def ack() -> None:
        assert await peer.ack(await taken()) == [True]

    async def fused() -> None:
        here = ordered(second, 3, "ordered", lock_here=True)
        (place,) = (await peer.commit_one(second, acks=[(await taken()).lock], work_items=[here])).placed
        assert place.item is None  # behind the items of the others

    async def cancel() -> None:
        step = {"cancel_activities": [3], "work_items": [ordered(second, n, "ordered") for n in (4, 5)]}
        assert (await peer.commit_one(replace(second, event_count=2), **step)).committed

    async def again() -> None:
        assert await reset(peer, replace(second, event_count=3), 0, work_items=[ordered(second, 1, "ordered")])

    return [
        partial(peer.go_on, first, work_items=[ordered(first, n, "ordered") for n in (1, 2)]),
        ack,
        fused,
        cancel,
        again,
        partial(peer.go_on, replace(first, event_count=1), update=InstanceUpdate(status="completed")),
    ]


@dataclass(frozen=True)
class Stage:
    """A worker that runs one item of session ``s``, and somebody who can hold up its statements."""

    peer: Peer
    at: OrchestrationItem  # at the fence of the next turn
    item: WorkItem
    rival: psycopg.Connection[Any]
    url: str

    def write(self, state: bytes = b"ours", base_version: int = 0) -> StateWrite:
        """State under the lease of the item."""
        assert self.item.session_epoch is not None
        new = SessionState(session_id="s", state=state)
        return StateWrite(new=new, base_version=base_version, epoch=self.item.session_epoch)

    async def commit(self, **step: Any) -> TurnResult:
        return await self.peer.commit_one(self.at, **step)

    async def overtaken(self, statement: LiteralString, verb: Any) -> Any:
        """What the verb says that had to wait for a statement of somebody else's, which was then committed."""
        with psycopg.connect(self.url, autocommit=True) as watcher:
            with self.rival.transaction():
                self.rival.execute(statement)
                task = asyncio.ensure_future(verb)
                await until(watcher, SOMEBODY_WAITS)
            return await task

    async def state(self) -> tuple[bytes, int] | None:
        record = await self.peer.provider.states.load("s")
        return None if record is None else (record.state, record.version)


@asynccontextmanager
async def staged(url: str, admin: psycopg.Connection[Any]) -> AsyncIterator[Stage]:
    async with opened(url) as provider:
        peer = await registered(provider)
        at = await peer.own("i")
        await peer.commit_one(at, work_items=[work_item(at, 1, "s")])
        yield Stage(peer, replace(at, event_count=1), await peer.take_one(), admin, url)
