"""A page with a chat, over any number of workers and web processes.

::

    affinity worker examples.chat_ui.chat:app --url sqlite:///chat.db
    AFFINITY_URL=sqlite:///chat.db uvicorn --factory examples.chat_ui.service:create_app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

import affinity
from affinity.errors import ClientError, UnknownConversation
from affinity.integrations.web import MAY_CHAT, ChatAccess, create_chat
from examples.chat_ui.chat import chats

PAGE = Path(__file__).parent / "page.html"


async def page(request: Request) -> Response:
    """The page: the id of its chat is behind the # of its address."""
    return FileResponse(PAGE, headers={"cache-control": "no-cache"})


async def fork(request: Request) -> Response:
    """Make a chat that goes on from all that was said in another one."""
    client: affinity.Client = request.state.client
    new_id = f"chat-{uuid4().hex[:8]}"
    await client.conversation(chats, request.path_params["chat_id"]).fork(new_id)
    return JSONResponse({"id": new_id}, 201)


async def refuse(request: Request, error: Exception) -> Response:
    """What the page did wrong."""
    return JSONResponse({"error": str(error)}, 404 if isinstance(error, UnknownConversation) else 409)


def create_app(url: str | None = None) -> Starlette:
    """The web application. All may do all: put a login before it, and the name of the user in `ChatAccess`."""

    @asynccontextmanager
    async def lifespan(api: Starlette) -> AsyncIterator[dict[str, affinity.Client]]:
        async with affinity.Client(url or os.environ.get("AFFINITY_URL", "sqlite:///chat.db")) as client:
            yield {"client": client}

    chat = create_chat(chats, lambda request: request.state.client, access=lambda request: ChatAccess(MAY_CHAT))
    routes = [Route("/", page), Route("/forks/{chat_id}", fork, methods=["POST"]), *chat.routes("/api/chat")]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={ClientError: refuse})
