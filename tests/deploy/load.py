"""An app under load, for tests of pods: sessions that count, and write down who served each turn, and when."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext, Sessions

FOLDER: Final = "LOAD_TEST_FOLDER"
"""Environment: where each served turn is written down; while there is no file `stop` in it, the sessions go on."""

PAUSE: Final = 0.1
"""Seconds between reading and changing the state, so that signals find activities in the middle."""


class Count(BaseModel):
    """The turns of a session."""

    turns: list[int] = []


class Served(BaseModel):
    """One turn: who served it under which epoch, from when to when (monotonic seconds of the machine)."""

    session: str
    turn: int
    worker: str
    epoch: int
    began: float
    ended: float


counts = Sessions(Count, max_sessions=500)
app = App("load")
app.include(counts)


@app.activity
async def serve(context: ActivityContext, turn: int) -> bool:
    """One turn; returns whether there is to be another."""
    assert context.session_id is not None
    assert context.session_epoch is not None
    began = time.monotonic()
    async with counts.open(context) as count:
        await anyio.sleep(PAUSE)
        count.turns.append(turn)
    served = Served(
        session=context.session_id,
        turn=turn,
        worker=context.worker_id,
        epoch=context.session_epoch,
        began=began,
        ended=time.monotonic(),
    )
    write_down(served)
    return not (folder() / "stop").exists()


@app.orchestration
async def go_on(context: OrchestrationContext, session_id: str) -> int:
    """Turns on a session until it has to stop; returns their number."""
    turn = 0
    while True:
        turn += 1
        if not await context.schedule_activity(serve, turn).on_session(session_id):
            return turn


def folder() -> Path:
    return Path(os.environ[FOLDER])


def write_down(served: Served) -> None:
    """In one write, which other processes do not come between."""
    line = f"{served.model_dump_json()}\n".encode()
    file = os.open(folder() / "served", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        assert os.write(file, line) == len(line)
    finally:
        os.close(file)


def read_served(place: Path) -> list[Served]:
    """All turns that were served, in the order of their ends."""
    path = place / "served"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Served(**json.loads(line)) for line in lines]
