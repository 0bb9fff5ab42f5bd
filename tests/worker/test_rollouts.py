"""Rolling updates of real worker processes, one after the other under its name, while all sessions have work."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import anyio
import pytest

from affinity import Client, Start
from affinity.provider import open_provider
from affinity.provider.contract import MoveFilter, SessionMove
from tests.support.all_databases import on_all_databases
from tests.support.busy_sessions_app import Order, Ran
from tests.support.waiting import started
from tests.support.worker_processes import Workers

pytestmark = pytest.mark.timeout(300)

APP = "tests.support.busy_sessions_app:app"

OPTIONS: dict[str, Any] = {
    "restart_grace": 60.0,
    "worker_lease_timeout": 15.0,
    "work_item_lock_timeout": 15.0,
    "stall_timeout": 30.0,
}
"""Leases that last on a busy machine: sessions that move since one has ended are for other tests."""

Report: TypeAlias = Callable[[str, object], None]


@on_all_databases
async def test_a_rolling_update_moves_each_session_once_at_most(workers: Workers, client: Client) -> None:
    await _update(workers, client, size=3, sessions=6)


@pytest.mark.slow
async def test_a_rolling_update_of_ten_workers(kept_url: str, record_property: Report) -> None:
    workers = Workers(kept_url)
    try:
        async with Client(kept_url) as client:
            gap = await _update(workers, client, size=10, sessions=30)
    finally:
        workers.end()
    record_property("longest gap of a session, s", round(gap, 2))


@on_all_databases
async def test_a_worker_that_starts_again_has_its_sessions_and_others_do_not(workers: Workers, client: Client) -> None:
    """The same code for all: no session leaves the worker that restarts, though another has room."""
    with TemporaryDirectory() as folder:
        order = Order(runs=f"{folder}/runs", stop=f"{folder}/stop")
        workers.start("worker-0", APP, code_version="1", **OPTIONS)
        await _begin(client, order, 4)
        workers.start("worker-1", APP, code_version="1", **OPTIONS)
        await _restart(workers, "worker-0", code_version="1")
        await _end(client, order, 4)
        assert {(move.to_worker, move.reason) for move in await _moves(workers.url)} == {("worker-0", "restart")}


async def _update(workers: Workers, client: Client, *, size: int, sessions: int) -> float:
    """Replace each worker by one of newer code; returns the longest time in seconds between two turns of a session."""
    names = [f"worker-{number}" for number in range(size)]
    with TemporaryDirectory() as folder:
        order = Order(runs=f"{folder}/runs", stop=f"{folder}/stop")
        for worker in [workers.launch(name, APP, code_version="1", **OPTIONS) for name in names]:
            worker.ready()
        await _begin(client, order, sessions)
        for name in names:
            await _restart(workers, name, code_version="2")
        ran = await _end(client, order, sessions)
    moved = Counter(move.session_id for move in await _moves(workers.url))
    assert max(moved.values()) == 1, sorted(move.reason for move in await _moves(workers.url))
    assert {info.code_version for info in await client.workers()} == {"2"}
    gap = max(after.at - before.at for turns in ran for before, after in pairwise(turns))
    print(f"{size} workers, {len(moved)} of {sessions} sessions moved, longest gap of a session {gap:.2f} s")
    return gap


async def _begin(client: Client, order: Order, sessions: int) -> None:
    await client.start_many([Start("stay", order, f"s{number}") for number in range(sessions)])
    for number in range(sessions):
        await started(client, f"s{number}")
    while len(_runs(order)) < 2 * sessions:
        await anyio.sleep(0.05)


async def _restart(workers: Workers, name: str, *, code_version: str) -> None:
    """As a StatefulSet does: the old process ends, then the new one starts."""
    (running,) = [one for one in workers.running() if one.name == name]
    running.send(signal.SIGTERM)
    assert await anyio.to_thread.run_sync(running.wait) == 0
    starting = workers.launch(name, APP, code_version=code_version, **OPTIONS)
    await anyio.to_thread.run_sync(starting.ready)


async def _end(client: Client, order: Order, sessions: int) -> list[list[Ran]]:
    """End all instances, and check that no turn was lost or repeated: in the history, in the state, and in fact."""
    Path(order.stop).touch()
    ran = [
        [Ran.model_validate(turn) for turn in await client.wait(f"s{number}", timeout=120)]
        for number in range(sessions)
    ]
    for turns in ran:
        assert [turn.n for turn in turns] == list(range(len(turns)))
        assert [turn.count for turn in turns] == list(range(1, len(turns) + 1))
    expected = Counter(f"s{number} {turn.n}" for number, turns in enumerate(ran) for turn in turns)
    assert Counter(_runs(order)) == expected
    return ran


def _runs(order: Order) -> list[str]:
    path = Path(order.runs)
    return path.read_text().splitlines() if path.exists() else []


async def _moves(url: str) -> Sequence[SessionMove]:
    """All moves but the first claims."""
    provider = await open_provider(url)
    try:
        moves = await provider.list_session_moves(MoveFilter(), limit=1_000)
    finally:
        await provider.aclose()
    return [move for move in moves if move.reason != "new"]
