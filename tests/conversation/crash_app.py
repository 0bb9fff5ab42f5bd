"""Conversations whose state and answers follow from the order of their inputs alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import anyio
from pydantic import BaseModel

import affinity
from affinity import Conversations, Wake
from affinity.conversation import AgentMessage, UserMessage

WORDS = ("each", "word", "is", "streamed")


class Log(BaseModel):
    """All that was said so far."""

    count: int = 0
    digest: str = ""

    def add(self, text: str) -> str:
        """Take an input; the answer to it."""
        self.count += 1
        self.digest = hashlib.sha256(f"{self.digest} {text}".encode()).hexdigest()
        return f"{text}: number {self.count}, {self.digest[:8]}"


def fold(texts: Iterable[str]) -> tuple[Log, list[str]]:
    """The state after these inputs, and the answers to them."""
    log = Log()
    answers = [log.add(text) for text in texts]
    return log, answers


crash = Conversations[Log](Log, kind="crash")


@crash.on_wake(retry=affinity.RetryPolicy(max_attempts=100, initial_interval=0.1))
async def respond(wake: Wake, log: Log) -> None:
    """Answer each input, and stream some words before."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            for word in WORDS:
                wake.stream(f"{word} ")
                await anyio.sleep(0.01)
            wake.append(AgentMessage(log.add(event.text)))


app = affinity.App("crash")
app.include(crash)
