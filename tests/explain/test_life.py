"""Where a session has been, on both databases: the holders, the gaps between them, who holds it now; and where a drain
moves it.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import InvalidInput, SessionNotFound, UnknownWorker
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, MoveReport, Provider, WorkerIdentity
from affinity.testing import Env
from affinity_conformance.providers.builders import profile
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("lives")


@app.activity
async def quick(ctx: ActivityContext) -> None:
    pass


@app.activity
async def slow(ctx: ActivityContext) -> None:
    await anyio.sleep(60)


@app.orchestration
async def stays(ctx: OrchestrationContext, session: str) -> None:
    await ctx.schedule_activity(slow).on_session(session)


@app.orchestration
async def visits(ctx: OrchestrationContext, session: str) -> None:
    await ctx.schedule_activity(quick).on_session(session)


async def test_the_holders_of_a_session_one_after_another(kept_url: str) -> None:
    async with Client(kept_url) as client:
        for worker_id in ("a", "b"):
            async with Worker(app, kept_url, RuntimeOptions(poll_interval=0.1, worker_node_id=worker_id)):
                await (await client.start(visits, "s")).wait(20)
                held = await client.session_life("s")
                last = held.holdings[-1]
                assert held.sentence == f"session 's' is held by worker '{worker_id}' under epoch {last.epoch}"
                assert (held.free_seconds, last.until) == (None, None)
        async with aclosing(await open_provider(kept_url)) as provider:
            await provider.report_session_moves([MoveReport(last.epoch, 0.25, 1024)])
        life = await client.session_life("s")
        first, second = life.holdings
        assert (first.worker_id, first.reason, first.gap_seconds) == ("a", "new", None)
        assert (second.worker_id, second.reason, second.hydrate_bytes) == ("b", "drained", 1024)
        assert second.gap_seconds is not None
        assert first.until == second.since - timedelta(seconds=second.gap_seconds)
        assert first.since < first.until
        assert life.free_seconds is not None
        assert 0 <= life.free_seconds < 60
        assert life.sentence.startswith("session 's' is held by no worker, the last holder was worker 'b'")
        assert not life.has_more
        latest = await client.session_life("s", limit=1)
        assert (latest.holdings, latest.has_more) == ([second], True)


async def test_the_gap_behind_a_worker_that_died(kept_url: str) -> None:
    """It begins when the holder's lease ends, not when the session's lock does."""
    async with Env(app, url=None if kept_url.startswith("sqlite") else kept_url) as env:
        await (await env.client.start(visits, "s")).wait(20)
        with env.freeze():
            await env.crash(0, restart=False)
            await env.advance(100)
            life = await env.client.session_life("s")
            assert life.free_seconds == pytest.approx(85, abs=5)  # of a lease of 15 s
            assert life.sentence.startswith("session 's' is held by no worker")


async def test_sessions_that_are_not_known(kept_url: str) -> None:
    async with Client(kept_url) as client:
        with pytest.raises(SessionNotFound, match="'nowhere'"):
            await client.session_life("nowhere")
        with pytest.raises(InvalidInput, match="limit"):
            await client.session_life("s", limit=1000)


async def test_a_holder_that_drains_and_one_that_restarts(kept_url: str) -> None:
    options = {"poll_interval": 0.1, "worker_node_id": "a", "restart_grace": 300.0, "drain_timeout": 0.1}
    async with Client(kept_url) as client:
        async with Worker(app, kept_url, RuntimeOptions.make(**options)):
            await (await client.start(visits, "idle")).wait(20)
            await client.start(stays, "busy", instance_id="i")

            async def runs() -> bool:
                found = await client.explain("i")
                return found is not None and found.code == "activity_running"

            await until(runs)
            await client.drain_worker("a")
            assert ", which drains; 1 activity of it runs or waits" in (await client.session_life("busy")).sentence
            await client.resume_worker("a")
            await (await client.start(visits, "idle")).wait(20)
        left = await client.session_life("idle")
        assert ", which has left for a restart" in left.sentence
        assert left.free_seconds is None


# -- what a drain moves


async def _stand_by(provider: Provider, name: str, capacity: int, app_name: str = app.name) -> None:
    """Register a worker that takes no work."""
    identity = WorkerIdentity(worker_id=name, incarnation=Incarnation(name))
    await provider.register_worker(identity, 300, {"app": app_name}, profile=profile(capacity=capacity))


async def test_a_drain_says_what_moves_and_where_there_is_room(kept_url: str) -> None:
    """To live workers of the same app with room, the one with the most first."""
    async with Client(kept_url) as client, aclosing(await open_provider(kept_url)) as provider:
        with pytest.raises(UnknownWorker):
            await client.drain_preview("a")
        async with Worker(app, kept_url, RuntimeOptions(poll_interval=0.1, worker_node_id="a")):
            assert (await client.drain_preview("a")).sentence == "worker 'a' holds no sessions: a drain moves none"
            for session in ("s", "t"):
                await (await client.start(visits, session)).wait(20)
            await _stand_by(provider, "of another app", 9, "other")
            found = await client.drain_preview("a")
            assert [row.session_id for row in found.sessions] == ["s", "t"]
            assert (found.has_more, found.targets) == (False, [])
            assert found.sentence.startswith("worker 'a' holds 2 sessions, and no other worker has room for one")
            await _stand_by(provider, "b", 1)
            assert "have room for 1: work of 1 session waits" in (await client.drain_preview("a")).sentence
            await _stand_by(provider, "c", 5)
            found = await client.drain_preview("a", limit=1)
            assert [(one.worker.worker_id, one.room) for one in found.targets] == [("c", 5), ("b", 1)]
            assert ([row.session_id for row in found.sessions], found.has_more) == (["s"], True)
            assert "have room for 6: they take each session" in found.sentence
            with pytest.raises(InvalidInput):
                await client.drain_preview("a", limit=0)
