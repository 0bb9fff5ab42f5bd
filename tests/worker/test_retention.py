"""A worker removes what ended long ago, when its options say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Start, Worker
from affinity.conversation.journal import JournalAppend, JournalQuery, JournalStart, NewEntry
from affinity.conversation.store.contract import journals_of
from affinity.errors import InvalidInput, UnknownInstance
from affinity.provider import open_provider
from affinity.worker import maintenance
from tests.support.waiting import started, until
from tests.support.worker_processes import open_workers

pytestmark = pytest.mark.anyio

app = App("retention")


@app.orchestration
async def count_down(ctx: OrchestrationContext, left: int) -> int:
    if left > 0:
        ctx.continue_as_new(left - 1)
    return left


@app.orchestration
async def wait_for(ctx: OrchestrationContext, name: str) -> None:
    await ctx.schedule_wait(name)


async def test_a_worker_removes_what_ended_long_ago(kept_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories of former executions, and then the instance; what runs stays."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.05)
    keep = RuntimeOptions.make(poll_interval=0.2)
    brief = RuntimeOptions.make(poll_interval=0.2, history_retention=0.01)
    briefer = RuntimeOptions.make(poll_interval=0.2, instance_retention=0.01)
    async with Client(kept_url) as client:
        async with Worker(app, kept_url, keep):
            await client.start(wait_for, "on", instance_id="on")
            await started(client, "on")
            await client.start(count_down, 2, instance_id="i")
            assert await client.wait("i", 30) == 0
        async with Worker(app, kept_url, brief):

            async def forgotten() -> bool:
                return not await client.history("i", execution_id=1) and not await client.history("i", execution_id=2)

            await until(forgotten)
        assert await client.history("i", execution_id=3)
        async with Worker(app, kept_url, briefer):

            async def gone() -> bool:
                try:
                    await client.status("i")
                except UnknownInstance:
                    return True
                return False

            await until(gone)
        assert (await client.status("on")).status == "running"


@pytest.mark.parametrize(
    ("option", "value", "left"), [("retention", 0.01, 0), ("max_entries", 2, 2), ("max_bytes", 7, 1)]
)
async def test_a_worker_removes_old_entries_of_journals(
    kept_url: str, monkeypatch: pytest.MonkeyPatch, option: str, value: float, left: int
) -> None:
    """By age, number and bytes; without an option none is removed."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.05)
    note = NewEntry(kind="note", payload='"1234"')
    start = JournalStart(name="elsewhere", start="start", generation="b")
    append = JournalAppend(session_id="s", kind="chat", entry=note, message=None, start=start)
    async with aclosing(await open_provider(kept_url)) as provider:
        await journals_of(provider).append_journal([append] * 5)

        async def entries() -> int:
            (page,) = await journals_of(provider).read_journal([JournalQuery(session_id="s")])
            assert page is not None
            return len(page.entries)

        async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)):
            await anyio.sleep(0.3)
            assert await entries() == 5
        async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2, **{f"journal_{option}": value})):

            async def pruned() -> bool:
                return await entries() == left

            await until(pruned)


@app.orchestration
async def family(ctx: OrchestrationContext, left: int) -> int:
    return await ctx.schedule_sub_orchestration(count_down, left)


@pytest.mark.parametrize("kept_url", ["sqlite", "new"], indirect=True)
async def test_workers_and_a_client_prune_side_by_side(kept_url: str) -> None:
    """In processes of their own: each tree goes once and as a whole, running trees stay, and no error is logged."""
    with open_workers(kept_url) as workers:
        options: dict[str, Any] = {"instance_retention": 0.1, "history_retention": 0.1}
        both = [workers.launch(name, "tests.worker.test_retention:app", **options) for name in ("a", "b")]
        async with Client(kept_url) as client:
            await client.start(wait_for, "on", instance_id="on")
            await client.start_many(Start(family, 1, f"i{n}") for n in range(10))

            with anyio.fail_after(30):
                while [row.instance_id async for row in client.list_instances()] != ["on"]:
                    await client.prune(older_than=0.1)
                    await anyio.sleep(0.1)  # the workers want the file, too
            assert await client.prune_histories(older_than=0.0) == 0
        for worker in both:
            assert [line for line in worker.log if " WARNING " in line or " ERROR " in line] == []


async def test_a_client_prunes(kept_url: str) -> None:
    """As the command does, and refuses what makes no sense."""
    async with Client(kept_url) as client, Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)):
        await client.start(count_down, 1, instance_id="i")
        await client.wait("i", 30)
        assert await client.prune_histories(older_than=0.0, dry_run=True) == 1
        assert await client.prune_histories(older_than=0.0) == 1
        steps: list[int] = []
        pruned = await client.prune(older_than=0.0, progress=steps.append)
        assert (pruned.roots, pruned.instances, steps) == (1, 1, [1])
        with pytest.raises(InvalidInput, match="older_than"):
            await client.prune(older_than=-1.0)
        with pytest.raises(InvalidInput, match="status"):
            await client.prune(older_than=1.0, status=[])


async def test_a_worker_rests_for_nine_times_the_time_of_a_step_that_leaves_old_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For 0.05 s at least, and for a second at most; while it rests, no other worker sweeps for half of that."""
    now, took, rests, intervals = 0.0, iter([0.002, 0.02, 3.0, 0.02]), list[float](), list[float]()

    async def sweep_once(interval: float) -> SimpleNamespace:
        nonlocal now
        now += next(took)
        intervals.append(interval)
        left = len(intervals) < 4
        return SimpleNamespace(
            rerouted=0, swept=False, records_removed=0, limit_reached=False, backlog=left, due=MappingProxyType({})
        )

    async def call(make: Callable[[], Awaitable[object]], user: object) -> object:
        return await make()

    async def pause(seconds: float) -> None:
        rests.append(seconds)

    worker = SimpleNamespace(
        _sweep_once=sweep_once,
        _health=SimpleNamespace(call=call),
        _lease=SimpleNamespace(is_serving=True),
        _pause=pause,
        sweeps=None,
    )
    monkeypatch.setattr(maintenance, "anyio", SimpleNamespace(current_time=lambda: now))
    await maintenance.Maintenance.sweep(cast("Any", worker))
    assert rests == pytest.approx([0.05, 0.18, 1.0])
    assert intervals == pytest.approx([0.5, 0.025, 0.09, 0.5])
