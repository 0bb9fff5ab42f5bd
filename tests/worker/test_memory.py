"""The memory of a worker is bounded: real processes, whose address space the operating system limits."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from affinity import Client, ExternalEvent
from tests.support.waiting import until
from tests.support.worker_processes import WorkerProcess, Workers, open_workers

pytestmark = pytest.mark.anyio

MIB: Final = 2**20
EVENTS: Final = 30
SIZE: Final = 2_000_000
"""Characters of each event: 60 MB together; a worker without bounds holds five copies."""

ROOM: Final = 160 * MIB
"""Memory that a worker may take beyond its memory when it starts to work."""

SMALL: Final = {
    "max_batch_bytes": 4 * MIB,
    "max_outstanding_bytes": 8 * MIB,
    "instance_cache_bytes": 16 * MIB,
    # It is paused, and more is asked of the disk than in other tests.
    "worker_lease_timeout": 60.0,
    "work_item_lock_timeout": 60.0,
    "stall_timeout": 120.0,
}


@pytest.fixture
def workers(any_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    # Of glibc, which reads them when a program starts: without, each thread reserves 64 MiB of address space, and large
    # blocks leave holes behind.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    with open_workers(any_url) as workers:
        yield workers


@pytest.fixture
async def client(any_url: str) -> AsyncIterator[Client]:
    async with Client(any_url) as client:
        yield client


@pytest.mark.slow
@pytest.mark.slow_cases(r"\[new")
async def test_what_waits_for_a_worker_may_be_larger_than_its_memory(workers: Workers, client: Client) -> None:
    """A backlog of events, the work that they lead to, and a history, each several times the memory of a worker: the
    first worker takes the events one by one, and the second one replays them.
    """
    first = _start(workers, "first")
    first.pause()
    run = await client.start("weigh", EVENTS, instance_id="large")
    data = "x" * SIZE
    await client.raise_events([ExternalEvent("large", "data", data) for _ in range(EVENTS - 1)])
    first.send(signal.SIGCONT)

    async def all_weighed() -> bool:
        return (await client.status("large")).event_count >= 2 * EVENTS

    await until(all_weighed, 120)
    _start(workers, "second")
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    await run.raise_event("data", data)
    assert await run.wait(60) == EVENTS * SIZE
    assert (await client.status("large")).owner == "second"


def _start(workers: Workers, name: str) -> WorkerProcess:
    """A worker that runs, and may take `ROOM` more than it has."""
    worker = workers.start(name, "tests.worker.large_app:app", anew=True, **SMALL)
    status = Path(f"/proc/{worker.pid}/status").read_text()
    found = re.search(r"VmSize:\s+(\d+) kB", status)
    assert found is not None
    limit = int(found[1]) * 1024 + ROOM
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, limit))
    return worker
