"""A chat with a scripted model, its worker and its web service, for tests of `affinity.integrations.web`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import anyio
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

import affinity
from affinity.agent import ModelReply, ModelRequest, Tool, ToolCall, run_loop, tool
from affinity.conversation import AgentMessage, CustomToolResult, JournalEvent, ToolResult, UserInterrupt, UserMessage
from affinity.integrations.web import MAY_ALL, MAY_CHAT, MAY_READ, ChatAccess, create_chat

SECRET = "pass" + "word of the bank"  # no message of an error may show it


class Chat(BaseModel):
    """The state of a conversation."""

    turns: int = 0


class Rated(JournalEvent):
    """An event of the application."""

    stars: int
    kind: Literal["rating.given"] = "rating.given"


chats = affinity.Conversations(Chat, kind="chat", events=[Rated])
others = affinity.Conversations(Chat, kind="other")
app = affinity.App("web-chat")


@tool
async def look(order: str) -> dict[str, str]:
    """Where an order is."""
    await anyio.sleep(0.05)
    return {"order": order, "status": "on its way"}


@tool(confirm=True, title="Refund", describe=lambda arguments: f"pay {arguments.cents} cents back")
async def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents are on their way"


@tool
async def spoil() -> None:
    """Fail."""
    raise RuntimeError(SECRET)


class Nothing(BaseModel):
    """The arguments of a tool that has none."""


position = Tool(name="position", description="Where the user is; the browser knows it.", arguments=Nothing)


async def model(request: ModelRequest) -> ModelReply:
    """Stand for a language model: the text of the user says what it does."""
    last = request.events[-1]
    if isinstance(last, ToolResult | CustomToolResult):
        return await _say(request, _result_of(last))
    text = last.text if isinstance(last, UserMessage) else ""
    if calls := _calls(text):
        return ModelReply(content="Let me see." if text.startswith("refund") else None, calls=calls)
    if text == "think":
        return await _think(request)
    if text == "fail":
        request.stream("half of ")
        await anyio.sleep(0.3)
        raise RuntimeError(SECRET)
    return await _say(request, f"you said {text}")


def _calls(text: str) -> list[ToolCall]:
    word, _, rest = text.partition(" ")
    match word:
        case "refund":
            return [
                ToolCall(f"c{number}", "refund", {"cents": int(cents)}) for number, cents in enumerate(rest.split())
            ]
        case "both":
            return [ToolCall("c1", "look", {"order": rest}), ToolCall("c2", "refund", {"cents": 5})]
        case "look":
            return [ToolCall("c1", "look", {"order": rest})]
        case "position" | "spoil":
            return [ToolCall("c1", word, {})]
        case "mumble":
            return [ToolCall("c1", "refund", "no arguments")]
    return []


async def _think(request: ModelRequest) -> ModelReply:
    request.stream({"type": "reasoning", "text": "hm "})
    request.stream("forty")
    request.stream({"type": "data-mood", "data": {"calm": True}})
    await anyio.sleep(0.3)
    return ModelReply(content=[{"type": "thinking", "thinking": "hm "}, {"type": "text", "text": "42"}])


def _result_of(event: ToolResult | CustomToolResult) -> str:
    return f"done {event.result}" if not event.is_error else "it did not work"


async def _say(request: ModelRequest, text: str) -> ModelReply:
    for word in text.split():
        request.stream(f"{word} ")
        await anyio.sleep(0.03)
    return ModelReply(content=text, usage={"input_tokens": 3, "output_tokens": len(text.split())})


@chats.on_wake(retry=affinity.RetryPolicy(max_attempts=1))
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Answer what has arrived."""
    chat.turns += 1
    if any(isinstance(event, UserInterrupt) for event in wake.events):
        wake.append(AgentMessage("I stop."))
        return
    if any(isinstance(event, UserMessage) and event.text == "rate" for event in wake.events):
        wake.append(Rated(5))
    await run_loop(wake, model=model, tools=[look, refund, spoil, position], system="You are a clerk.")


@others.on_wake
async def ignore(wake: affinity.Wake, chat: Chat) -> None:
    """Do nothing."""
    wake.append(AgentMessage("other"))


app.include(chats)
app.include(others)


def access(request: Request) -> ChatAccess:
    """The user is in a header; without one, all may do all."""
    user = request.headers.get("x-user")
    if user == "nobody":
        raise HTTPException(401, "log in", {"www-authenticate": "Basic"})
    if user == "broken":
        raise RuntimeError(SECRET)
    if user == "reader":
        return ChatAccess(MAY_READ)
    return ChatAccess(MAY_ALL) if user is None else ChatAccess(MAY_CHAT, user, owner=user)


async def state(talk: affinity.ConversationHandle) -> Any:
    """What the page shows beside the chat: how many messages there are."""
    said = await talk.history(kinds=[UserMessage], last=100)
    return {"messages": len(said)}


def make(database: Any, **options: Any) -> Starlette:
    """The web application."""
    chat = create_chat(chats, database, access=access, state=state, **options)
    return Starlette(routes=chat.routes("/api/chat"), lifespan=chat.lifespan)


def serve() -> Starlette:
    """The web application alone, of the database that the environment names."""
    return make(os.environ["AFFINITY_URL"])


def serve_with_worker() -> Starlette:
    """The same, with a worker in the process."""
    url = os.environ["AFFINITY_URL"]
    chat = create_chat(chats, url, access=access, state=state)

    @asynccontextmanager
    async def lifespan(api: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(affinity.Worker(app, url))
            await stack.enter_async_context(chat.lifespan(api))
            yield

    return Starlette(routes=chat.routes("/api/chat"), lifespan=lifespan)
