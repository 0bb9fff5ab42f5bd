"""Combinations of features, with a crash at each commit: orchestrations, and conversations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import affinity
from affinity import ConversationHandle
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    ConfirmationAnswer,
    JournalEvent,
    ToolConfirmation,
    ToolResult,
    UserMessage,
)
from affinity.errors import OrchestrationCancelled, OrchestrationFailed
from affinity.testing import Env, crash_matrix

DAY = 86_400
RETRY = affinity.RetryPolicy(max_attempts=4, initial_interval=60)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("any_url", ["sqlite", "new"], indirect=True),
]


@pytest.fixture
def url(any_url: str) -> str | None:
    """Of a PostgreSQL server; None: an SQLite file."""
    return None if any_url.startswith("sqlite") else any_url


class Notes(BaseModel):
    lines: list[str] = []


app = affinity.App("wide")
notes = affinity.Sessions(Notes, kind="notes")
app.include(notes)

Price = affinity.Event("price", str, reply=int)


@app.activity
async def note(ctx: affinity.ActivityContext, line: str) -> int:
    async with notes.open(ctx) as found:
        found.lines.append(line)
    return len(found.lines)


@app.activity
async def step_by_step(ctx: affinity.ActivityContext, lines: list[str]) -> int:
    """Each line is saved by itself, and is not repeated."""
    opening = notes.open(ctx)
    async with opening as found:
        for line in lines[len(found.lines) :]:
            found.lines.append(line)
            await opening.checkpoint()
    return len(found.lines)


@app.activity
async def unlucky(ctx: affinity.ActivityContext) -> str:
    if ctx.attempt == 1:
        raise OSError("once")
    return "at last"


@app.activity
def count_letters(ctx: affinity.ActivityContext, text: str) -> int:
    return len(text)


@app.orchestration
async def child(ctx: affinity.OrchestrationContext, name: str) -> int:
    await ctx.schedule_timer(DAY)
    if name == "fails":
        raise ValueError("this child fails")
    return await ctx.schedule_activity(note, name).on_session("shared", ordered=True)


@app.orchestration
async def listener(ctx: affinity.OrchestrationContext) -> list[str]:
    return [await ctx.schedule_wait("word", str) for _ in range(2)]


@app.orchestration
async def rounds(ctx: affinity.OrchestrationContext, left: int) -> str:
    await ctx.schedule_activity(note, f"round {left}").on_session(ctx.instance_id)
    if left:
        ctx.continue_as_new(left - 1)
    text = await ctx.schedule_wait("end", str, hold_session=ctx.instance_id, hold_for=DAY)
    ctx.release_session(ctx.instance_id)
    return text


@app.orchestration
async def everything(ctx: affinity.OrchestrationContext) -> dict[str, Any]:
    found: dict[str, Any] = {}
    await ctx.start_detached(listener, instance_id="listener")
    ctx.raise_event("listener", "word", "one")
    children = [ctx.schedule_sub_orchestration(child, name, instance_id=f"child-{name}") for name in ("a", "b")]
    found["children"] = sorted(await ctx.gather(*children))
    try:
        await ctx.schedule_sub_orchestration(child, "fails")
    except OrchestrationFailed as error:
        found["failed"] = str(error.message)
    found["retried"] = await ctx.schedule_activity(unlucky, retry=RETRY)
    found["steps"] = await ctx.schedule_activity(step_by_step, ["x", "y", "z"], retry=RETRY).on_session("steps")
    letters = [ctx.schedule_activity(count_letters, text) for text in ("a", "bb", "ccc")]
    found["letters"] = await ctx.gather(*letters)
    chosen, _ = await ctx.select(ctx.schedule_timer(3600), ctx.schedule_wait("never"))
    found["chosen"] = chosen
    asked = await ctx.schedule_wait(Price)
    asked.reply(len(asked.data))
    ctx.raise_event("listener", "word", "two")
    return found


async def orchestrate(env: Env) -> dict[str, Any]:
    client = env.client
    run = await client.start(everything, instance_id="main")
    looping = await client.start(rounds, 3, instance_id="rounds")
    cancelled = await client.start(child, "cancelled", instance_id="cancelled")
    await cancelled.cancel("not wanted")
    price = await run.ask(Price("tea"), idempotency_key="k-1")
    again = await run.ask(Price("tea"), idempotency_key="k-1")
    await looping.raise_event("end", "the end")
    with pytest.raises(OrchestrationCancelled):
        await cancelled.wait()
    return {
        "main": await run.wait(),
        "price": [price, again],
        "rounds": await looping.wait(),
        "listener": await client.wait("listener"),
    }


async def is_orchestrated(env: Env, outcome: dict[str, Any]) -> None:
    main = {
        "children": [1, 2],
        "failed": "this child fails",
        "retried": "at last",
        "steps": 3,
        "letters": [1, 2, 3],
        "chosen": 0,
    }
    assert outcome == {"main": main, "price": [3, 3], "rounds": "the end", "listener": ["one", "two"]}
    assert sorted(await lines(env, "shared")) == ["a", "b"]
    assert await lines(env, "steps") == ["x", "y", "z"]
    assert await lines(env, "rounds") == ["round 3", "round 2", "round 1", "round 0"]
    assert [each.instance_id async for each in env.client.list_instances(status=["running", "suspended"])] == []


async def lines(env: Env, session_id: str) -> list[str]:
    return Notes.model_validate_json((await env.client.session_manager.show(session_id)).state).lines


async def test_orchestrations(url: str | None) -> None:
    await crash_matrix(app, orchestrate, is_orchestrated, url=url, workers=2, kills=2)


# --- conversations ----------------------------------------------------------------------------------------------------


class Desk(BaseModel):
    heard: list[str] = []
    nudges: int = 0


desk = affinity.Conversations(Desk, kind="desk")
clerk = affinity.Conversations(Notes, kind="clerk")


@tool(confirm=True, repeat="approved")
async def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} paid"


@tool
async def look_up(what: str) -> str:
    """Find something out."""
    return f"{what} found"


async def model(request: ModelRequest) -> ModelReply:
    last = request.events[-1]
    if isinstance(last, ToolResult) and "found" in str(last.result):
        return ModelReply(calls=[ToolCall("call-2", "refund", '{"cents": 5}')])
    if isinstance(last, ToolResult):
        request.stream("done ")
        return ModelReply(content=f"done: {last.result}", usage={"tokens": 1})
    return ModelReply(calls=[ToolCall("call-1", "look_up", '{"what": "order"}')], usage={"tokens": 1})


@clerk.on_wake(max_cycles=5)
async def work(wake: affinity.Wake, state: Notes) -> None:
    """A child: it asks back once, then ends its delegation."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            state.lines.append(event.text)
            wake.require(ToolConfirmation(tool="search", arguments={}), expires_in=timedelta(hours=1))
        else:
            wake.finish(f"{state.lines[-1]}: {getattr(event, 'allowed', None)}")


