"""Work without a session on several idle workers: a fan-out is for all of them, a chain stays with one."""

from __future__ import annotations

from collections import Counter

import pytest

from affinity import Client
from tests.support.activity_calls import ActivityCalls
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

WIDTH = 60  # far less than one worker has slots for
MOST = WIDTH * 3 // 4
TRIES = 5
"""Fan-outs; one of them must be spread: how far depends on which worker polls at that moment."""


@on_all_databases
async def test_a_fan_out_spreads_over_idle_workers(workers: Workers, client: Client, calls: ActivityCalls) -> None:
    """Each has some of it, and none nearly all; every result arrives once."""
    for worker in [workers.launch(name) for name in ("a", "b", "c")]:
        worker.ready()
    for _ in range(TRIES):
        run = await client.start("held_fan_out", WIDTH)
        waiting = [await calls.next() for _ in range(WIDTH)]
        for call in waiting:
            await call.answer()
        done = await client.wait(run.instance_id, timeout=60)
        assert [one["n"] for one in done] == list(range(WIDTH))
        counts = Counter(one["worker"] for one in done)
        if len(counts) == 3 and max(counts.values()) <= MOST:
            break
    else:
        pytest.fail(f"the last of {TRIES} fan-outs ran on {dict(counts)}")
    chain = await client.wait((await client.start("stroll", 20)).instance_id, timeout=60)
    assert len({one["worker"] for one in chain}) == 1
