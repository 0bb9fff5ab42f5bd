"""Sessions that are moved by hand between real processes, and workers that an operator drains: no activity fails, none
runs twice, no turn is lost, and the state is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from affinity import Client
from affinity.provider.contract import WorkerInfo
from tests.support.all_databases import on_all_databases
from tests.support.moved_sessions_app import Plan, Ran
from tests.support.worker_processes import Workers

APP = "tests.support.moved_sessions_app:app"
NAMES = ["a", "b", "c"]
SESSIONS = [f"s{number}" for number in range(6)]
ROUNDS = 60
MOVES = 4


async def _start(client: Client, plan: Plan) -> None:
    await client.start("walk", plan.model_dump(), instance_id=plan.session_id)


async def _result(client: Client, session_id: str) -> list[Ran]:
    return [Ran.model_validate(ran) for ran in await client.wait(session_id, timeout=90)]


async def _holder(client: Client, session_id: str) -> str | None:
    holders = [lease.worker_id async for lease in client.sessions() if lease.session_id == session_id and lease.held]
    return holders[0] if holders else None


async def _until_held(client: Client, session_id: str) -> str:
    with anyio.fail_after(30):
        while (holder := await _holder(client, session_id)) is None:
            await anyio.sleep(0.05)
        return holder


async def _worker(client: Client, name: str) -> WorkerInfo:
    (found,) = [worker for worker in await client.workers() if worker.worker_id == name]
    return found


def _workers_in_order(turns: Sequence[Ran]) -> list[str]:
    """The workers that had the session, one after the other."""
    return [turn.worker for n, turn in enumerate(turns) if n == 0 or turns[n - 1].epoch != turn.epoch]


async def _move_around(client: Client, session_id: str) -> list[str]:
    """Move a session that has work again and again, each time to the next worker; the workers that took it."""
    taken = []
    for _ in range(MOVES):
        holder = await _until_held(client, session_id)
        to = NAMES[(NAMES.index(holder) + 1) % len(NAMES)]
        outcome = await client.move_session(session_id, to, wait=True)
        if outcome == "moved":
            taken.append(to)
        else:
            assert outcome == "given_up"  # a loaded machine: the worker was too late
        await anyio.sleep(0.2)
    return taken


@on_all_databases
async def test_sessions_under_load_are_moved_again_and_again(workers: Workers, client: Client) -> None:
    """Six sessions with work all the time are moved between three workers: each activity runs once."""
    for worker in [workers.launch(name, APP) for name in NAMES]:
        worker.ready()
    for session_id in SESSIONS:
        await _start(client, Plan(session_id=session_id, rounds=ROUNDS))
    moved: dict[str, list[str]] = {}

    async def move(session_id: str) -> None:
        moved[session_id] = await _move_around(client, session_id)

    async with anyio.create_task_group() as group:
        for session_id in SESSIONS:
            group.start_soon(move, session_id)
    for session_id in SESSIONS:
        turns = await _result(client, session_id)
        assert len(turns) == ROUNDS
        assert {turn.attempt for turn in turns} == {1}
        seen = _workers_in_order(turns)
        assert len(seen) <= len(moved[session_id]) + 1  # nothing moved but what was moved by hand
        events = [event.type for event in await client.history(session_id)]
        assert events.count("activity_completed") == ROUNDS
        assert not [kind for kind in events if "fail" in kind]
    assert sum(map(len, moved.values())) >= len(SESSIONS)


@pytest.mark.slow
@on_all_databases
async def test_a_move_waits_for_running_work_and_warns_the_new_holder(workers: Workers, client: Client) -> None:
    """The activity that runs ends on its holder, though it takes long; the next one runs on the worker named."""
    a = workers.launch("a", APP)
    workers.start("b", APP)
    a.ready()
    await _start(client, Plan(session_id="slow", rounds=4, pause=2.0))
    former = await _until_held(client, "slow")
    other = "a" if former == "b" else "b"
    assert await client.move_session("slow", other, wait=True) == "moved"
    assert await client.move_session("slow", other, wait=True) == "moved"
    turns = await _result(client, "slow")
    assert {turn.attempt for turn in turns} == {1}
    assert _workers_in_order(turns) == [former, other]
    assert turns[-1].was_assigned


@pytest.mark.slow  # a worker on SQLite looks every ten seconds
@on_all_databases
async def test_an_idle_session_moves_immediately(workers: Workers, client: Client) -> None:
    """Without work of it; the former holder lets its copy go."""
    a = workers.start("a", APP)
    await _start(client, Plan(session_id="idle", rounds=2))
    await _result(client, "idle")
    workers.start("b", APP)
    assert await client.move_session("idle", "b", wait=True) == "moved"
    assert await _holder(client, "idle") == "b"
    a.wait_log("lost idle")
    assert await client.move_session("idle", "unknown", wait=True) == "unavailable"
    assert await client.move_session("never", "b", wait=True) == "not_held"


@pytest.mark.slow
@on_all_databases
async def test_a_worker_that_is_killed_as_a_session_moves_to_it(workers: Workers, client: Client) -> None:
    """The session goes on where it was, with what its holder has in memory."""
    workers.start("a", APP)
    await _start(client, Plan(session_id="kept", rounds=8, pause=0.5))
    assert await _until_held(client, "kept") == "a"
    b = workers.start("b", APP)
    b.pause()
    assert await client.move_session("kept", "b", within=60.0) == "planned"
    b.end()
    turns = await _result(client, "kept")
    assert {(turn.worker, turn.attempt) for turn in turns} == {("a", 1)}
    assert len({turn.epoch for turn in turns}) == 1


@pytest.mark.slow
@on_all_databases
async def test_an_operator_drains_a_worker_and_resumes_it(workers: Workers, client: Client) -> None:
    """It finishes what runs, gives its sessions up and stays; so does its next process, until it is resumed."""
    a = workers.start("a", APP)
    for session_id in SESSIONS:
        await _start(client, Plan(session_id=session_id, rounds=20, pause=0.2))
        await _until_held(client, session_id)
    workers.start("b", APP)
    await client.drain_worker("a")
    a.wait_log("an operator drains it")
    for session_id in SESSIONS:
        turns = await _result(client, session_id)
        assert {turn.attempt for turn in turns} == {1}
        assert _workers_in_order(turns) == ["a", "b"]
    drained = await _worker(client, "a")
    assert (drained.alive, drained.draining, drained.drain_wanted, drained.sessions) == (True, True, True, 0)
    a.end()
    again = workers.start("a", APP)
    again.wait_log("an operator drains it")
    await client.drain_worker("b")
    await _start(client, Plan(session_id="waits", rounds=1))
    await anyio.sleep(1.0)
    assert await _holder(client, "waits") is None
    await client.resume_worker("a")
    again.wait_log("resumed")
    assert _workers_in_order(await _result(client, "waits")) == ["a"]
