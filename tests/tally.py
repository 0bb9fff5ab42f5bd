"""An app whose sessions count: its state says what happened, and so does the history, each on its own."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, MemorySessionStore, OrchestrationContext, Sessions

STOP_FILE = "AFFINITY_TEST_STOP"
"""Environment: while the file that it names is not there, the tallies go on."""

BRIEF, LONG = 0.05, 1.0
"""Seconds between reading and changing the state, so that a signal finds many activities in the middle. The long pause
leaves most of a core to the tests that run beside.
"""


class Tally(BaseModel):
    """A counter and an append-only list."""

    count: int = 0
    entries: list[str] = []


class Entry(BaseModel):
    """Which session an orchestration counts on."""

    session_id: str


class Entered(BaseModel):
    """What one turn saw."""

    count: int
    again: bool


def make_app(name: str, tallies: Sessions[Tally], pause: float) -> App:
    """An app whose activities keep their state in ``tallies``."""
    app = App(name)
    app.include(tallies)

    @app.activity
    async def enter(context: ActivityContext, entry: str) -> Entered:
        async with tallies.open(context) as tally:
            await anyio.sleep(pause)
            tally.count += 1
            tally.entries.append(entry)
            count = tally.count
        return Entered(count=count, again=not Path(os.environ[STOP_FILE]).exists())

    @app.orchestration
    async def keep_entering(context: OrchestrationContext, entry: Entry) -> list[int]:
        """Enter until told to stop; returns the count after each turn."""
        counts: list[int] = []
        while True:
            name = f"{context.instance_id}:{len(counts)}"
            entered = await context.schedule_activity(enter, name).on_session(entry.session_id)
            counts.append(entered.count)
            if not entered.again:
                return counts

    return app


app = make_app("tally", Sessions(Tally, max_sessions=500), LONG)

forgetful = make_app("forgetful", Sessions(Tally, max_sessions=500, store=MemorySessionStore()), BRIEF)
"""The same with a store that ends with its process."""
