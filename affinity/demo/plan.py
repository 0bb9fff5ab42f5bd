"""What a run is told, and how it is paced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from affinity.demo.conversations import Conversation
from affinity.worker import RuntimeOptions

LEASE_SECONDS: Final = 5.0
"""Worker lease: shorter than the default, so that nobody waits long for the survivors to take over."""

RECOVERY_SLACK: Final = 2.0
"""Seconds after the lease within which the last orphaned session is to be served again."""

THINK_SECONDS: Final = 0.05
"""What a turn takes beside its bookkeeping; it stands for the time of a model."""

TURNS_PER_SECOND: Final = 150.0
"""Pace of the replay: people do not write all at once."""

SHORTEST_SECONDS: Final = 4.0
"""Length of a replay of few messages: time to see that something happens, and to kill somebody."""

DRAIN_SECONDS: Final = 3.0
"""How long a worker finishes its turns when the run is over or interrupted."""

PATIENCE_SECONDS: Final = 30 * 86_400.0
"""How long the demo's workers leave work alone that they do not know: it belongs to others, who share the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run of the demo."""

    run: str  # its id: begins the name of all that it puts into the database
    url: str | None = field(repr=False)  # None: a fresh SQLite file; it may hold a password
    workers: int
    kill: bool
    seed: int  # chooses the conversations, and spreads their messages over time

    @property
    def worker_names(self) -> Sequence[str]:
        """Names of the workers."""
        return [f"{self.run}-worker-{number}" for number in range(1, self.workers + 1)]

    def session_id(self, conversation: Conversation) -> str:
        """Names the session of a conversation, and its orchestration instance too."""
        return f"{self.session_prefix}{conversation.id}"

    @property
    def session_prefix(self) -> str:
        """Begins the ids of all sessions of the run."""
        return f"{self.run}-chat-"

    def settings(self, worker: str, *, url: str, counts: Path, sessions: int) -> WorkerSettings:
        """What a worker is told. Its share of the sessions leaves none without, and the survivors can hold all."""
        survivors = max(1, self.workers - 1)
        options = RuntimeOptions.make(
            worker_node_id=worker,
            max_sessions_per_runtime=math.ceil(sessions / survivors),
            worker_lease_timeout=LEASE_SECONDS,
            drain_timeout=DRAIN_SECONDS,
            unregistered_timeout=PATIENCE_SECONDS,
        )
        return WorkerSettings(run=self.run, url=url, counts=counts, think=THINK_SECONDS, options=options)


class WorkerSettings(BaseModel):
    """What the demo tells a worker process."""

    run: str
    url: str = Field(repr=False)  # it may hold a password
    counts: Path  # where it keeps them
    think: float  # seconds
    options: RuntimeOptions


def replay_seconds(conversations: Iterable[Conversation]) -> float:
    """How long the messages of ``conversations`` take to come in: all of them, and the longest conversation's."""
    lengths = [len(conversation.messages) for conversation in conversations]
    return max(SHORTEST_SECONDS, sum(lengths) / TURNS_PER_SECOND, max(lengths) * THINK_SECONDS * 1.5)
