"""An app whose sessions always have work: each turn returns its worker and its time, and counts in the state."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext, Sessions

PAUSE = 0.1
"""Seconds that a turn takes."""


class Order(BaseModel):
    """Where a run of the code is noted, and the file that ends all instances once it is there."""

    runs: str
    stop: str


class Turn(BaseModel):
    """One turn to run."""

    n: int
    order: Order


class Ran(BaseModel):
    """One turn that ran."""

    n: int
    worker: str
    epoch: int | None
    at: float  # monotonic seconds, which all processes of a machine share
    count: int  # of the session's state
    again: bool


class Count(BaseModel):
    """Turns of a session, as its state has them."""

    turns: int = 0


counts = Sessions[Count](Count, kind="count")
app = App("rollouts")
app.include(counts)


@app.activity
async def turn(context: ActivityContext, this: Turn) -> Ran:
    note(Path(this.order.runs), f"{context.session_id} {this.n}")
    at = time.monotonic()
    async with counts.open(context) as count:
        await anyio.sleep(PAUSE)
        count.turns += 1
        ran = Ran(
            n=this.n,
            worker=context.worker_id,
            epoch=context.session_epoch,
            at=at,
            count=count.turns,
            again=not Path(this.order.stop).exists(),
        )
    return ran


@app.orchestration
async def stay(context: OrchestrationContext, order: Order) -> list[Ran]:
    """Turns on a session of its own, until the stop file exists."""
    ran: list[Ran] = []
    while not ran or ran[-1].again:
        this = Turn(n=len(ran), order=order)
        ran.append(await context.schedule_activity(turn, this).on_session(context.instance_id))
    return ran


def note(path: Path, line: str) -> None:
    """Append a line to a file that other processes append to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
