"""A chat over HTTP: messages, replies, a stream that resumes, approval, cancellation.

::

    affinity worker examples.chat_api.chat:app --url sqlite:///chat.db
    AFFINITY_URL=sqlite:///chat.db uvicorn --factory examples.chat_api.service:create
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import affinity
from affinity import ConversationHandle
from affinity.conversation import UserMessage
from affinity.errors import ClientError, UnknownConversation, WaitTimeout
from affinity.integrations.web import MAY_ALL, ChatAccess, create_chat
from examples.chat_api.chat import chats

REFUSED = (ClientError, ValueError, KeyError, TypeError)  # all but the first: a body that is none


def conversation_of(request: Request) -> ConversationHandle:
    """The conversation that the path names."""
    client: affinity.Client = request.state.client
    return client.conversation(chats, request.path_params["chat"])


async def post(request: Request) -> Response:
    """Send a message; its id makes a repeated request harmless."""
    body = await request.json()
    seq = await conversation_of(request).send(UserMessage(body["text"]), event_id=body.get("id"))
    return JSONResponse({"seq": seq}, 202)


async def ask(request: Request) -> Response:
    """Send a message and wait for the reply; the same id again gives the same reply."""
    body = await request.json()
    try:
        reply = await conversation_of(request).ask(UserMessage(body["text"]), event_id=body.get("id"), timeout=20)
    except WaitTimeout:
        return JSONResponse({"status": "running"}, 202)
    return JSONResponse({"seq": reply.seq, "text": reply.text, "requires_action": reply.requires_action})


async def requests(request: Request) -> Response:
    """What waits for a person."""
    found = await conversation_of(request).requests()
    return JSONResponse([{"id": each.request_id, **each.event.model_dump(mode="json")} for each in found])


async def answer(request: Request) -> Response:
    """Allow a tool, or refuse it."""
    body = await request.json()
    seq = await conversation_of(request).answer(request.path_params["request"], allowed=body["allowed"])
    return JSONResponse({"seq": seq}, 202)


async def cancel(request: Request) -> Response:
    """Stop what is being said now."""
    seq = await conversation_of(request).interrupt(cancel_running=True)
    return JSONResponse({"seq": seq}, 202)


async def show(request: Request) -> Response:
    """The status."""
    return JSONResponse({"status": await conversation_of(request).status()})


async def refuse(request: Request, error: Exception) -> Response:
    """What the caller did wrong."""
    status = 404 if isinstance(error, UnknownConversation) else 409 if isinstance(error, ClientError) else 422
    return JSONResponse({"error": str(error)}, status)


def create(url: str | None = None) -> Starlette:
    """The web application: one client for all requests."""

    @asynccontextmanager
    async def lifespan(api: Starlette) -> AsyncIterator[dict[str, affinity.Client]]:
        async with affinity.Client(url or os.environ.get("AFFINITY_URL", "sqlite:///chat.db")) as client:
            yield {"client": client}

    chat = create_chat(chats, lambda request: request.state.client, access=lambda request: ChatAccess(MAY_ALL))
    routes = [
        Route("/chats/{chat}", show),
        Route("/chats/{chat}/messages", post, methods=["POST"]),
        Route("/chats/{chat}/ask", ask, methods=["POST"]),
        Route("/chats/{chat}/requests", requests),
        Route("/chats/{chat}/requests/{request}", answer, methods=["POST"]),
        Route("/chats/{chat}/cancel", cancel, methods=["POST"]),
        *chat.routes("/chats"),  # among them /chats/{chat}/events: server-sent events, resumed behind Last-Event-ID
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=dict.fromkeys(REFUSED, refuse))
