"""Conversations whose payloads cannot be read."""

from __future__ import annotations

import dataclasses

from affinity import App, Conversations, Wake
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from affinity.testing import Env
from tests.payloads.xor import FormerKeyLost, XorCodec


@dataclasses.dataclass
class Chat:
    seen: int = 0


chats = Conversations(Chat, kind="chats")


@chats.on_wake
async def respond(wake: Wake, chat: Chat) -> None:
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.seen += 1
            wake.append(AgentMessage(f"heard {event.text} as {chat.seen}"))


app = App("coded-chats")
app.include(chats)


async def test_a_conversation_waits_for_the_right_key(env_url: str | None) -> None:
    """A worker with another key puts the wake back; nothing is lost, and no wake fails."""
    async with Env(app, url=env_url, codec=XorCodec()) as env:
        talk = env.client.conversation(chats, "c1")
        assert (await talk.ask(UserMessage("one"))).text == "heard one as 1"
        await env.drain(0)
        await talk.send(UserMessage("two"))
        env._codec = FormerKeyLost()
        await env._start_worker("wrong")
        await env.advance(300.0)
        assert (await env.client.handle("c1").status()).status == "running"
        await env.drain("wrong")
        env._codec = XorCodec()
        await env._start_worker("right")
        assert (await talk.ask(UserMessage("three"))).text == "heard three as 3"
        found = [item async for item in talk.events(follow=False)]
        assert len(found) > 9
        assert not any(
            isinstance(item, JournalEntry) and item.event.kind == "conversation.dead_letters" for item in found
        )


async def test_a_conversation_is_described_anew(env_url: str | None) -> None:
    """Its title is encoded on its way; so the call names its other arguments. An actor is known: it is audited."""
    async with Env(app, url=env_url, codec=XorCodec()) as env:
        talk = env.client.conversation(chats, "c1")
        await talk.ask(UserMessage("one"))
        with env.client.acting_as("ann"):
            await talk.describe(title="of one", labels={"tenant": "acme"})
        (found,) = [each async for each in env.client.list_conversations()]
        assert (found.title, dict(found.labels)) == ("of one", {"tenant": "acme"})
        assert [(each.user, each.action) for each in await env.client.audit()][:1] == [("ann", "describe")]
