"""An app for tests of sessions that change hands."""

from __future__ import annotations

from affinity import ActivityContext, App, OrchestrationContext, SessionCache
from tests.support.apps import Seen, seen

hydrations: list[str] = []
"""Sessions whose state this process has hydrated, in order."""

cache = SessionCache[None](hydrate=hydrations.append)

app = App("handover")
app.include(cache)


@app.activity
async def touch(context: ActivityContext, n: int) -> Seen:
    """The worker that runs it; the state is in memory from the first call on."""
    async with cache.use(context):
        return seen(context, n)


@app.activity
async def hydrated(context: ActivityContext) -> int:
    """How often the worker that holds the session has hydrated its state."""
    return hydrations.count(context.session_id or "")


@app.orchestration
async def held_wait(context: OrchestrationContext, seconds: float) -> list[Seen]:
    """Two turns on a session, which is held between them for at most so long."""
    first = await context.schedule_activity(touch, 0).on_session(context.instance_id)
    await context.schedule_wait("go", hold_session=context.instance_id, hold_for=seconds)
    return [first, await context.schedule_activity(touch, 1).on_session(context.instance_id)]


@app.orchestration
async def one_turn(context: OrchestrationContext, session_id: str) -> Seen:
    """A turn on the session of another instance."""
    return await context.schedule_activity(touch, 0).on_session(session_id)


@app.orchestration
async def nap(context: OrchestrationContext, seconds: float) -> None:
    await context.schedule_timer(seconds)


@app.orchestration
async def count_hydrations(context: OrchestrationContext, session_id: str) -> int:
    return await context.schedule_activity(hydrated).on_session(session_id)


@app.orchestration
async def watch(context: OrchestrationContext, session_id: str) -> int:
    """Count the moves of the session until the event "stop". The custom status is the count so far."""
    moves = 0
    while True:
        context.set_custom_status(moves)
        stop, moved = context.schedule_wait("stop"), context.schedule_session_moved(session_id)
        if (await context.select(stop, moved)).future is stop:
            return moves
        moves += 1
