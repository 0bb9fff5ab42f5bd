"""``backlog``: turns while items of sessions wait that another worker holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.measures import RATE, Metric, Report, over_rounds
from bench.run import Bed, Run
from bench.systems.base import FloodingClient, System
from bench.work import Walk

SLOWDOWN = Metric(name="time / time without backlog", better="less", digits=2)
SLOWDOWN_BAR = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a system is asked to do here; a slow one gets less, its slowdown shows as much."""

    holder: str  # app of the holder, for our own
    sessions: int  # held by the other worker, each with one item that runs and blocks
    backlogs: tuple[int, ...]  # items that wait on them
    walks: int
    turns: int

    @property
    def holder_options(self) -> dict[str, Any]:
        """The holder has a slot for each session and none to spare."""
        options: dict[str, Any] = {"worker_concurrency": self.sessions}
        return options | ({"app": self.holder} if self.holder else {})


def _shape(run: Run, system: System) -> Shape:
    ours = system.name == run.ours.name
    holder = "foreign" if ours else ""
    if run.quick:
        return Shape(holder=holder, sessions=2, backlogs=(0, 20), walks=2, turns=4)
    if ours:
        return Shape(holder=holder, sessions=100, backlogs=(0, 1_000, 100_000), walks=100, turns=50)
    return Shape(holder=holder, sessions=2, backlogs=(0, 1_000, 20_000), walks=10, turns=20)


def backlog(run: Run) -> Report:
    """Each backlog has a database of its own; workers come and go while the items wait."""
    report = Report("backlog")
    for system in run.having(sessions=True):
        shape = _shape(run, system)
        with ExitStack() as stack:
            beds = {size: stack.enter_context(_flooded(run, system, shape, size)) for size in shape.backlogs}
            measures = [
                partial(_walk, run, report, system, shape=shape, size=size, bed=bed) for size, bed in beds.items()
            ]
            over_rounds(run.rounds, measures)
        _judge(run, report, system, shape)
    return report


@contextmanager
def _flooded(run: Run, system: System, shape: Shape, size: int) -> Iterator[Bed]:
    """A worker holds sessions, its slots are full, and ``size`` more items of these sessions wait."""
    with run.bed(system) as bed:
        holder = bed.workers.start("holder", **shape.holder_options)
        assert isinstance(bed.client, FloodingClient)
        names = [f"foreign-{number}" for number in range(shape.sessions)]
        for name in names:
            bed.client.flood(name, 1)
        share = min(1_000, size)
        for number in range(size // share if share else 0):
            bed.client.flood(names[number % len(names)], share)
        run.say(f"backlog  {system.name}: {size:,} items wait")
        yield bed
        holder.kill()  # what it runs never ends


def _walk(run: Run, report: Report, system: System, *, shape: Shape, size: int, bed: Bed) -> None:
    worker = bed.workers.start("walker")
    bed.warm_up()
    walked = bed.walk(f"walk-{len(report.series)}-{worker.pid}", shape.walks, Walk(turns=shape.turns))
    worker.end()
    run.note(report, f"{size:,} items", system, {RATE: walked.rate})


def _judge(run: Run, report: Report, system: System, shape: Shape) -> None:
    none = report.median("0 items", system.name, RATE)
    for size in shape.backlogs[1:]:
        found = report.median(f"{size:,} items", system.name, RATE)
        if none is None or found is None:
            continue
        report.add(f"{size:,} items", system.name, {SLOWDOWN: none / found})
        if system.name == run.ours.name:
            report.bar(f"{size:,} items: time / time of none", none / found, SLOWDOWN_BAR, "less")
