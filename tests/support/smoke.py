"""A little of everything that workers and clients do, for tests of a database with peculiarities of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, UserMessage

TEXT: Final = 'it\'s \\n \\ "quoted" \\x41 %s Grüße 漢字 😀 NULL {a,b}'
"""Text that settings of the form of text would change."""


ID: Final = "it's %s $1 {a,b} Grüße 😀"
"""The same, for an id: on one line."""


class Note(BaseModel):
    """Values whose text has several forms."""

    text: str = TEXT
    at: datetime = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    amount: Decimal = Decimal("0.10")
    ratio: float = 0.1 + 0.2
    missing: str | None = None
    read: int = 0


notes = affinity.Sessions(Note, kind="note")
talks = affinity.Conversations(Note, kind="talk")
app = affinity.App("smoke")
app.include(notes)


@talks.on_wake
async def respond(wake: affinity.Wake, note: Note) -> None:
    for event in wake.events:
        if isinstance(event, UserMessage):
            note.read += 1
            wake.append(AgentMessage(event.text))


app.include(talks)


@app.activity
async def keep(ctx: affinity.ActivityContext, note: Note) -> Note:
    async with notes.open(ctx) as kept:
        kept.read += 1
    return note


@app.orchestration
async def whole(ctx: affinity.OrchestrationContext, note: Note) -> Note:
    await ctx.schedule_timer(0.001)
    kept = await ctx.schedule_activity(keep, note).on_session("smoke")
    told = await ctx.schedule_wait("told", Note)
    return await ctx.schedule_activity(keep, told).on_session("smoke") if told == kept else kept


async def smoke(url: str) -> None:
    """Run an orchestration, a session, a conversation and a schedule on a migrated database, and read what they wrote.

    Raises:
        AssertionError: something is not as it was written.
        AffinityError: the database cannot be used.
    """
    options = affinity.RuntimeOptions(worker_node_id="smoke", startup_timeout=1.0)
    async with affinity.Worker(app, url, options, migrate=False), affinity.Client(url) as client:
        with anyio.fail_after(20):
            await _orchestration(client)
            await _conversation(client)
            await _administration(client)


async def _orchestration(client: affinity.Client) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    run = await client.start(whole, Note(), instance_id=ID)
    await run.raise_event("told", Note())
    assert await run.wait(timeout=15) == Note()
    (found,) = await client.list_instances(prefix=ID)
    assert found.instance_id == ID
    assert began < found.created_at < datetime.now(UTC) + timedelta(minutes=1)
    assert len(await client.history(ID)) > len(["the calls", "and", "their", "results"])


async def _conversation(client: affinity.Client) -> None:
    talk = client.conversation(talks, "talk")
    reply = await talk.ask(UserMessage(TEXT), event_id="first", timeout=15)
    assert reply.text == TEXT
    entries = await talk.history()
    assert entries[0].kind == "user.message"


async def _administration(client: affinity.Client) -> None:
    with client.acting_as("ann", source="test"):
        await client.schedules.create("smoke", whole, input=Note(), cron="0 3 * * *", zone="Europe/Berlin")
        assert (await client.schedules.show("smoke")).name == "smoke"
        await client.delete(ID)
        await client.schedules.delete("smoke")
        await client.conversation(talks, "talk").delete()
    assert {entry.target async for entry in client.audit(user="ann")} == {"smoke", ID, "talk"}
    await client.prune(older_than=0.0, status="completed")
