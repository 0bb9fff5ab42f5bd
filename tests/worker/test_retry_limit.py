"""The limit over all attempts of an activity, on a worker."""

from __future__ import annotations

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker
from affinity.errors import OrchestrationFailed

pytestmark = pytest.mark.anyio

app = App("limits")


@app.activity
async def fail(context: ActivityContext) -> None:
    raise ValueError(str(context.attempt))


@app.activity
async def hang(context: ActivityContext) -> None:
    await anyio.sleep_forever()


@app.orchestration
async def attempts(context: OrchestrationContext, name: str) -> None:
    # Pauses of 0.01 s, then of a minute. The time between them and the limit is for a busy machine.
    policy = RetryPolicy(max_attempts=10**6, initial_interval=0.01, backoff=6000.0, total_timeout=50.0)
    await context.schedule_activity(name, retry=policy)


@app.orchestration
async def attempt(context: OrchestrationContext, name: str) -> None:
    await context.schedule_activity(name, retry=RetryPolicy(max_attempts=10**6, total_timeout=0.4))


@pytest.mark.parametrize(
    ("flow", "activity", "message"),
    [
        ("attempts", "fail", "ActivityFailed: .*ValueError: 2"),
        ("attempt", "hang", "ActivityTimeout.*total_timeout of 0.4 s"),
    ],
)
async def test_no_attempt_outlasts_the_limit_over_all(kept_url: str, flow: str, activity: str, message: str) -> None:
    """Where the next attempt would begin after it, with the last error, though attempts are left; cut off where the
    code goes on.
    """
    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)), Client(kept_url) as client:
        run = await client.start(flow, activity)
        with pytest.raises(OrchestrationFailed, match=message):
            await client.wait(run.instance_id, timeout=40)
