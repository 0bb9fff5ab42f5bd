"""Handlers, and activities of instances, that wait in a circle: the database finds it. (Within one process waits that
close a circle are refused before; that check is left out here.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import affinity
from affinity import Client, Wake
from affinity.client import waits as client_waits
from affinity.conversation import AgentMessage, Reply, UserMessage
from affinity.conversation.handle import ConversationHandle
from affinity.errors import WakeMisuse
from tests.conversation.application import Chat, make, stage
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def only_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between processes."""

    async def allow(_: ConversationHandle) -> None: ...

    monkeypatch.setattr(ConversationHandle, "_check_not_blocked", allow)


async def ask(talk: ConversationHandle) -> None:
    await talk.ask(UserMessage("you"))


async def settle(talk: ConversationHandle) -> None:
    await talk.ask(UserMessage("you"), until="settled")


async def reply(talk: ConversationHandle) -> None:
    await talk.reply(await talk.send(UserMessage("you")))


async def stream(talk: ConversationHandle) -> None:
    async for item in talk.stream_reply(UserMessage("you"), heartbeat=0.2):
        assert not isinstance(item, Reply) or item.text


WAYS = {way.__name__: way for way in (ask, settle, reply, stream)}
Wait = Callable[[ConversationHandle], Awaitable[None]]


async def play(url: str, names: str, wait: Wait) -> list[str]:
    """Each conversation waits for the next one, and the last one for the first; returns which were refused."""
    refused: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        following = names[(names.index(wake.conversation_id) + 1) % len(names)]
        if chat.wakes:
            return wake.append(AgentMessage("again"))
        chat.wakes += 1
        try:
            await wait(clients[0].conversation(conversations, following))
        except WakeMisuse:
            refused.append(wake.conversation_id)
        return wake.append(AgentMessage("done"))

    conversations = make(handler)
    clients: list[Client] = []
    async with stage(url, conversations) as on:
        clients.append(on.client)
        with anyio.fail_after(60):
            await on.talk(names[0]).ask(UserMessage("go"))
        await until(lambda: _no_notes(on.client, names))
    return refused


async def _no_notes(client: Client, names: str) -> bool:
    return not any([await client._provider.get_waits(name) for name in names])


@pytest.mark.parametrize("way", WAYS)
async def test_one_handler_of_a_circle_is_refused_and_the_others_go_on(url: str, way: str) -> None:
    assert await play(url, "ab", WAYS[way]) == ["b"]


async def test_a_circle_of_three(url: str) -> None:
    assert await play(url, "abc", ask) == ["c"]


async def test_handlers_that_begin_to_wait_at_the_same_moment(url: str) -> None:
    """Exactly one is refused."""
    met, refused = [anyio.Event(), anyio.Event()], list[str]()

    async def handler(wake: Wake, chat: Chat) -> None:
        if chat.wakes:
            return wake.append(AgentMessage("again"))
        chat.wakes += 1
        me = "ab".index(wake.conversation_id)
        met[me].set()
        await met[1 - me].wait()
        try:
            await ask(clients[0].conversation(conversations, "ba"[me]))
        except WakeMisuse:
            refused.append(wake.conversation_id)
        return wake.append(AgentMessage("done"))

    conversations = make(handler)
    clients: list[Client] = []
    async with stage(url, conversations) as on, anyio.create_task_group() as group:
        clients.append(on.client)
        with anyio.fail_after(60):
            for name in "ab":
                group.start_soon(on.talk(name).ask, UserMessage("go"))
    assert len(refused) == 1


async def test_a_circle_through_an_instance(url: str) -> None:
    """The handler waits for an instance, whose activity asks the conversation of the handler."""
    refused: list[str] = []
    app = affinity.App("circle")

    @app.activity
    async def ask_back(ctx: affinity.ActivityContext, name: str) -> str:
        try:
            await ask(clients[0].conversation(conversations, name))
        except WakeMisuse as error:
            refused.append(str(error))
        return "done"

    @app.orchestration
    async def work(ctx: affinity.OrchestrationContext, name: str) -> str:
        return await ctx.schedule_activity(ask_back, name).on_session(name)

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("go")]:
            handle = await clients[0].start(work, wake.conversation_id, instance_id="work")
            await handle.wait()
        wake.append(AgentMessage("done"))

    conversations = make(handler)
    app.include(conversations)
    clients: list[Client] = []
    async with affinity.Worker(app, url), Client(url) as client:
        clients.append(client)
        await client.conversation(conversations, "c").ask(UserMessage("go"), timeout=60)
    (why,) = refused
    assert "'work' → 'c' → 'work'" in why


async def test_an_activity_that_waits_for_its_own_instance(url: str) -> None:
    """The error names what an activity can do."""
    app = affinity.App("circle")

    @app.activity
    async def wait_for_own(ctx: affinity.ActivityContext) -> str:
        with pytest.raises(WakeMisuse) as caught:
            await clients[0].wait(ctx.instance_id)
        return str(caught.value)

    @app.orchestration
    async def work(ctx: affinity.OrchestrationContext) -> str:
        return await ctx.schedule_activity(wait_for_own)

    clients: list[Client] = []
    async with affinity.Worker(app, url), Client(url) as client:
        clients.append(client)
        why = await (await client.start(work, instance_id="own")).wait(timeout=60)
    assert "'own' → 'own'. Start it without waiting" in why
    assert "wake" not in why


async def test_a_wait_that_is_no_circle_is_explained_and_leaves_no_note(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short one is never noted."""
    gate = anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.conversation_id == "b":
            await gate.wait()
        elif wake.events == [UserMessage("go")]:
            await ask(clients[0].conversation(conversations, "b"))
        wake.append(AgentMessage("done"))

    conversations = make(handler)
    clients: list[Any] = []
    async with stage(url, conversations) as on, anyio.create_task_group() as group:
        clients.append(on.client)
        seq = await on.talk("a").send(UserMessage("go"))
        group.start_soon(on.talk("a").reply, seq)

        async def is_explained() -> bool:
            why = await on.client.explain("a")
            return (
                why is not None
                and why.sentence.startswith("'b' waits for its wake, which runs on worker ")
                and why.sentence.endswith("; 'a' waits for its wake, which waits for 'b'")
            )

        await until(is_explained)
        assert len(await on.client._provider.get_waits("a")) == 1
        gate.set()
        await until(lambda: _no_notes(on.client, "ab"))
        monkeypatch.setattr(client_waits.NotedWait, "_look", None)  # it would raise
        await on.talk("a").ask(UserMessage("go"), timeout=30)
