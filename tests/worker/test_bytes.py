"""Bounds in bytes of what a worker has in memory, and how it goes on at a bound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from affinity import ActivityContext, App, Client, ExternalEvent, OrchestrationContext, RuntimeOptions, Worker
from affinity.provider.contract import HistoryCursor, HistoryPage
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MIB = 2**20
MESSAGE = "x" * 700_000

app = App("bytes")


@app.activity
async def count(ctx: ActivityContext, data: str) -> int:
    return len(data)


@app.orchestration
async def listen(ctx: OrchestrationContext, number: int) -> list[str]:
    """The first letters of so many events."""
    return [(await ctx.schedule_wait("data", str))[0] for _ in range(number)]


@app.orchestration
async def hoard(ctx: OrchestrationContext, number: int) -> int:
    """Reads no event before a test says so."""
    await ctx.schedule_wait("go")
    return sum([len(await ctx.schedule_wait("data", str)) for _ in range(number)])


@app.orchestration
async def fan_out(ctx: OrchestrationContext, number: int) -> int:
    return sum(await ctx.gather(*[ctx.schedule_activity(count, MESSAGE) for _ in range(number)]))


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


def options(**values: Any) -> RuntimeOptions:
    """A worker that does not poll while a test lasts, and has room for three messages."""
    patient = {"poll_interval": 60.0, "worker_lease_timeout": 60.0, "drain_timeout": 1.0, "stall_timeout": 120.0}
    small = {"max_batch_bytes": 2 * MIB, "max_outstanding_bytes": 2 * MIB, "instance_cache_bytes": 2 * MIB}
    return RuntimeOptions.make(**{**patient, **small, **values})


async def test_a_fetch_waits_until_there_is_room(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no turn is committed, no more than a batch is fetched; then all of it is, in order, without a poll."""
    run = await client.start(listen, 8)
    messages = [f"{number}{MESSAGE}" for number in range(8)]
    await client.raise_events([ExternalEvent(run.instance_id, "data", each) for each in messages])
    async with Worker(app, kept_url, options()) as worker:
        provider, runtime = worker.runtime._provider, worker.runtime
        commit, held, most = provider.commit_turn, anyio.Event(), 0

        async def late_commit(*args: Any, **hints: Any) -> Any:
            nonlocal most
            await held.wait()
            most = max(most, runtime.capacity.outstanding_bytes)
            return await commit(*args, **hints)

        async def throttled() -> bool:
            return runtime.services.fetch_state.waits_for_memory

        monkeypatch.setattr(provider, "commit_turn", late_commit)
        await until(throttled)
        held.set()
        assert await run.wait(60) == [str(number) for number in range(8)]
        assert runtime.capacity.outstanding_bytes == 0
    assert most < 3 * 2 * MIB  # messages of a batch, and the turn that is made of them


async def test_activities_wait_until_there_is_room(kept_url: str, client: Client) -> None:
    """Of a fan-out with large inputs, no more run at the same time than fit, and all of them do in the end."""
    async with Worker(app, kept_url, options()) as worker:
        run = await client.start(fan_out, 12)
        assert await run.wait(60) == 12 * len(MESSAGE)

        async def all_written() -> bool:
            return worker.runtime.capacity.outstanding_bytes == 0

        await until(all_written)


async def test_a_history_that_takes_long_delays_nothing_else(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read page by page, other instances are replayed, begin and end."""
    long, other = [await client.start(listen, 3, instance_id=name) for name in ("long", "other")]
    for each in (long, other):
        await each.raise_event("data", "a")
    async with Worker(app, kept_url, options()):
        await until(lambda: _has_events(client, "long", 3))
        await until(lambda: _has_events(client, "other", 3))
    async with Worker(app, kept_url, options()) as worker:
        read, ended, begun = worker.runtime._provider.read_history, anyio.Event(), anyio.Event()

        async def endless(cursors: Sequence[HistoryCursor], **limits: Any) -> list[HistoryPage]:
            pages = await read(cursors, **limits)
            begun.set()
            stuck = set() if ended.is_set() else {"long"}
            nothing = HistoryPage(events=[], more=True)
            return [nothing if c.instance_id in stuck else page for c, page in zip(cursors, pages, strict=True)]

        monkeypatch.setattr(worker.runtime._provider, "read_history", endless)
        await long.raise_event("data", "b")
        await begun.wait()
        await client.raise_events([ExternalEvent("other", "data", letter) for letter in "bc"])
        assert await other.wait(30) == ["a", "b", "c"]
        run = await client.start(listen, 0)
        assert await run.wait(30) == []
        await long.raise_event("data", "c")
        ended.set()
        assert await long.wait(30) == ["a", "b", "c"]
        assert worker.runtime.instances.replays in {2, 3}  # a fetch sent before the turn of "b" may cost another


async def test_idle_instances_are_dropped_by_the_size_of_their_histories(kept_url: str, client: Client) -> None:
    """The last used one stays, and the others are replayed when they get an event."""
    names = [f"i{number}" for number in range(4)]
    runs = [await client.start(listen, 3, instance_id=name) for name in names]
    async with Worker(app, kept_url, options()) as worker:
        for name, run in zip(names, runs, strict=True):
            for event in (1, 2):
                await run.raise_event("data", MESSAGE)
                await until(partial(_has_events, client, name, 1 + 2 * event))

        async def few_are_left() -> bool:
            return len(worker.runtime.instances) == 1

        await until(few_are_left)
        for run in runs:
            await run.raise_event("data", "y")
            assert await run.wait(30) == ["x", "x", "y"]
        assert worker.runtime.instances.replays >= 3
        assert worker.runtime.instances.size == 0


async def test_events_that_an_instance_does_not_read_do_not_fill_the_memory(kept_url: str, client: Client) -> None:
    """The instance is suspended, with nothing lost: a worker with more room goes on with it."""
    run = await client.start(hoard, 4, instance_id="hoard")
    await client.raise_events([ExternalEvent("hoard", "data", MESSAGE) for _ in range(4)])
    async with Worker(app, kept_url, options()):

        async def suspended() -> bool:
            return (await client.status("hoard")).status == "suspended"

        await until(suspended)
        found = (await client.status("hoard")).suspension
        assert found is not None
        assert (found.error_type, "instance_cache_bytes" in found.message) == ("ExecutionLimitReached", True)
        assert await (await client.start(listen, 0)).wait(30) == []
    await client.raise_event("hoard", "go")
    await client.resume("hoard")
    async with Worker(app, kept_url, options(instance_cache_bytes=8 * MIB)):
        assert await run.wait(30) == 4 * len(MESSAGE)


@pytest.mark.parametrize("verb", ["fetch_orchestration_item", "read_history", "commit_turn"])
async def test_a_lack_of_memory_passes(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It ends no worker and suspends no instance: the call is made again."""
    run = await client.start(listen, 2)
    await run.raise_event("data", "a")
    async with Worker(app, kept_url, options()):
        await until(lambda: _has_events(client, run.instance_id, 3))
    async with Worker(app, kept_url, options()) as worker:
        real, failed = getattr(worker.runtime._provider, verb), anyio.Event()

        async def short_of_memory(*args: Any, **limits: Any) -> Any:
            if not failed.is_set():
                failed.set()
                raise MemoryError
            return await real(*args, **limits)

        monkeypatch.setattr(worker.runtime._provider, verb, short_of_memory)
        await run.raise_event("data", "b")
        assert await run.wait(30) == ["a", "b"]
        assert failed.is_set()


async def _has_events(client: Client, instance_id: str, number: int) -> bool:
    return (await client.status(instance_id)).event_count >= number
