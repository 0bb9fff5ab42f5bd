"""Full workers and new sessions: sessions at rest are released for them, and one that was released by hand is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import anyio
import pytest

import affinity
from affinity import Client, RuntimeOptions, Worker
from affinity.conversation import AgentMessage, UserMessage
from affinity.provider.contract import SessionInfo
from affinity.worker.sessions import HeldSessions
from tests.support.all_databases import on_all_databases
from tests.support.apps import app
from tests.support.worker_processes import FAST as OPTIONS
from tests.support.worker_processes import Workers

FULL: Mapping[str, Any] = {"max_sessions_per_runtime": 1, "session_lock_timeout": 600.0, "poll_interval": 0.2}
"""One session a worker, which holds it for far longer than a test lasts."""


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


async def _held(client: Client) -> dict[str, SessionInfo]:
    return {lease.session_id: lease async for lease in client.sessions() if lease.held}


async def _until_held(client: Client, *session_ids: str) -> None:
    with anyio.fail_after(60):
        while not _held_by_now(await _held(client), session_ids):
            await anyio.sleep(0.02)


def _held_by_now(held: dict[str, SessionInfo], session_ids: tuple[str, ...]) -> bool:
    """Whether these are held, and have no work."""
    return all(name in held and not held[name].queued for name in session_ids)


async def test_the_session_of_an_instance_that_has_ended_is_released_immediately(kept_url: str, client: Client) -> None:
    """One worker with room for one session: one instance after the other runs on a session of its own."""
    async with Worker(app, kept_url, RuntimeOptions.make(**{**OPTIONS, **FULL})):
        for number in range(3):
            run = await client.start("walk", 2, instance_id=f"walk{number}")
            await client.wait(run.instance_id, timeout=30)
        assert set(await _held(client)) == {"walk2"}


@on_all_databases
async def test_a_session_at_rest_is_released_when_new_ones_wait(workers: Workers, client: Client) -> None:
    """Two full workers whose instances go on. Later work of a released session claims one again."""
    for worker in [workers.launch(name, **FULL) for name in ("a", "b")]:
        worker.ready()
    visitors = ("u", "v")
    for name in visitors:
        await client.start("visits", 2, instance_id=name)
    await _until_held(client, *visitors)
    await client.wait((await client.start("walk", 2, instance_id="new")).instance_id, timeout=60)
    held = set(await _held(client))
    assert "new" in held
    assert len(held) == 2
    for _ in range(2):
        for name in visitors:
            await client.raise_event(name, "next")
    for name in visitors:
        assert [turn["n"] for turn in await client.wait(name, timeout=60)] == [0, 1]


chats = affinity.Conversations(dict, kind="crowd")


@chats.on_wake
async def respond(wake: affinity.Wake, state: dict[str, object]) -> None:
    wake.append(AgentMessage("hi"))


async def test_a_crowd_does_not_wait_for_sessions_to_be_idle(kept_url: str, client: Client) -> None:
    """Forty conversations write at once, twice, to a worker with two places and default options."""
    talking = affinity.App("talking")
    talking.include(chats)
    async with Worker(talking, kept_url, RuntimeOptions(max_sessions_per_runtime=2)) as worker:
        for _ in range(2):
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    for number in range(40):
                        tasks.start_soon(client.conversation(chats, f"c{number}").ask, UserMessage("x"))
        assert len(worker.runtime.sessions) <= 2


async def test_sessions_at_work_are_not_thrown_about(kept_url: str, client: Client) -> None:
    """Work of a third session waits while the queue is never without work of the two that are held."""
    async with Worker(app, kept_url, RuntimeOptions.make(**{**OPTIONS, **FULL, "max_sessions_per_runtime": 2})):
        runs = [await client.start("walk", 150, instance_id=name) for name in ("u", "v")]
        await _until_begun(client, "u", "v")
        third = await client.start("walk", 2, instance_id="third")
        for run in (*runs, third):
            await client.wait(run.instance_id, timeout=60)
    assert [move.reason for move in await client.session_moves(session_id="u")] == ["new"]
    assert [move.reason for move in await client.session_moves(session_id="v")] == ["new"]


async def _until_begun(client: Client, *session_ids: str) -> None:
    with anyio.fail_after(60):
        while not set(session_ids) <= set(await _held(client)):
            await anyio.sleep(0.01)


async def _never(_: Collection[str]) -> dict[str, float]:
    raise AssertionError


class _Costly:
    """A listener that keeps something open for two sessions."""

    async def lost(self, session_id: str, epoch: int | None = None) -> None: ...

    async def sweep(self) -> None: ...

    def _costly_sessions(self) -> Collection[str]:
        return {"open", "open too"}


def test_who_makes_room_first() -> None:
    """Those that load in less than 0.1 s by their last use, other ones, those with something open, those in use."""
    now = 0.0
    held = HeldSessions([_Costly()], 100.0, _never, lambda *_: None, lambda: now)

    def work(name: str, *pauses: float) -> None:
        nonlocal now
        for pause in (0.0, *pauses):
            now += pause
            held.begin(name, hash(name))
            held.end(name)

    for name in ("open", "dear", "old", "young", "open too"):
        work(name)
        now += 1.0
    held.note_hydrates({hash("dear"): 0.1, hash("old"): 0.09})
    work("slow", 2.0, 2.0)
    work("brisk", 0.1, 0.1)
    held.begin("running", 7)
    order = held.room_order()
    assert [one.session_id for one in order[:6]] == ["old", "young", "slow", "dear", "open", "open too"]
    assert {one.session_id for one in order[6:]} == {"brisk", "running"}
    assert [one.in_use for one in order] == [False] * 6 + [True] * 2
    now += 0.5
    assert [one.session_id for one in held.room_order() if one.in_use] == ["running"]


async def test_sessions_are_released_by_hand_and_by_their_orchestration(kept_url: str, client: Client) -> None:
    async with Worker(app, kept_url, RuntimeOptions.make(**OPTIONS)) as worker:
        await client.start("visits", 1, instance_id="by hand")
        await _until_held(client, "by hand")
        await client.start("leave", instance_id="by itself")
        with anyio.fail_after(60):
            while (await client.status("by itself")).event_count < 5:  # the wait behind the release is recorded
                await anyio.sleep(0.02)
            assert set(await _held(client)) == {"by hand"}
            while "by itself" in worker.runtime.sessions:  # the worker has noticed
                await anyio.sleep(0.02)
        assert await client.release_session("by hand") == "released"
        assert await _held(client) == {}


async def test_a_worker_asks_for_what_may_have_been_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next sweep for one that it is notified of; now and then for all that have no work."""
    asked: list[list[str]] = []

    async def check(session_ids: Collection[str]) -> dict[str, float]:
        asked.append(sorted(session_ids))
        return dict.fromkeys(session_ids, 100.0)

    held = HeldSessions([], 100.0, check, lambda *_: None)
    for name in ("a", "b", "busy"):
        held.begin(name, 1, "i")
    for name in ("a", "b"):
        held.end(name)
    held.begin("b", 1, "j")
    held.end("b")
    assert {one.session_id: one.only_user for one in held.room_order()} == {"a": "i", "b": None, "busy": None}
    await held.sweep()
    for name in ("a", "busy"):
        held.recheck(name)
    await held.sweep()
    monkeypatch.setattr(held, "_recheck_at", 0.0)
    await held.sweep()
    await held.sweep()
    assert asked == [["a"], ["a", "b"]]
