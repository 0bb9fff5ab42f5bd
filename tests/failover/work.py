"""What clients do while a database fails over, what they have seen acknowledged, and what of it is there in the end."""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import anyio

from affinity import Client
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from affinity.errors import AffinityError, ConnectionLost, ReadOnly, TimelineChanged, UnknownInstance, WaitTimeout
from tests.conversation.crash_app import Log, crash, fold

PATIENCE: Final = 5.0
"""Seconds for which a client waits for one reply; then it asks for the same once more."""

EXPECTED: Final = (ConnectionLost, ReadOnly, WaitTimeout, TimelineChanged, UnknownInstance)
"""What a failover may raise in a client, which then does the same once more, under the same id."""


@dataclass
class Judged:
    """What is there of what a client has seen, and what is there twice."""

    seen: int = 0
    lost: int = 0
    doubled: int = 0
    blocks: int = 0
    """Runs of lost ones, one behind the other: a failover loses one at most of each session."""

    def add(self, other: Judged) -> None:
        self.seen += other.seen
        self.lost += other.lost
        self.doubled += other.doubled
        self.blocks = max(self.blocks, other.blocks)


def judge(seen: Sequence[str], there: Sequence[str], *, is_redone: bool) -> Judged:
    """Compare them. What is there and was not seen was under way in the end. Where something is lost, work whose result
    was lost is done again, behind what came first afterwards.
    """
    lost = [word not in set(there) for word in seen]
    blocks = sum(one and not before for before, one in pairwise([False, *lost]))
    kept = [word for word, is_lost in zip(seen, lost, strict=True) if not is_lost]
    order = [word for word in dict.fromkeys(there) if word in set(kept)]
    assert order == kept or is_redone, (order, kept)
    doubled = sum(number - 1 for number in Counter(there).values())
    return Judged(len(seen), sum(lost), doubled, blocks)


class Session(ABC):
    """One session, on which a client does one thing after another, each until it is acknowledged."""

    def __init__(self, client: Client, name: str, dice: random.Random) -> None:
        self.client, self.name, self._dice = client, name, dice
        self.seen: dict[str, float] = {}
        """When it was acknowledged."""
        self.raised: Counter[str] = Counter()

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await anyio.sleep(self._dice.uniform(0.1, 0.5))
            await self.do(f"{self.name}-{len(self.seen)}")

    async def do(self, word: str) -> None:
        """Until it is acknowledged."""
        while word not in self.seen:
            try:
                await self._try(word)
                self.seen[word] = time.monotonic()
            except EXPECTED as error:
                self.raised[type(error).__name__] += 1
                await anyio.sleep(0.1)

    @abstractmethod
    async def _try(self, word: str) -> None:
        """Once."""

    @abstractmethod
    async def judge(self, client: Client, *, is_redone: bool) -> Judged:
        """At rest, by a client of its own. ``is_redone``: results may have been lost, and their work done again."""

    def count(self, since: float) -> int:
        """How many were acknowledged since then."""
        return sum(at > since for at in self.seen.values())

    def pause(self, since: float) -> float:
        """The longest time without an acknowledgement, from then on."""
        times = [since, *(at for at in self.seen.values() if at > since)]
        return max(two - one for one, two in pairwise(times))


class Talk(Session):
    """Asks in a conversation."""

    def __init__(self, client: Client, name: str, dice: random.Random) -> None:
        super().__init__(client, name, dice)
        self._numbers: dict[str, int] = {}

    async def _try(self, word: str) -> None:
        talk = self.client.conversation(crash, self.name)
        reply = await talk.ask(UserMessage(word), event_id=word, timeout=PATIENCE)
        texts = [event.text for event in reply.events if isinstance(event, AgentMessage)]
        assert any(text.startswith(f"{word}:") for text in texts), (word, texts)
        self._numbers[word] = reply.seq

    async def judge(self, client: Client, *, is_redone: bool) -> Judged:
        """The answers and the state are what the inputs that are there make of them."""
        journal = client.conversation(crash, self.name).events(stream=False)
        entries = [item async for item in journal if isinstance(item, JournalEntry)]
        numbers = {each.event.text: each.seq for each in entries if isinstance(each.event, UserMessage)}
        moved = {word for word, number in numbers.items() if self._numbers.get(word, number) != number}
        assert not moved, moved
        inputs = [each.event.text for each in entries if isinstance(each.event, UserMessage)]
        state, answers = fold(inputs)
        assert [each.event.text for each in entries if isinstance(each.event, AgentMessage)] == answers
        record = await client.session_store.load(self.name)
        assert record is not None
        assert Log.model_validate(json.loads(record.state)) == state
        return judge([*self.seen], inputs, is_redone=is_redone)


class Walk(Session):
    """Starts one orchestration after the other, each of which writes a word into the session's state."""

    lost_starts = 0
    """Which were acknowledged; they are done again."""

    async def _try(self, word: str) -> None:
        await self.client.start("write", (self.name, word), instance_id=word)
        try:
            said = await self.client.wait(word, timeout=PATIENCE)
        except UnknownInstance:
            self.lost_starts += 1
            raise
        assert said["words"][-1] == word, (word, said)

    async def judge(self, client: Client, *, is_redone: bool) -> Judged:
        """Each word that is there has an instance that ended with it."""
        record = await client.session_store.load(self.name)
        assert record is not None
        words = json.loads(record.state)
        for word in words:
            said = await client.wait(word, timeout=60)
            assert said["words"] == words[: len(said["words"])], (word, said, words)
            assert said["words"][-1] == word
        found = judge([*self.seen], words, is_redone=is_redone)
        found.lost += self.lost_starts
        return found


@dataclass
class Work:
    """All sessions."""

    sessions: list[Session]
    is_over: bool = False
    failures: list[AffinityError] = field(default_factory=list)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for each in self.sessions:
                tasks.start_soon(each.run, lambda: self.is_over)

    async def until_served(self, times: int, since: float) -> None:
        """Return when each session was acknowledged so often since then."""
        while any(each.count(since) < times for each in self.sessions):
            await anyio.sleep(0.05)

    async def judge(self, client: Client, *, is_redone: bool) -> Judged:
        total = Judged()
        for each in self.sessions:
            total.add(await each.judge(client, is_redone=is_redone))
        return total

    def pause(self, since: float) -> float:
        return max(each.pause(since) for each in self.sessions)

    def state(self) -> str:
        """When each was served last, for a message."""
        now = time.monotonic()
        last = {each.name: now - max(each.seen.values(), default=0.0) for each in self.sessions}
        return "\n".join(
            f"{each.name}: {len(each.seen)}, the last {last[each.name]:.1f} s ago, {dict(each.raised)}"
            for each in self.sessions
        )

    @property
    def raised(self) -> Counter[str]:
        return sum((each.raised for each in self.sessions), Counter())


def make(clients: Sequence[Client], sessions: int) -> Work:
    """So many of each kind, shared among the clients."""
    dice = random.Random(7)
    found: list[Session] = []
    for number in range(sessions):
        client = clients[number % len(clients)]
        found += [Talk(client, f"talk-{number}", dice), Walk(client, f"walk-{number}", dice)]
    return Work(found)
