"""A worker removes what ended long ago, when its options say so."""

from __future__ import annotations

import pytest

from affinity import App, OrchestrationContext, RuntimeOptions, Worker
from affinity.client import Client
from affinity.errors import InvalidInput, UnknownInstance
from affinity.worker import runtime
from tests.waiting import started, until

pytestmark = pytest.mark.anyio

app = App("retention")


@app.orchestration
async def count_down(ctx: OrchestrationContext, left: int) -> int:
    if left > 0:
        ctx.continue_as_new(left - 1)
    return left


@app.orchestration
async def wait_for(ctx: OrchestrationContext, name: str) -> None:
    await ctx.schedule_wait(name)


async def test_a_worker_removes_what_ended_long_ago(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories of former executions, and then the instance; what runs stays."""
    monkeypatch.setattr(runtime, "CHORE_SECONDS", 0.05)
    keep = RuntimeOptions.make(poll_interval=0.2)
    brief = RuntimeOptions.make(poll_interval=0.2, history_retention=0.01)
    briefer = RuntimeOptions.make(poll_interval=0.2, instance_retention=0.01)
    async with Client(any_url) as client:
        async with Worker(app, any_url, keep):
            await client.start(wait_for, "on", instance_id="on")
            await started(client, "on")
            await client.start(count_down, 2, instance_id="i")
            assert await client.wait("i", 30) == 0
        async with Worker(app, any_url, brief):

            async def forgotten() -> bool:
                return not await client.history("i", execution_id=1) and not await client.history("i", execution_id=2)

            await until(forgotten)
        assert await client.history("i", execution_id=3)
        async with Worker(app, any_url, briefer):

            async def gone() -> bool:
                try:
                    await client.status("i")
                except UnknownInstance:
                    return True
                return False

            await until(gone)
        assert (await client.status("on")).status == "running"


async def test_a_client_prunes(any_url: str) -> None:
    """As the command does, and refuses what makes no sense."""
    async with Client(any_url) as client, Worker(app, any_url, RuntimeOptions.make(poll_interval=0.2)):
        await client.start(count_down, 1, instance_id="i")
        await client.wait("i", 30)
        assert await client.prune_histories(older_than=0.0, dry_run=True) == 1
        assert await client.prune_histories(older_than=0.0) == 1
        steps: list[int] = []
        pruned = await client.prune(older_than=0.0, progress=steps.append)
        assert (pruned.roots, pruned.instances, steps) == (1, 1, [1])
        with pytest.raises(InvalidInput, match="older_than"):
            await client.prune(older_than=-1.0)
        with pytest.raises(InvalidInput, match="status"):
            await client.prune(older_than=1.0, status=[])
