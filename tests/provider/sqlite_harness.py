"""The conformance suite's hold on SQLite: a file, a clock that moves, and trouble on demand."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from affinity.provider.conformance import Trouble
from affinity.provider.contract import (
    FetchOptions,
    Incarnation,
    NewInstance,
    NewWorkItem,
    Provider,
    Timeouts,
    Turn,
    WorkerIdentity,
    WorkKey,
)
from affinity.provider.sqlite import Clock, SqliteProvider
from affinity.provider.sqlite.database import Database

T = TypeVar("T")

TIMEOUTS = Timeouts(work_item_lock=30.0, session_lock=300.0)


@dataclass
class SqliteHarness:
    """A migrated file, and the clock that all providers on it share."""

    path: Path
    clock: Clock = field(default_factory=Clock)

    @classmethod
    async def create(cls, directory: Path) -> SqliteHarness:
        """A fresh file in ``directory``."""
        path = directory / "affinity.db"
        await SqliteProvider.migrate(path)
        return cls(path)

    async def open(self, busy_deadline: float = 10.0) -> SqliteProvider:
        """A provider object of its own."""
        return await SqliteProvider.open(self.path, clock=self.clock, busy_deadline=busy_deadline)

    async def advance(self, seconds: float) -> None:
        """Move the clock."""
        self.clock.offset += seconds

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """Instructions of SQLite's virtual machine."""
        async with closing_provider(await self.open()) as provider:
            counter = Counter()
            await on_writer(provider, lambda database: counter.attach(database))
            await provider.fetch_work_item(identity, options)
            return counter.instructions

    async def provoke(self, trouble: Trouble) -> None:
        """See `Harness.provoke`."""
        match trouble:
            case "contention":
                await self._contend()
            case "duplicate":
                await self._duplicate()
            case "connection_lost":
                await SqliteProvider.open(self.path.parent / "missing" / "affinity.db")

    async def aclose(self) -> None:
        """Nothing: pytest removes the directory."""

    async def _contend(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as rival:
            async with closing_provider(await self.open(busy_deadline=0.02)) as provider:
                rival.execute("BEGIN IMMEDIATE")
                await provider.create_instance([NewInstance(instance_id="late", name="flow", version=None, start="")])

    async def _duplicate(self) -> None:
        identity = WorkerIdentity(worker_id="twice", incarnation=Incarnation(secrets.token_hex(4)))
        async with closing_provider(await self.open()) as provider:
            await own(provider, identity, "twice")
            item = NewWorkItem(key=WorkKey("twice", 1, 1), name="work", payload="")
            turn = Turn(instance_id="twice", execution_id=1, event_count=0, history=["e"], work_items=[item, item])
            await provider.commit_turn(identity, [turn], TIMEOUTS)


class Counter:
    """Counts the instructions of a connection's virtual machine."""

    def __init__(self) -> None:
        self.instructions = 0

    def attach(self, database: Database) -> None:
        """Count from now on."""
        database._connection.set_progress_handler(self._count, 1)

    def _count(self) -> int:
        self.instructions += 1
        return 0  # go on


class closing_provider:  # noqa: N801 - reads as contextlib.closing does
    """Closes a provider at the end of a block."""

    def __init__(self, provider: SqliteProvider) -> None:
        self._provider = provider

    async def __aenter__(self) -> SqliteProvider:
        return self._provider

    async def __aexit__(self, *_: object) -> None:
        await self._provider.aclose()


async def on_writer(provider: SqliteProvider, work: Callable[[Database], T]) -> T:
    """Run something with the connection that writes."""
    return await provider._writer.call(work)


async def own(provider: Provider, identity: WorkerIdentity, instance_id: str) -> None:
    """Register a worker that owns a new instance."""
    await provider.register_worker(identity, 1_000.0, {})
    await provider.create_instance([NewInstance(instance_id=instance_id, name="flow", version=None, start="")])
    await provider.fetch_orchestration_item(identity, limit=10, names=["flow"], unknown_after=60.0)
