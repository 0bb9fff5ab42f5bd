"""The parameters of a run, and its pace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from affinity.demo.conversations import Conversation
from affinity.demo.worker import WorkerSettings
from affinity.worker import RuntimeOptions

LEASE_SECONDS: Final = 5.0
"""Worker lease: shorter than the default, so that the survivors take over soon."""

RECOVERY_SLACK: Final = 2.0
"""Seconds after the lease within which the last orphaned session is to be served again."""

THINK_SECONDS: Final = 0.05
"""Duration of a turn without its bookkeeping; it stands for the time of a model."""

TURNS_PER_SECOND: Final = 150.0
"""Pace of the replay."""

SHORTEST_SECONDS: Final = 4.0
"""Length of a replay of few messages: time to watch it, and to kill a worker."""

DRAIN_SECONDS: Final = 3.0
"""How long a worker finishes its turns when the run is over or interrupted."""

UNREGISTERED_SECONDS: Final = 30 * 86_400.0
"""The demo's workers leave unknown work alone for this long: it belongs to other users of the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run of the demo."""

    run: str  # its id: the prefix of all names that it writes to the database
    url: str | None = field(repr=False)  # None: a fresh SQLite file; may hold a password
    workers: int
    kill: bool
    seed: int  # chooses the conversations, and spreads their messages over time

    @property
    def worker_names(self) -> Sequence[str]:
        """Names of the workers."""
        return [f"{self.run}-worker-{number}" for number in range(1, self.workers + 1)]

    @property
    def session_prefix(self) -> str:
        """The prefix of the ids of all sessions of the run."""
        return f"{self.run}-chat-"

    def by_session(self, conversations: Iterable[Conversation]) -> Mapping[str, Conversation]:
        """The conversations by the id of their session, which is that of their instance too."""
        return {f"{self.session_prefix}{conversation.id}": conversation for conversation in conversations}

    def settings(self, worker: str, *, url: str, counts: Path, sessions: int) -> WorkerSettings:
        """Settings of a worker. The survivors of a kill have room for all sessions."""
        survivors = max(1, self.workers - 1)
        options = RuntimeOptions.make(
            worker_node_id=worker,
            max_sessions_per_runtime=math.ceil(sessions / survivors),
            worker_lease_timeout=LEASE_SECONDS,
            drain_timeout=DRAIN_SECONDS,
            unregistered_timeout=UNREGISTERED_SECONDS,
        )
        return WorkerSettings(run=self.run, url=url, counts=counts, think=THINK_SECONDS, options=options)


def replay_seconds(conversations: Iterable[Conversation]) -> float:
    """Seconds in which the messages of ``conversations`` are raised: enough for all, and for the longest one."""
    lengths = [len(conversation.messages) for conversation in conversations]
    return max(SHORTEST_SECONDS, sum(lengths) / TURNS_PER_SECOND, max(lengths) * THINK_SECONDS * 1.5)
