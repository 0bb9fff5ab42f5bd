"""On which event loop and in which task a client may be called, and what a cancelled wait does to an iteration."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import BaseModel

import affinity
from affinity import Client, paging
from affinity.client import inspection, moves
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from affinity.errors import ClientError, InvalidInput, IterationInterrupted, UnknownConversation, WrongEventLoop
from affinity.session import SessionFilter, manager
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class Chat(BaseModel):
    pass


chats = affinity.Conversations(Chat, kind="loops")


@chats.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    for part in range(4):
        wake.stream(part)
        await anyio.sleep(0.02)
    wake.append(AgentMessage("hi"))


app = affinity.App("loops")
app.include(chats)


@app.orchestration(name="noop")
async def noop(ctx: affinity.OrchestrationContext) -> None:
    pass


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with affinity.Worker(app, url), Client(url) as client:
        yield client


# --- loops ------------------------------------------------------------------------------------------------------------


async def test_what_does_no_io_works_in_a_thread_without_a_loop(client: Client) -> None:
    def in_thread() -> Any:
        talk = client.conversation(chats, "c")
        return talk, talk.events(after=0), client.handle("i"), client.session_store, client.session_manager

    talk, feed, *_ = await anyio.to_thread.run_sync(in_thread)
    assert (await talk.ask(UserMessage("x"), timeout=20)).text == "hi"
    assert (await anext(feed)).kind == "user.message"


def calls_of(client: Client) -> dict[str, Callable[[], Awaitable[object]]]:
    talk = client.conversation(chats, "c")
    feed = talk.events(follow=True)
    return {
        "start": lambda: client.start("noop"),
        "raise_event": lambda: client.raise_event("i", "e"),
        "ask": lambda: client.ask("i", affinity.Event("e", int)(1)),
        "wait": lambda: client.wait("i"),
        "status": lambda: client.status("i"),
        "cancel": lambda: client.cancel("i"),
        "delete": lambda: client.delete("i"),
        "workers": client.workers,
        "list_instances": lambda: anext(client.list_instances()),
        "list_conversations": lambda: anext(client.list_conversations()),
        "follow_session_moves": lambda: anext(client.follow_session_moves()),
        "talk.ask": lambda: talk.ask(UserMessage("x")),
        "talk.send": lambda: talk.send(UserMessage("x")),
        "talk.reply": lambda: talk.reply(1),
        "talk.status": talk.status,
        "talk.requests": talk.requests,
        "talk.fork": lambda: talk.fork("d"),
        "feed": lambda: anext(feed),
        "session_store": lambda: client.session_store.load("s"),
        "close": lambda: client.__aexit__(None, None, None),
    }


async def _refusal(call: Awaitable[object]) -> WrongEventLoop | None:
    try:
        await call
    except WrongEventLoop as error:
        return error
    return None


async def test_a_call_on_another_loop_is_refused_and_changes_nothing(client: Client) -> None:
    talk = client.conversation(chats, "c")
    feed = talk.events(follow=True)
    for name, call in calls_of(client).items():
        refusal = await anyio.to_thread.run_sync(lambda call=call: asyncio.run(_refusal(call())))  # type: ignore[misc]
        assert "anyio.from_thread.run" in str(refusal), name
    with anyio.fail_after(20):
        assert (await talk.ask(UserMessage("x"))).text == "hi"
        assert (await anext(feed)).kind == "user.message"
        await (await client.start("noop")).wait()


async def test_a_store_is_for_the_loop_that_has_opened_it(url: str) -> None:
    async with affinity.open_store(url) as store:

        async def load() -> None:
            with pytest.raises(WrongEventLoop, match="another store"):
                await store.load("s")

        await anyio.to_thread.run_sync(lambda: asyncio.run(load()))
        assert await store.load("s") is None


async def test_one_task_opens_a_client_and_a_worker_and_another_one_closes_them(url: str) -> None:
    opened: dict[str, Any] = {}

    async def first() -> None:
        opened["worker"] = await affinity.Worker(app, url).__aenter__()
        opened["client"] = await Client(url).__aenter__()

    async def second() -> None:
        talk = opened["client"].conversation(chats, "c")
        assert (await talk.ask(UserMessage("x"), timeout=20)).text == "hi"

    async def third() -> None:
        await opened["client"].__aexit__(None, None, None)
        await opened["worker"].__aexit__(None, None, None)

    for cell in (first, second, third):
        await asyncio.create_task(cell())
    with pytest.raises(ClientError, match="not open"):
        await opened["client"].status("i")
    assert opened["worker"].drained


async def test_waits_end_when_another_task_closes_the_client(url: str) -> None:
    client = await Client(url).__aenter__()
    talk = client.conversation(chats, "c")
    waits = [asyncio.create_task(one) for one in (talk.ask(UserMessage("x")), client.wait("i"))]
    await asyncio.sleep(0)
    await asyncio.create_task(client.__aexit__(None, None, None))
    for wait in waits:
        with pytest.raises(ClientError), anyio.fail_after(20):
            await wait


# --- cancelled waits --------------------------------------------------------------------------------------------------


async def cancelled(items: AsyncIterator[Any], seconds: float = 0.0) -> list[Any]:
    """The next item, if it comes in this time."""
    with anyio.move_on_after(seconds):
        return [await anext(items)]
    return []


async def test_a_feed_outlasts_cancelled_waits(client: Client) -> None:
    """However the waits are cut, each item comes once."""
    talk = client.conversation(chats, "c")
    await talk.send(UserMessage("x"))
    found: list[Any] = []
    waits = 0
    with anyio.fail_after(30):
        async with talk.events(follow=True) as feed:
            while not found or found[-1].kind != "conversation.idle":
                waits += 1
                found += await cancelled(feed, 0.001 * (waits % 12))
    entries = [item.seq for item in found if isinstance(item, JournalEntry)]
    assert entries == [*range(1, len(entries) + 1)]
    assert waits > len(found)
    parts = [item.value for item in found if item.kind == "stream.part"]
    assert parts == sorted(set(parts))  # a part that is read after the end of its wake is gone: its entry is there


async def test_a_feed_reads_on_after_an_error(client: Client) -> None:
    talk = client.conversation(chats, "c")
    feed = talk.events(follow=False)
    for _ in range(2):
        with pytest.raises(UnknownConversation):
            await anext(feed)
    await talk.ask(UserMessage("x"), timeout=20)
    assert (await anext(feed)).kind == "user.message"


async def test_a_feed_is_for_one_task(client: Client) -> None:
    talk = client.conversation(chats, "c")
    await talk.ask(UserMessage("x"), timeout=20)
    feed = talk.events(follow=True, kinds=["none.such"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancelled, feed, 60)
        await anyio.sleep(0)
        await anyio.sleep(0)
        with pytest.raises(ClientError, match="another task"):
            await anext(feed)
        tasks.cancel_scope.cancel()


async def test_a_feed_that_is_left_frees_what_it_holds(client: Client) -> None:
    talk = client.conversation(chats, "c")
    await talk.send(UserMessage("x"))
    async for _ in talk.events(follow=True):
        break
    gc.collect()
    await until(lambda: _is(not client.journals._changes._changes))


async def _is(value: bool) -> bool:
    return value


def _named(item: Any) -> Any:
    return getattr(item, "session_id", None) or item  # the times of a session go on


async def test_listings_outlast_cancelled_waits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"i{n}" for n in range(3)]
    for name in ids:
        await (await client.start("noop", instance_id=name)).wait(20)
        await client.conversation(chats, f"c{name}").ask(UserMessage("x"), timeout=20)
    for module in (inspection, manager, moves, paging):
        monkeypatch.setattr(module, "MAX_PAGE", 1)
    listings: dict[str, Callable[[], AsyncIterator[Any]]] = {
        "instances": lambda: client.list_instances(name="noop"),
        "conversations": client.list_conversations,
        "sessions": client.sessions,
        "records": client.session_manager.list,
        "history": lambda: client.history("i0"),
        "moves": lambda: client.follow_session_moves(after=0, poll_interval=0.01),
    }
    for name, listing in listings.items():
        least = 2 if name == "history" else 3
        items = listing()
        found: list[Any] = []
        with anyio.fail_after(20):
            with suppress(StopAsyncIteration):
                while name != "moves" or len(found) < 3:
                    found += await cancelled(items)
                    found.append(await anext(items))
        assert len({repr(each) for each in found}) >= least, name
        expected = [each async for each in listing()] if name != "moves" else found
        assert [*map(_named, found)] == [*map(_named, expected)], name


async def test_an_export_that_cannot_go_on_says_so(client: Client) -> None:
    talk = client.conversation(chats, "c")
    await talk.ask(UserMessage("x"), timeout=20)
    for export in (talk.export(), client.session_manager.export()):
        assert await cancelled(export) == []
        with pytest.raises(IterationInterrupted, match="export"):
            await anext(export)
    assert len([line async for line in talk.export()]) > 1
    with pytest.raises(InvalidInput):
        await anext(client.session_manager.list(SessionFilter(idle_for=-1.0)))
