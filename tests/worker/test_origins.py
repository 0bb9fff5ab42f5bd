"""When and where events were recorded, as a client sees it of what workers do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lives_here", [True, False], ids=["fused", "by message"])
async def test_a_history_has_times_workers_and_attempts(kept_url: str, lives_here: bool) -> None:
    """Whether the result goes into the next turn or takes the way of a message."""
    app = App("origins")

    @app.activity
    async def flaky(context: ActivityContext) -> int:
        if not lives_here:
            worker.runtime.instances.drop_idle()
        if context.attempt < 3:
            raise ValueError
        return context.attempt

    @app.activity
    async def fine(context: ActivityContext) -> None:
        pass

    @app.orchestration
    async def run(context: OrchestrationContext) -> int:
        await context.schedule_activity(fine)
        return await context.schedule_activity(flaky, retry=RetryPolicy(initial_interval=0.01))

    options = RuntimeOptions.make(worker_node_id="w-7", poll_interval=0.2)
    async with Worker(app, kept_url, options) as worker, Client(kept_url) as client:
        handle = await client.start(run)
        assert await handle.wait(30) == 3
        instance = await handle.status()
        events = await client.history(handle.instance_id)
    assert [(event.type, event.worker_id, event.attempt) for event in events] == [
        ("orchestration_started", "w-7", None),
        ("activity_scheduled", "w-7", None),
        ("activity_completed", "w-7", 1),
        ("activity_scheduled", "w-7", None),
        ("activity_completed", "w-7", 3),
        ("orchestration_completed", "w-7", None),
    ]
    times = [event.recorded_at or instance.created_at for event in events]
    assert times == sorted(times)
    assert len(set(times)) == 3
    assert instance.created_at < times[0] <= times[-1] <= instance.updated_at + timedelta(seconds=1)
