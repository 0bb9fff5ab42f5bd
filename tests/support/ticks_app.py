"""An app whose instances are started by schedules: each returns the time of its tick."""

from __future__ import annotations

from datetime import datetime

from affinity import App, OrchestrationContext

app = App("ticks")


@app.orchestration
async def tick(ctx: OrchestrationContext, due: datetime) -> str:
    """The due time, which the context has too."""
    assert ctx.scheduled_for == due
    return due.isoformat()
