"""An app whose every visible field has a text of its caller."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import (
    AgentMessage,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    RequestEvent,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserMessage,
)
from affinity.session import SessionMetadata


class Noted(BaseModel):
    """A state with a text."""

    text: str = ""


app = affinity.App("shown")
notes = affinity.Sessions(
    Noted, kind="note", metadata=lambda state: SessionMetadata(name=" ".join(state.text[:100].split()))
)


class Taste(RequestEvent):
    """A request of the application's own."""

    question: str
    request_id: str = ""
    kind: Literal["shown.taste"] = "shown.taste"


chats = affinity.Conversations(Noted, kind="chat", events=[Taste])
app.include(notes)


@app.activity
async def note(ctx: affinity.ActivityContext, text: str) -> str:
    """Keep the text in the session, and return it."""
    async with notes.open(ctx) as state:
        state.text = text
    return text


@app.activity
async def spoil(ctx: affinity.ActivityContext, text: str) -> None:
    """Fail with the text."""
    raise ValueError(text)


@app.orchestration
async def shows(ctx: affinity.OrchestrationContext, text: str) -> dict[str, Any]:
    """End with the text, and with a number that no float can hold."""
    ctx.set_custom_status({"says": text[:1000]})
    assert ctx.session_id is not None
    return {text: await ctx.schedule_activity(note, text).on_session(ctx.session_id), "number": 2**63 + 1}


@app.orchestration
async def spoils(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Fail with the text."""
    await ctx.schedule_activity(spoil, text)


class Order(BaseModel):
    """A flat input."""

    item: str
    count: int = 1
    gift: bool = False


@app.orchestration
async def buys(ctx: affinity.OrchestrationContext, order: Order) -> str:
    """Say what is ordered."""
    return f"{order.count} {order.item}"


@app.orchestration
async def fans(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Run 25 equal activities, and wait for an event."""
    await ctx.gather(*[ctx.schedule_activity(note, text).on_session(f"fan-{n}") for n in range(25)])
    await ctx.schedule_wait("go")


@app.orchestration
async def retries(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Have an activity fail, and be tried again in an hour."""
    await ctx.schedule_activity(spoil, text, retry=affinity.RetryPolicy(max_attempts=2, initial_interval=50))


@app.orchestration
async def needs(ctx: affinity.OrchestrationContext, tag: str) -> None:
    """Wait for a worker with a tag that none has."""
    await ctx.schedule_activity(note, "").with_tag(tag)


@app.orchestration
async def keeps(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Set a value."""
    ctx.values.set("kept", text)


@app.orchestration
async def stays(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Wait for an event."""
    await ctx.schedule_wait("go")


@app.activity
async def flaky(ctx: affinity.ActivityContext, text: str) -> str:
    """Fail once."""
    if ctx.attempt == 1:
        raise ValueError(text)
    return text


@app.orchestration
async def varied(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Have a bit of each, then wait for an event."""
    await ctx.schedule_activity(flaky, text, retry=affinity.RetryPolicy(max_attempts=2, initial_interval=0.3))
    await ctx.schedule_timer(0.1)
    with suppress(affinity.errors.OrchestrationFailed):
        await ctx.schedule_sub_orchestration(spoils, text)
    await ctx.schedule_wait("go")


@chats.on_wake
async def respond(wake: affinity.Wake, state: Noted) -> None:
    """Ask for a permission with the text of a message; say whether it was given."""
    for event in wake.events:
        if isinstance(event, UserMessage) and event.text.startswith("slowly"):
            for word in event.text.split():
                wake.stream(f"{word} ")
                await anyio.sleep(0.2)
            if "breaks" in event.text and wake.attempt == 1:
                raise ValueError("broken")
            wake.append(AgentMessage("said", {"tokens": 7}))
        elif isinstance(event, UserMessage) and event.text == "ask in other ways":
            wake.require(CustomToolUse("measure", {"what": "tea"}))
            wake.require(Taste(question="sweet?"))
        elif isinstance(event, UserMessage) and event.text == "soon":
            wake.require(ToolConfirmation("soon"), expires_in=600)
        elif isinstance(event, UserMessage) and event.text.startswith("dangerously"):
            about: dict[str, Any] = {"title": "Refund", "summary": "Refund 49.90 € to Mara", "dangerous": True}
            wake.require(ToolConfirmation("refund", {"cents": 4990}, **about), expires_in=3600)
        elif isinstance(event, UserMessage) and event.text == "use a tool":
            wake.append(ToolUse("boil", {"litres": 2}, "u1"))
            wake.append(ToolResult("u1", {"degrees": 100}))
            wake.revisit(3600, key="tea", reason="drink it")
        elif isinstance(event, UserMessage):
            wake.append(AgentMessage(event.text))
            wake.require(ToolConfirmation(tool=event.text[:100], arguments={event.text[:100]: event.text}))
        elif isinstance(event, CustomToolResult):
            wake.append(AgentMessage(f"measured: {event.result}"))
        elif isinstance(event, ConfirmationAnswer):
            wake.append(AgentMessage(f"allowed: {event.allowed}, {event.reason}"))


app.include(chats)
