"""Trends through a worker, a client, the command and the console."""

from __future__ import annotations

import json
from functools import partial

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker
from affinity.errors import InvalidInput, InvalidOptions, OrchestrationFailed
from affinity.trends import Trends
from affinity.trends.store.contract import LAG
from tests.cli.conftest import succeed
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("trends")


@app.activity(retry=RetryPolicy(initial_interval=0.01))
async def charge(ctx: ActivityContext, cents: int) -> int:
    """Fails twice, or always."""
    if cents < 0 or ctx.attempt < 3:
        raise ValueError(f"no {cents} cents")
    return cents


@app.orchestration
async def order(ctx: OrchestrationContext, cents: int) -> int:
    return await ctx.schedule_activity(charge, cents)


@pytest.fixture
async def counted(any_url: str) -> str:
    """A database with an order that has succeeded, and one that has failed, and their counts."""
    async with Worker(app, any_url, RuntimeOptions(poll_interval=0.1)), Client(any_url) as client:
        await (await client.start(order, 5)).wait(20)
        with pytest.raises(OrchestrationFailed):
            await (await client.start(order, -5)).wait(20)

        async def is_counted() -> bool:
            await anyio.sleep(0.2)
            return (await client.trends("order")).total.failed == 1

        await until(is_counted, LAG + 30)
    return any_url


@pytest.mark.slow_cases(r"\[sqlite")
async def test_a_worker_counts(counted: str) -> None:
    """What has happened is in the charts some seconds later, for the orchestration and for the activity."""
    async with Client(counted) as client:
        found: Trends = await client.trends("order")
        assert (found.total.started, found.total.completed, found.total.failed) == (2, 1, 1)
        assert found.total.retries == 4
        assert found.total.p50 is not None
        assert 0 < found.total.p50 < 15
        assert len(found.points) == 60
        assert found.points[-1].at <= found.now
        assert found.counted_to is not None
        assert (await client.trends(kind="activity")).total.retries == 4
        assert (await client.trends("charge", kind="activity", seconds=86_400, points=24)).total.retries == 4
        by_name = {(each.kind, each.name): each for each in await client.trends_by_name()}
        assert by_name["orchestration", "order"].failed == 1
        assert by_name["activity", "charge"].retries == 4
        assert (await client.trends("none")).total.started == 0


@pytest.mark.slow_cases("sqlite")
async def test_the_command_shows_them(counted: str) -> None:
    async def shown(*arguments: str) -> str:
        return await anyio.to_thread.run_sync(partial(succeed, "trends", *arguments, "--url", counted))

    document = json.loads(await shown("order", "--json"))
    assert document["total"]["failed"] == 1
    assert "RETRIES" in await shown("--day")
    assert "charge" in await shown("--by-name")


async def test_arguments_out_of_bounds_are_refused(any_url: str) -> None:
    async with Client(any_url) as client:
        for seconds in (59, 86_401, float("nan"), "60"):
            with pytest.raises(InvalidInput, match="seconds"):
                await client.trends(seconds=seconds)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="kind"):
            await client.trends(kind="session")  # type: ignore[arg-type]
        with pytest.raises(InvalidOptions, match="points"):
            await client.trends(points=0)
        with pytest.raises(InvalidOptions, match="limit"):
            await client.trends_by_name(limit=0)
        assert (await client.trends()).counted_to is None
