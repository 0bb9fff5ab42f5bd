"""A fleet of worker processes with steady work of each kind, whose metrics are scraped once a second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import anyio
import httpx2 as httpx
from anyio.abc import TaskGroup

from affinity import Client
from affinity.conversation import UserMessage
from affinity.errors import AffinityError
from tests.monitoring.app import Task, chats
from tests.monitoring.series import STALE, Selector, Series, samples
from tests.servers import PostgresServer
from tests.servers.base import free_port
from tests.support.worker_processes import WorkerProcess, Workers

APP: Final = "tests.monitoring.app:app"
WORKERS: Final = ("w-0", "w-1", "w-2")
OPTIONS: Final = {"unregistered_timeout": 2.0, "max_attempts": 3, "rebalance": "off"}
WALKS: Final = 6
SCRAPE_SECONDS: Final = 5.0
"""For which a scrape is waited for: a worker without its database answers after three."""


@dataclass
class Fleet:
    """The workers of one database."""

    url: str
    server: PostgresServer
    client: Client
    tasks: TaskGroup
    processes: Workers
    options: Mapping[str, Any]
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Start a worker, or start it again on its port."""
        port = self.ports.setdefault(name, free_port())
        values = OPTIONS | dict(self.options) | {"metrics_port": port}
        self.workers[name] = await anyio.to_thread.run_sync(lambda: self.processes.start(name, APP, **values))

    async def work(self) -> None:
        """Start work that goes on until the fleet ends."""
        for number in range(WALKS):
            await self.client.start("walk", 0.2, instance_id=f"walk-{number}")
        await self.client.start("ring", 0.2, instance_id="ring")
        await self.client.schedules.create("often", "tick", every=timedelta(seconds=2))
        self.tasks.start_soon(self._converse)

    async def _converse(self) -> None:
        while True:
            with suppress(AffinityError):
                await self.client.conversation(chats, "talk").ask(UserMessage("hello"), timeout=5)
            await anyio.sleep(0.5)

    async def run(self, name: str, *, times: int = 1, **about: Any) -> None:
        """Start an activity, ``times`` over."""
        for _ in range(times):
            await self.client.start("once", Task(name=name, **about))


@asynccontextmanager
async def open_fleet(
    server: PostgresServer, url: str, workers: Sequence[str] = WORKERS, options: Mapping[str, Any] | None = None
) -> AsyncIterator[Fleet]:
    """Workers that have started, and their work."""
    processes = Workers(url)
    try:
        async with Client(url) as client, anyio.create_task_group() as tasks:
            fleet = Fleet(url, server, client, tasks, processes, options or {})
            for name in workers:
                await fleet.start(name)
            await fleet.work()
            yield fleet
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(processes.end)


class Recording:
    """What the workers of a fleet export, second by second.

    Args:
        fleet: whose workers are scraped.
        wanted: selectors of the series that are kept.
    """

    def __init__(self, fleet: Fleet, wanted: Sequence[Selector]) -> None:
        self._fleet = fleet
        self._wanted = wanted
        self._scrapes: dict[str, dict[int, dict[Series, float] | None]] = {}
        self._running: set[str] = set()

    async def record(self, seconds: int, at: int, fault: Callable[[Fleet], Coroutine[Any, Any, None]]) -> None:
        """Scrape for so long. The fault begins after ``at`` seconds, and is cancelled at the end."""
        began = anyio.current_time()
        async with httpx.AsyncClient(timeout=SCRAPE_SECONDS) as http, anyio.create_task_group() as tasks:
            for second in range(seconds):
                if second == at:
                    tasks.start_soon(fault, self._fleet)
                for name in self._fleet.workers.keys() - self._running:
                    tasks.start_soon(self._scrape, http, name, second)
                await anyio.sleep_until(began + second + 1)
            tasks.cancel_scope.cancel()

    async def _scrape(self, http: httpx.AsyncClient, name: str, second: int) -> None:
        self._running.add(name)
        found: dict[Series, float] | None = None
        with suppress(httpx.HTTPError):
            text = (await http.get(f"http://127.0.0.1:{self._fleet.ports[name]}/metrics")).text
            found = {series: value for series, value in samples(text) if self._is_wanted(series)}
        self._scrapes.setdefault(name, {})[second] = found
        self._running.discard(name)

    def _is_wanted(self, series: Series) -> bool:
        name, labels = series
        return any(one.selects(name, dict(labels)) for one in self._wanted)

    def series(self, seconds: int) -> dict[Series, list[float | str | None]]:
        """The values of each series. None: no scrape then; `STALE`: it is not exported any more."""
        recorded = dict[Series, list[float | str | None]]()
        for scrapes in self._scrapes.values():
            for series in sorted({series for found in scrapes.values() for series in found or ()}):
                recorded[series] = _values(series, scrapes, seconds)
        return recorded


def _values(
    series: Series, scrapes: Mapping[int, Mapping[Series, float] | None], seconds: int
) -> list[float | str | None]:
    values = list[float | str | None]()
    is_there = False
    for second in range(seconds):
        if second not in scrapes:
            values.append(None)
            continue
        value = (scrapes[second] or {}).get(series)
        values.append(STALE if value is None and is_there else value)
        is_there = value is not None
    return values
