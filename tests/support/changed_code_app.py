"""An app whose histories are recorded, and the same app with changes to its code."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from affinity import ActivityContext, App, Client, Conversations, OrchestrationContext, Wake, Worker
from affinity.conversation import AgentMessage, UserMessage
from tests.support.waiting import until

CHANGES = {
    # change: the number of the event, what the history has there, what the code does, the mark of the line
    "a dropped activity": (2, "ActivityScheduled('greet', session_id='ann')", "TimerCreated(0.01 s)", "pauses"),
    "another activity": (
        2,
        "ActivityScheduled('greet', session_id='ann')",
        "ActivityScheduled('part', session_id='ann')",
        "greets",
    ),
    "another session": (
        2,
        "ActivityScheduled('greet', session_id='ann')",
        "ActivityScheduled('greet', session_id='bob')",
        "greets",
    ),
    "another order": (2, "ActivityScheduled('greet', session_id='ann')", "TimerCreated(0.01 s)", "pauses first"),
    "a new timer": (6, "EventAwaited('said')", "TimerCreated(5 s)", "pauses again"),
    "a timer beside": (9, "ActivityCompleted(of event 8)", "TimerCreated(7 s)", "pauses beside"),
    "a renamed event": (6, "EventAwaited('said')", "EventAwaited('spoke')", "listens"),
    "an early end": (8, "ActivityScheduled('part')", "OrchestrationCompleted", "listens"),
    "an error": (8, "ActivityScheduled('part')", "OrchestrationFailed(ValueError: no)", "raises"),
    "nothing to part": (8, "ActivityScheduled('part')", "EventAwaited('said')", "listens again"),
}
"""The changes to `visits` that a replay finds."""


def visits(change: str = "") -> App:
    """The app, with a change to its code."""
    app = App("visits")

    @app.activity
    async def greet(ctx: ActivityContext, name: str) -> str:
        return f"{'hello' if change != 'other words' else 'good day'} {name}"

    @app.activity
    async def part(ctx: ActivityContext, said: str) -> None: ...

    @app.orchestration
    async def visit(ctx: OrchestrationContext, name: str) -> str:
        if change == "another order":
            await ctx.schedule_timer(0.01)  # pauses first
        session = "bob" if change == "another session" else name
        if change != "a dropped activity":
            wanted = part if change == "another activity" else greet
            await ctx.schedule_activity(wanted, name).on_session(session)  # greets
        if change != "another order":
            await ctx.schedule_timer(0.01)  # pauses
        if change == "a new timer":
            await ctx.schedule_timer(5)  # pauses again
        said = await ctx.schedule_wait("spoke" if change == "a renamed event" else "said", str)  # listens
        if change == "an early end":
            return said
        if change == "an error":
            raise ValueError("no")  # raises
        if change == "nothing to part":
            return await ctx.schedule_wait("said", str)  # listens again
        parting = ctx.schedule_activity(part, said)
        if change == "a timer beside":
            late = ctx.schedule_timer(7)  # pauses beside
            await ctx.select(parting, late)
        await parting
        return said

    return app


def line_of(mark: str) -> int:
    """The number of the line with this comment."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return found


class Chat(BaseModel):
    """The state of a conversation."""

    count: int = 0


support = Conversations(Chat, kind="support")
"""As clients know them."""


def talks(answer: str = "hello") -> App:
    """An app with conversations, whose handler answers this."""
    app = App("talks")
    conversations = Conversations(Chat, kind="support")

    @conversations.on_wake
    async def respond(wake: Wake, chat: Chat) -> None:
        chat.count += len(wake.events)
        wake.append(AgentMessage(answer))

    app.include(conversations)
    return app


def drinks(order: str = "tea", *, bye: bool = True) -> App:
    """An app that continues as new with each cup but the last; then it waits a minute before it ends."""
    app = App("drinks")

    @app.orchestration
    async def drink(ctx: OrchestrationContext, left: int) -> int:
        await ctx.schedule_wait(order if left > 1 else "tea", int)
        if left:
            ctx.continue_as_new(left - 1)
        if bye:
            await ctx.schedule_timer(0.01)
        return left

    return app


recorded = visits()
changed = visits("another session")
repaired_wrongly = visits("a dropped activity")
reworded = visits("other words")
unrelated = App("unrelated")
milk = drinks("milk")
mixed = App("mixed")
mixed.include(talks())
mixed.include(drinks())
slow = App("slow")


@slow.orchestration(name="visit")
async def slow_visit(ctx: OrchestrationContext, name: str) -> None:
    """Says that it runs, and takes long."""
    print("begun", file=sys.stderr, flush=True)
    time.sleep(0.1)
    await ctx.schedule_timer(0.01)


async def record_mixed(url: str) -> None:
    """Run a conversation, and an instance with three executions that waits in the third."""
    async with Worker(mixed, url), Client(url) as client:
        await client.conversation(support, "c").ask(UserMessage("hello"))
        await client.start("drink", 5, instance_id="d")
        for _ in range(2):
            await client.raise_event("d", "tea", 1)
        await until(partial(_is_in_execution, client, 3))


async def _is_in_execution(client: Client, number: int) -> bool:
    instance = await client.status("d")
    return instance.execution_id == number and instance.event_count > 1


async def _listens(client: Client, instance_id: str) -> bool:
    return any(event.type == "event_awaited" for event in await client.history(instance_id))


async def record(url: str, *instance_ids: str, ended: bool = False) -> None:
    """Run instances of `recorded` until they wait for the event, or to their end."""
    async with Worker(recorded, url), Client(url) as client:
        for instance_id in instance_ids:
            run = await client.start("visit", "ann", instance_id=instance_id)
            await until(partial(_listens, client, instance_id))
            if ended:
                await run.raise_event("said", "bye")
                await run.wait(timeout=30)
