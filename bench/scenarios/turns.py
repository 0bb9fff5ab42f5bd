"""``turns``, ``latency`` and ``history``: how fast walks are, many concurrently, one at a time, and long ones."""

from __future__ import annotations

from functools import partial
from statistics import median

from bench.fused import FusedLoop
from bench.measures import MEDIAN_TURN, RATE, Metric, Report, over_rounds
from bench.run import Run, walk_fresh
from bench.systems.base import System
from bench.work import Walk

TURNS_BARS = {"duroxide": 10.0, "dbos": 5.0, "absurd": 5.0}
SQLITE_BARS = {"duroxide": 10.0}
LATENCY_BAR = 10.0
LATENCY_PER_STATEMENT = 3.0
HISTORY_BAR = 40.0
GROWTH_BAR = 1.2

CPU = Metric(name="worker CPU, µs/turn", better="less")
STATEMENT = Metric(name="one statement, ms", better="less", digits=2)
GROWTH = Metric(name="last 100 turns / first 100", better="less", digits=2)

SLICE = 100
"""Turns at each end of a long walk that are compared."""


def turns(run: Run) -> Report:
    """Session turns, many concurrent workflows, one worker process."""
    report = Report("turns")
    for walks, length in [(run.sized(50, 4), run.sized(20, 4)), (run.sized(100, 6), run.sized(50, 4))]:
        case = f"{walks} x {length}"
        _compare(run, report, case, walks, length)
        for peer, bound in (TURNS_BARS if run.place.dialect == "postgresql" else SQLITE_BARS).items():
            report.ratio_bar(case, RATE, run.ours.name, peer, bound)
    return report


def _compare(run: Run, report: Report, case: str, walks: int, length: int) -> None:
    """As many walks of that length on every system."""

    def measure(system: System) -> None:
        with run.excused(report, case, system):
            cost = walk_fresh(run, system, walks, Walk(turns=length))
            run.note(report, case, system, {RATE: cost.walked.rate, CPU: cost.cpu / cost.walked.turns * 1e6})

    over_rounds(run.rounds, [partial(measure, one) for one in run.having()])


def latency(run: Run) -> Report:
    """One workflow, one turn at a time; and the bare statement that writes the same rows."""
    report, length = Report("latency"), run.sized(300, 10)
    case = f"1 x {length}"
    measures = [partial(_alone, run, report, case, one, length) for one in run.having()]
    if run.place.dialect == "postgresql":
        measures.append(partial(_bare, run, report, case, length))
    over_rounds(run.rounds, measures)
    report.ratio_bar(case, MEDIAN_TURN, run.ours.name, "duroxide", LATENCY_BAR)
    ours, bare = report.median(case, run.ours.name, MEDIAN_TURN), report.median(case, "sql", STATEMENT)
    if ours is not None and bare is not None:
        report.bar(f"{case}: median turn / bare statement", ours / bare, LATENCY_PER_STATEMENT, "less")
    return report


def _alone(run: Run, report: Report, case: str, system: System, length: int) -> None:
    with run.excused(report, case, system):
        walked = walk_fresh(run, system, 1, Walk(turns=length)).walked
        run.note(report, case, system, {MEDIAN_TURN: median(walked.gaps) * 1e3, RATE: walked.rate})


def _bare(run: Run, report: Report, case: str, length: int) -> None:
    with run.place.database(run.ours) as url:
        loop = FusedLoop(url, 1)
        loop.run(min(length, SLICE))
        seconds = median(loop.run(length))
        loop.close()
    report.add(case, "sql", {STATEMENT: seconds * 1e3})


def history(run: Run) -> Report:
    """Long workflows: what replays the whole history each turn gets slower and slower."""
    report = Report("history")
    walks, length, longest = 2, run.sized(600, 20), run.sized(5_000, 2 * SLICE)
    case = f"{walks} x {length}"
    _compare(run, report, case, walks, length)
    report.ratio_bar(case, RATE, run.ours.name, "duroxide", HISTORY_BAR)
    case = f"1 x {longest}"
    over_rounds(run.rounds, [partial(_longest, run, report, case, longest)])
    growth = report.median(case, run.ours.name, GROWTH)
    report.bar(f"{case}: last {SLICE} turns / first {SLICE}", growth, GROWTH_BAR, "less")
    return report


def _longest(run: Run, report: Report, case: str, length: int) -> None:
    walked = walk_fresh(run, run.ours, 1, Walk(turns=length)).walked
    growth = median(walked.gaps[-SLICE:]) / median(walked.gaps[:SLICE])
    run.note(report, case, run.ours, {RATE: walked.rate, GROWTH: growth})
