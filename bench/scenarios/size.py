"""``size``: what each operation costs in a database with many waiting instances and held sessions, beside one that has
a hundredth of them. The rows are made by SQL.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final, TypeVar

import anyio
import psycopg

from affinity.provider import open_provider
from affinity.provider.contract import (
    Incarnation,
    InstanceFilter,
    InstanceUpdate,
    NewInstance,
    NewWorkItem,
    OrchestrationItem,
    Retention,
    Turn,
    WorkerIdentity,
    WorkItem,
    WorkKey,
)
from affinity.provider.statements import load_statements
from affinity.session import SessionFilter
from affinity_conformance.providers.peer import Peer
from bench.measures import Metric, Report
from bench.run import Run

T = TypeVar("T")

STATEMENTS: Final = load_statements("bench", "size.sql")

MILLISECONDS = Metric(name="cost, ms", better="less", digits=2)
GROWTH = Metric(name="cost / cost at a hundredth", better="less", digits=2)
GROWTH_BAR = 1.5

HUNDREDTH = 100
WORKERS = 64
"""All alive. The sessions and instances are spread over the others; one of them is measured."""

OWN = 200
"""Sessions that the measured worker holds, in both databases. A claim counts them: that cost depends on
``max_sessions_per_runtime`` and not on the database.
"""

BATCH = 20
"""Instances, turns and work items in one call."""

SAMPLES = 40
"""Of each operation in a round; in turn in both databases."""

PAGE = 100

LABELLED = {
    "list by a label": InstanceFilter(labels={"tenant": "acme"}),
    "list by a label and status": InstanceFilter(labels={"tenant": "acme"}, status=["completed"]),
    "list by two frequent labels": InstanceFilter(labels={"region": "eu", "tier": "gold"}),
}
"""Half of the instances have the first. A tenth has either of the other two, and a hundredth has both."""

DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How much there is in a database."""

    instances: int
    sessions: int
    conversations: int = 0  # of the instances

    def __str__(self) -> str:
        return f"{self.instances:,} instances, {self.sessions:,} sessions"


@dataclass
class _Stage:
    """A database of one size, and the worker that is measured."""

    peer: Peer
    connection: psycopg.Connection[Any]
    number: int = 0
    costs: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def cost(self, operation: str, call: Awaitable[T]) -> T:
        """Await a call and note how long it takes."""
        began = time.perf_counter()
        result = await call
        self.costs[operation].append(time.perf_counter() - began)
        return result

    def execute(self, name: str, **values: Any) -> None:
        self.connection.execute(STATEMENTS[name], values)


