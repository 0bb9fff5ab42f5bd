"""The agents of the desk: one talks to a customer, another one looks things up for it.

::

    affinity worker examples.support_desk.desk:app --url sqlite:///desk.db
    AFFINITY_URL=sqlite:///desk.db uvicorn --factory examples.support_desk.service:create
"""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import takewhile
from typing import Literal

import anyio
from pydantic import BaseModel, Field

import affinity
from affinity.agent import ContextWindow, ModelReply, ModelRequest, ToolCall, ToolContext, run_loop, tool
from affinity.conversation import AgentMessage, ChildEnded, JournalEvent, ToolResult, UserMessage

NUDGE = timedelta(days=1)
LARGE = 1_000  # cents; a person has to allow what is more
SATISFIED = 4  # stars


class Ticket(BaseModel):
    """What the desk keeps of a customer beside the journal."""

    order: str = ""
    refunded: list[int] = Field(default_factory=list)


class Case(BaseModel):
    """The state of the one who looks things up: nothing."""


class Rated(JournalEvent):
    """The customer says how it was."""

    stars: int = Field(ge=1, le=5)
    kind: Literal["user.rated"] = "user.rated"


tickets = affinity.Conversations(Ticket, kind="ticket", events=[Rated])
lookups = affinity.Conversations(Case, kind="lookup")


@tool
async def find_order(order: str) -> dict[str, str]:
    """Where an order is."""
    return {"order": order, "status": "on its way"}


@tool(confirm=lambda arguments: arguments["cents"] > LARGE, confirm_within=86_400)
async def refund(cents: int, context: ToolContext) -> str:
    """Pay money back; more than 10 euros need a person."""
    await pay(cents, key=context.idempotency_key)
    return f"{cents} cents are on their way"


async def pay(cents: int, *, key: str) -> None:
    """Stands for a payment service, which takes a key once."""
    await anyio.sleep(0.01)


async def model(request: ModelRequest) -> ModelReply:
    """Stands for a language model; a real one gets ``request.openai_messages()`` and ``request.openai_tools()``."""
    last = request.events[-1]
    news = takewhile(lambda event: not isinstance(event, AgentMessage), reversed(request.events))
    if (found := next((event for event in news if isinstance(event, ChildEnded)), None)) is not None:
        return await _say(request, f"I have looked: {found.result}")
    match last:
        case ToolResult():
            return await _say(request, f"Done: {last.result}.")
        case UserMessage() if (cents := re.search(r"(\d+) cents", last.text)) is not None:
            return ModelReply(calls=[ToolCall(f"refund-{request.round}", "refund", {"cents": int(cents[1])})])
        case UserMessage() if (order := re.search(r"order (\w+)", last.text)) is not None:
            return ModelReply(calls=[ToolCall(f"find-{request.round}", "find_order", {"order": order[1]})])
    return await _say(request, "How can I help you?")


async def _say(request: ModelRequest, text: str) -> ModelReply:
    """Show the text as it is written."""
    for word in text.split(" "):
        request.stream(f"{word} ")
        await anyio.sleep(0.01)
    return ModelReply(content=text, usage={"output_tokens": len(text.split())})


@tickets.on_wake
async def respond(wake: affinity.Wake, ticket: Ticket) -> None:
    """Answer the customer; come back after a day if nothing comes."""
    for event in wake.events:
        if isinstance(event, Rated):
            wake.append(AgentMessage("Thank you!" if event.stars >= SATISFIED else "We are sorry."))
            return
        if isinstance(event, UserMessage) and event.text.startswith("look up"):
            await wake.delegate(lookups, f"{wake.conversation_id}/lookup", event)
            wake.append(AgentMessage("A colleague looks it up."))
            return
    if wake.due and not wake.pending:
        wake.append(AgentMessage("Is there anything else?"))
        return
    result = await run_loop(
        wake,
        model=model,
        tools=[find_order, refund],
        system="You are a clerk.",
        context=ContextWindow(max_bytes=200_000),
    )
    if result.stop == "answer":
        wake.revisit(NUDGE, key="nudge", reason="no reply yet")


@lookups.on_wake
async def look(wake: affinity.Wake, case: Case) -> None:
    """Look it up, once, though the worker may be killed meanwhile."""
    (event,) = [each for each in wake.events if isinstance(each, UserMessage)][-1:]
    found = await wake.step("look", search, event.text)
    wake.append(AgentMessage(found))


async def search(text: str) -> str:
    """Stands for a search that takes a while."""
    await anyio.sleep(0.2)
    return f"{text.removeprefix('look up').strip()} is in stock"


app = affinity.App("desk")
app.include(tickets)
app.include(lookups)
