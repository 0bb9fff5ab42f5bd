"""Calls of a service with limits, by workers that are killed at random."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from pydantic import BaseModel

from affinity import Client, Start
from bench.processes import WorkerProcess
from bench.run import Bed
from bench.service import Counts, read_counts, service
from bench.systems.ours_flow import CALLS_A_SECOND, ServiceCalls

LARGE = "large"
"""The tenant with a backlog."""

SMALL = 10_000_000
"""Number of the first call of a small tenant."""


@dataclass(frozen=True, kw_only=True)
class Calling:
    """What is called, and for how long."""

    seconds: float
    backlog: int  # calls of one tenant
    tenants: int = 20  # with this one
    pause: float = 2.0  # seconds between two calls of a small tenant, on average
    takes: float = 0.1  # seconds of a call
    workers: int = 4
    killed_every: float = 5.0  # seconds, on average
    warm_up: float = 3.0  # seconds at the begin that do not count
    options: Mapping[str, Any] = field(default_factory=dict)  # of workers


@dataclass(frozen=True, kw_only=True)
class Called:
    """What came of it."""

    used: float  # share of the allowed rate
    served: int
    rejected: int
    broken: int
    most_parallel: int
    waits: Sequence[float]  # seconds of each call of a small tenant, from its start to the service
    waiting: int  # calls of a small tenant that the service has not seen
    kills: int


def call_while_workers_die(bed: Bed, calling: Calling) -> Called:
    """Run workers that call the service, and kill one after the other."""
    with service(CALLS_A_SECOND) as port:
        options = {"module": "ours_flow", "app": "calling", **calling.options}
        workers = bed.start_workers(calling.workers, **options)
        bed.ours.start_inputs("call_often", _backlog(port, calling))
        until = time.monotonic() + calling.seconds
        tenants = _Tenants(port, calling, until)
        kills = _Kills(bed, workers, calling, options)

        async def both(client: Client) -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kills.run)
                await tenants.run(client)
                tasks.cancel_scope.cancel()

        bed.ours.call(both)
        counts = read_counts(port)
    return _result(counts, calling, until, tenants.started, kills.count)


def _backlog(port: int, calling: Calling) -> dict[str, BaseModel]:
    share = min(500, calling.backlog)
    call = partial(ServiceCalls, port=port, tenant=LARGE, seconds=calling.takes, count=share)
    return {f"large-{first}": call(first=first) for first in range(0, calling.backlog, share)}


class _Tenants:
    """Each of the small tenants calls now and then."""

    def __init__(self, port: int, calling: Calling, until: float) -> None:
        self._call = partial(ServiceCalls, port=port, seconds=calling.takes)
        self._calling = calling
        self._until = until
        self.started: dict[int, float] = {}
        """When each call was started."""

    async def run(self, client: Client) -> None:
        """Call until it is over."""
        small = self._calling.tenants - 1
        while time.monotonic() < self._until:
            await anyio.sleep(random.expovariate(small / self._calling.pause))
            number = SMALL + len(self.started)
            call = self._call(tenant=f"small-{random.randrange(small)}", first=number)  # noqa: S311 -- no secret
            self.started[number] = time.monotonic()
            await client.start_many([Start("call_often", call, f"small-{number}")])


class _Kills:
    """Workers are killed, and start again under their names."""

    def __init__(self, bed: Bed, workers: list[WorkerProcess], calling: Calling, options: Mapping[str, Any]) -> None:
        self._bed, self._workers, self._calling, self._options = bed, workers, calling, options
        self.count = 0

    async def run(self) -> None:
        """Kill one after the other, until cancelled."""
        while True:
            await anyio.sleep(random.uniform(0.5, 1.5) * self._calling.killed_every)  # noqa: S311 -- no secret
            number = random.randrange(len(self._workers))  # noqa: S311 -- no secret
            await to_thread.run_sync(self._workers[number].kill)
            self._workers[number] = self._bed.workers.launch(f"worker-{number}", **self._options)
            self.count += 1


def _result(counts: Counts, calling: Calling, until: float, started: Mapping[int, float], kills: int) -> Called:
    begin = min(call.at for call in counts.served) + calling.warm_up
    counted = [call for call in counts.served if begin <= call.at < until]
    first = {call.number: call.at for call in reversed(counts.served)}  # a killed worker's call comes again
    return Called(
        used=len(counted) / (until - begin) / CALLS_A_SECOND,
        served=len(counts.served),
        rejected=len(counts.rejected),
        broken=counts.broken,
        most_parallel=counts.most_parallel,
        waits=[first[number] - at for number, at in started.items() if number in first],
        waiting=len(started.keys() - first.keys()),
        kills=kills,
    )
