"""``steps``: what a step of a wake costs, whose result is committed before the next one begins."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import anyio

from affinity import Client
from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.systems import OURS
from bench.systems.ours_app import DoSteps, talks
from bench.wire import Wire, wire
from bench.work import WrongResults

TIME = Metric(name="time of a step, us", better="less")
RATE = Metric(name="steps/s")
CPU = Metric(name="worker CPU of a step, us", better="less")
STATEMENTS = Metric(name="statements of a step", better="less", digits=2)

TIME_BAR = 2_000.0
"""Beside a call of a model, which takes seconds."""

STATEMENTS_BAR = 1.5
"""One, and what the worker does meanwhile."""


def steps(run: Run) -> Report:
    """Conversations whose handlers do steps that cost nothing themselves. On PostgreSQL the worker's statements are
    counted on the wire, in a round of their own, beside a wake without a step.
    """
    report = Report("steps")
    length = run.sized(200, 10)
    sizes = [1, run.sized(50, 3)]
    over_rounds(run.rounds, [partial(_measure, run, report, talks, length) for talks in sizes])
    if run.place.dialect == "postgresql":
        _count(run, report, length)
    for metric, bar in ((TIME, TIME_BAR), (STATEMENTS, STATEMENTS_BAR)):
        report.bar(f"{_case(1)}: {metric.name}", report.median(_case(1), OURS, metric), bar, "less")
    return report


def _case(size: int) -> str:
    return f"{size} at a time"


@contextmanager
def _talking(run: Run, proxy: bool) -> Iterator[tuple[Any, Any, Wire | None]]:
    with run.bed(run.ours) as bed, wire(bed.url) if proxy else nullcontext() as counted:
        at = {} if counted is None else {"url": counted.url}
        worker = bed.workers.start("worker", app="talking", max_sessions_per_runtime=200, **at)
        bed.ours.call(partial(_do_all, ids=["warm-up"], count=20))
        yield bed.ours, worker, counted


def _measure(run: Run, report: Report, size: int, length: int) -> None:
    with _talking(run, proxy=False) as (client, worker, _):
        ids = [f"talk-{number}" for number in range(size)]
        client.call(partial(_do_all, ids=ids, count=0))
        before, began = worker.cpu_seconds(), time.monotonic()
        each = client.call(partial(_do_all, ids=ids, count=length))
        seconds, done = time.monotonic() - began, size * length
        values = {TIME: sum(each) / done * 1e6, RATE: done / seconds, CPU: (worker.cpu_seconds() - before) / done * 1e6}
        run.note(report, _case(size), OURS, values)


def _count(run: Run, report: Report, length: int) -> None:
    with _talking(run, proxy=True) as (client, _, counted):
        assert counted is not None
        numbers = []
        for count in (0, length):
            before = counted.statements
            client.call(partial(_do_all, ids=["counted"], count=count))
            numbers.append(counted.statements - before)
        run.note(report, _case(1), OURS, {STATEMENTS: (numbers[1] - numbers[0]) / length})


async def _do_all(client: Client, *, ids: Sequence[str], count: int) -> list[float]:
    """Each does so many steps in one wake; the seconds of the steps of each."""
    found: list[float] = []
    async with anyio.create_task_group() as tasks:
        for one in ids:
            tasks.start_soon(_do, client, one, count, found)
    return found


async def _do(client: Client, name: str, count: int, found: list[float]) -> None:
    reply = await client.conversation(talks, name).ask(DoSteps(count), timeout=600)
    done, seconds = reply.text.split()
    if done != str(count):
        raise WrongResults(f"{name} has done {done} steps, not {count}")
    found.append(float(seconds))
