"""Workers that are killed before or after one particular commit: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Final

import pytest
from anyio import to_thread

import affinity
from affinity import Client, ConversationHandle
from affinity.conversation import AgentMessage, JournalEntry, SpanCompleted, UserMessage
from tests.conversation.application import Chat, until
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import WorkerProcess, Workers

APP: Final = "tests.conversation.cut_app:app"
PATIENCE: Final = 60.0

conversations = affinity.Conversations(Chat, kind="cut")
"""As in the application, whose import would cut calls of the tests."""


async def ask(client: Client, text: str, name: str = "c") -> None:
    """Ask with the text as event id: the same again is the same question."""
    talk = client.conversation(conversations, name)
    reply = await talk.ask(UserMessage(text), event_id=text, timeout=PATIENCE)
    assert AgentMessage(f"re: {text}") in reply.events


async def send(client: Client, text: str) -> None:
    """As a client that is killed before it has the reply; `ask` asks again."""
    await client.conversation(conversations, "c").send(UserMessage(text), event_id=text)


async def has_died(worker: WorkerProcess) -> None:
    assert await to_thread.run_sync(worker.wait) == -signal.SIGKILL


async def journal(talk: ConversationHandle) -> list[JournalEntry]:
    return [item async for item in talk.events(stream=False) if isinstance(item, JournalEntry)]


async def check(client: Client, *texts: str) -> list[str]:
    """Each input is there once and was answered once, in one closed wake; the other messages that were appended."""
    talk = client.conversation(conversations, "c")
    entries = await journal(talk)
    assert [each.seq for each in entries] == list(range(1, len(entries) + 1))
    assert [each.event.text for each in entries if isinstance(each.event, UserMessage)] == list(texts)
    said = [each.event.text for each in entries if isinstance(each.event, AgentMessage)]
    assert [text for text in said if text.startswith("re: ")] == [f"re: {text}" for text in texts]
    begun = Counter(each.wake_id for each in entries if each.kind == "span.started")
    ended = Counter(each.wake_id for each in entries if isinstance(each.event, SpanCompleted))
    assert begun == ended == dict.fromkeys(begun, 1)
    async with conversations.open("c", store=client.session_store) as chat:
        assert chat.received == list(texts)
    return [text for text in said if not text.startswith("re: ")]


@pytest.mark.parametrize("where", ["fetch after", "commit before", "commit after"])
@on_all_databases
async def test_a_worker_dies_on_the_way_of_an_ask(workers: Workers, client: Client, where: str) -> None:
    """After the append and the fetch; after the handler; after the commit and before the notification."""
    first = workers.start("first", APP)
    await ask(client, "one")
    await (ask if where == "fetch after" else send)(client, f"cut {where}")  # else it is the wake itself that is cut
    await send(client, "two")
    await has_died(first)
    workers.start("first", APP)
    for text in (f"cut {where}", "two", "three"):
        await ask(client, text)
    assert await check(client, "one", f"cut {where}", "two", "three") == []


@pytest.mark.parametrize("where", ["ack before", "ack after"])
@on_all_databases
async def test_a_worker_dies_whose_wakes_belong_to_an_instance_elsewhere(
    workers: Workers, client: Client, where: str
) -> None:
    owner = workers.start("owner", APP)
    await ask(client, "one")
    holder = workers.start("holder", APP)
    assert await client.move_session("c", "holder", wait=True) == "moved"
    await send(client, f"cut {where}")
    await has_died(holder)
    workers.start("holder", APP)
    for text in (f"cut {where}", "two"):
        await ask(client, text)
    assert await check(client, "one", f"cut {where}", "two") == []
    assert owner.is_running


@pytest.mark.parametrize("where", ["commit before", "commit after"])
@on_all_databases
async def test_a_worker_dies_while_a_wake_makes_others(workers: Workers, client: Client, where: str) -> None:
    """Forks, a merge, a summary, a child, a revisit and a request: all of the wake, or nothing of it."""
    first = workers.start("first", APP)
    for name in ("left", "right"):
        await ask(client, name, name)
    await ask(client, "one")
    await send(client, f"cut {where} all")
    await has_died(first)
    workers.start("first", APP)
    for text in (f"cut {where} all", "two"):
        await ask(client, text)
    talk = client.conversation(conversations, "c")

    async def more() -> bool:
        said = [each.event for each in await journal(talk)]
        return AgentMessage("due: soon") in said and AgentMessage("the child has ended") in said

    await until(more, seconds=PATIENCE)
    others = await check(client, "one", f"cut {where} all", "two")
    assert sorted(others) == ["due: soon", "the child has ended"]
    (request,) = await talk.requests()
    await talk.answer(request.request_id, allowed=True)
    for name in ("fork", "beside", "detached", "merged", "short", "child"):
        await ask(client, "last", name)
        made = [each.event for each in await journal(client.conversation(conversations, name))]
        texts = Counter(event.text for event in made if isinstance(event, UserMessage | AgentMessage))
        assert set(texts.values()) == {1}, (name, texts)
