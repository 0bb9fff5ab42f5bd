"""A test's database: open provider objects, drive workers, move the clock, queue work, read rows."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import Any, Final, Unpack

from affinity import SessionStore
from affinity.limits import MAX_BATCH
from affinity.provider.contract import (
    NO_RETENTION,
    NO_TAGS,
    Incarnation,
    NewWorkItem,
    OrchestrationItem,
    Provider,
    Retention,
    SessionInfo,
    Sweep,
    WorkerIdentity,
    WorkerTags,
    WorkItem,
    WorkKey,
)
from affinity.provider.timeline import Timeline
from affinity.session import SessionRecord
from affinity_conformance.providers.builders import (
    ACTIVITY,
    LONG_LEASE,
    Choices,
    message_ids,
    payloads,
    work_item,
)
from affinity_conformance.providers.harness import FaultyProvider, Harness
from affinity_conformance.providers.peer import Peer
from affinity_conformance.stores.base import concurrently as concurrently  # noqa: PLC0414 -- for the themes
from affinity_conformance.stores.base import retried as retried  # noqa: PLC0414

_MAX_SWEEPS: Final = 100

FOREVER: Final = 1_000_000_000.0
"""Seconds, some thirty years."""

ENQUEUER: Final = "~enqueuer"
"""The worker whose one instance queues the suite's work. It fetches no work items."""


