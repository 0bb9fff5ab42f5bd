"""Orchestrations that write to one log, in order; a file notes when each line begins and ends."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, Sessions
from tests.support.waiting import until

LOG = "log"
"""The session that all of them share."""

PAUSE = 0.1
"""Seconds that a line takes, longer than to schedule one: so that lines queue up, and a signal finds one at work."""


class Log(BaseModel):
    """The lines written so far."""

    lines: list[int] = []


class Line(BaseModel):
    """A line to write."""

    number: int
    notes: str  # path of a file

    def note(self, text: str) -> None:
        """Append to the file."""
        with Path(self.notes).open("a") as file:
            file.write(f"{text} {self.number}\n")


activities = App("ordered-log-activities")
"""The activities alone, for a worker that runs no orchestrations."""
logs = Sessions(Log)
activities.include(logs)
app = App("ordered-log")


@activities.activity
async def write(context: ActivityContext, line: Line) -> None:
    """Append the line to the log; the first attempt of each seventh one fails."""
    line.note("begin")
    await anyio.sleep(PAUSE)
    if line.number % 7 == 3 and context.attempt == 1:
        raise ValueError("the first attempt fails")
    async with logs.open(context) as log:
        log.lines.append(line.number)
    line.note("end")


@activities.activity
async def look(context: ActivityContext, line: Line) -> None:
    """Work of the session that is not ordered."""
    line.note("look")


app.include(activities)


@app.orchestration
async def write_lines(context: OrchestrationContext, notes: str) -> None:
    """Schedule a line for each event "line", until one is negative; then wait for all lines."""
    retry = RetryPolicy(max_attempts=100, initial_interval=0.3, backoff=1.0)
    work = []
    while (number := await context.schedule_wait("line", int)) >= 0:
        line = Line(number=number, notes=notes)
        work.append(context.schedule_activity(write, line, retry=retry).on_session(LOG, ordered=True))
        work.append(context.schedule_activity(look, line).on_session(LOG))
    await context.gather(*work)


# --- what tests do ----------------------------------------------------------------------------------------------------


async def schedule(client: Client, instance_id: str, number: int) -> None:
    """Have an instance write the line; return when that is committed."""
    await client.raise_event(instance_id, "line", number)

    async def committed() -> bool:
        return any(
            event.type == "activity_scheduled" and event.fields["input"]["number"] == number
            for event in await client.history(instance_id)
        )

    await until(committed, 60)


async def check(client: Client, notes: Path, lines: int) -> None:
    """The log has all lines, in order, once each. A line that begins is the one that began last, or the next one, when
    that one has ended. Between a beginning and an end there is work that is not ordered.
    """
    record = await client.session_store.load(LOG)
    assert record is not None
    assert json.loads(record.state) == {"lines": list(range(lines))}
    noted = notes.read_text().splitlines()
    ordered = [note for note in noted if not note.startswith("look")]
    begun = -1
    for before, note in pairwise(["end -1", *ordered]):
        if note == f"begin {begun + 1}" and before == f"end {begun}":
            begun += 1
        else:
            assert note in (f"begin {begun}", f"end {begun}"), (before, note)
    assert (begun, ordered[-1]) == (lines - 1, f"end {lines - 1}")
    assert re.search(r"begin (\d+) (?:look \d+ )+end \1\b", " ".join(noted)), noted
