"""An app for tests of sessions that are moved by hand: each turn changes the state, and says where it ran."""

from __future__ import annotations

import logging

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext, Sessions

logger = logging.getLogger("movable")

PAUSE = 0.02
"""Seconds of work between reading and changing the state."""


class Steps(BaseModel):
    """The numbers of the turns that changed the state, in order."""

    numbers: list[int] = []


class Ran(BaseModel):
    """Where a turn ran, and as which delivery of its work item."""

    worker: str
    epoch: int
    attempt: int
    was_assigned: bool  # `on_assigned` was called before


class Plan(BaseModel):
    """Turns on a session."""

    session_id: str
    rounds: int
    pause: float = PAUSE


class Assignments:
    """A listener that remembers the sessions that were to move to this worker."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def on_assigned(self, session_id: str) -> None:
        self.seen.add(session_id)

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        logger.warning("lost %s", session_id)

    async def sweep(self) -> None:
        pass


steps = Sessions(Steps, max_sessions=100)
assignments = Assignments()

app = App("movable")
app.include(steps)
app.include(assignments)


@app.activity
async def step(context: ActivityContext, turn: tuple[int, float]) -> Ran:
    number, pause = turn
    async with steps.open(context) as state:
        if state.numbers != list(range(number)):
            raise ValueError(f"turn {number} finds {state.numbers}")
        await anyio.sleep(pause)
        state.numbers.append(number)
    assert context.session_epoch is not None
    return Ran(
        worker=context.worker_id,
        epoch=context.session_epoch,
        attempt=context.attempt,
        was_assigned=context.session_id in assignments.seen,
    )


@app.orchestration
async def walk(context: OrchestrationContext, plan: Plan) -> list[Ran]:
    """One turn after the other; no failure is retried."""
    return [
        await context.schedule_activity(step, (number, plan.pause)).on_session(plan.session_id)
        for number in range(plan.rounds)
    ]
