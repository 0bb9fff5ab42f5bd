"""The desk over HTTP: replies as server-sent events, tickets, and the inbox of the people who decide.

::

    affinity worker examples.support_desk.desk:app --url sqlite:///desk.db
    AFFINITY_URL=sqlite:///desk.db uvicorn --factory examples.support_desk.service:create
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import affinity
from affinity import ConversationHandle
from affinity.conversation import Reply, UserMessage
from affinity.errors import ClientError, UnknownConversation, WakeFailed
from examples.support_desk.desk import Rated, tickets

HEARTBEAT = 15.0
REFUSED = (ClientError, ValueError, KeyError, TypeError)  # all but the first: a body that is none


def client_of(request: Request) -> affinity.Client:
    """One client for all requests."""
    client: affinity.Client = request.state.client
    return client


def ticket_of(request: Request) -> ConversationHandle:
    """The conversation that the path names."""
    return client_of(request).conversation(tickets, request.path_params["ticket"])


def stream(lines: AsyncIterable[str]) -> Response:
    """Server-sent events."""
    return StreamingResponse(lines, media_type="text/event-stream", headers={"cache-control": "no-store"})


def sent(event: str, data: str, id: str | None = None) -> str:
    """One of them."""
    return f"{'' if id is None else f'id: {id}' + chr(10)}event: {event}\ndata: {data}\n\n"


async def say(request: Request) -> Response:
    """Send a message; the answer is a stream of what belongs to it, which ends with the reply. A browser that was cut
    off sends the same again, with Last-Event-ID: the message is not sent twice, and the stream goes on there.
    """
    body = await request.json()
    customer = {"title": body["text"][:80], "owner": body.get("customer"), "labels": {"desk": "web"}}
    talk = ticket_of(request)
    await talk.send(UserMessage(body["text"]), event_id=body["id"], **customer)
    after = request.headers.get("last-event-id") or 0
    replies = talk.stream_reply(event_id=body["id"], after=after, heartbeat=HEARTBEAT)

    async def lines() -> AsyncIterator[str]:
        try:
            async with replies:
                async for item in replies:
                    yield sent(item.kind, item.to_json(), None if isinstance(item, Reply) else replies.position)
        except WakeFailed as error:
            yield sent("failed", json.dumps(str(error)))

    return stream(lines())


async def rate(request: Request) -> Response:
    """An event of the application's own."""
    body = await request.json()
    reply = await ticket_of(request).ask(Rated(body["stars"]), timeout=20)
    return JSONResponse({"text": reply.text})


async def show(request: Request) -> Response:
    """A ticket: its status, what it waits for, and what was said."""
    talk = ticket_of(request)
    about = await client_of(request).get_conversation(talk.conversation_id)
    waits = await talk.explain()
    said = await talk.history(kinds=["user.message", "agent.message"], last=50)
    texts = [{"by": each.kind.partition(".")[0], "text": getattr(each.event, "text", "")} for each in said]
    return JSONResponse({**shown(about), "waits_for": waits and waits.sentence, "messages": texts})


async def index(request: Request) -> Response:
    """The tickets, newest first."""
    where: dict[str, Any] = {"kind": tickets.kind, "owner": request.query_params.get("customer")}
    page = await client_of(request).list_conversations(**where).page(request.query_params.get("after"), limit=100)
    return JSONResponse({"tickets": [shown(each) for each in page.items], "next": page.next})


def shown(about: affinity.conversation.ConversationInfo) -> dict[str, Any]:
    """What a list shows of a ticket."""
    names = ("conversation_id", "title", "owner", "status", "pending_requests")
    return {name: getattr(about, name) for name in names} | {"updated_at": about.updated_at.isoformat()}


async def inbox(request: Request) -> Response:
    """What waits for a person, as it comes and goes: a live index."""
    feed = client_of(request).watch_requests(labels={"desk": "web"})

    async def lines() -> AsyncIterator[str]:
        async with feed:
            async for change in feed:
                yield sent(change.change, json.dumps(asdict(change.request), default=str))

    return stream(lines())


async def decide(request: Request) -> Response:
    """Allow a call of a tool, or refuse it."""
    body = await request.json()
    talk, request_id = ticket_of(request), request.path_params["request"]
    seq = await talk.answer(request_id, allowed=body["allowed"], reason=body.get("reason", ""))
    return JSONResponse({"seq": seq}, 202)


async def refuse(request: Request, error: Exception) -> Response:
    """What the caller did wrong."""
    status = 404 if isinstance(error, UnknownConversation) else 409 if isinstance(error, ClientError) else 422
    return JSONResponse({"error": str(error)}, status)


def create(url: str | None = None) -> Starlette:
    """The web application: one client for all requests."""

    @asynccontextmanager
    async def lifespan(api: Starlette) -> AsyncIterator[dict[str, affinity.Client]]:
        async with affinity.Client(url or os.environ.get("AFFINITY_URL", "sqlite:///desk.db")) as client:
            yield {"client": client}

    routes = [
        Route("/tickets", index),
        Route("/tickets/{ticket}", show),
        Route("/tickets/{ticket}/messages", say, methods=["POST"]),
        Route("/tickets/{ticket}/rating", rate, methods=["POST"]),
        Route("/tickets/{ticket}/requests/{request}", decide, methods=["POST"]),
        Route("/inbox", inbox),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=dict.fromkeys(REFUSED, refuse))
