"""What type checkers must refuse, and what they must know. No code runs: mypy and pyright read it (`test_checkers.py`).

A line that ends with ``# error`` is one that each of them must refuse; every other line must pass.
"""

from datetime import timedelta
from typing import Any, Literal, assert_type

import affinity

app = affinity.App("checked")


class Rated(affinity.JournalEvent):
    stars: int
    kind: Literal["user.rated"] = "user.rated"


@app.activity
async def measure(ctx: affinity.ActivityContext, name: str) -> int:
    return len(name)


@app.activity
def beep(ctx: affinity.ActivityContext) -> None:
    return None


@app.orchestration
async def count(ctx: affinity.OrchestrationContext, name: str) -> int:
    assert_type(await ctx.schedule_activity(measure, name), int)
    assert_type(await ctx.schedule_activity(beep), None)
    assert_type(await ctx.schedule_activity("measure", name), Any)
    await ctx.schedule_activity(measure, 5)  # error
    await ctx.schedule_activity(measure)  # error
    await ctx.schedule_activity(beep, 5)  # error
    await ctx.schedule_activity(count, name)  # error
    await ctx.schedule_sub_orchestration(measure, name)  # error
    return await ctx.schedule_sub_orchestration(count, name)


@app.orchestration
async def choose(ctx: affinity.OrchestrationContext) -> str:
    message, timer = ctx.schedule_wait("message", str), ctx.schedule_timer(timedelta(days=1))
    index, value = await ctx.select(message, timer)
    assert_type(index, int)
    assert_type(value, str | None)
    value.upper()  # error
    index.upper()  # error
    won = await ctx.select(message, ctx.schedule_activity(measure, "x"), timer)
    assert_type(won.value, str | int | None)
    await ctx.schedule_activity(measure, value)  # error
    if value is None:
        return "late"
    await ctx.schedule_activity(measure, value)
    assert_type(await ctx.gather(message, message), list[str])
    return value


async def use(client: affinity.Client) -> None:
    handle = await client.start(count, "x", instance_id="i")
    assert_type(await handle.wait(), int)
    assert_type(await (await client.start(choose)).wait(), str)
    assert_type(await (await client.start("count", "x")).wait(), Any)
    assert_type(await client.handle("i", count).wait(), int)
    await client.start(count, 5)  # error
    await client.start(count)  # error
    await client.start(choose, "x")  # error
    await client.start(measure, "x")  # error
    await client.start(beep)  # error
    await client.start_many([affinity.Start(measure, "x")])  # error
    client.handle("i", measure)  # error
    await client.start(count, "x", if_ended="perhaps")  # error


def events() -> None:
    affinity.UserMessage("hello")
    affinity.UserMessage(content=[{"type": "text", "text": "hello"}])
    affinity.UserMessage(5)  # error
    affinity.UserMessage(text="hello")  # error
    affinity.UserMessage()  # error
    rated = Rated(5)
    assert_type(rated.stars, int)
    assert_type(rated.kind, Literal["user.rated"])
    rated.stars = 4  # error
    Rated("five")  # error
    Rated(5, stars=5)  # error


def names() -> None:
    affinity.errors.InvalidInput("wrong")
    affinity.telemetry.current_session_id()
    print(affinity.Aktivity)  # error
    affinity.RuntimeOptions(worker_concurrency=5)
    affinity.RuntimeOptions(worker_concurency=5)  # error
