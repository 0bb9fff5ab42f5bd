"""Conversations under fire: workers are killed and paused while clients ask, lose replies and follow. In the end every
event is there once, every ask has its answer, every follower has seen the same, and the state is what the journal makes
of it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio
import pytest

from affinity import Client, ConversationHandle
from affinity.conversation import AgentMessage, FeedItem, JournalEntry, Reply, Retracted, Streamed, UserMessage
from affinity.conversation.journal import JournalQuery
from affinity.conversation.store.contract import journals_of
from affinity.errors import ConnectionLost, UnknownConversation, WaitTimeout
from affinity.provider import open_provider
from affinity.provider.contract import Provider
from tests.conversation.crash_app import WORDS, Log, crash, fold
from tests.support.fault_injection import KILL_EVERY, PAUSE, FaultInjector
from tests.support.worker_processes import open_workers

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

CONVERSATIONS: Final = 200
SHARED: Final = 50
"""So many of them have two senders."""

SECONDS: Final = 20.0
"""Of kills and pauses; ``--crash-seconds`` and ``--crash-pause`` make it harder."""

SEEN: Final = 10
"""Attempts whose streams followers have seen, at least: on a busy machine many wakes end between two looks."""

OPTIONS: Final = {"max_sessions_per_runtime": CONVERSATIONS, "max_attempts": 1_000}

SAID: Final = " ".join(WORDS) + " "
"""The streamed text of each input."""

Item = tuple[str, Any]
"""Of a feed: ("entry", seq), ("part", (wake, attempt, number, text)) or ("void", (wake, attempt, replaced))."""


class LostReplies:
    """A provider that loses one reply in ten to an append."""

    def __init__(self, provider: Provider, dice: random.Random) -> None:
        self._provider, self._dice = provider, dice
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def append_journal(self, *arguments: Any, **hints: Any) -> Any:
        found = await journals_of(self._provider).append_journal(*arguments, **hints)
        if self._dice.random() < 0.1:
            self.lost += 1
            raise ConnectionLost("the reply was lost")
        return found


@asynccontextmanager
async def unreliable_client(url: str, dice: random.Random) -> AsyncIterator[tuple[Client, LostReplies]]:
    provider = await open_provider(url, one_connection=True)
    losing = LostReplies(provider, dice)
    try:
        async with Client.from_provider(cast(Provider, losing)) as client:
            yield client, losing
    finally:
        await provider.aclose()


@dataclass
class Sender:
    """Asks one after the other. It gives up in the middle of some, and asks them again with the same event id."""

    talk: ConversationHandle
    name: str
    dice: random.Random
    asked: dict[str, Reply] = field(default_factory=dict)
    repeats: int = 0

    async def run(self, stop: anyio.Event) -> None:
        while not stop.is_set():
            await anyio.sleep(self.dice.uniform(0.0, 2.0))
            text = f"{self.name}-{len(self.asked)}"
            self.asked[text] = await self._ask(text)

    async def _ask(self, text: str) -> Reply:
        while True:
            patience = self.dice.choice([0.0, 0.05, 0.5, 5.0, 60.0])
            try:
                return await self.talk.ask(UserMessage(text), event_id=text, timeout=patience)
            except WaitTimeout:
                self.repeats += 1


@dataclass
class Follower:
    """Follows a conversation; it leaves and comes back at the position that it has reached."""

    talk: ConversationHandle
    dice: random.Random
    items: list[Item] = field(default_factory=list)
    position: str = "0"
    returns: int = 0

    async def run(self) -> None:
        while True:
            try:
                await self._follow(self.dice.randint(1, 200))
            except UnknownConversation:  # it has not begun
                await anyio.sleep(0.1)

    async def _follow(self, count: int) -> None:
        async with self.talk.events(after=self.position, follow=True) as feed:
            for _ in range(count):
                self.items.append(_item(await anext(feed)))
                self.position = feed.position
        self.returns += 1

    @property
    def seqs(self) -> list[int]:
        return [value for kind, value in self.items if kind == "entry"]


def _item(item: FeedItem) -> Item:
    if isinstance(item, JournalEntry):
        return "entry", item.seq
    if isinstance(item, Streamed):
        return "part", (item.wake_id, item.attempt, item.number, item.text)
    assert isinstance(item, Retracted)
    return "void", (item.wake_id, item.attempt, item.replaced)


def check_streams(items: Sequence[Item]) -> int:
    """Parts of an attempt come in order without gap or repeat, and are void before anything else of the stream comes;
    the number of attempts that were seen.
    """
    current: tuple[str, int] | None = None
    text, last, attempts = "", 0, 0
    for kind, value in items:
        if kind == "part":
            wake_id, attempt, number, words = value
            if (wake_id, attempt) != current:
                assert current is None, (current, value)
                assert number == 1, value
                current, text, last, attempts = (wake_id, attempt), "", 0, attempts + 1
            assert number == last + 1, (last, value)
            text, last = text + words, number
            assert (SAID * (len(text) // len(SAID) + 1)).startswith(text), text
        elif kind == "void":
            assert value[:2] == current, (current, value)
            current = None
    return attempts


async def check(talk: ConversationHandle, senders: Sequence[Sender], follower: Follower, client: Client) -> None:
    """Compare what was seen with the journal, and the journal with itself."""
    journal = [item async for item in talk.events(stream=False)]
    entries = [item for item in journal if isinstance(item, JournalEntry)]
    assert [each.seq for each in entries] == list(range(1, len(entries) + 1))
    asked = [each for each in entries if isinstance(each.event, UserMessage)]
    texts = [each.event.text for each in asked if isinstance(each.event, UserMessage)]
    expected = Counter(text for sender in senders for text in sender.asked)
    assert Counter(texts) == expected
    assert [each.event_id for each in asked] == texts
    state, answers = fold(texts)
    assert [each.event.text for each in entries if isinstance(each.event, AgentMessage)] == answers
    record = await client.session_store.load(talk.conversation_id)
    assert record is not None
    assert Log.model_validate(json.loads(record.state)) == state
    replies = {text: reply for sender in senders for text, reply in sender.asked.items()}
    for each, text, answer in zip(asked, texts, answers, strict=True):
        reply = replies[text]
        assert reply.seq == each.seq
        assert AgentMessage(answer) in reply.events, (answer, reply.events)
    assert follower.seqs == [each.seq for each in entries]


@pytest.mark.parametrize("postgres_age", ["old"], indirect=True)
async def test_every_event_is_there_once_answered_once_and_seen_once(
    sqlite_url: str, postgres_migrated: str, pytestconfig: pytest.Config
) -> None:
    """On both databases, side by side."""
    seconds = pytestconfig.getoption("--crash-seconds") or SECONDS
    pause = pytestconfig.getoption("--crash-pause") or PAUSE
    async with anyio.create_task_group() as tasks:
        for url in (sqlite_url, postgres_migrated):
            tasks.start_soon(_survive, url, seconds, pause)


async def _survive(url: str, seconds: float, pause: float) -> None:
    dice = random.Random(7)
    ids = [f"talk-{number}" for number in range(CONVERSATIONS)]
    async with Client(url) as reader, unreliable_client(url, dice) as (client, losing):
        with open_workers(url) as workers:
            faults = FaultInjector(workers, "tests.conversation.crash_app:app", pause=pause, **OPTIONS)
            await faults.start()
            followers = {one: Follower(reader.conversation(crash, one), dice) for one in ids}
            names = [(one, f"{one}-a") for one in ids] + [(one, f"{one}-b") for one in ids[:SHARED]]
            senders = [(one, Sender(client.conversation(crash, one), name, dice)) for one, name in names]
            stop = anyio.Event()
            async with anyio.create_task_group() as following:
                for follower in followers.values():
                    following.start_soon(follower.run)
                async with anyio.create_task_group() as sending:
                    for _, sender in senders:
                        sending.start_soon(sender.run, stop)
                    await faults.inject(seconds)
                    stop.set()
                with anyio.fail_after(60):
                    for one, follower in followers.items():
                        last = await reader.journals.read(JournalQuery(session_id=one, limit=1))
                        assert last is not None
                        while not follower.seqs or follower.seqs[-1] < last.last_seq:
                            await anyio.sleep(0.05)
                following.cancel_scope.cancel()
        for one, follower in followers.items():
            own = [sender for name, sender in senders if name == one]
            await check(follower.talk, own, follower, reader)
    attempts = sum(check_streams(follower.items) for follower in followers.values())
    assert attempts >= SEEN, attempts
    assert sum(len(sender.asked) for _, sender in senders) >= CONVERSATIONS
    assert losing.lost
    assert sum(sender.repeats for _, sender in senders)
    assert sum(follower.returns for follower in followers.values())
    assert faults.kills > seconds / KILL_EVERY / 3
    assert faults.pauses
