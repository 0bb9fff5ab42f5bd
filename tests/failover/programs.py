"""Random programs over a database that fails over while they run, with the same judges.

What a program's clients raise in a failover is not what the judges look at: their calls wait while there is one, and
those under way end before it. The workers learn of it as of any other.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio import to_thread

from affinity import migrate
from affinity.testing.env.waiting import EnvDatabase
from tests.programs.__main__ import Look
from tests.programs.databases import GatedDatabase
from tests.programs.gate import Gate
from tests.servers.patroni import Cluster

TEMPLATE: Final = "programs"

REST: Final = 1.0
"""Seconds between two failovers."""


class _Database(GatedDatabase):
    """One program's, which goes with the cluster."""

    async def aclose(self) -> None:
        await self._connection.close()


@dataclass
class Failing:
    """Databases on a cluster, for `tests.programs.run`."""

    cluster: Cluster
    gate: Gate = field(default_factory=Gate)
    done: int = 0
    """Failovers."""
    has_outages: bool = True

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
    async def faults(self) -> AsyncIterator[None]:
        """Failovers, one behind the other; the cluster is whole at its end."""
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


class FailoverLook(Look):
    """Looks for defects behind failovers; the program that fails is printed as it was drawn."""

    def __init__(self, failing: Failing, areas: Sequence[str], **options: Any) -> None:
        super().__init__(failing, areas, shrink=False, **options)
        self._failing = failing

    def report(self) -> str:
        return f"{super().report()}, {self._failing.done} failovers"
