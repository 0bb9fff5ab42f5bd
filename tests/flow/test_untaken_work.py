"""Work with slots that no worker takes, in an `Env`: other work goes on, and time does not run away."""

from __future__ import annotations

import pytest

import affinity
from affinity import App, OrchestrationContext
from affinity.errors import NothingWillHappen
from affinity.testing import Env

pytestmark = pytest.mark.anyio

app = App("untaken")
model = affinity.Limit("model", concurrency=1)


@app.activity(limits=[model])
async def call(ctx: affinity.ActivityContext) -> str:
    return "done"


@app.orchestration
async def normal(ctx: OrchestrationContext) -> str:
    return await ctx.schedule_activity(call)


@app.orchestration
async def tagged(ctx: OrchestrationContext) -> str:
    return await ctx.schedule_activity(call).with_tag("gpu").with_priority(9)


async def test_an_env_runs_other_work_and_says_that_nothing_will_happen(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        await env.client.start(tagged, instance_id="tagged")
        runs = [await env.client.start(normal) for _ in range(5)]
        await env.advance(30)  # an `Env` does not wait for slots that no worker uses
        assert [await run.wait() for run in runs] == ["done"] * 5
        begun = env.now()
        with pytest.raises(NothingWillHappen, match="needs a worker with the tag 'gpu'"):
            await env.client.wait("tagged")
        assert (env.now() - begun).total_seconds() < 600
