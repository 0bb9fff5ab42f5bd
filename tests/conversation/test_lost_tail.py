"""A database that has lost what it had committed: no client is given the reply to another one's event, and no reader
passes over entries that have the numbers of lost ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from affinity import App, Client, Conversations, OrchestrationContext, RuntimeOptions, Wake, Worker, migrate
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from affinity.conversation.follow import EntryNumber
from affinity.errors import TimelineChanged, UnknownEntry
from affinity.orchestration.typed import Event
from tests.conversation.application import Chat, make
from tests.servers.lost_tail import Pair, copy
from tests.servers.programs import LocalServer, programs
from tests.support.waiting import run_on_a_thread

pytestmark = pytest.mark.anyio

OPTIONS: Final = RuntimeOptions.make(
    worker_node_id="w", worker_lease_timeout=3.0, work_item_lock_timeout=6.0, poll_interval=0.3, drain_timeout=3.0
)


class File:
    """A SQLite file and its backup."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = Path(url.removeprefix("sqlite:///"))

    def cut(self) -> None:
        """From now on, all is lost in the end."""
        copy(self._path, self._path.with_name("backup.db"))
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            connection.execute("UPDATE timeline SET reached = reached + 1000")  # as renewals of workers do

    def lose(self) -> None:
        """Go back to the backup."""
        copy(self._path.with_name("backup.db"), self._path)


class Servers:
    """A primary that is followed by an asynchronous standby."""

    def __init__(self, pair: Pair) -> None:
        self.url = pair.url
        self.cut = pair.standby.cut
        self.lose = pair.fail_over


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One that can lose its tail."""
    if request.param == "sqlite":
        yield File(request.getfixturevalue("sqlite_url"))
        return
    offer = sorted(programs(), key=lambda offer: offer.major)[-1]
    with offer.open() as primary:
        assert isinstance(primary, LocalServer)
        with primary.standby() as standby:
            pair = Pair(primary, standby)
            run_on_a_thread(migrate, pair.url)
            yield Servers(pair)


def serving(database: Any, conversations: Conversations[Any]) -> Worker:
    app = App("lost")
    app.include(conversations)
    return Worker(app, database.url, OPTIONS)


async def test_an_ask_gets_the_reply_to_its_own_event(database: Any) -> None:
    """Its event was lost, and another one has its number: it is sent again, under its id."""
    begun, go = anyio.Event(), anyio.Event()

    async def answer(wake: Wake, _: Chat) -> None:
        for event in wake.events:
            assert isinstance(event, UserMessage)
            if event.text == "alice":
                begun.set()
                await go.wait()
            wake.append(AgentMessage(f"re: {event.text}"))

    conversations = make(answer)
    replies: list[Any] = []
    async with serving(database, conversations), Client(database.url) as alice:
        talk = alice.conversation(conversations, "c")
        await talk.ask(UserMessage("kept"), timeout=60)
        database.cut()

        async def ask() -> None:
            replies.append(await talk.ask(UserMessage("alice"), event_id="of alice", timeout=120))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await begun.wait()
            await talk.status()
            database.lose()
            go.set()
            async with Client(database.url) as bob:
                other = await bob.conversation(conversations, "c").ask(UserMessage("bob"), timeout=60)
                assert "re: bob" in [getattr(event, "text", "") for event in other.events]
    (reply,) = replies
    assert "re: alice" in [getattr(event, "text", "") for event in reply.events]


async def test_numbers_and_positions_of_a_lost_past_are_refused(database: Any) -> None:
    """Of a feed that follows, one that comes back, and a reply; a read from the beginning gives the present entries."""
    conversations = make()
    async with serving(database, conversations), Client(database.url) as client:
        talk = client.conversation(conversations, "c")
        await talk.ask(UserMessage("kept"), timeout=60)
        database.cut()
        number = await talk.send(UserMessage("lost"))
        assert (await talk.reply(number, timeout=60)).text == "re: lost"
        refused: list[TimelineChanged] = []
        async with talk.events(follow=True, stream=False) as feed:
            async for item in feed:
                if isinstance(item, JournalEntry) and item.kind == "conversation.idle" and item.seq > number:
                    break
            position = feed.position
            database.lose()
            async with Client(database.url) as other:
                again = other.conversation(conversations, "c")
                for n in range(3):
                    await again.ask(UserMessage(f"new {n}"), timeout=60)
                with pytest.raises(TimelineChanged) as caught:
                    async for _ in feed:
                        pass
                refused.append(caught.value)
                for after in (position, number):
                    with pytest.raises(TimelineChanged):
                        await anext(again.events(after=after))
                with pytest.raises(TimelineChanged):
                    await again.reply(number, timeout=60)
        with pytest.raises(TimelineChanged):
            await talk.reply(int(number), timeout=60)  # this handle is of before
        assert (await talk.reply(await talk.send(UserMessage("next")), timeout=60)).text == "re: next"
        read = [item async for item in talk.events(after=refused[0].after, stream=False)]
        journal = await talk.history(limit=1000)
    assert [(each.seq, each.kind) for each in read if isinstance(each, JournalEntry)] == [
        (each.seq, each.kind) for each in journal
    ]
    assert "lost" not in [getattr(each.event, "text", "") for each in journal]


async def test_a_reply_to_an_event_that_is_sent_again(database: Any) -> None:
    """Of an orchestration: it was lost before any worker had it."""
    app = App("asked")
    question = Event("question", str, reply=str)

    @app.orchestration
    async def oracle(ctx: OrchestrationContext, _: None) -> None:
        for _round in range(2):
            asked = await ctx.schedule_wait(question)
            asked.reply(f"re: {asked.data}")

    async with Client(database.url) as client:
        async with Worker(app, database.url, OPTIONS):
            await client.start(oracle, None, instance_id="o")
            assert await client.ask("o", question("kept"), timeout=60) == "re: kept"
        database.cut()
        got: list[str] = []

        async def ask() -> None:
            got.append(await client.ask("o", question("mine"), timeout=120))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while (await client.statistics()).messages["waiting"] < 1:
                await anyio.sleep(0.02)
            database.lose()
            async with Worker(app, database.url, OPTIONS):
                while not got:
                    await anyio.sleep(0.05)
    assert got == ["re: mine"]


async def test_a_position_knows_its_conversation(url: str) -> None:
    """Of one that was deleted, it is refused by the next one with this id, however long that is."""
    conversations = make()
    async with Client(url) as client:
        talk = client.conversation(conversations, "c")
        number = await talk.send(UserMessage("one"))
        assert isinstance(number, EntryNumber)
        feed = talk.events()
        await anext(feed)
        await talk.delete()
        for text in ("another", "and another"):
            await talk.send(UserMessage(text))
        for after in (feed.position, number):
            with pytest.raises(UnknownEntry):
                await anext(talk.events(after=after))
        with pytest.raises(UnknownEntry):
            await anext(talk.events(after=f"{feed.position}.1.1.wake"))
