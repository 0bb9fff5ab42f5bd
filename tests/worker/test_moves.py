"""Moves of sessions: their reasons with real processes, reports of hydrates, metrics, what a watcher learns."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, OrchestrationContext, Resource, RuntimeOptions, Sessions, Worker
from affinity.provider.contract import SessionMove
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import FAST, Workers

pytestmark = pytest.mark.anyio


@on_all_databases
async def test_a_session_shows_where_it_was_and_why(workers: Workers, client: Client) -> None:
    """One session over a kill, a drain and a restart."""
    first = workers.start("first")
    await client.start("visits", 3, instance_id="s")
    await _until(client, ["new"])
    first.send(signal.SIGKILL)
    first.wait()
    second = workers.start("second")
    await client.raise_event("s", "next")
    await _until(client, ["new", "lease_expired"])
    third = workers.start("third")
    await _until_idle(client)
    second.send(signal.SIGTERM)
    assert second.wait() == 0
    await client.raise_event("s", "next")
    await _until(client, ["new", "lease_expired", "drained"])
    third.send(signal.SIGKILL)
    third.wait()
    workers.start("third")
    moves = await _until(client, ["new", "lease_expired", "drained", "restart"])
    assert [(move.from_worker, move.to_worker) for move in moves] == [
        (None, "first"),
        ("first", "second"),
        ("second", "third"),
        ("third", "third"),
    ]
    assert [move.epoch for move in moves] == sorted({move.epoch for move in moves})
    assert [move.moved_at for move in moves] == sorted(move.moved_at for move in moves)
    assert await client.session_moves(worker_id="second") == moves[1:3]
    assert await client.session_moves(reason="drained", after=0) == moves[2:3]


async def _moves(client: Client) -> list[SessionMove]:
    return list(await client.session_moves(session_id="s"))


async def _until(client: Client, reasons: list[str]) -> list[SessionMove]:
    with anyio.fail_after(60):
        while True:
            moves = await _moves(client)
            if [move.reason for move in moves] == reasons:
                return moves
            assert len(moves) <= len(reasons), moves
            await anyio.sleep(0.05)


async def _until_idle(client: Client) -> None:
    """The session's work has ended: a drain frees it immediately."""
    with anyio.fail_after(60):
        while any(lease.queued for lease in [lease async for lease in client.sessions()]):
            await anyio.sleep(0.05)


class Notes(BaseModel):
    lines: list[str] = []


@dataclass
class Diary:
    """An app with the state of a session, and an orchestration that is notified of its moves."""

    notes: Sessions[Notes]
    app: App

    @classmethod
    def make(cls) -> Diary:
        notes, app = Sessions(Notes), App("diary")
        app.include(notes)

        @app.activity
        async def write(context: ActivityContext, line: str) -> int:
            async with notes.open(context) as state:
                state.lines.append(line)
                return len(state.lines)

        @app.orchestration
        async def keep(context: OrchestrationContext, turns: int) -> int:
            for n in range(turns):
                written = await context.schedule_activity(write, f"line {n}").on_session("s")
            return written

        @app.orchestration
        async def watch(context: OrchestrationContext) -> list[object]:
            moved = await context.schedule_session_moved("s")
            return [moved.session_id, moved.worker_id, moved.epoch, moved.reason]

        return cls(notes, app)


async def test_hydrates_and_moves_are_reported_once_and_not_by_turns(kept_url: str) -> None:
    """Thirty turns on one session: one move, one hydrate, one or two reports; a second start hydrates again."""
    lasting = {"worker_lease_timeout": 60.0, "work_item_lock_timeout": 60.0, "stall_timeout": 60.0}  # none lapses
    options = RuntimeOptions.make(**FAST | lasting, worker_node_id="w")
    sizes = []
    async with Client(kept_url) as client:
        for reasons in (["new"], ["new", "drained"]):
            async with Worker(Diary.make().app, kept_url, options) as worker:
                run = await client.start("keep", 30)
                assert await client.wait(run.instance_id, timeout=60) == 30 * len(reasons)
                with anyio.fail_after(60):
                    while (move := (await _moves(client))[-1]).hydrate_seconds is None:
                        await anyio.sleep(0.05)
                    while _metric(worker, "session_moves_total", reason=reasons[-1]) != 1:
                        await anyio.sleep(0.05)
                assert [move.reason for move in await _moves(client)] == reasons
                assert 0 < move.hydrate_seconds < 60
                sizes.append(move.hydrate_bytes or 0)
                assert _metric(worker, "session_hydrate_seconds_count") == 1
                calls = _metric(worker, "provider_call_seconds_count", verb="report_session_moves")
                assert calls is not None
                assert 1 <= calls <= 2
                assert _metric(worker, "activity_queue_seconds_count", activity="write") == 30
                assert _metric(worker, "activity_queue_seconds_bucket", activity="write", le="+Inf") == 30
    assert sizes[1] > sizes[0]


