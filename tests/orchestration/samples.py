"""Orchestrations whose histories are kept in ``golden``: change them only together with a new version."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from affinity import ActivityContext, App, OrchestrationCancelledSignal, OrchestrationContext, RetryPolicy
from affinity.errors import ActivityError

app = App("samples")


class Remark(BaseModel):
    text: str
    n: int = 0


@app.activity
async def answer(ctx: ActivityContext, turn: Remark) -> Remark:
    return turn


@app.activity
def price(ctx: ActivityContext, item: str) -> float:
    return 1.0


@app.orchestration
async def conversation(ctx: OrchestrationContext, opening: Remark) -> list[Remark]:
    """Affinity: each turn on one session, a nudge when the user is silent, a fresh history every three turns."""
    session_id = await ctx.new_guid()
    turns = [opening]
    for n in range(3):
        ctx.set_custom_status({"turn": n})
        won = await ctx.select(ctx.schedule_wait("message", Remark), ctx.schedule_timer(30))
        if won.value is None:
            return turns
        retry = RetryPolicy(max_attempts=2, non_retryable=(ValueError,))
        turns.append(await ctx.schedule_activity(answer, won.value, retry=retry, timeout=60).on_session(session_id))
    ctx.continue_as_new(turns[-1])


@app.orchestration(version="1.1.0")
async def order(ctx: OrchestrationContext, items: list[str]) -> float:
    """Concurrency: branches, children, failures, and a cleanup after cancellation."""
    started = await ctx.utc_now()

    async def priced(item: str) -> float:
        try:
            return await ctx.schedule_activity(price, item)
        except ActivityError:
            return float(await ctx.schedule_sub_orchestration("ask", item))

    try:
        prices = await ctx.gather(*(priced(item) for item in items))
        await ctx.schedule_wait("approved")
    except OrchestrationCancelledSignal:
        await ctx.schedule_activity("undo", items)
        raise
    return sum(prices) + started.year - 1970


@app.orchestration
async def companion(ctx: OrchestrationContext, name: str) -> list[str]:
    """Waits: the session stays where it is between two messages, and is restored where it moved to."""
    said: list[str] = []
    while True:
        message = ctx.schedule_wait("message", Remark, hold_session=name, hold_for=600)
        moved = ctx.schedule_session_moved(name)
        won = await ctx.select(message, moved)
        if not isinstance(won.value, Remark):
            await ctx.schedule_activity("restore", said).on_session(name)
            continue
        if won.value.text == "bye":
            return said
        said.append((await ctx.schedule_activity(answer, won.value).on_session(name)).text)


@app.orchestration
async def chaos(ctx: OrchestrationContext, seed: int) -> Any:
    """A bit of everything, driven by recorded values only, so that any order of inputs is a fair one."""

    async def leg(n: int) -> Any:
        session_id = await ctx.new_guid()
        first = await ctx.schedule_activity("a", n).on_session(session_id)
        try:
            held = ctx.schedule_wait("x", hold_session=session_id, hold_for=n + 1)
            won = await ctx.select(held, ctx.schedule_timer(n + 1), ctx.schedule_sub_orchestration("c", n))
            return [first, won.index, won.value]
        finally:
            ctx.set_custom_status({"leg": n})
            await ctx.schedule_activity("cleanup", n)

    total: list[Any] = []
    for round_ in range(3):
        background = ctx.schedule_activity("b", round_)
        legs = await ctx.gather(*(leg(n) for n in range(3)), return_exceptions=True)
        total.append([each if isinstance(each, list) else type(each).__name__ for each in legs])
        try:
            won = await ctx.select(background, ctx.gather(ctx.schedule_wait("x"), ctx.schedule_wait("y")), leg(9))
            total.append(won.index)
            moved = await ctx.select(ctx.schedule_session_moved("s"), ctx.schedule_wait("z", hold_session="s"), leg(8))
            total.append(moved.index)
        except ActivityError as error:
            total.append(error.error_type)
    if seed % 3 == 0:
        ctx.continue_as_new(seed + 1)
    return total
