"""Random programs over a database that fails over while they run, with the same judges.

What a program's clients raise in a failover is not what the judges look at: their calls wait while there is one, and
those under way end before it. The workers learn of it as of any other.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final, cast

import anyio
from anyio import to_thread

from affinity import RuntimeOptions, migrate
from affinity.errors import ProviderError
from affinity.provider.contract import Provider
from affinity.provider.timeline import Timeline
from affinity.testing.env.postgres import PostgresDatabase
from affinity.testing.env.waiting import EnvDatabase
from tests.programs.__main__ import Look
from tests.programs.program import Fault, Options, Program
from tests.programs.run import run
from tests.servers.patroni import Cluster

AREAS: Final = ("orchestrations", "schedules", "starts", "plugs")
"""Of the tests: with all areas, a program takes minutes."""

TEMPLATE: Final = "programs"

REST: Final = 1.0
"""Seconds between two failovers."""

LOOK: Final = 0.005
"""Seconds between two looks at a gate."""


class Gate:
    """Calls of clients, which are made in several event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False
        self._inside = 0
        self.openings = 0

    async def enter(self) -> int:
        """The number of times that it was opened, as soon as it is open."""
        while True:
            with self._lock:
                if not self._is_shut:
                    self._inside += 1
                    return self.openings
            await anyio.sleep(LOOK)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Within it there is no call."""
        with self._lock:
            self._is_shut = True
        while self._inside:
            await anyio.sleep(LOOK)
        try:
            yield
        finally:
            with self._lock:
                self._is_shut = False
                self.openings += 1


class _Gated:
    """Forwards everything. Each coroutine method passes the gate; behind a failover, over a connection that works."""

    def __init__(self, observed: Any, gate: Gate, ping: Callable[[], Any], seen: list[int]) -> None:
        self._observed, self._gate, self._ping, self._seen = observed, gate, ping, seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._observed, name)
        if name == "states":
            return _Gated(found, self._gate, self._ping, self._seen)
        if not asyncio.iscoroutinefunction(found) or name == "aclose":
            return found

        @wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            openings = await self._gate.enter()
            try:
                while self._seen[0] != openings:
                    with suppress(ProviderError):
                        await self._ping()
                        self._seen[0] = openings
                return await found(*args, **kwargs)
            finally:
                self._gate.leave()

        return call


class _Database(PostgresDatabase):
    """One program's, which goes with the cluster."""

    gate: Gate

    async def open(
        self, timeline: Timeline | None = None, *, one_connection: bool = False, as_client: bool = False
    ) -> Provider:
        provider = await super().open(timeline, one_connection=one_connection, as_client=as_client)
        if timeline is not None:
            return provider
        gated = _Gated(provider, self.gate, provider.read_identity, [self.gate.openings])
        return cast("Provider", gated)

    async def aclose(self) -> None:
        await self._connection.close()


@dataclass
class Failing:
    """Databases on a cluster, for `tests.programs.run`."""

    cluster: Cluster
    gate: Gate = field(default_factory=Gate)
    done: int = 0
    """Failovers."""

    async def prepare(self) -> None:
        """Once."""
        self.cluster.create_database(TEMPLATE)
        await migrate(self.cluster.url(TEMPLATE))
        self._numbers = itertools.count()
        self._faults = itertools.cycle([self._switch_over, self._kill])

    async def create(self) -> EnvDatabase:
        """A new one."""
        name = f"program_{next(self._numbers)}"
        await to_thread.run_sync(self.cluster.create_database, name, TEMPLATE)
        url = self.cluster.url(name)
        database = _Database(url, "affinity", await _Database._connect(url))
        database.gate = self.gate
        await database.begin()
        return database

    @asynccontextmanager
    async def failovers(self) -> AsyncIterator[None]:
        """One behind the other within it; the cluster is whole at its end."""
        is_over = False

        async def fail_over() -> None:
            while not is_over:
                with anyio.CancelScope(shield=True):
                    async with self.gate.shut():
                        await to_thread.run_sync(next(self._faults))
                    self.done += 1
                    await to_thread.run_sync(self.cluster.until_whole)
                await anyio.sleep(REST)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_over)
            yield
            is_over = True

    def _switch_over(self) -> None:
        self.cluster.switch_over()

    def _kill(self) -> None:
        primary = self.cluster.primary
        primary.kill_postgres()
        self.cluster.until_other_leads(primary)


@dataclass(frozen=True)
class _Patient(Options):
    """A failover ends attempts of what runs, as a crash does."""

    def runtime(self) -> RuntimeOptions:
        return super().runtime().model_copy(update={"max_attempts": 1_000})


class FailoverLook(Look):
    """Looks for defects behind failovers; the program that fails is printed as it was drawn."""

    def __init__(self, failing: Failing, areas: Sequence[str], **options: Any) -> None:
        super().__init__(failing, areas, shrink=False, **options)
        self._failing = failing

    def _run(self, runner: asyncio.Runner, program: Program) -> None:
        options = _Patient(**vars(program.options))
        faults = program.faults or (Fault(1),)  # judged as one with faults
        over = replace(program, options=options, faults=faults)
        runner.run(run(over, self._failing, self._totals, beside=self._failing.failovers))

    def report(self) -> str:
        return f"{super().report()}, {self._failing.done} failovers"
