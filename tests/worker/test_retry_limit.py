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
    policy = RetryPolicy(max_attempts=10**6, strategy="fixed", initial_interval=0.05, total_timeout=0.4)
    await context.schedule_activity(name, retry=policy)


@pytest.mark.parametrize(
    ("activity", "message"),
    [("fail", r"ActivityFailed: .*ValueError: \d"), ("hang", "ActivityTimeout.*total_timeout of 0.4 s")],
)
async def test_no_attempt_outlasts_the_limit_over_all(any_url: str, activity: str, message: str) -> None:
    """With the last error where one was raised, though attempts are left; cut off where the code goes on."""
    async with Worker(app, any_url, RuntimeOptions.make(poll_interval=0.2)), Client(any_url) as client:
        run = await client.start("attempts", activity)
        with pytest.raises(OrchestrationFailed, match=message):
            await client.wait(run.instance_id, timeout=30)
