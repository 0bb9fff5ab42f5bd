"""Many workers, and a moment that concerns all of them: how many statements they send. Nothing is timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import pytest

from affinity import App, RuntimeOptions, Worker
from affinity.provider.contract import FetchOptions, Hint, WorkerIdentity, WorkFetch
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver.connections import Connection
from affinity.worker import notifier as module
from affinity.worker.notifier import FEW_WORKERS, FetchState, Notifier
from tests.provider.postgres_stage import opened, registered

pytestmark = pytest.mark.anyio

WORKERS: Final = 12
HINTS: Final = 100


async def test_workers_that_are_notified_together_fetch_seldom(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred hints to all, one after the other, are few fetches of each worker: it waits, and answers several at
    once.
    """
    fetches = Counter[str]()
    fetch = PostgresProvider.fetch_work_item

    async def count(self: PostgresProvider, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        fetches[identity.worker_id] += 1
        return await fetch(self, identity, options)

    monkeypatch.setattr(PostgresProvider, "fetch_work_item", count)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                Worker(App("herd"), postgres_migrated, RuntimeOptions.make(worker_node_id=f"w{n}", poll_interval=5.0))
            )
            for n in range(WORKERS)
        ]
        provider = await stack.enter_async_context(opened(postgres_migrated))
        with anyio.fail_after(60):
            while any(worker.runtime.fetcher._state.workers < WORKERS for worker in workers):
                await provider.notify_workers({None: Hint()})
                await anyio.sleep(0.05)
        # Longer than the hints take: were it not for the spread, each of them would be a fetch of each worker.
        monkeypatch.setattr(module, "SPREAD_SECONDS", 60.0 / (WORKERS - FEW_WORKERS))
        await anyio.sleep(0.2)
        fetches.clear()
        for _ in range(HINTS):
            await provider.notify_workers({None: Hint()})
        sent = fetches.total()
        await provider.notify_workers({"w0": Hint()})
        with anyio.fail_after(60):
            while not fetches["w0"]:
                await anyio.sleep(0.01)
    assert sent <= WORKERS * HINTS / 10


def _new_notifier(workers: int) -> Notifier:
    return Notifier(None, "a", 1.0, FetchState(workers=workers))  # type: ignore[arg-type]


async def test_few_workers_and_a_hint_for_one_fetch_immediately() -> None:
    for workers, hint in ((1, Hint(to_all=True)), (FEW_WORKERS, Hint(to_all=True)), (64, Hint())):
        notifier = _new_notifier(workers)
        notifier.on_hint(hint)
        assert notifier.fetch_wanted.is_set()


async def test_many_workers_wait_for_a_random_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hints come meanwhile, it is one fetch; and the next hint is another."""
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def note(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return later(0.0, callback, *args)

    monkeypatch.setattr(loop, "call_later", note)
    notifier = _new_notifier(64)
    for _ in range(50):
        notifier.fetch_wanted = anyio.Event()
        for _ in range(5):
            notifier.on_hint(Hint(to_all=True))
        assert not notifier.fetch_wanted.is_set()
        await notifier.fetch_wanted.wait()
    longest = (64 - FEW_WORKERS) * module.SPREAD_SECONDS
    assert len(delays) == 50
    assert 0.0 <= min(delays) < longest / 2 < max(delays) <= longest


async def test_a_sweep_that_is_due_is_one_workers(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ask at one moment: one sweeps, and each of the others has sent one statement and waited for nothing."""
    calls = Counter[int]()
    call = Connection._call

    def count(self: Connection, *args: Any, **options: Any) -> Any:
        calls[id(self)] += 1
        return call(self, *args, **options)

    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(opened(postgres_migrated)) for _ in range(WORKERS)]
        await registered(providers[0])
        monkeypatch.setattr(Connection, "_call", count)
        for _ in range(3):
            calls.clear()
            await providers[0].connections.fetch.run("UPDATE sweeps SET last_sweep = '-infinity'")
            calls.clear()
            sweeps = [
                provider.sweep(interval=60.0, session_retention=60.0, worker_retention=60.0) for provider in providers
            ]
            swept = [sweep.swept for sweep in await asyncio.gather(*sweeps)]
            assert sum(swept) == 1
            assert sorted(calls.values())[:-1] == [1] * (WORKERS - 1)
