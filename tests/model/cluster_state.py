"""The state of a simulated cluster: workers, scripts, the reference, and the comparison after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from affinity.conversation.journal import PendingWork
from affinity.provider.contract import (
    OrchestrationItem,
    Provider,
    QueuedMessage,
    SessionInfo,
    Timeouts,
    WorkerIdentity,
    WorkItem,
    WorkKey,
)
from affinity.session import SessionRecord, SessionState
from affinity_conformance.providers.builders import count_rows
from tests.model import steps as do
from tests.model.databases import ModelDatabase
from tests.model.leases import Leases, Violation
from tests.model.reference import ITEM_LOCK, SESSION_LOCK, Reference

TIMEOUTS: Final = Timeouts(work_item_lock=ITEM_LOCK, session_lock=SESSION_LOCK)
NAMES: Final = ("flow",)
LONG: Final = 10_000_000.0


@dataclass
class Coroutine:
    """An instance in a worker's memory."""

    at: OrchestrationItem
    generation: int
    hand: list[QueuedMessage] = field(default_factory=list)
    activities: list[int] = field(default_factory=list)  # of this execution, scheduled so far
    timers: list[int] = field(default_factory=list)
    committing: bool = False


@dataclass
class CachedRecord:
    """A session's state in a worker's memory."""

    epoch: int
    content: str
    version: int


@dataclass
class SimulatedWorker:
    """One process: its memory goes with it."""

    identity: WorkerIdentity
    coroutines: dict[str, Coroutine] = field(default_factory=dict)
    work: dict[WorkKey, WorkItem] = field(default_factory=dict)
    cache: dict[str, CachedRecord] = field(default_factory=dict)
    pending: dict[str, PendingWork] = field(default_factory=dict)  # of journals, as they were read last
    late: list[Callable[[], Awaitable[None]]] = field(default_factory=list)


class ReadRecord(NamedTuple):
    """A record as a script has read it."""

    version: int = 0
    generation: str | None = None
    content: str = ""


@dataclass(frozen=True)
class Writing:
    """The state that a script saves."""

    session_id: str
    content: str
    seen: ReadRecord | None  # that it was made from; None: it replaces whatever there is
    new_generation: str  # of the record, if there is none
    key: str | None

    @property
    def generation(self) -> str | None:
        """Of the record, as far as the script knows it."""
        return None if self.seen is None else self.seen.generation or self.new_generation

    async def send(self, provider: Provider) -> int:
        """Save it."""
        new = SessionState(session_id=self.session_id, state=self.content.encode())
        expected = None if self.seen is None else self.seen.version
        return await provider.states.save(
            new, expected_version=expected, generation=self.generation, idempotency_key=self.key
        )


@dataclass
class SimulatedScript:
    """The state that a script has read, or has changed."""

    seen: dict[str, ReadRecord] = field(default_factory=dict)


def expect(what: str, found: object, wanted: object) -> None:
    """Raise unless the provider did what the reference says."""
    if found != wanted:
        raise Violation(f"{what}: the provider says {found!r}, the model {wanted!r}")


class ClusterState:
    """The state of one plan's run on one database, with what all kinds of steps need."""

    provider: Provider  # of the workers and clients, set by `run`
    elsewhere: Provider  # of the scripts

    def __init__(self, database: ModelDatabase) -> None:
        self.database = database
        self.model = Reference()
        self.leases = Leases()
        self.workers: dict[str, SimulatedWorker] = {}
        self.scripts = [SimulatedScript() for _ in range(do.SCRIPTS)]
        self._numbers = count(1)
        self._kept: tuple[Reference, dict[str, SessionInfo]] | None = None
        self._messages: dict[int, str] = {}  # all that were ever fetched, by id
        self._held_up: list[tuple[asyncio.Task[Any], Callable[[], None]]] = []

    async def _look(self, **what: Any) -> None:
        """Compare the rows that can be counted, and judge the leases, after each verb."""
        rows = await self.provider.list_sessions(limit=100)
        moved = self.leases.see({row.session_id: row for row in rows}, **what)
        for session_id in moved:
            self.model.notify_watchers(session_id)
        found = await count_rows(self.provider)
        wanted = {
            "work_items": len(self.model.items()),
            "messages": self.model.messages(),
            "instances": len(self.model.instances),
            "workers": len(self.model.workers),
        }
        expect("rows", {name: found[name] for name in wanted}, wanted)

    @property
    def sessions(self) -> dict[str, SessionInfo]:
        """The rows of sessions, as they were before the verb that is under way."""
        return self.leases.rows

    def _tag(self, what: str) -> str:
        return f"{what} {next(self._numbers)}"

    @staticmethod
    def _holds(worker: SimulatedWorker, row: SessionInfo | None) -> bool:
        return row is not None and row.held and row.incarnation == worker.identity.incarnation

    def _judge_record(self, session_id: str, loaded: SessionRecord | None) -> None:
        record = self.model.records.get(session_id)
        wanted = record and (record.content, record.version, record.epoch, record.key)
        found = loaded and (loaded.state.decode(), loaded.version, loaded.epoch, loaded.idempotency_key)
        expect(f"record of {session_id}", found, wanted)

    async def _finish(self) -> None:
        """Held up calls go on and end."""
        await self.database.resume_writes()
        while self._held_up:
            task, judge = self._held_up.pop()
            await asyncio.wait([task])
            judge()
            await self._look()
