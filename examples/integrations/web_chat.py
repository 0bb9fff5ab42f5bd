"""A chat for browsers. Run with ``uvicorn web_chat:api``, beside ``affinity worker web_chat:app``."""

import os

import anyio
from fastapi import FastAPI, Request
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, UserMessage
from affinity.integrations.web import MAY_CHAT, ChatAccess, create_chat


class Chat(BaseModel):
    """What is kept of a chat, beside its journal."""

    turns: int = 0


app = affinity.App("browser-chat")
chats = affinity.Conversations(Chat, kind="chat")


@chats.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Stand for an agent: repeat what was said, word by word."""
    chat.turns += 1
    said = " ".join(event.text for event in wake.events if isinstance(event, UserMessage))
    for word in said.split():
        wake.stream(f"{word} ")
        await anyio.sleep(0.05)
    wake.append(AgentMessage(said))


app.include(chats)


def user_of(request: Request) -> str:
    """Stand for the login of the application."""
    return request.headers.get("x-user", "guest")


def access(request: Request) -> ChatAccess:
    """Each user may chat, and sees the own chats alone."""
    user = user_of(request)
    return ChatAccess(MAY_CHAT, user, owner=user)


chat = create_chat(chats, os.environ.get("AFFINITY_URL", "sqlite:///affinity.db"), access=access)
api = FastAPI(routes=chat.routes("/api/chat"), lifespan=chat.lifespan)
