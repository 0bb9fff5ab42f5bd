"""A conversation that waits for a person: its forks wait too, and retention keeps what the decision needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

import affinity
from affinity import Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, ToolContext, run_loop, tool
from affinity.conversation import ConfirmationAnswer, UserMessage
from affinity.testing import Env
from tests.conversation.application import Chat, make

pytestmark = pytest.mark.anyio


@dataclass
class Agent:
    """A conversation ``c`` whose model calls ``pay``, which a person has to allow, and repeats its result."""

    env: Env
    chats: affinity.Conversations[Chat]
    paid: list[str] = field(default_factory=list)
    """The conversations that have paid."""

    def talk(self, name: str = "c") -> affinity.ConversationHandle:
        return self.env.client.conversation(self.chats, name)

    async def decide(self, name: str, *, allowed: bool) -> str:
        """Answer the only request; the reply."""
        (request,) = await self.talk(name).requests()
        seq = await self.talk(name).answer(request.request_id, allowed=allowed, reason="" if allowed else "too much")
        return (await self.talk(name).reply(seq)).text


@asynccontextmanager
async def agent(server: str | None, within: float | None = None) -> AsyncIterator[Agent]:
    @tool(confirm=True, confirm_within=within)
    async def pay(context: ToolContext, cents: int) -> str:
        """Pay."""
        on.paid.append(context.wake.conversation_id)
        return "paid"

    async def model(request: ModelRequest) -> ModelReply:
        said = [m["content"] for m in request.openai_messages() if m["role"] == "tool"]
        if not said:
            return ModelReply(calls=[ToolCall("c1", "pay", {"cents": 5})])
        return ModelReply(content=str(said[-1]))

    async def handler(wake: Wake, _: Chat) -> None:
        await run_loop(wake, model=model, tools=[pay])

    chats, app = make(handler), affinity.App("agents")
    app.include(chats)
    async with Env(app, url=server) as env:
        on = Agent(env, chats)
        assert (await on.talk().ask(UserMessage("pay"))).requires_action
        yield on


@pytest.mark.parametrize("order", [("fork", "c"), ("c", "fork")])
async def test_a_person_decides_in_the_fork_and_in_the_source(server: str | None, order: tuple[str, str]) -> None:
    async with agent(server) as on:
        fork = await on.talk().fork("fork")
        assert await fork.status() == "requires_action"
        (asked,) = await on.talk().requests()
        assert await fork.requests() == [replace(asked, conversation_id="fork")]
        replies = {name: await on.decide(name, allowed=name == "c") for name in order}
        assert (replies["c"], on.paid) == ("paid", ["c"])
        assert "too much" in replies["fork"]
        assert [await talk.requests() for talk in (fork, on.talk())] == [[], []]


@pytest.mark.parametrize("make", ["fork", "detach"])
async def test_what_if_the_person_had_decided_otherwise(server: str | None, make: str) -> None:
    """A fork at the entry before the answer, when the source has long gone on."""
    async with agent(server) as on:
        talk = on.talk()
        await on.decide("c", allowed=True)
        await talk.ask(UserMessage("thanks"))
        (answer,) = await talk.history(kinds=[ConfirmationAnswer])
        fork = await (talk.fork if make == "fork" else talk.detach)("fork", at=answer.seq - 1)
        assert await fork.status() == "requires_action"
        assert "too much" in await on.decide("fork", allowed=False)
        assert on.paid == ["c"]
        later = await talk.fork("later", at=answer.seq)
        assert await later.requests() == []


async def test_a_call_in_a_fork_expires_with_that_of_its_source(server: str | None) -> None:
    """The instance of the fork wakes it; it has had no event of its own."""
    async with agent(server, within=3600.0) as on:
        fork = await on.talk().fork("fork")
        assert [each.expires_at for each in await fork.requests()] == [
            each.expires_at for each in await on.talk().requests()
        ]
        await on.env.advance(timedelta(hours=2))
        assert [await talk.requests() for talk in (fork, on.talk())] == [[], []]
        for talk in (fork, on.talk()):
            (answer,) = await talk.history(kinds=[ConfirmationAnswer])
            assert isinstance(answer.event, ConfirmationAnswer)
            assert answer.event.expired
        assert on.paid == []


async def test_a_call_that_was_decided_in_the_source_does_not_expire_in_the_fork(server: str | None) -> None:
    async with agent(server, within=3600.0) as on:
        await on.decide("c", allowed=False)
        (answer,) = await on.talk().history(kinds=[ConfirmationAnswer])
        fork = await on.talk().fork("fork", at=answer.seq - 1)
        await on.env.advance(timedelta(hours=2))
        assert await on.decide("fork", allowed=True) == "paid"
        assert (on.paid, await fork.requests()) == (["fork"], [])


async def test_retention_keeps_a_call_until_its_answer_is_processed(server: str | None) -> None:
    """The model's call is committed before its request. While no wake has read the answer, it is there."""
    async with agent(server) as on:
        talk = on.talk()
        (request,) = await talk.requests()
        on.env.pause()
        assert await on.env.client.prune_conversations(max_entries=1) == 1  # the message of the user
        seq = await talk.answer(request.request_id, allowed=True)
        assert await on.env.client.prune_conversations(max_entries=1) == 0
        await on.env.resume()
        assert (await talk.reply(seq)).text == "paid"
        assert await on.env.client.prune_conversations(max_entries=1) > 0