def size(run: Run) -> Report:
    """Medians of the same calls in both databases."""
    report = Report("size")
    instances, sessions = run.sized(1_000_000, 2_000), run.sized(100_000, 1_000)
    large = Rows(instances=instances, sessions=sessions)
    small = Rows(instances=instances // HUNDREDTH, sessions=sessions // HUNDREDTH)
    with run.place.database(run.ours) as large_url, run.place.database(run.ours) as small_url:
        anyio.run(_compare, run, report, {large: large_url, small: small_url})
    for operation in dict.fromkeys(series.case.partition(": ")[0] for series in report.series):
        costs = [report.median(f"{operation}: {rows}", run.ours.name, MILLISECONDS) for rows in (large, small)]
        if costs[0] is not None and costs[1] is not None:
            growth = costs[0] / costs[1]
            report.add(operation, run.ours.name, {GROWTH: growth})
            report.bar(f"{operation}: {GROWTH.name}", growth, GROWTH_BAR, "less")
    return report


async def _compare(run: Run, report: Report, urls: dict[Rows, str]) -> None:
    async with AsyncExitStack() as stack:
        stages = {rows: await stack.enter_async_context(filled(run, url, rows)) for rows, url in urls.items()}
        for number in range(run.rounds + 1):
            for stage in stages.values():
                stage.costs.clear()
            for _ in range(run.sized(SAMPLES, 2)):
                for stage in stages.values():
                    await _sample(stage)
            if number:  # the first round warms the caches, and prepares the statements
                _note(run, report, stages)


def _note(run: Run, report: Report, stages: dict[Rows, _Stage]) -> None:
    for rows, stage in stages.items():
        for operation, seconds in stage.costs.items():
            report.add(f"{operation}: {rows}", run.ours.name, {MILLISECONDS: median(seconds) * 1e3})


@asynccontextmanager
async def filled(run: Run, url: str, rows: Rows) -> AsyncIterator[_Stage]:
    """A worker in a database with so many rows."""
    began = time.monotonic()
    provider = await open_provider(url, application_name="affinity size")
    with psycopg.connect(url, autocommit=True, options="-c search_path=affinity") as connection:
        async with aclosing(provider):
            peer = Peer(provider, WorkerIdentity(worker_id="measured", incarnation=Incarnation("measured")))
            await peer.register()
            stage = _Stage(peer, connection)
            stage.execute("workers", workers=WORKERS)
            for name in ("instances", "histories", "ended", "labels"):
                stage.execute(name, instances=rows.instances, workers=WORKERS)
            for name in ("sessions", "states"):
                stage.execute(name, sessions=rows.sessions, own=OWN, workers=WORKERS)
            stage.execute("conversations", conversations=rows.conversations)
            connection.execute("VACUUM ANALYZE")
            run.say(f"size  {rows}: made in {time.monotonic() - began:.0f} s")
            yield stage


async def _sample(stage: _Stage) -> None:
    """Each operation once. What is made is removed again, but for the sessions, of which a few are claimed."""
    stage.number += 1
    at = await _begin(stage)
    items = await _claim(stage, at)
    await _turn(stage, at, items)
    await _maintain(stage)
    await _list(stage)


async def _begin(stage: _Stage) -> list[OrchestrationItem]:
    """Start instances and fetch them."""
    provider, names = stage.peer.provider, [f"started-{stage.number}-{n}" for n in range(BATCH)]
    new = [NewInstance(instance_id=name, name="flow", version=None, start="{}") for name in names]
    await stage.cost("start", provider.create_instance(new))
    fetched = await stage.cost("fetch of messages", stage.peer.fetch_instances(BATCH))
    items = list(fetched.items)
    while len(items) < BATCH:  # one fetch takes a share
        seen = [message.id for item in items for message in item.messages]
        items += (await stage.peer.fetch_instances(BATCH, exclude=seen)).items
    return sorted(items, key=lambda item: item.instance_id)


async def _claim(stage: _Stage, at: list[OrchestrationItem]) -> list[WorkItem]:
    """Turns that schedule work on new sessions; fetch that, and with it the sessions."""
    turns = [_step(item, ack=None, consumed=[message.id for message in item.messages], here=False) for item in at]
    results = await stage.cost("first turn", stage.peer.commit(*turns))
    assert all(result.committed for result in results)
    fetched = await stage.cost("fetch of new sessions", stage.peer.fetch(BATCH))
    items = [*fetched.items, *await stage.peer.take_all()]
    return sorted(items, key=lambda item: item.lock.key.instance_id)


async def _turn(stage: _Stage, at: list[OrchestrationItem], items: list[WorkItem]) -> None:
    """Turns of the hot loop; then a fetch that finds nothing, and turns that end the instances."""
    at = [replace(item, event_count=1) for item in at]
    turns = [_step(item, ack=work, here=True) for item, work in zip(at, items, strict=True)]
    results = await stage.cost("turn", stage.peer.commit(*turns))
    locks = [result.placed[0].item for result in results]
    assert all(locks), "the work is not locked here"
    await stage.cost("fetch of nothing", stage.peer.fetch(BATCH))
    at = [replace(item, event_count=2) for item in at]
    done = InstanceUpdate(status="completed", output="null")
    ended = [
        replace(_step(item, ack=work, here=True), work_items=(), update=done)
        for item, work in zip(at, locks, strict=True)
    ]
    assert all(result.committed for result in await stage.peer.commit(*ended))


def _step(at: OrchestrationItem, *, ack: WorkItem | None, here: bool, consumed: list[int] | None = None) -> Turn:
    key = WorkKey(at.instance_id, at.execution_id, at.event_count + 1)
    session = at.instance_id
    work = NewWorkItem(key=key, name="work", payload="{}", session_id=session, lock_here=here)
    return Turn(
        instance_id=at.instance_id,
        generation=at.generation,
        execution_id=at.execution_id,
        event_count=at.event_count,
        history=["{}"],
        consumed=consumed or (),
        acks=[ack.lock] if ack is not None else (),
        work_items=[work],
        update=InstanceUpdate(status="running") if ack is None else None,
    )


async def _maintain(stage: _Stage) -> None:
    """A sweep, as a worker does it, and a step of pruning that finds instances to remove."""
    provider = stage.peer.provider
    retention = Retention(instances=30 * DAY, histories=30 * DAY)
    sweep = provider.sweep(interval=0.0, session_retention=DAY, worker_retention=DAY, retention=retention)
    assert (await stage.cost("sweep", sweep)).swept
    stage.execute("due", prefix=f"due-{stage.number}-", batch=BATCH)
    pruned = await stage.cost("prune", provider.prune_instances(frozenset({"completed"}), DAY))
    assert pruned.instances == BATCH


async def _list(stage: _Stage) -> None:
    """First pages."""
    provider = stage.peer.provider
    found = await stage.cost("list instances", provider.list_instances(InstanceFilter(), PAGE))
    await stage.cost(
        "list, next page",
        provider.list_instances(InstanceFilter(after=(found[-1].created_at, found[-1].instance_id)), PAGE),
    )
    await stage.cost("list failed instances", provider.list_instances(InstanceFilter(status=["failed"]), PAGE))
    for operation, wanted in LABELLED.items():
        page = await stage.cost(operation, provider.list_instances(wanted, PAGE))
        assert all(wanted.labels.items() <= dict(each.labels).items() for each in page)
    await stage.cost("list by id", provider.get_instance([f"waiting-{n}" for n in range(1, BATCH + 1)]))
    await stage.cost("list sessions", provider.list_sessions(limit=PAGE))
    await stage.cost("list records", provider.states.list(SessionFilter(), PAGE))
    await stage.cost("metrics", provider.measure_queues(PAGE))
