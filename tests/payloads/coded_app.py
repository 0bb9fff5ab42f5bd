"""A small application, whose texts are secret."""

from __future__ import annotations

from affinity import ActivityContext, App, OrchestrationContext

app = App("coded")


@app.activity
async def greet(ctx: ActivityContext, name: str) -> str:
    return f"secret for {name}"


@app.orchestration
async def greeting(ctx: OrchestrationContext, name: str) -> list[str]:
    ctx.set_custom_status("secret status")
    return [await ctx.schedule_activity(greet, name), await ctx.schedule_wait("more", str)]
