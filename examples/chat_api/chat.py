"""The conversations of the chat: a model, a tool that a person must allow, and the state between two wakes."""

from __future__ import annotations

import anyio
from pydantic import BaseModel

import affinity
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import AgentMessage, ToolResult, UserInterrupt, UserMessage


class Chat(BaseModel):
    """What is kept of a chat, beside its journal."""

    turns: int = 0


app = affinity.App("chat-api")
chats = affinity.Conversations(Chat, kind="chat")


@tool(confirm=True)
async def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents are on their way"


async def model(request: ModelRequest) -> ModelReply:
    """Stands for a language model: it repeats what it read, word by word, and calls `refund` for "refund …"."""
    last = request.events[-1]
    text = last.text if isinstance(last, UserMessage) else ""
    if text.startswith("refund "):
        arguments = f'{{"cents": {text.removeprefix("refund ")}}}'  # as a model gives them: JSON, or what should be
        return ModelReply(calls=[ToolCall(f"call-{len(request.events)}", "refund", arguments)])
    words = str(last.result) if isinstance(last, ToolResult) else f"you said {text!r}"
    for word in words.split():
        request.stream(f"{word} ")
        await anyio.sleep(0.05)
    return ModelReply(content=words)


@chats.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Answer what has arrived."""
    chat.turns += 1
    if isinstance(wake.events[-1], UserInterrupt):  # what it had begun to say is void
        wake.append(AgentMessage("I stop."))
        return
    await run_loop(wake, model=model, tools=[refund], system="You are a clerk.")


app.include(chats)
