"""Faults of a fleet, each with the alerts that it must raise, and no other."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import psycopg

from affinity.conversation import UserMessage
from affinity.errors import AffinityError
from affinity.provider import open_provider
from affinity.provider.contract import Quotas
from affinity.provider.postgres.provider import PostgresProvider
from tests.monitoring.app import chats, counts
from tests.monitoring.fleet import WORKERS, Fleet


@dataclass(frozen=True)
class Fault:
    """What happens to a fleet.

    Args:
        act: does it, and may go on until it is cancelled.
        alerts: that fire.
        options: of the workers.
    """

    act: Callable[[Fleet], Coroutine[Any, Any, None]]
    alerts: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)


FAULTS: Final[dict[str, Fault]] = {}


def _fault(*alerts: str, **options: Any) -> Callable[[Callable[[Fleet], Coroutine[Any, Any, None]]], None]:
    def add(act: Callable[[Fleet], Coroutine[Any, Any, None]]) -> None:
        FAULTS[act.__name__] = Fault(act, frozenset(alerts), options)

    return add


@_fault()
async def healthy(fleet: Fleet) -> None:
    """No fault: a worker leaves, and starts again."""
    fleet.workers["w-1"].send(signal.SIGTERM)
    await anyio.to_thread.run_sync(fleet.workers["w-1"].wait)
    await fleet.start("w-1")


# -- workers


@_fault("AffinityWorkerDied")
async def killed_worker(fleet: Fleet) -> None:
    """A worker is killed, and starts again."""
    for name in WORKERS:  # the sessions of at least one of them move
        fleet.workers[name].send(signal.SIGKILL)
        await anyio.sleep(6)
        await fleet.start(name)


@_fault("AffinityLeaseLost", "AffinityWorkerDied")
async def paused_worker(fleet: Fleet) -> None:
    """A worker stands still for longer than its lease."""
    for name in WORKERS:
        await anyio.to_thread.run_sync(fleet.workers[name].pause)
        await anyio.sleep(6)
        fleet.workers[name].send(signal.SIGCONT)


@_fault("AffinityNoWorker")
async def no_worker(fleet: Fleet) -> None:
    """All workers are killed."""
    for worker in fleet.workers.values():
        worker.send(signal.SIGKILL)


@_fault("AffinityLoopBlocked")
async def blocked_loop(fleet: Fleet) -> None:
    """An async activity keeps the event loop."""
    await fleet.run("block", seconds=8.0)


@_fault("AffinityDrainStuck")
async def stuck_drain(fleet: Fleet) -> None:
    """An activity that does not end keeps its session, and so its worker's drain."""
    await fleet.run("rest", seconds=600.0, on_session=True, times=6)
    await anyio.sleep(1)
    for name in WORKERS[:2]:
        await fleet.client.drain_worker(name)


@_fault("AffinitySessionsFull", max_sessions_per_runtime=4)
async def full_workers(fleet: Fleet) -> None:
    """Sessions with work take all places."""
    await fleet.run("rest", seconds=600.0, on_session=True, times=5)


@_fault("AffinitySessionsWithoutHolder", "AffinitySessionsFull", "AffinityQueueOld", max_sessions_per_runtime=4)
async def waiting_sessions(fleet: Fleet) -> None:
    """More sessions have work than there are places."""
    await fleet.run("rest", seconds=600.0, on_session=True, times=20)


# -- work


@_fault("AffinityQueueOld", worker_concurrency=2)
async def full_queue(fleet: Fleet) -> None:
    """More activities than the workers can run."""
    await fleet.run("rest", seconds=600.0, times=12)


@_fault("AffinityInstancesSuspended")
async def unknown_orchestration(fleet: Fleet) -> None:
    """An instance is started whose code no worker has."""
    await fleet.client.start("misspelt")


@_fault("AffinityWorkWithoutCode", missing_tag="fail")
async def unknown_activity(fleet: Fleet) -> None:
    """Activities of a name, and of a tag, that no worker has."""
    await fleet.run("misspelt")
    await fleet.run("rest", tag="gpu")


@_fault("AffinityQueueOld")
async def waiting_tag(fleet: Fleet) -> None:
    """Activities wait for a worker with their tag."""
    await fleet.run("rest", tag="gpu")


@_fault("AffinitySessionsWithoutHolder", "AffinityQueueOld")
async def waiting_session_of_a_tag(fleet: Fleet) -> None:
    """A session waits for a worker with the tag of its work."""
    await fleet.run("rest", tag="gpu", on_session=True)


@_fault("AffinityActivityPoisoned", "AffinityWorkerDied")
async def poisonous_activity(fleet: Fleet) -> None:
    """An activity ends each worker that starts it; they start again."""
    await fleet.run("crash", seconds=0.2)
    while True:
        for name, worker in list(fleet.workers.items()):
            if not worker.is_running:
                await fleet.start(name)
        await anyio.sleep(0.2)


@_fault("AffinityConversationsFailed")
async def failing_conversation(fleet: Fleet) -> None:
    """The handler of a conversation raises, again and again."""
    await fleet.client.conversation(chats, "failing").send(UserMessage("fail"))


@_fault("AffinityScheduleLate")
async def late_schedule(fleet: Fleet) -> None:
    """A quota refuses what a schedule starts."""
    await fleet.client.set_quotas(Quotas(instances=1))


@_fault("AffinityLimitWaits")
async def paused_limit(fleet: Fleet) -> None:
    """An operator pauses a limit, and forgets it."""
    await fleet.client.limits.pause("calls")


# -- sessions


@_fault("AffinityHydrateSlow")
async def slow_store(fleet: Fleet) -> None:
    """The store of a kind of session is slow."""
    for _ in range(20):
        await fleet.run("load", on_session=True)
        await anyio.sleep(1)


@_fault("AffinityCheckpointsRefused", max_attempts=100)
async def foreign_writer(fleet: Fleet) -> None:
    """A script goes on saving the record of a session that works, for a while."""
    with anyio.move_on_after(40):
        while True:
            with suppress(AffinityError):
                async with counts.open("walk-0", store=fleet.client.session_store) as count:
                    count.n += 1
            await anyio.sleep(0.05)


# -- the database


@_fault("AffinityDatabaseLost", "AffinitySweepStopped", "AffinityLeaseLost")
async def stopped_database(fleet: Fleet) -> None:
    """The server is stopped, and starts again."""
    await anyio.to_thread.run_sync(fleet.server.stop)
    await anyio.sleep(35)
    await anyio.to_thread.run_sync(fleet.server.start)


@_fault("AffinitySweepStopped", "AffinityScheduleLate")
async def open_transaction(fleet: Fleet) -> None:
    """A transaction that an operator has left open locks the row of the sweeps."""
    connection = await psycopg.AsyncConnection.connect(fleet.url)
    await connection.execute("SELECT FROM affinity.sweeps FOR UPDATE")
    try:
        await anyio.sleep_forever()
    finally:
        await connection.close()


@_fault("AffinityDatabaseClock", "AffinityLeaseLost", "AffinityWorkerDied")
async def wrong_clock(fleet: Fleet) -> None:
    """The database's clock jumps ahead, which its tests can make it do."""
    provider = await open_provider(fleet.url)
    assert isinstance(provider, PostgresProvider)
    await provider.advance_clock(300)
    await provider.aclose()
