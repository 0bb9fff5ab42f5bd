"""Each refusal of the engine has a form that passes, and code that catches it goes on, without what was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from affinity import ActivityContext, App, Event, OrchestrationContext
from affinity.errors import AffinityError
from affinity.orchestration import events as ev

from .harness import Live, run

Code = Callable[[Any], Awaitable[Any]]

app = App("refusals")
ASK = Event("ask", int, reply=int)


@app.activity
async def double(ctx: ActivityContext, n: int) -> int:
    return n


async def refused_timer(ctx: Any) -> None:
    deadline = ctx.schedule_timer(100)
    await ctx.schedule_activity("work")
    assert deadline is not None


async def cancelled_timer(ctx: Any) -> None:
    deadline = ctx.schedule_timer(100)
    await ctx.schedule_activity("work")
    deadline.cancel()


async def refused_cancelled(ctx: Any) -> None:
    deadline = ctx.schedule_timer(100)
    await ctx.schedule_activity("work")
    deadline.cancel()
    await deadline


async def cancelled_when_it_has_fired(ctx: Any) -> None:
    deadline = ctx.schedule_timer(0)
    await ctx.schedule_timer(1)
    deadline.cancel()


async def refused_race(ctx: Any) -> None:
    race = ctx.select(ctx.schedule_timer(100), ctx.schedule_wait("never"))
    await ctx.schedule_activity("work")
    assert race is not None


async def cancelled_race(ctx: Any) -> None:
    races = [
        combine(ctx.schedule_timer(100), ctx.schedule_wait("never"))
        for combine in (ctx.select, ctx.gather, ctx.wait_any)
    ]
    await ctx.schedule_activity("work")
    for race in races:
        race.cancel()


async def cancelled_before_it_is_scheduled(ctx: Any) -> None:
    for future in (
        ctx.new_guid(),
        ctx.utc_now(),
        ctx.schedule_timer(1),
        ctx.schedule_activity("no"),
        ctx.schedule_sub_orchestration("no"),
        ctx.schedule_wait("never"),
    ):
        future.cancel()
    await ctx.schedule_activity("work")


async def helper(ctx: Any) -> int:
    return await ctx.schedule_activity("work")  # type: ignore[no-any-return]


async def lost_race(ctx: Any) -> None:
    timer = ctx.schedule_timer(100)
    await ctx.select(ctx.schedule_activity("work"), timer)
    await timer


async def race_that_keeps(ctx: Any) -> None:
    timer = ctx.schedule_timer(100)
    await ctx.wait_any(ctx.schedule_activity("work"), timer)
    await timer


async def late_session(ctx: Any) -> None:
    work = ctx.schedule_activity("work")
    await ctx.schedule_timer(1)
    work.on_session("s")


async def session_in_time(ctx: Any) -> None:
    work = ctx.schedule_activity("work").on_session("s")
    await ctx.schedule_timer(1)
    await work


async def corrected_session(ctx: Any) -> None:
    work = ctx.schedule_activity("work")
    for wrong in ({"session_id": ""}, {"session_id": "s", "wait": -1}, {"session_id": "s", "wait": 2, "fail_after": 1}):
        try:
            work.on_session(**wrong)
        except AffinityError:
            continue
    await work.on_session("s", wait=1, fail_after=2)


async def two_replies(ctx: Any) -> None:
    asked = await ctx.schedule_wait(ASK)
    asked.reply(1)
    asked.reply(2)


async def one_reply(ctx: Any) -> None:
    (await ctx.schedule_wait(ASK)).reply(1)


async def sleeps(ctx: Any) -> None:
    await asyncio.sleep(0)


TABLE: list[tuple[str, Code, Code]] = [
    ("never awaited", refused_timer, cancelled_timer),
    ("is awaited afterwards", refused_cancelled, cancelled_when_it_has_fired),
    ("never awaited", refused_race, cancelled_race),
    ("never awaited", lambda ctx: _discard(ctx.new_guid()), cancelled_before_it_is_scheduled),
    ("is awaited afterwards", lost_race, race_that_keeps),
    ("scheduled already", late_session, session_in_time),
    (
        "session id",
        lambda ctx: ctx.schedule_activity("no").on_session(""),
        corrected_session,
    ),
    (
        "wait is a number",
        lambda ctx: ctx.schedule_activity("no").on_session("s", wait=-1),
        lambda ctx: ctx.schedule_activity("work").on_session("s", wait=1),
    ),
    (
        "is on session 'a' already",
        lambda ctx: ctx.schedule_activity("no").on_session("a").on_session("b"),
        lambda ctx: ctx.schedule_activity("work").on_session("b"),
    ),
    (
        "tag",
        lambda ctx: ctx.schedule_activity("no").with_tag(" "),
        lambda ctx: ctx.schedule_activity("work").with_tag("gpu"),
    ),
    (
        "cannot have a tag",
        lambda ctx: ctx.schedule_timer(1).with_tag("gpu"),
        lambda ctx: ctx.schedule_activity("work").with_tag("gpu"),
    ),
    (
        "cannot run on a session",
        lambda ctx: ctx.schedule_sub_orchestration("no").on_session("s"),
        lambda ctx: ctx.schedule_sub_orchestration("work"),
    ),
    (
        "cannot be parked",
        lambda ctx: ctx.schedule_activity("no")._park(),
        lambda ctx: ctx.schedule_activity("work").on_session("s")._park(),
    ),
    (
        "takes durable futures",
        lambda ctx: ctx.gather(ctx.schedule_activity("no"), helper(ctx), 5),
        lambda ctx: ctx.gather(ctx.schedule_activity("work"), helper(ctx)),
    ),
    (
        "unpack it",
        lambda ctx: ctx.select(ctx.schedule_activity("no"), [ctx.schedule_wait("never")]),
        lambda ctx: ctx.select(ctx.schedule_activity("work"), *[ctx.schedule_wait("never")]),
    ),
    (
        "wait_any takes",
        lambda ctx: ctx.wait_any(ctx.schedule_activity("no"), helper(ctx)),
        lambda ctx: ctx.wait_any(ctx.schedule_timer(1), ctx.gather(helper(ctx))),
    ),
    (
        "limit is a number",
        lambda ctx: ctx.gather(ctx.schedule_activity("no"), helper(ctx), limit=0),
        lambda ctx: ctx.gather(ctx.schedule_activity("work"), helper(ctx), limit=1),
    ),
    (
        "await it first",
        lambda ctx: ctx.schedule_activity("no", helper(ctx)),
        lambda ctx: _pass(ctx, helper(ctx)),
    ),
    (
        "takes an input",
        lambda ctx: ctx.schedule_activity(double),
        lambda ctx: ctx.schedule_activity(double, 1),
    ),
    (
        "name the session",
        lambda ctx: _call(ctx.release_session),
        lambda ctx: _call(ctx.release_session, "s"),
    ),
    ("has a reply already", two_replies, one_reply),
    ("cannot await", sleeps, lambda ctx: ctx.schedule_timer(1)),
]


async def _discard(future: object) -> None:
    assert future is not None


async def _pass(ctx: Any, value: Awaitable[Any]) -> None:
    await ctx.schedule_activity("work", await value)


async def _call(function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)


def play(function: Code) -> Live:
    """Run the code, and answer all that it waits for; no activity of the name "no" may be there."""

    async def main(ctx: OrchestrationContext) -> str:
        await function(ctx)
        return "passed"

    live = run(main)
    for _ in range(20):
        if live.outcome is None:
            waiting = live.execution._scheduler.outstanding.values()
            live.feed(_answer(min(waiting, key=lambda future: future.description.startswith("timer"))))  # these last
    assert live.outcome is not None
    assert not any(getattr(event, "name", None) == "no" for event in live.history)
    return live


def _answer(future: Any) -> ev.Event:
    number = future.schedule_id
    match future.description.partition(" ")[0]:
        case "activity":
            return ev.ActivityCompleted(number, "1")
        case "timer":
            return ev.TimerFired(number)
        case "sub-orchestration":
            return ev.SubOrchestrationCompleted(number, "1")
        case _:
            return ev.EventRaised(future.name, "1", "key")


@pytest.mark.parametrize(
    ("text", "refused", "passes"), TABLE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_refusal_has_a_form_that_passes(text: str, refused: Code, passes: Code) -> None:
    outcome = play(refused).outcome
    assert isinstance(outcome, ev.OrchestrationFailed)
    assert text in outcome.message
    assert play(passes).outcome == ev.OrchestrationCompleted('"passed"')


@pytest.mark.parametrize(
    ("text", "refused"),
    [(text, refused) for text, refused, _ in TABLE if text != "never awaited"],  # that is found at the end of the code
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_code_that_catches_a_refusal_goes_on_without_what_was_refused(text: str, refused: Code) -> None:
    async def careful(ctx: Any) -> None:
        with pytest.raises(AffinityError, match=text):
            await refused(ctx)
        await ctx.schedule_timer(1)

    assert play(careful).outcome == ev.OrchestrationCompleted('"passed"')
