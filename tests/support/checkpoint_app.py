"""An app whose activity works in steps: it calls the test before each, and writes a checkpoint after each."""

from __future__ import annotations

from pydantic import BaseModel

from affinity import ActivityContext, App, MemorySessionStore, OrchestrationContext, RetryPolicy, Sessions
from tests.support.activity_calls import call_test


class Progress(BaseModel):
    """How far the activity has come."""

    steps: list[str] = []


def make_app(name: str, kept: Sessions[Progress]) -> App:
    """An app whose activities keep their state in ``kept``."""
    app = App(name)
    app.include(kept)

    @app.activity
    async def travel(context: ActivityContext, steps: list[str]) -> list[str]:
        """Do the steps that no earlier attempt has done; a step fails if the test answers it with anything."""
        opening = kept.open(context)
        async with opening as progress:
            for step in steps:
                if step not in progress.steps:
                    if await call_test(context, step=step):
                        raise ValueError(step)
                    progress.steps.append(step)
                    await opening.checkpoint()
            progress.steps.append("end")
            return progress.steps

    @app.activity
    async def write_by_id(context: ActivityContext, _: None) -> None:
        assert context.session_id is not None
        async with kept.open(context.session_id, store=context.session_store) as progress:
            progress.steps.append("by id")
        async with kept.open(context) as progress:
            progress.steps.append("end")

    @app.orchestration
    async def journey(context: OrchestrationContext, steps: list[str]) -> list[str]:
        policy = RetryPolicy(max_attempts=3, initial_interval=0.01)
        return await context.schedule_activity(travel, steps, retry=policy).on_session("s")

    @app.orchestration
    async def selfish(context: OrchestrationContext, _: None) -> None:
        policy = RetryPolicy(max_attempts=3, initial_interval=0.01)
        await context.schedule_activity(write_by_id, None, retry=policy).on_session("s")

    return app


in_database: Sessions[Progress] = Sessions(Progress, kind="progress")
app = make_app("progress", in_database)

forgetful = make_app("forgetful progress", Sessions(Progress, kind="progress", store=MemorySessionStore()))
"""The same with a store that ends with its process."""
