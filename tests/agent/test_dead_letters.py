"""A message that the model refuses is set aside, and the model reads it no more."""

from __future__ import annotations

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import UserMessage
from affinity.errors import WakeFailed
from affinity.testing import Env

pytestmark = pytest.mark.anyio


class Chat(BaseModel):
    """The state of a conversation."""

    paid: int = 0


async def test_a_message_that_the_model_refuses_costs_no_other_its_reply() -> None:
    """Neither those that came with it, which are tried one by one, nor later ones. Changes by tools count once."""
    inside, free = anyio.Event(), anyio.Event()
    paid: list[str] = []

    async def model(request: ModelRequest) -> ModelReply:
        texts = [each.text for each in request.events if isinstance(each, UserMessage)]
        if "bad" in texts and request.round > 1:
            raise ValueError("the content filter refuses this")
        if texts == ["first"]:
            inside.set()
            await free.wait()
        if request.round == 1:
            return ModelReply(calls=[ToolCall("", "pay", {"to": texts[-1]})], finish_reason="tool_calls")
        return ModelReply(content=f"re: {texts[-1]}")

    chats = affinity.Conversations(Chat, kind="chat")

    @chats.on_wake(retry=RetryPolicy(max_attempts=2, initial_interval=0.01))
    async def handle(wake: Wake, chat: Chat) -> None:
        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            paid.append(to)
            chat.paid += 1
            return f"paid {to}"

        await run_loop(wake, model=model, tools=[pay])

    app = affinity.App("refusing")
    app.include(chats)
    async with Env(app) as env:
        talk = env.client.conversation(chats, "c")
        await talk.send(UserMessage("first"))
        with anyio.fail_after(30):
            await inside.wait()
        numbers = [await talk.send(UserMessage(text)) for text in ("a", "bad", "b")]
        free.set()
        assert (await talk.reply(numbers[0])).text == "re: a"
        with pytest.raises(WakeFailed, match="content filter"):
            await talk.reply(numbers[1])
        assert (await talk.reply(numbers[2])).text == "re: b"
        assert (await talk.ask(UserMessage("c"))).text == "re: c"
        assert [each.event for each in await talk.dead_letters()] == [UserMessage("bad")]
        async with chats.open("c", store=env.client.session_store) as stored:
            assert stored.paid == len(paid)
    assert paid == ["first", "b", "a", "bad", "b", "c"]
