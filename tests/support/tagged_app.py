"""Orchestrations with tags, for workers in processes of their own."""

from __future__ import annotations

from typing import Any

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext, RetryPolicy
from affinity.errors import ActivityError

app = App("tagged")
RETRY = RetryPolicy(max_attempts=3, initial_interval=0.05)


@app.activity
async def where(context: ActivityContext, n: int) -> str:
    """The worker that runs it."""
    return context.worker_id


@app.activity
async def fails_once(context: ActivityContext, n: int) -> str:
    """Its first attempt fails."""
    if context.attempt == 1:
        raise RuntimeError("once")
    return context.worker_id


@app.orchestration
async def tour(context: OrchestrationContext, rounds: int) -> dict[str, list[str]]:
    """Who runs work with and without a tag, on a session and on none; again in a second execution."""
    session_id = context.instance_id
    found: dict[str, list[str]] = {
        "plain": [await context.schedule_activity(where, n) for n in range(3)],
        "tagged": [await context.schedule_activity(where, n).with_tag("gpu") for n in range(3)],
        "session": [await context.schedule_activity(where, n).on_session(session_id).with_tag("gpu") for n in range(3)],
        "later": [await context.schedule_activity(where, n).on_session(session_id) for n in range(3)],
        "retried": [await context.schedule_activity(fails_once, 0, retry=RETRY).with_tag("gpu")],
        "burst": await context.gather(*[context.schedule_activity(where, n).with_tag("gpu") for n in range(8)]),
    }
    if rounds > 1:
        context.continue_as_new(rounds - 1)
    return found


@app.orchestration
async def mismatch(context: OrchestrationContext, tags: list[str | None]) -> list[str]:
    """Work of one session with these tags, one after the other; the names of the errors at the awaits."""
    found: list[str] = []
    for n, tag in enumerate(tags):
        work: Any = context.schedule_activity(where, n).on_session(context.instance_id)
        try:
            await (work if tag is None else work.with_tag(tag))
        except ActivityError as error:
            found.append(f"{type(error).__name__}: {error.message}")
        else:
            found.append("ran")
    return found


@app.orchestration
async def tagged(context: OrchestrationContext, tag: str) -> str:
    """One activity with the tag, on no session."""
    worker: str = await context.schedule_activity(where, 0).with_tag(tag)
    return worker


@app.activity
async def blocks(context: ActivityContext, seconds: float) -> str:
    """Keeps a slot of its worker for so long."""
    await anyio.sleep(seconds)
    return context.worker_id


@app.orchestration
async def hogs(context: OrchestrationContext, seconds: float) -> str:
    """Keeps a slot of a worker with the tag "busy"."""
    worker: str = await context.schedule_activity(blocks, seconds).with_tag("busy")
    return worker


class Strict(BaseModel):
    """How work of a session waits."""

    wait: float | None = None
    fail_after: float | None = None


@app.orchestration
async def strict(context: OrchestrationContext, how: Strict) -> list[str]:
    """The session begins on a worker; after an event, work of it waits for that worker's slot."""
    found: list[str] = [await context.schedule_activity(where, 0).on_session(context.instance_id)]
    await context.schedule_wait("go")
    try:
        work = context.schedule_activity(where, 1)
        found.append(await work.on_session(context.instance_id, wait=how.wait, fail_after=how.fail_after))
    except ActivityError as error:
        found.append(f"{type(error).__name__}: {error.message}")
    return found