class Cluster:
    """One fresh database with everything that a test opened on it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._open = AsyncExitStack()
        self._activities = count(1)
        self._identity = WorkerIdentity(worker_id=ENQUEUER, incarnation=Incarnation("enqueuer"))
        self._enqueuer: Peer | None = None
        self._instance: OrchestrationItem | None = None  # the enqueuer's, at the fence of its next turn

    async def aclose(self) -> None:
        """Close every provider object opened here. `beside` reopens a peer; the enqueuer reopens itself."""
        await self._open.aclose()
        self._enqueuer = None

    async def open(self, timeline: Timeline | None = None) -> Provider:
        """A provider object on the database, closed with the cluster."""
        provider = await self.harness.open(timeline)
        self._open.push_async_callback(provider.aclose)
        return provider

    async def open_faulty(self) -> FaultyProvider:
        """A provider object that meets faults, closed with the cluster."""
        faulty = await self.harness.open_faulty()
        self._open.push_async_callback(faulty.aclose)
        return faulty

    # -- workers

    async def peer(self, worker_id: str) -> Peer:
        """A new process of that name, which has not registered."""
        identity = WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(secrets.token_hex(8)))
        return Peer(await self.open(), identity)

    async def worker(
        self, worker_id: str, lease: float = LONG_LEASE, tags: WorkerTags = NO_TAGS, **profile: Any
    ) -> Peer:
        """A new process of that name, registered; a second one is a restart of the first."""
        peer = replace(await self.peer(worker_id), tags=tags)
        await peer.register(lease, **profile)
        return peer

    async def follower(self, worker_id: str, timeline: Timeline) -> Peer:
        """A registered worker whose provider follows the timeline."""
        identity = WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(secrets.token_hex(8)))
        peer = Peer(await self.open(timeline), identity)
        await peer.register()
        return peer

    async def same_worker(self, peer: Peer) -> Peer:
        """The same process with a further provider object."""
        return Peer(await self.open(), peer.identity, peer.tags)

    # -- time

    async def advance(self, seconds: float) -> None:
        """Move the clock; run no sweep."""
        await self.harness.advance(seconds)

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, then sweep as a worker would: routes that went stale are repaired."""
        await self.advance(seconds)
        await self.sweep_all()

    async def sweep(
        self,
        *,
        interval: float = 0.0,
        session_retention: float = FOREVER,
        worker_retention: float = FOREVER,
        retention: Retention = NO_RETENTION,
    ) -> Sweep:
        """One sweep by the enqueuer."""
        provider = (await self.enqueuer()).provider
        return await provider.sweep(
            interval=interval,
            session_retention=session_retention,
            worker_retention=worker_retention,
            retention=retention,
        )

    async def sweep_all(self) -> int:
        """Sweep until nothing is left to do; returns the number of sweeps."""
        for sweeps in range(1, _MAX_SWEEPS + 1):
            if not (await self.sweep()).limit_reached:
                return sweeps
        raise AssertionError(f"sweep reaches a limit {_MAX_SWEEPS} times in a row")

    # -- work

    async def enqueuer(self) -> Peer:
        """The worker that queues work. No test's worker can take its instance: its lease outlasts every test."""
        if self._enqueuer is None:
            self._enqueuer = (
                await self._start_enqueuer() if self._instance is None else Peer(await self.open(), self._identity)
            )
        return self._enqueuer

    async def enqueue(
        self, *session_ids: str | None, name: str = ACTIVITY, delay: float = 0.0, **fields: Any
    ) -> list[WorkKey]:
        """Queue one work item for each session named; None makes a session-free one."""
        items = [replace(self._new_item(session_id, name, delay), **fields) for session_id in session_ids]
        enqueuer = await self.enqueuer()
        assert self._instance is not None
        for start in range(0, len(items), MAX_BATCH):
            batch = items[start : start + MAX_BATCH]
            assert (await enqueuer.commit_one(self._instance, history=[], work_items=batch)).committed
        return [item.key for item in items]

    async def offer(self, worker: Peer, session_id: str) -> WorkKey:
        """Queue an item from an instance of the worker, offered to that worker: no worker holds the session."""
        instance = await worker.own(f"offers {next(self._activities)}")
        item = replace(work_item(instance, 1, session_id), claim_here=True)
        await worker.go_on(instance, consumed=message_ids(instance), work_items=[item])
        return item.key

    async def results(self) -> list[str]:
        """Messages that acks have sent so far."""
        enqueuer = await self.enqueuer()
        return [text for item in (await enqueuer.fetch_instances(1)).items for text in payloads(item)]

    def _new_item(self, session_id: str | None, name: str, delay: float) -> NewWorkItem:
        key = WorkKey(ENQUEUER, 1, next(self._activities))
        return NewWorkItem(key=key, name=name, payload=f"input {key.activity_id}", session_id=session_id, delay=delay)

    async def _start_enqueuer(self) -> Peer:
        enqueuer = Peer(await self.open(), self._identity)
        await enqueuer.register(lease=FOREVER, capacity=0)
        instance = await enqueuer.own(ENQUEUER)
        await enqueuer.commit_one(instance, consumed=message_ids(instance))
        self._instance = replace(instance, event_count=1, messages=())
        return enqueuer

    async def give(self, worker: Peer, session_id: str | None, **choices: Unpack[Choices]) -> WorkItem:
        """Queue one work item of the session, or without one, and have the worker take it."""
        await self.enqueue(session_id)
        return await worker.take_one(**choices)

    async def use(self, worker: Peer, session_id: str) -> WorkItem:
        """Queue, take and ack one work item of the session; afterwards the worker holds the session, idle."""
        item = await self.give(worker, session_id)
        assert item.session_id == session_id
        assert await worker.ack(item) == [True]
        return item

    async def holder(self, worker_id: str, *session_ids: str, **fields: Any) -> Peer:
        """Start a worker that holds the sessions, idle."""
        worker = await self.worker(worker_id, **fields)
        for session_id in session_ids:
            await self.use(worker, session_id)
        return worker

    async def owner(self, worker_id: str, instance_id: str, **fields: Any) -> tuple[Peer, OrchestrationItem]:
        """Start a worker, and have it own a new instance."""
        worker = await self.worker(worker_id, **fields)
        return worker, await worker.own(instance_id)

    # -- reading

    async def states(self) -> SessionStore:
        """The store of session state, without a lease."""
        return (await self.enqueuer()).provider.states

    async def record(self, session_id: str) -> SessionRecord:
        """The record of the session, which must exist."""
        record = await (await self.states()).load(session_id)
        assert record is not None, session_id
        return record

    async def sessions(self) -> dict[str, SessionInfo]:
        """Session rows by id."""
        provider = (await self.enqueuer()).provider
        return {row.session_id: row for row in await provider.list_sessions(limit=MAX_BATCH)}

    async def session(self, session_id: str) -> SessionInfo:
        """The row of a session that must have one."""
        return (await self.sessions())[session_id]

    async def holders(self) -> dict[str, str]:
        """Worker ids by session held."""
        return {row.session_id: row.worker_id for row in (await self.sessions()).values() if row.held}
