"""The work of one of many processes on an SQLite file."""

from __future__ import annotations

from pathlib import Path

import anyio

from affinity.provider.contract import FetchOptions, Incarnation, WorkAck, WorkerIdentity
from affinity.provider.sqlite import SqliteProvider
from affinity_conformance.providers.builders import count_rows, profile


def migrate(path: str) -> None:
    """Print the versions before and after."""
    print(anyio.run(SqliteProvider.migrate, Path(path)))


def work(path: str, name: str) -> None:
    """Print the number of work items that this worker has acked when none is left."""
    print(anyio.run(_work, path, name))


async def _work(path: str, name: str) -> int:
    provider = await SqliteProvider.open(Path(path))
    identity = WorkerIdentity(worker_id=name, incarnation=Incarnation(name + "!"))
    await provider.register_worker(identity, 1_000.0, {}, profile=profile())
    options = FetchOptions(limit=3, max_sessions=100, names=["work"], unknown_after=60.0)
    acked = 0
    async with provider.hints(identity) as hints:
        while (await count_rows(provider))["work_items"]:
            items = (await provider.fetch_work_item(identity, options)).items
            acks = [WorkAck(lock=item.lock, message=item.payload) for item in items]
            acked += sum(await provider.ack_work_item(identity, acks, options.timeouts))
            if not items:
                await hints.wait(0.05)
    await provider.aclose()
    return acked
