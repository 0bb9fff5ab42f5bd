"""An application for clients that have no event loop of their own."""

from __future__ import annotations

from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, UserMessage


class Chat(BaseModel):
    """The state of a conversation, and of a session."""

    lines: list[str] = []


app = affinity.App("sync")
support = affinity.Conversations(Chat, kind="support")
chats = affinity.Sessions(Chat, kind="chat")
app.include(chats)

Say = affinity.Event("say", str, reply=str)


@app.activity
async def shout(ctx: affinity.ActivityContext, text: str) -> str:
    return text.upper()


@app.orchestration
async def greet(ctx: affinity.OrchestrationContext, name: str) -> str:
    return await ctx.schedule_activity(shout, f"hello {name}")


@app.orchestration
async def listen(ctx: affinity.OrchestrationContext) -> None:
    while True:
        said = await ctx.schedule_wait(Say)
        said.reply(said.data.upper())


@app.orchestration
async def fail(ctx: affinity.OrchestrationContext) -> None:
    raise ValueError("broken")


@support.on_wake
async def answer(wake: affinity.Wake, chat: Chat) -> None:
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.lines.append(event.text)
            wake.append(AgentMessage(f"{len(chat.lines)}: {event.text}"))


app.include(support)