class Count(BaseModel):
    """A number."""

    number: int = 0


async def test_the_loads_of_resources_are_in_the_move_of_their_session(kept_url: str) -> None:
    """A resource that several sessions share delays each that waits for it; what a session has already is loaded once,
    and another start of the worker loads all of it again. A resource without a name has that of its function.
    """

    async def load(key: str) -> str:
        await anyio.sleep(0.3)
        return key

    notes = Sessions(Count, kind="notes")
    model = Resource(open=load, key=lambda session_id: "shared", name="model")
    own = Resource(open=load)
    app = App("loads")
    app.include(notes)

    @app.activity
    async def use(ctx: ActivityContext) -> int:
        opening = notes.open(ctx)
        async with opening as state:
            await opening.resource(model)
            await opening.resource(own)
            state.number += 1
            return state.number

    @app.orchestration
    async def twice(ctx: OrchestrationContext, session: str) -> int:
        await ctx.schedule_activity(use).on_session(session)
        return await ctx.schedule_activity(use).on_session(session)

    async with Client(kept_url) as client:
        for start in (1, 2):
            async with Worker(app, kept_url, RuntimeOptions.make(**FAST, worker_node_id="w")) as worker:
                for session in ("s", "t"):
                    assert await (await client.start(twice, session)).wait(60) == 2 * start
                moves: Sequence[SessionMove] = []
                with anyio.fail_after(30):
                    while len(moves) < 2 or any(len(move.resource_seconds) < 2 for move in moves):
                        moves = (await client.session_moves())[-2:]
                        await anyio.sleep(0.05)
                by_session = {move.session_id: move.resource_seconds for move in moves}
                assert {name: sorted(loads) for name, loads in by_session.items()} == {
                    "s": ["load", "model"],
                    "t": ["load", "model"],
                }
                assert all(loads["load"] >= 0.3 for loads in by_session.values())
                assert by_session["s"]["model"] >= 0.3
                assert by_session["t"]["model"] < 0.3  # it was open
                assert _metric(worker, "session_resource_seconds_count", resource="model") == 2
                seconds = _metric(worker, "session_resource_seconds_sum", resource="load")
                assert seconds is not None
                assert seconds >= 0.6
    async with Client(kept_url) as client:
        (last,) = [one for one in (await client.session_life("s")).holdings if one.reason != "new"]
        assert last.resource_seconds == by_session["s"]


async def test_a_watcher_learns_where_and_why(kept_url: str) -> None:
    """Its `SessionMoved` names the worker, the epoch and the reason that the table has."""
    options = RuntimeOptions.make(**FAST, worker_node_id="w")
    async with Client(kept_url) as client:
        async with Worker(Diary.make().app, kept_url, options):
            await client.start("watch", instance_id="i")
            await client.wait((await client.start("keep", 1)).instance_id, timeout=60)
            with anyio.fail_after(60):
                while len(await client.history("i")) < 2:
                    await anyio.sleep(0.05)
        async with Worker(Diary.make().app, kept_url, options):
            await client.wait((await client.start("keep", 1)).instance_id, timeout=60)
            found = await client.wait("i", timeout=60)
        (*_, last) = await _moves(client)
        assert found == ["s", "w", last.epoch, last.reason]
        assert last.reason == "drained"


def _metric(worker: Worker, name: str, **labels: str) -> float | None:
    return worker.metrics.registry.get_sample_value(f"affinity_{name}", {"worker": "w", **labels})
