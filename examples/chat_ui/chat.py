"""The conversations of the page: a scripted model, and a tool that a person must allow."""

from __future__ import annotations

import re

import anyio
from pydantic import BaseModel

import affinity
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import AgentMessage, ToolResult, UserInterrupt, UserMessage


class Chat(BaseModel):
    """What is kept of a chat, beside its journal."""

    turns: int = 0


app = affinity.App("chat-ui")
chats = affinity.Conversations(Chat, kind="chat")


@tool(confirm=True, title="Refund", describe=lambda call: f"Pay {call.cents / 100:.2f} € back")
async def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents are on their way"


async def model(request: ModelRequest) -> ModelReply:
    """Stand for a language model: it repeats what it read, word by word, and calls `refund` for "refund 500"."""
    last = request.events[-1]
    text = last.text if isinstance(last, UserMessage) else ""
    if (cents := re.fullmatch(r"refund (\d+)", text)) is not None:
        return ModelReply(
            content="I have to ask for that.", calls=[ToolCall("refund", "refund", {"cents": int(cents[1])})]
        )
    if isinstance(last, ToolResult):
        text = "It was not allowed." if last.is_error else f"Done: {last.result}."
    else:
        text = f"You said: {text}"
    for word in text.split():
        request.stream(f"{word} ")
        await anyio.sleep(0.05)
    return ModelReply(content=text)


@chats.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Answer what has arrived."""
    chat.turns += 1
    if any(isinstance(event, UserInterrupt) for event in wake.events):  # what it had begun to say is void
        wake.append(AgentMessage("I stop."))
        return
    await run_loop(wake, model=model, tools=[refund], system="You are a clerk.")


app.include(chats)
