"""The app of the fleet whose metrics are recorded: steady work of each kind, and code that does harm."""

from __future__ import annotations

import os
import signal
import time

import anyio
from pydantic import BaseModel

import affinity
from affinity import MemorySessionStore
from affinity.conversation import AgentMessage, UserMessage
from affinity.session import SessionRecord

HYDRATE_SECONDS = 6.0


class Count(BaseModel):
    """A state that grows."""

    n: int = 0


class SlowStore(MemorySessionStore):
    """A store elsewhere that takes its time."""

    async def load(self, session_id: str) -> SessionRecord | None:
        await anyio.sleep(HYDRATE_SECONDS)
        return await super().load(session_id)


app = affinity.App("monitored")
calls = affinity.Limit("calls", concurrency=2)
counts = affinity.Sessions(Count, kind="count")
slow_counts = affinity.Sessions(Count, kind="slow-count", store=SlowStore())
chats = affinity.Conversations(Count, kind="chat")
models = affinity.Resource(open=lambda session_id: object(), name="model")
app.include(counts)
app.include(slow_counts)


@app.activity
async def add(ctx: affinity.ActivityContext, seconds: float) -> int:
    """Change the state of the session, with a resource, in so many seconds."""
    opening = counts.open(ctx)
    async with opening as count:
        count.n += 1
        await opening.resource(models)
        await anyio.sleep(seconds)
        return count.n


@app.activity
async def load(ctx: affinity.ActivityContext, seconds: float) -> int:
    """Read the state from the slow store."""
    async with slow_counts.open(ctx) as count:
        count.n += 1
        await anyio.sleep(seconds)
        return count.n


@app.activity(limits=[calls])
async def call(ctx: affinity.ActivityContext, seconds: float) -> None:
    """Use a slot of the limit for so many seconds."""
    await anyio.sleep(seconds)


@app.activity
async def rest(ctx: affinity.ActivityContext, seconds: float) -> None:
    """Keep a slot for so many seconds."""
    await anyio.sleep(seconds)


@app.activity
async def block(ctx: affinity.ActivityContext, seconds: float) -> None:
    """Keep the event loop for so many seconds."""
    time.sleep(seconds)


@app.activity
async def crash(ctx: affinity.ActivityContext, seconds: float) -> None:
    """End the worker after so many seconds."""
    await anyio.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@app.orchestration
async def walk(ctx: affinity.OrchestrationContext, seconds: float) -> None:
    """Work on the session of this instance, without an end."""
    for _ in range(20):
        await ctx.schedule_activity(add, seconds).on_session(ctx.instance_id)
        await ctx.schedule_timer(seconds)
    ctx.continue_as_new(seconds)


@app.orchestration
async def ring(ctx: affinity.OrchestrationContext, seconds: float) -> None:
    """Work at the limit, without an end."""
    for _ in range(20):
        await ctx.schedule_activity(call, seconds)
        await ctx.schedule_timer(seconds)
    ctx.continue_as_new(seconds)


class Task(BaseModel):
    """One activity."""

    name: str
    seconds: float = 0.0
    on_session: bool = False
    tag: str | None = None


@app.orchestration
async def once(ctx: affinity.OrchestrationContext, task: Task) -> None:
    """Run the activity."""
    work = ctx.schedule_activity(task.name, task.seconds)
    if task.on_session:
        work = work.on_session(ctx.instance_id)
    await (work if task.tag is None else work.with_tag(task.tag))


@app.orchestration
async def tick(ctx: affinity.OrchestrationContext) -> None:
    """What the schedule starts."""


@chats.on_wake(retry=affinity.RetryPolicy(max_attempts=2, initial_interval=0.1))
async def respond(wake: affinity.Wake, count: Count) -> None:
    """Answer; fail if a message says so."""
    count.n += 1
    if any(event.text == "fail" for event in wake.events if isinstance(event, UserMessage)):
        raise ValueError("as the message says")
    wake.append(AgentMessage(f"{count.n}"))


app.include(chats)
