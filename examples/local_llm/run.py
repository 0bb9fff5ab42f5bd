"""One run: conversations on worker processes, all of which are replaced half-way, as in a rolling deploy."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

import affinity
from affinity import migrate
from examples.local_llm.chats import SYSTEM, Mode, Said, TimedTurn
from examples.local_llm.fleet import open_fleet
from examples.local_llm.model import REPLY_TOKENS, Message
from examples.local_llm.worker import Settings

WORKERS: Final = 2

OVERHEAD_TOKENS: Final = 24
"""Of one turn, beside what the two say: names of the roles, line ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run."""

    conversations: Sequence[Sequence[str]]  # what the users say
    folder: Path

    @property
    def context(self) -> int:
        """Tokens that the longest conversation may need; few tokens are shorter than two characters."""
        texts = ([SYSTEM.content, *texts] for texts in self.conversations)
        longest = max(sum(len(text) // 2 + REPLY_TOKENS + OVERHEAD_TOKENS for text in said) for said in texts)
        return 256 * (longest // 256 + 1)

    def settings(self, mode: Mode) -> list[Settings]:
        """The arguments of each worker."""
        return [
            Settings(
                url=self.url(mode),
                mode=mode,
                name=f"worker-{number}",
                sessions=len(self.conversations),  # while the other one is being replaced, it may have them all
                context=self.context,
                threads=max(1, (os.cpu_count() or 1) // WORKERS),
                folder=self.folder,
            )
            for number in range(1, WORKERS + 1)
        ]

    def url(self, mode: Mode) -> str:
        """A database for each mode."""
        return f"sqlite:///{self.folder / mode}.db"


@dataclass(slots=True)
class TimedConversation:
    """One conversation, as its user's side sees it."""

    session_id: str
    messages: list[Message] = field(default_factory=lambda: [SYSTEM])
    turns: list[TimedTurn] = field(default_factory=list)

    async def say(self, client: affinity.Client, text: str, mode: Mode) -> None:
        """One message, and the reply to it. Without a session it is for us to remember what was said."""
        before = self.messages if mode == "anywhere" else []
        handle = await client.start("turn", Said(session_id=self.session_id, text=text, before=before))
        turn = TimedTurn.model_validate(await handle.wait())
        self.turns.append(turn)
        self.messages += [Message(role="user", content=text), Message(role="assistant", content=turn.done.text)]


async def run(plan: Plan, mode: Mode) -> tuple[Sequence[TimedConversation], float]:
    """Have all conversations concurrently; returns them and the seconds that they took, without the replacement.

    Raises:
        WorkerFailed: in a group, when a worker ended by itself.
        OrchestrationFailed: in a group, when a turn failed.
    """
    await migrate(plan.url(mode))
    talks = [TimedConversation(f"chat-{number}") for number in range(1, len(plan.conversations) + 1)]
    halves = [(texts[: len(texts) // 2], texts[len(texts) // 2 :]) for texts in plan.conversations]
    async with (
        affinity.Client(plan.url(mode)) as client,
        open_fleet(plan.settings(mode), client, plan.folder) as fleet,
    ):
        seconds = await _talk(client, talks, [first for first, _ in halves], mode)
        await fleet.replace()
        seconds += await _talk(client, talks, [second for _, second in halves], mode)
    return talks, seconds


async def _talk(
    client: affinity.Client, talks: Sequence[TimedConversation], texts: Sequence[Sequence[str]], mode: Mode
) -> float:
    async def converse(talk: TimedConversation, texts: Sequence[str]) -> None:
        for text in texts:
            await talk.say(client, text, mode)

    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for talk, said in zip(talks, texts, strict=True):
            tasks.start_soon(converse, talk, said)
    return time.perf_counter() - begun