@desk.on_wake
async def respond(wake: affinity.Wake, state: Desk) -> None:
    if wake.interrupt is not None:
        wake.append(AgentMessage(f"stopped: {wake.interrupt.reason}"))
        return
    for due in wake.due:
        state.nudges += 1
        wake.append(AgentMessage(f"nudge {state.nudges}: {due.reason}"))
        if state.nudges < 2:
            wake.revisit(timedelta(days=1), key="nudge", reason="again")
    if any(isinstance(event, UserMessage) and event.text == "loop" for event in wake.events) or any(
        isinstance(event, ConfirmationAnswer) for event in wake.events
    ):
        await run_loop(wake, model=model, tools=[refund, look_up])
        return
    for event in wake.events:
        await hear(wake, state, event)


async def hear(wake: affinity.Wake, state: Desk, event: JournalEvent) -> None:
    if isinstance(event, ChildEnded):
        wake.append(AgentMessage(f"{event.child}: {event.outcome} {event.result}"))
    elif isinstance(event, UserMessage):
        state.heard.append(event.text)
        if event.text == "delegate":
            for name in ("a", "b"):
                await wake.delegate(clerk, f"{wake.conversation_id}/{name}", UserMessage(name))
        elif event.text == "nudge":
            wake.revisit(timedelta(days=1), key="nudge", reason="first")
        wake.append(AgentMessage(f"heard {state.heard}"))


talks = affinity.App("talks")
talks.include(desk)
talks.include(clerk)


async def texts(talk: ConversationHandle) -> list[str]:
    return [entry.event.text for entry in await talk.history() if isinstance(entry.event, AgentMessage)]


async def converse(env: Env) -> dict[str, Any]:
    client, found = env.client, dict[str, Any]()
    talk = client.conversation(desk, "d-1")
    found["asked"] = [(await talk.ask(UserMessage("hello"), event_id="m-1")).text for _ in range(2)]
    await talk.ask(UserMessage("loop"))
    (request,) = await talk.requests()
    found["loop"] = (await talk.reply(await talk.answer(request.request_id, allowed=True))).text
    await talk.ask(UserMessage("delegate"))
    await env.advance(60)  # a worker that takes over waits for the end of a lease
    child = client.conversation(clerk, "d-1/a")
    (asked,) = await child.requests()
    await child.answer(asked.request_id, allowed=True)
    await env.advance(timedelta(hours=2))  # the request of the other one expires
    found["children"] = sorted((await texts(talk))[-2:])
    fork = await talk.fork("d-2", at=found["asked"] and 2)
    found["fork"] = (await fork.ask(UserMessage("hi"))).text
    await talk.ask(UserMessage("nudge"))
    await env.run_until_idle()
    found["nudges"] = (await texts(talk))[-2:]
    merged = await talk.merge("d-2", into="d-3")
    found["merged"] = len(await texts(merged))
    await talk.ask(UserMessage("nudge"))
    found["stopped"] = (await talk.reply(await talk.interrupt(reason="enough"))).text
    await fork.terminate(reason="over")
    assert await merged.delete()
    return found


async def is_conversed(env: Env, outcome: dict[str, Any]) -> None:
    merged = outcome.pop("merged")
    assert merged > 5
    assert outcome == {
        "asked": ["heard ['hello']"] * 2,
        "loop": "done: 5 paid",
        "children": ["d-1/a: completed a: True", "d-1/b: completed b: False"],
        "fork": outcome["fork"],
        "nudges": ["nudge 1: first", "nudge 2: again"],
        "stopped": "stopped: enough",
    }
    talk = env.client.conversation(desk, "d-1")
    entries = await talk.history()
    ids = [each.seq for each in entries]
    assert ids == sorted(set(ids))
    said = await texts(talk)
    assert len(said) == len(set(said)), "nothing is said twice"
    assert not await talk.requests()
    assert not await talk.revisits()
    tools = [each.event for each in entries if isinstance(each.event, ToolResult)]
    assert [str(each.result) for each in tools] == ["order found", "5 paid"]
    assert [each.instance_id async for each in env.client.list_instances(status=["suspended", "failed"])] == []


async def test_conversations(url: str | None) -> None:
    await crash_matrix(talks, converse, is_conversed, url=url, workers=2, kills=2)
