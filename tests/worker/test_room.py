"""Full workers and new sessions: idle sessions are released for them, and one that was released by hand is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import anyio
import pytest

from affinity import RuntimeOptions, Worker
from affinity.client import Client
from affinity.provider.contract import SessionInfo
from affinity.worker.sessions import HeldSessions
from tests.support.all_databases import on_all_databases
from tests.support.apps import app
from tests.support.worker_processes import FAST as OPTIONS
from tests.support.worker_processes import Workers

pytestmark = pytest.mark.timeout(180)

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
    for worker in [workers.launch(name, **FULL, session_min_idle=1.0) for name in ("a", "b")]:
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
    assert held.only_users() == {"a": "i"}
    await held.sweep()
    for name in ("a", "busy"):
        held.recheck(name)
    await held.sweep()
    monkeypatch.setattr(held, "_recheck_at", 0.0)
    await held.sweep()
    await held.sweep()
    assert asked == [["a"], ["a", "b"]]
