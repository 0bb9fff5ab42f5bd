"""``replicas``: several worker processes on one database, and whether work finds to where its session is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from urllib.request import urlopen

from bench.measures import MEDIAN_TURN, RATE, Metric, Report, over_rounds
from bench.processes import WorkerProcess
from bench.run import Bed, Run, walk_fresh
from bench.systems.base import System
from bench.work import Stamp, Walk
from tests.servers.base import free_port

SIZES = (1, 2, 4)
NO_FALL = 1.0
"""Share of one worker's rate that more workers must reach."""

BUSIEST = Metric(name="turns on the busiest worker, %", better="less", digits=0)
LOCAL = Metric(name="instances that end where their session is, %")
SPEEDUP = Metric(name="first turns / last turns", digits=1)
MOVES = Metric(name="moves an instance", better="less", digits=2)

CONVERGED_BAR = 100.0
MOVES_BAR = 3.0
"""Moves double their price, so a walk of some hundred turns can afford few."""

AWAY = 2
"""Turns after which an instance moves to where its session is."""


def replicas(run: Run) -> Report:
    """Throughput by number of workers; then instances away from their session, and between two sessions."""
    report = Report("replicas")
    short, long = run.sized(50, 4), run.sized(400, 6)
    cases = [_Case(one, size, short) for one in run.having() for size in _sizes(run)]
    cases += [_Case(run.ours, size, long) for size in _sizes(run)]
    measures = [partial(_together, run, report, case) for case in cases]
    over_rounds(run.rounds, [*measures, partial(_apart, run, report), partial(_between, run, report)])
    ours = run.ours.name
    for case in cases:
        rate, alone = (report.median(one.name, ours, RATE) for one in (case, replace(case, workers=1)))
        if case.system is run.ours and case.workers > 1 and rate is not None and alone is not None:
            report.bar(f"{case.name}: rate / rate of one", rate / alone, NO_FALL)
    report.bar("away: instances that converge, %", report.median("away", ours, LOCAL), CONVERGED_BAR)
    report.bar("two sessions: moves an instance", report.median("two sessions", ours, MOVES), MOVES_BAR, "less")
    return report


@dataclass(frozen=True)
class _Case:
    """So many workers, for the same walks of so many turns: a short run, where they must find their sessions first, and
    a long one, which the peers would take minutes for.
    """

    system: System
    workers: int
    turns: int

    @property
    def name(self) -> str:
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}, {self.turns} turns"


def _sizes(run: Run) -> Sequence[int]:
    return SIZES[:2] if run.quick else SIZES


def _together(run: Run, report: Report, case: _Case) -> None:
    with run.excused(report, case.name, case.system):
        walks = run.sized(100, 4)
        walked = walk_fresh(run, case.system, walks, Walk(turns=case.turns), workers=case.workers).walked
        ran = Counter(one.pid for walk in walked.walks for one in walk)
        share = max(ran.values()) / ran.total() * 100
        run.note(report, case.name, case.system, {RATE: walked.rate, BUSIEST: share})


@contextmanager
def _alone(*others: WorkerProcess) -> Iterator[None]:
    """Within, the other workers stand still, for less time than their leases: who is left takes what comes."""
    for worker in others:
        worker.pause()
    try:
        yield
    finally:
        for worker in others:
            worker.resume()


def _hold(bed: Bed, sessions: Sequence[str]) -> None:
    """Have the worker that runs claim these sessions."""
    ids = [f"claim-{session}" for session in sessions]
    bed.ours.start_on({one: [session] for one, session in zip(ids, sessions, strict=True)}, Walk(turns=1))
    bed.client.outputs(ids)


def _apart(run: Run, report: Report) -> None:
    """Instances begin on one worker, their sessions are held by another."""
    walks, walk = run.sized(20, 2), Walk(turns=run.sized(60, 8))
    with run.bed(run.ours) as bed:
        holder = bed.workers.start("holder")
        routes = {f"walk-{number}": [f"session-{number}"] for number in range(walks)}
        _hold(bed, [session for (session,) in routes.values()])
        bed.workers.start("starter")
        with _alone(holder):
            bed.ours.start_on(routes, walk)
            while not all(bed.ours.history_lengths(list(routes))):
                time.sleep(0.02)
        ended = [walk.check(output) for output in bed.client.outputs(list(routes))]
        owners = bed.ours.owners(list(routes))
    assert {one.pid for walked in ended for one in walked} == {holder.pid}, "a session moved"
    local = sum(owner == "holder" for owner in owners) / walks * 100
    first, last = _ends(ended)
    run.note(report, "away", run.ours, {LOCAL: local, MEDIAN_TURN: last * 1e3, SPEEDUP: first / last})


def _ends(walks: Sequence[Sequence[Stamp]]) -> tuple[float, float]:
    """The median turn in seconds, of the first turns, which are away, and of the last tenth."""
    gaps = [[after.at - before.at for before, after in pairwise(walked)] for walked in walks]
    tenth = max(1, len(gaps[0]) // 10)
    return median(gap for one in gaps for gap in one[:AWAY]), median(gap for one in gaps for gap in one[-tenth:])


def _between(run: Run, report: Report) -> None:
    """Each instance uses two sessions in turn, on two workers."""
    walks, walk = run.sized(20, 2), Walk(turns=run.sized(60, 8))
    with run.bed(run.ours) as bed:
        ports = {name: free_port() for name in ("left", "right")}
        left = bed.workers.start("left", metrics_port=ports["left"])
        _hold(bed, [f"left-{number}" for number in range(walks)])
        bed.workers.start("right", metrics_port=ports["right"])
        with _alone(left):
            _hold(bed, [f"right-{number}" for number in range(walks)])
        released = sum(map(_released, ports.values()))
        began = time.monotonic()
        routes = {f"walk-{number}": [f"left-{number}", f"right-{number}"] for number in range(walks)}
        bed.ours.start_on(routes, walk)
        ended = [walk.check(output) for output in bed.client.outputs(list(routes))]
        moves = (sum(map(_released, ports.values())) - released) / walks
    rate = walks * walk.turns / (max(walked[-1].at for walked in ended) - began)
    run.note(report, "two sessions", run.ours, {RATE: rate, MOVES: moves})


def _released(port: int) -> float:
    """Instances that a worker has given up so far, by its own metrics."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    wanted = (line for line in lines if line.startswith("affinity_commit_batch_size_sum") and 'kind="release"' in line)
    return float(next(wanted, "x 0").rsplit(" ", 1)[1])
