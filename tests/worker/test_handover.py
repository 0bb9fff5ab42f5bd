"""Sessions that change hands between real processes: held while no work runs on them, and announced when they move."""

from __future__ import annotations

import signal

import anyio

from affinity import Client
from affinity.provider.contract import SessionInfo
from tests.support.all_databases import on_all_databases
from tests.support.waiting import started
from tests.support.worker_processes import FAST, Workers

APP = "tests.support.handover_app:app"
SHORT = {"session_lock_timeout": 2.0, "work_item_lock_timeout": 2.0}
"""A session without work is free after two seconds."""


async def _lease(client: Client, session_id: str) -> SessionInfo:
    (lease,) = [lease async for lease in client.sessions() if lease.session_id == session_id]
    return lease


async def _until_waiting(client: Client, instance_id: str) -> None:
    """Until the instance has scheduled its wait: the turn of its first activity has committed."""
    with anyio.fail_after(30):
        while "event_awaited" not in {event.type for event in await client.history(instance_id)}:
            await anyio.sleep(0.01)


async def _pass(client: Client, seconds: float) -> None:
    """Let time pass in the database: a timer that fires."""
    await client.wait((await client.start("nap", seconds)).instance_id, timeout=30)


@on_all_databases
async def test_a_held_session_stays_with_its_idle_holder(workers: Workers, client: Client) -> None:
    """Its lock has long run out, another worker wants it, and its state is still in the holder's memory."""
    workers.start("first", APP, **SHORT)
    await client.start("held_wait", 60.0, instance_id="held")
    await _until_waiting(client, "held")
    workers.start("second", APP, **SHORT)
    await _pass(client, 2 * SHORT["session_lock_timeout"])
    lease = await _lease(client, "held")
    assert (lease.held, lease.worker_id) == (True, "first")
    assert lease.expires_in > 30
    visitor = await client.wait((await client.start("one_turn", "held")).instance_id, timeout=30)
    assert visitor["worker"] == "first"
    await client.raise_event("held", "go")
    first, last = await client.wait("held", timeout=30)
    assert (last["worker"], last["epoch"]) == ("first", first["epoch"])
    assert await client.wait((await client.start("count_hydrations", "held")).instance_id, timeout=30) == 1


@on_all_databases
async def test_a_hold_ends_with_its_wait_and_with_its_time(workers: Workers, client: Client) -> None:
    workers.start("only", APP, **SHORT)
    await client.start("held_wait", 60.0, instance_id="answered")
    await client.start("held_wait", 3.0, instance_id="forgotten")
    for name in ("answered", "forgotten"):
        await _until_waiting(client, name)
    await client.raise_event("answered", "go")
    await client.wait("answered", timeout=30)
    await _pass(client, 4.0)
    assert not (await _lease(client, "answered")).held
    assert not (await _lease(client, "forgotten")).held


@on_all_databases
async def test_a_hold_does_not_keep_a_session_from_the_worker_after_a_dead_one(
    workers: Workers, client: Client
) -> None:
    first = workers.start("first", APP)
    await client.start("held_wait", 600.0, instance_id="held")
    await _until_waiting(client, "held")
    workers.start("second", APP)
    first.send(signal.SIGKILL)
    await client.raise_event("held", "go")
    before, after = await client.wait("held", timeout=30)
    assert (before["worker"], after["worker"]) == ("first", "second")
    assert after["epoch"] > before["epoch"]


@on_all_databases
async def test_an_orchestration_receives_each_change_of_holder_once(workers: Workers, client: Client) -> None:
    """Claimed, then taken after a SIGKILL, then after a drain, then by a new start of the same name: three changes."""

    async def visit() -> str:
        seen = await client.wait((await client.start("one_turn", "announced")).instance_id, timeout=30)
        worker: str = seen["worker"]
        return worker

    async def announced(times: int) -> None:
        with anyio.fail_after(30):
            while (await client.status("watcher")).custom_status != times:
                await anyio.sleep(0.02)

    first = workers.start("first", APP)
    await client.start("watch", "announced", instance_id="watcher")
    await started(client, "watcher")
    assert await visit() == "first"
    second = workers.start("second", APP)
    assert await visit() == "first"
    first.send(signal.SIGKILL)
    assert await visit() == "second"
    await announced(1)
    third = workers.start("third", APP)
    second.send(signal.SIGTERM)
    assert second.wait() == 0
    assert await visit() == "third"
    await announced(2)
    third.send(signal.SIGKILL)
    third.wait()
    workers.start("third", APP)
    assert await visit() == "third"
    await announced(3)
    await _pass(client, FAST["worker_lease_timeout"])
    await client.raise_event("watcher", "stop")
    assert await client.wait("watcher", timeout=30) == 3
