"""One table of situations in which instances wait, each made on a worker, with the whole sentence that explains it.

A sentence begins with the deepest reason, and the instance that has it. In the table ``TIME`` is a time and ``AGE`` a
duration; the first worker is ``w``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

import anyio
import pytest
from pydantic import BaseModel

from affinity import (
    ActivityContext,
    App,
    Client,
    Conversations,
    Limit,
    OrchestrationContext,
    RetryPolicy,
    RuntimeOptions,
    Wake,
    Worker,
)
from affinity.conversation import CustomToolUse, UserMessage
from affinity.errors import Explanation
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity_conformance.providers.builders import profile
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

model = Limit("model", concurrency=1)
app = App("situations")


@app.activity
async def work(ctx: ActivityContext) -> None:
    await anyio.sleep(300)


@app.activity
async def quick(ctx: ActivityContext) -> None:
    """End."""


@app.activity
async def fails(ctx: ActivityContext) -> None:
    raise ValueError("no tea")


@app.activity(limits=[model])
async def call(ctx: ActivityContext) -> None:
    await anyio.sleep(300)


@app.activity
async def asks(ctx: ActivityContext, other: str) -> None:
    await ctx.client.wait(other, 300)


@app.orchestration
async def does(ctx: OrchestrationContext, plan: dict[str, Any]) -> None:
    """Wait for all that the plan names, at the same time."""
    waits: list[Any] = []
    for name in plan.get("activities", ()):
        waits.append(ctx.schedule_activity({"work": work, "call": call}.get(name, name)))
    for session in plan.get("sessions", ()):
        waits.append(ctx.schedule_activity(work).on_session(session))
    for session in plan.get("ordered", ()):
        waits.append(ctx.schedule_activity(work).on_session(session, ordered=True))
    for tag in plan.get("tags", ()):
        waits.append(ctx.schedule_activity(work).with_tag(tag))
    for other in plan.get("asks", ()):
        waits.append(ctx.schedule_activity(asks, other))
    if plan.get("retries"):
        slow = RetryPolicy(initial_interval=600.0, max_interval=600.0, max_attempts=5)
        waits.append(ctx.schedule_activity(fails, retry=slow))
    for child, its in plan.get("children", {}).items():
        waits.append(ctx.schedule_sub_orchestration(its.get("name", "does"), its, instance_id=child))
    for event in plan.get("events", ()):
        waits.append(ctx.schedule_wait(event, int))
    for event, session in plan.get("holds", {}).items():
        await ctx.schedule_activity(quick).on_session(session)
        waits.append(ctx.schedule_wait(event, hold_session=session, hold_for=3_000))
    for session in plan.get("watches", ()):
        await ctx.schedule_activity(quick).on_session(session)
        waits.append(ctx.schedule_session_moved(session))
    for seconds in plan.get("timers", ()):
        waits.append(ctx.schedule_timer(seconds))
    await ctx.gather(*waits)


class Chat(BaseModel):
    """Nothing."""


chats = Conversations(Chat, kind="chat")


@chats.on_wake
async def respond(wake: Wake, chat: Chat) -> None:
    for event in wake.events:
        match getattr(event, "text", ""):
            case "ask":
                wake.require(CustomToolUse("refund", {}, "r-1"))
            case "later":
                wake.revisit(3_600)
            case "work":
                await anyio.sleep(300)
            case "fail":
                raise ValueError("no tea")


app.include(chats)

Plan: TypeAlias = Mapping[str, Any]
CHAIN: Final = {"children": {"c": {"children": {"d": {"children": {"e": {"events": ["go"]}}}}}}}
LOST: Final = {"name": "lost"}

SITUATIONS: Final[dict[str, tuple[Plan, str]]] = {
    # -- events
    "event": ({"events": ["go"]}, "{i} waits for the event 'go'"),
    "slip": (
        {"events": ["approved"], "unread": [("aproved", 1)]},
        "{i} waits for the event 'approved'; an event 'aproved' lies unread",
    ),
    "case": (
        {"events": ["Approved"], "unread": [("approved", 1), ("approved", 1), ("shipped", 1)]},
        "{i} waits for the event 'Approved'; 2 events 'approved' lie unread",
    ),
    "stranger": ({"events": ["approved"], "unread": [("shipped", 1)]}, "{i} waits for the event 'approved'"),
    "misfit": (
        {"events": ["number"], "unread": [("number", "x")]},
        "{i} waits for the event 'number'; an event 'number' came that does not fit: TEXT",
    ),
    "events": (
        {"events": ["a", "b", "b", "c", "d", "e"]},
        "{i} waits for the event 'a'; "
        "it also waits for the event 'b' (2 times), the event 'c', the event 'd' and 1 more",
    ),
    "hold": (
        {"holds": {"go": "held"}},
        "{i} waits for the event 'go', and holds session 'held' on worker 'w' until TIME at the latest",
    ),
    "watch": ({"watches": ["watched"]}, "{i} waits for the next move of session 'watched': worker 'w' holds it"),
    # -- time
    "timer": ({"timers": [3_600]}, "{i} waits for a timer, due at TIME"),
    "deadline": (
        {"events": ["go"], "timers": [3_600]},
        "{i} waits for the event 'go'; it also waits for a timer, due at TIME",
    ),
    "delayed": ({"start": {"delay": 3_600}}, "{i} waits to begin at TIME"),
    # -- activities
    "runs": (
        {"activities": ["work"]},
        "{i} waits for the activity 'work', which runs on worker 'w' for AGE, attempt 1",
    ),
    "ten": (
        {"activities": ["work"] * 10},
        "{i} waits for the activity 'work', which runs on worker 'w' for AGE, attempt 1; "
        "it also waits for 9 more activities 'work'",
    ),
    "two": (
        {"activities": ["work", "work"]},
        "{i} waits for the activity 'work', which runs on worker 'w' for AGE, attempt 1; "
        "it also waits for another activity 'work'",
    ),
    "retries": (
        {"retries": True, "activities": ["work"]},
        "{i} waits for the activity 'fails', which failed with ValueError: no tea; attempt 2 is due at TIME (in AGE); "
        "it also waits for the activity 'work'",
    ),
    "tag": (
        {"tags": ["gpu"]},
        "{i} waits for the activity 'work', which needs a worker with the tag 'gpu': none is alive; "
        "start one with `--tag gpu` (for AGE)",
    ),
    "first in order": (
        {"ordered": ["o"]},
        "{i} waits for the activity 'work', which runs on worker 'w' for AGE, attempt 1",
    ),
    "behind": (
        {"ordered": ["o"], "after": "first in order"},
        "{i} waits for the activity 'work', which is behind an ordered activity of session 'o' (for AGE)",
    ),
    # -- limits
    "admitted": (
        {"activities": ["call"]},
        "{i} waits for the activity 'call', which runs on worker 'w' for AGE, attempt 1",
    ),
    "limited": (
        {"activities": ["call", "work"], "after": "admitted"},
        "{i} waits for the activity 'call', which waits for limit 'model': 1 of 1 in use (for AGE); "
        "it also waits for the activity 'work'",
    ),
    # -- sub-orchestrations
    "lost": (
        LOST,
        "{i} is suspended since TIME (UnknownOrchestration: TEXT): start a worker that registers it",
    ),
    "child": (
        {"children": {"child of": {"events": ["go"]}}},
        "'child of' waits for the event 'go'; {i} waits for its sub-orchestration 'child of'",
    ),
    "chain": (
        CHAIN,
        "'e' waits for the event 'go'; {i} waits for its sub-orchestration 'c', which waits for it through 1 more",
    ),
    "grandchild": (
        {"children": {"p": {"children": {"lost one": LOST}}}},
        "'lost one' is suspended since TIME (UnknownOrchestration: TEXT): start a worker that registers it; "
        "{i} waits for its sub-orchestration 'p', which waits for it",
    ),
    "25 children": (
        {"children": {f"n{n:02}": {"timers": [3_600]} for n in range(25)}},
        "'n00' waits for a timer, due at TIME; "
        "{i} waits for its sub-orchestration 'n00', and also for its sub-orchestration 'n01' and 23 more",
    ),
    "the last of 25 is lost": (
        {"children": {f"m{n:02}": LOST if n == 24 else {"timers": [3_600]} for n in range(25)}},
        "'m24' is suspended since TIME (UnknownOrchestration: TEXT): start a worker that registers it; "
        "{i} waits for its sub-orchestration 'm24', and also for its sub-orchestration 'm00' and 23 more",
    ),
    "both": (
        {"activities": ["work"], "children": {"waits": {"events": ["go"]}}},
        "{i} waits for the activity 'work', which runs on worker 'w' for AGE, attempt 1; "
        "it also waits for its sub-orchestration 'waits'",
    ),
    "both, and the child is worse": (
        {"activities": ["work", "work"], "children": {"lost too": LOST}, "timers": [3_600]},
        "'lost too' is suspended since TIME (UnknownOrchestration: TEXT): start a worker that registers it; {i} waits "
        "for its sub-orchestration 'lost too', and also for 2 activities 'work' and a timer, due at TIME",
    ),
    # -- activities that wait
    "asks": (
        {"asks": ["event"]},
        "'event' waits for the event 'go'; {i} waits for the activity 'asks', which waits for 'event'",
    ),
}
"""By instance id: what it waits for, and its sentence."""


async def test_sentences_of_instances(kept_url: str) -> None:
    async with serving(kept_url) as client:
        for name, (plan, _) in SITUATIONS.items():
            if "after" in plan:
                await explained(client, plan["after"], "activity_running")
            await client.start(plan.get("name", "does"), dict(plan), instance_id=name, **plan.get("start", {}))
            for event, data in plan.get("unread", ()):
                await client.raise_event(name, event, data)
        await expect(client, {name: sentence for name, (_, sentence) in SITUATIONS.items()})
        with client.acting_as("ann"):
            await client.limits.pause("model")
        await expect(
            client,
            {
                "limited": "{i} waits for the activity 'call', which waits for limit 'model': it is paused by 'ann' "
                "since TIME, until `affinity limits resume model` (for AGE); it also waits for the activity 'work'"
            },
        )
        await client.start(does, {}, instance_id="event", if_running="queue_one")
        await expect(client, {"event": "{i} waits for the event 'go'; a start waits for the end of this run"})


TALKS: Final[dict[str, tuple[str | None, str]]] = {
    "input": ("hello", "{i} waits for its next input"),
    "request": ("ask", "{i} waits for the answer to the request 'ID' (agent.custom_tool_use)"),
    "revisit": ("later", "{i} waits for a revisit, due at TIME"),
    "wake": ("work", "{i} waits for its wake, which runs on worker 'w' for AGE, attempt 1"),
}


async def test_sentences_of_conversations(kept_url: str) -> None:
    async with serving(kept_url) as client:
        for name, (text, _) in TALKS.items():
            await client.conversation(chats, name).send(UserMessage(text or ""))
        await expect(client, {name: sentence for name, (_, sentence) in TALKS.items()})


async def test_sentences_about_sessions_and_workers(kept_url: str) -> None:
    """The holder is busy, another worker is to take the session, no worker has room, all drain, none is alive."""
    few = {"worker_concurrency": 1, "max_sessions_per_runtime": 1}
    begins = "{i} waits for the activity 'work', "
    async with serving(kept_url, **few) as client:
        await client.start(does, {"sessions": ["s"]}, instance_id="first")
        await explained(client, "first", "activity_running")
        for name, plan in {
            "queued": {"activities": ["work"]},
            "busy": {"sessions": ["s"]},
            "full": {"sessions": ["t"]},
        }.items():
            await client.start(does, plan, instance_id=name)
        await expect(
            client,
            {
                "queued": begins + "which no worker has taken yet (for AGE)",
                "busy": begins + "whose session 's' is held by worker 'w', which has not taken it yet: its 1 slot "
                "(worker_concurrency) may be busy (for AGE)",
                "full": begins
                + "whose session 't' no worker takes: all hold as many as max_sessions_per_runtime (for AGE)",
            },
        )
        async with stand_by(kept_url, "b"):
            assert await client.move_session("s", "b") == "planned"
            moves = (
                begins + "whose session 's' is held by worker 'w' and moves to worker 'b' as its work ends (for AGE)"
            )
            await expect(client, {"busy": moves})
            await client.drain_worker("b")
            await client.drain_worker("w")
            drained = begins + "whose session 's' is held by worker 'w', which drains (for AGE)"
            await expect(client, {"busy": drained})
            await expect(client, {"queued": begins + "which no worker takes: all that could take it drain (for AGE)"})


async def test_without_a_worker(kept_url: str) -> None:
    async with serving(kept_url, unregistered_timeout=300.0) as client:
        await client.start(does, {"activities": ["nowhere", "work"]}, instance_id="i")
        unknown = "{i} waits for the activity 'nowhere', which no live worker registers: include it in the app of one "
        await expect(client, {"i": unknown + "(for AGE); it also waits for the activity 'work'"})
    async with Client(kept_url) as client:
        await client.start(does, {}, instance_id="new")
        sentence = "{i} waits for a worker: none is alive; start one"
        others = "; it also waits for the activity 'nowhere' and the activity 'work'"
        await expect(client, {"new": sentence, "i": sentence + others})


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[Client]:
    made: dict[str, Any] = {"poll_interval": 0.1, "unregistered_timeout": 0.5, "drain_timeout": 0.1, **options}
    async with Worker(app, url, RuntimeOptions.make(**made, worker_node_id="w")), Client(url) as client:
        yield client


@asynccontextmanager
async def stand_by(url: str, worker_id: str) -> AsyncIterator[None]:
    """A worker that is alive and takes nothing."""
    async with AsyncExitStack() as stack:
        provider = await open_provider(url, one_connection=True)
        stack.push_async_callback(provider.aclose)
        identity = WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(worker_id))
        registered = {"activities": {"work": "digest"}}
        await provider.register_worker(identity, 300, {}, profile=profile(registered=registered))
        yield


async def explained(client: Client, instance_id: str, code: str) -> Explanation:
    found: list[Explanation] = []

    async def look() -> bool:
        reason = await client.explain(instance_id)
        found[:] = [] if reason is None else [reason]
        return reason is not None and reason.code == code

    await until(look)
    return found[0]


async def expect(client: Client, sentences: Mapping[str, str]) -> None:
    """Wait until each instance is explained by its sentence."""
    wanted = {name: text.replace("{i}", repr(name)) for name, text in sentences.items()}
    found: dict[str, str] = {}

    async def look() -> bool:
        for name in [name for name in wanted if found.get(name) != wanted[name]]:
            reason = await client.explain(name)
            found[name] = "" if reason is None else in_general(reason.sentence)
            if reason is not None:
                assert reason.sentence.startswith(repr(reason.instance_id))
                assert reason.path[0] == name
        return found == wanted

    with suppress(TimeoutError):
        await until(look, 40)
    assert {name: text for name, text in found.items() if text != wanted[name]} == {}


def in_general(sentence: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", sentence)
    text = re.sub(r"the request '[^']*'", "the request 'ID'", text)
    text = re.sub(r"(for|in) \d+ (s|min|h)\b", r"\1 AGE", text)
    return re.sub(r"(UnknownOrchestration: |does not fit: )[^;)]*", r"\1TEXT", text)
