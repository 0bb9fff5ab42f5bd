"""What a drain moves, and to where, before it is asked for."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from affinity import Client, RuntimeOptions, Worker
from affinity.errors import InvalidInput, UnknownWorker
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, Provider, WorkerIdentity
from affinity.testing.conformance.providers.builders import profile
from tests.explain.test_life import app, visits

pytestmark = pytest.mark.anyio


async def _stand_by(provider: Provider, name: str, capacity: int, app_name: str = app.name) -> None:
    """Register a worker that takes no work."""
    identity = WorkerIdentity(worker_id=name, incarnation=Incarnation(name))
    await provider.register_worker(identity, 300, {"app": app_name}, profile=profile(capacity=capacity))


async def test_a_drain_says_what_moves_and_where_there_is_room(any_url: str) -> None:
    """To live workers of the same app with room, the one with the most first."""
    async with Client(any_url) as client, aclosing(await open_provider(any_url)) as provider:
        with pytest.raises(UnknownWorker):
            await client.drain_preview("a")
        async with Worker(app, any_url, RuntimeOptions(poll_interval=0.1, worker_node_id="a")):
            assert (await client.drain_preview("a")).sentence == "worker 'a' holds no sessions: a drain moves none"
            for session in ("s", "t"):
                await (await client.start(visits, session)).wait(20)
            await _stand_by(provider, "of another app", 9, "other")
            found = await client.drain_preview("a")
            assert [row.session_id for row in found.sessions] == ["s", "t"]
            assert (found.has_more, found.targets) == (False, [])
            assert found.sentence.startswith("worker 'a' holds 2 sessions, and no other worker has room for one")
            await _stand_by(provider, "b", 1)
            assert "have room for 1: work of 1 sessions waits" in (await client.drain_preview("a")).sentence
            await _stand_by(provider, "c", 5)
            found = await client.drain_preview("a", limit=1)
            assert [(one.worker.worker_id, one.room) for one in found.targets] == [("c", 5), ("b", 1)]
            assert ([row.session_id for row in found.sessions], found.has_more) == (["s"], True)
            assert "have room for 6: they take each session" in found.sentence
            with pytest.raises(InvalidInput):
                await client.drain_preview("a", limit=0)
