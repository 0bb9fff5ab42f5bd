"""What our workers run."""

from __future__ import annotations

from typing import Any

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext
from bench.work import Stamp, stamp


class Step(BaseModel):
    """One turn."""

    turn: int
    pause: float = 0.0


class Route(BaseModel):
    """Turns on sessions, which take their turns."""

    turns: int
    pause: float = 0.0
    sessions: list[str] = []  # empty: the instance's own


class Flood(BaseModel):
    """Activities that block, on one session."""

    session: str
    items: int


app = App("bench")


@app.activity
async def step(context: ActivityContext, this: Step) -> Stamp:
    """A turn."""
    made = stamp(this.turn)
    if this.pause:
        await anyio.sleep(this.pause)
    return made


@app.orchestration
async def walk(context: OrchestrationContext, route: Route) -> list[Stamp]:
    """Turns, one after the other."""
    sessions = route.sessions or [context.instance_id]
    return [
        await context.schedule_activity(step, Step(turn=turn, pause=route.pause)).on_session(
            sessions[turn % len(sessions)]
        )
        for turn in range(route.turns + 1)
    ]


@app.orchestration
async def waiting(context: OrchestrationContext) -> bool:
    """Waits for an event."""
    await context.schedule_wait("go", Any)
    return True


foreign = App("bench-foreign")
"""Of a worker that holds sessions of others and must not run their turns."""


@foreign.activity
async def block(context: ActivityContext) -> None:
    """Never ends."""
    await anyio.sleep_forever()


@foreign.orchestration
async def flood(context: OrchestrationContext, order: Flood) -> None:
    """Queues many activities on a session."""
    await context.gather(*(context.schedule_activity(block).on_session(order.session) for _ in range(order.items)))
