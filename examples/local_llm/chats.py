"""The application: a conversation is a session, and every message an orchestration of one turn.

The state of a session is its transcript and, where slots are saved, the content of its slot after the last turn: both
commit with the reply. The slot itself, with the KV cache in it, is a resource: it lives beside the state in the memory
of the session's holder.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from anyio.to_thread import run_sync
from pydantic import BaseModel

import affinity
from affinity import Resource, Sessions
from examples.local_llm.model import MODEL_ID, Completion, Message, Model, ModelError, Slots

Mode: TypeAlias = Literal["slot", "transcript", "anywhere"]
"""On a session whose state has the slot; on a session whose state has only the transcript; without a session."""

Start: TypeAlias = Literal["first", "warm", "restored", "rebuilt", "anywhere"]
"""How a turn began: the conversation's first; in the slot of the last turn; in a slot that was read back; in an empty
slot; in whatever the model of whichever worker remembers.
"""

SYSTEM: Message = Message(role="system", content="You are a friendly assistant. Answer in one or two short sentences.")


class Chat(BaseModel):
    """The state of a session."""

    messages: list[Message] = [SYSTEM]
    slot: bytes = b""
    slot_model: str = ""  # what can read it


class ChatCodec:
    """One line of JSON and the slot as it is: in base64, within JSON, it would be a third larger."""

    def dump(self, chat: Chat) -> bytes:
        return b"\n".join((chat.model_dump_json(exclude={"slot"}).encode(), chat.slot))

    def parse(self, data: bytes) -> Any:
        line, _, slot = data.partition(b"\n")
        return Chat.model_validate_json(line).model_dump() | {"slot": slot}

    def build(self, plain: Any) -> Chat:
        return Chat.model_validate(plain)


class Said(BaseModel):
    """A message of a user."""

    session_id: str
    text: str
    before: list[Message]  # without a session: all that was said before


class TimedTurn(BaseModel):
    """A reply, and what it took. Times are seconds."""

    worker: str
    start: Start
    loading: float = 0.0  # until the slot was ready: reading the state, and restoring the slot
    done: Completion
    saving: float = 0.0  # taking the content of the slot
    saved: int = 0  # its bytes


@dataclass(slots=True)
class Cache:
    """A slot that belongs to a session."""

    slot: int
    ready: bool = False


def build_app(mode: Mode, model: Model, slots: int) -> affinity.App:
    """What a worker runs. It keeps one session less than its model has slots: the newcomer's is taken first."""
    app = affinity.App("local-llm")
    free = Slots(slots)
    caches = Resource[Cache](
        open=lambda session_id: Cache(free.take()), close=lambda session_id, cache: free.give_back(cache.slot)
    )
    chats = Sessions[Chat](Chat, kind="chat", codec=ChatCodec(), max_sessions=slots - 1)
    app.include(chats)

    @app.activity
    async def answer(ctx: affinity.ActivityContext, said: Said) -> TimedTurn:
        begun = time.perf_counter()
        opening = chats.open(ctx)
        async with opening as chat:
            cache = await opening.resource(caches)
            start = await _prepare(model, cache, chat)
            loading = time.perf_counter() - begun
            chat.messages.append(Message(role="user", content=said.text))
            # If this turn fails, the slot has more in it than the state says: the model compares, and evaluates again.
            done = await run_sync(model.complete, chat.messages, cache.slot)
            chat.messages.append(Message(role="assistant", content=done.text))
            ended = time.perf_counter()
            if mode == "slot":
                chat.slot, chat.slot_model = await run_sync(model.save, cache.slot), MODEL_ID
            saving = time.perf_counter() - ended
            return TimedTurn(
                worker=ctx.worker_id, start=start, loading=loading, done=done, saving=saving, saved=len(chat.slot)
            )

    @app.activity
    async def answer_anywhere(ctx: affinity.ActivityContext, said: Said) -> TimedTurn:
        done = await run_sync(model.complete, [*said.before, Message(role="user", content=said.text)], None)
        return TimedTurn(worker=ctx.worker_id, start="anywhere" if len(said.before) > 1 else "first", done=done)

    @app.orchestration
    async def turn(ctx: affinity.OrchestrationContext, said: Said) -> TimedTurn:
        if mode == "anywhere":
            return await ctx.schedule_activity(answer_anywhere, said)
        return await ctx.schedule_activity(answer, said).on_session(said.session_id)

    return app


async def _prepare(model: Model, cache: Cache, chat: Chat) -> Start:
    """See to it that the slot has in it what the conversation's last turn left, if that is known."""
    if cache.ready:
        return "warm"
    cache.ready = True
    await run_sync(model.erase, cache.slot)  # what another session has left there
    if len(chat.messages) == 1:
        return "first"
    # What is saved can always be done without: a worker with another model, or (llama.cpp wants it so) with another
    # number of slots, reads the transcript.
    if chat.slot_model == MODEL_ID:
        with suppress(ModelError):
            await run_sync(model.restore, cache.slot, chat.slot)
            return "restored"
    return "rebuilt"
