"""The apps that tests run, in their own process and in workers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationContext, RetryPolicy
from tests.support.activity_calls import call_test, call_test_blocking


class Seen(BaseModel):
    """The context of one run of an activity."""

    n: int
    worker: str
    epoch: int | None
    attempt: int


def seen(context: ActivityContext, n: int) -> Seen:
    return Seen(n=n, worker=context.worker_id, epoch=context.session_epoch, attempt=context.attempt)


app = App("tests")


# --- without a call of the test ---------------------------------------------------------------------------------------


@app.activity
async def step(context: ActivityContext, n: int) -> Seen:
    return seen(context, n)


@app.activity
def sync_step(context: ActivityContext, n: int) -> Seen:
    return seen(context, n)


@app.activity
async def fail(context: ActivityContext, message: str) -> None:
    raise ValueError(f"{message} {context.attempt}")


@app.orchestration
async def walk(context: OrchestrationContext, turns: int) -> list[Seen]:
    """Turns on a session of its own."""
    return [await context.schedule_activity(step, n).on_session(context.instance_id) for n in range(turns)]


@app.orchestration
async def stroll(context: OrchestrationContext, turns: int) -> list[Seen]:
    """Turns without a session, on threads."""
    return [await context.schedule_activity(sync_step, n) for n in range(turns)]


@app.orchestration
async def alternate(context: OrchestrationContext, turns: int) -> list[Seen]:
    """Turns on two sessions in turn."""
    names = (f"{context.instance_id}/a", f"{context.instance_id}/b")
    return [await context.schedule_activity(step, n).on_session(names[n % 2]) for n in range(turns)]


@app.orchestration
async def fan_out(context: OrchestrationContext, width: int) -> int:
    done = await context.gather(*(context.schedule_activity(step, n) for n in range(width)))
    return sum(one.n for one in done)


@app.orchestration
async def spread(context: OrchestrationContext, width: int) -> int:
    """One turn on each of many sessions, concurrently; their number."""
    calls = [context.schedule_activity(step, n).on_session(f"{context.instance_id} {n}") for n in range(width)]
    return len(await context.gather(*calls))


@app.orchestration
async def failing(context: OrchestrationContext, attempts: int) -> None:
    await context.schedule_activity(fail, "attempt", retry=RetryPolicy(max_attempts=attempts, initial_interval=0.01))


@app.orchestration
async def nap(context: OrchestrationContext, seconds: float) -> None:
    await context.schedule_timer(timedelta(seconds=seconds))


@app.orchestration
async def collect(context: OrchestrationContext, count: int) -> list[Any]:
    """External events, in order."""
    return [await context.schedule_wait("item", Any) for _ in range(count)]


@app.orchestration
async def relay(context: OrchestrationContext, left: int) -> list[Any]:
    """One event an execution; the session stays over `continue_as_new`."""
    item = await context.schedule_wait("item", int)
    await context.schedule_activity(step, item).on_session(context.instance_id)
    if left > 1:
        context.continue_as_new(left - 1)
    return [context.execution_id, item]


@app.orchestration
async def visits(context: OrchestrationContext, count: int) -> list[Seen]:
    """Turns on a session of its own, one for each event."""
    seen = []
    for n in range(count):
        seen.append(await context.schedule_activity(step, n).on_session(context.instance_id))
        await context.schedule_wait("next")
    return seen


@app.orchestration
async def leave(context: OrchestrationContext) -> Seen:
    """A turn on a session, which it then releases, and goes on."""
    seen = await context.schedule_activity(step, 0).on_session(context.instance_id)
    context.release_session(context.instance_id)
    await context.schedule_wait("go")
    return seen


@app.orchestration
async def inbox(context: OrchestrationContext, got: list[int]) -> list[int]:
    """Twenty events, one an execution."""
    got = [*got, await context.schedule_wait("item", int)]
    if len(got) < 20:
        context.continue_as_new(got)
    return got


@app.orchestration
async def parent(context: OrchestrationContext, children: int) -> list[int]:
    runs = [context.schedule_sub_orchestration(fan_out, n) for n in range(children)]
    return await context.gather(*runs)


# --- with a call of the test ------------------------------------------------------------------------------------------


@app.activity
async def held(context: ActivityContext, n: int) -> Seen:
    """Waits for the test, unless ``n`` says to raise."""
    await call_test(context, n=n)
    return seen(context, n)


@app.activity
def held_thread(context: ActivityContext, n: int) -> Seen:
    call_test_blocking(context, n=n)
    return seen(context, n)


@app.activity
async def stubborn(context: ActivityContext, n: int) -> None:
    """Wrong on purpose: swallows every cancellation."""
    await call_test(context, n=n)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@app.activity
def stubborn_thread(context: ActivityContext, n: int) -> None:
    """Wrong on purpose: never looks whether it is cancelled."""
    call_test_blocking(context, n=n)
    threading.Event().wait()


@app.activity
async def kill_worker(context: ActivityContext, n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.activity
async def doze(context: ActivityContext, n: int) -> int:
    await anyio.sleep(0.3)
    return context.attempt


@app.activity
def hold_gil(context: ActivityContext, n: int) -> None:
    """As an extension in C may, for longer than the leases of tests last."""
    ctypes.PyDLL(None).sleep(4)


@app.activity
async def block_loop(context: ActivityContext, n: int) -> Seen:
    """Wrong on purpose: blocks the worker's event loop until the test answers."""
    call_test_blocking(context, n=n)
    return seen(context, n)


@app.activity
async def cancellable(context: ActivityContext, n: int) -> None:
    """Runs until it is cancelled, and says so."""
    await call_test(context, n=n, state="running")
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await call_test(context, n=n, state=context.cancel_reason)


@app.activity
def cancellable_thread(context: ActivityContext, n: int) -> None:
    call_test_blocking(context, n=n, state="running")
    context.wait_cancelled()
    call_test_blocking(context, n=n, state=context.cancel_reason)


@app.orchestration
async def held_walk(context: OrchestrationContext, turns: int) -> list[Seen]:
    return [await context.schedule_activity(held, n).on_session(context.instance_id) for n in range(turns)]


@app.orchestration
async def marked_walk(context: OrchestrationContext, turns: int) -> list[Seen]:
    """Turns on a session; the middle one waits for the test."""
    chosen = (held if n == turns // 2 else step for n in range(turns))
    return [await context.schedule_activity(f, n).on_session(context.instance_id) for n, f in enumerate(chosen)]


@app.orchestration
async def kills_its_worker(context: OrchestrationContext, n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.orchestration
async def held_fan_out(context: OrchestrationContext, width: int) -> list[Seen]:
    """Concurrent activities without a session; each waits for the test."""
    return await context.gather(*(context.schedule_activity(held, n) for n in range(width)))


@app.orchestration
async def held_once(context: OrchestrationContext, activity: str) -> Any:
    return await context.schedule_activity(activity, 0).on_session(context.instance_id)


@app.orchestration
async def held_with_timeout(context: OrchestrationContext, activity: str) -> Any:
    return await context.schedule_activity(activity, 0, timeout=0.2)


@app.orchestration
async def race(context: OrchestrationContext, activity: str) -> Any:
    """The activity loses against an event."""
    chosen = await context.select(context.schedule_activity(activity, 0), context.schedule_wait("stop", str))
    return chosen.value


# --- a later release of the same app: what a rolling deploy brings ---------------------------------------------------

newer = App("tests")
newer.include(app)


@newer.activity
async def only_newer(context: ActivityContext, n: int) -> Seen:
    return seen(context, n)
