"""An app whose sessions count: state and history each record what happened, so that a test can compare them."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, MemorySessionStore, OrchestrationContext, Sessions

STOP_FILE = "AFFINITY_TEST_STOP"
"""Environment variable with the path of a file: instances end once the file exists."""

BRIEF, LONG = 0.05, 1.0
"""Seconds between reading and changing the state, so that a signal finds many activities in the middle. The long pause
leaves most of a core to the tests that run beside.
"""


class Counter(BaseModel):
    """A counter and an append-only list."""

    count: int = 0
    entries: list[str] = []


class Entry(BaseModel):
    """Which session an orchestration counts on."""

    session_id: str


class Entered(BaseModel):
    """The result of one turn."""

    count: int
    again: bool


def make_app(name: str, counters: Sessions[Counter], pause: float) -> App:
    """An app whose activities keep their state in ``counters``."""
    app = App(name)
    app.include(counters)

    @app.activity
    async def enter(context: ActivityContext, entry: str) -> Entered:
        async with counters.open(context) as counter:
            await anyio.sleep(pause)
            counter.count += 1
            counter.entries.append(entry)
            count = counter.count
        return Entered(count=count, again=not Path(os.environ[STOP_FILE]).exists())

    @app.orchestration
    async def keep_entering(context: OrchestrationContext, entry: Entry) -> list[int]:
        """Enter until the stop file exists; returns the count after each turn."""
        counts: list[int] = []
        while True:
            name = f"{context.instance_id}:{len(counts)}"
            entered = await context.schedule_activity(enter, name).on_session(entry.session_id)
            counts.append(entered.count)
            if not entered.again:
                return counts

    return app


app = make_app("counter", Sessions(Counter, max_sessions=500), LONG)
"""With state in the database."""

forgetful = make_app("forgetful", Sessions(Counter, max_sessions=500, store=MemorySessionStore()), BRIEF)
"""The same with a store that ends with its process."""
