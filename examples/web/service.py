"""A chat service over HTTP. Run with ``uvicorn service:api``, beside ``affinity worker service:app``."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import affinity
from affinity.errors import ClientError, UnknownInstance, WaitTimeout

app = affinity.App("chat")

Say = affinity.Event("message", str, reply=str)


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Stands for a language model."""
    return f"you said {text!r}"


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext) -> list[str]:
    """Answer messages until one says bye."""
    session_id, replies, text = await ctx.new_guid(), list[str](), ""
    while text != "bye":
        said = await ctx.schedule_wait(Say)
        text = said.data
        replies.append(await ctx.schedule_activity(answer, text).on_session(session_id))
        said.reply(replies[-1])
        ctx.set_custom_status({"reply": replies[-1], "turns": len(replies)})
    return replies


class Message(BaseModel):
    """What a user sends."""

    text: str


def create(url: str, *, with_worker: bool = False) -> FastAPI:
    """The web application: one client for all requests, and a worker beside it where that is wanted."""

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[dict[str, affinity.Client]]:
        async with AsyncExitStack() as stack:
            if with_worker:
                await stack.enter_async_context(affinity.Worker(app, url))
            yield {"client": await stack.enter_async_context(affinity.Client(url))}

    api = FastAPI(lifespan=lifespan)

    @api.exception_handler(ClientError)
    async def refuse(request: Request, error: ClientError) -> JSONResponse:
        status = 404 if isinstance(error, UnknownInstance) else 409
        return JSONResponse({"error": str(error)}, status)

    @api.put("/chats/{chat_id}", status_code=202)
    async def start(chat_id: str, request: Request) -> dict[str, str | None]:
        run = await request.state.client.start(conversation, instance_id=chat_id)
        return {"outcome": run.outcome}

    @api.post("/chats/{chat_id}/messages", response_model=None)
    async def send(chat_id: str, message: Message, request: Request) -> JSONResponse:
        key = request.headers.get("Idempotency-Key")
        try:
            reply = await request.state.client.ask(chat_id, Say(message.text), idempotency_key=key, timeout=20)
        except WaitTimeout:
            return JSONResponse({"status": "running"}, 202)
        return JSONResponse({"reply": reply})

    @api.get("/chats/{chat_id}")
    async def show(chat_id: str, request: Request) -> dict[str, Any]:
        chat = await request.state.client.status(chat_id)
        return {"status": chat.status, "shown": chat.custom_status}

    @api.get("/chats/{chat_id}/result", response_model=None)
    async def result(chat_id: str, request: Request) -> JSONResponse:
        try:
            replies = await request.state.client.wait(chat_id, timeout=20)
        except WaitTimeout:
            return JSONResponse({"status": "running"}, 202)
        return JSONResponse({"replies": replies})

    return api


api = create(os.environ.get("AFFINITY_URL", "sqlite:///affinity.db"))
