"""What the worker processes of `test_memory` run: it receives much, asks for much, and keeps little."""

from __future__ import annotations

from affinity import ActivityContext, App, OrchestrationContext

app = App("large")


@app.activity
async def measure(ctx: ActivityContext, data: str) -> int:
    """How long it is."""
    return len(data)


@app.orchestration
async def weigh(ctx: OrchestrationContext, count: int) -> int:
    """The length of so many events, together."""
    total = 0
    for number in range(count):
        data = await ctx.schedule_wait("data", str)
        total += len(data) if number % 10 else await ctx.schedule_activity(measure, data)
    return total
