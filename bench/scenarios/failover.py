"""``failover``: a worker that holds many sessions is killed; when does each of them go on?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import affinity
from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.systems.base import System
from bench.work import Stamp, Walk

P50 = Metric(name="median session goes on after, s", better="less", digits=2)
LAST = Metric(name="last session goes on after, s", better="less", digits=2)

GRACE = 1.0
"""Seconds that the issue allows beyond the worker lease."""

PAUSE = 0.5
BEFORE = 3
"""Seconds of work before the kill."""

OPTIONS: dict[str, dict[str, Any]] = {"duroxide": {"worker_concurrency": 100}}
"""A slot for each session, as our default has."""

QUICK_OPTIONS = {"worker_lease_timeout": 2.0, "work_item_lock_timeout": 4.0, "poll_interval": 0.3}


def failover(run: Run) -> Report:
    """Default leases, two workers, one of them killed."""
    report = Report("failover")
    sessions = run.sized(100, 5)
    case = f"{sessions} sessions"
    systems = [run.ours] if run.quick else run.having(sessions=True)
    over_rounds(run.rounds, [partial(_kill, run, report, case, one, sessions) for one in systems])
    lease = QUICK_OPTIONS["worker_lease_timeout"] if run.quick else affinity.RuntimeOptions().worker_lease_timeout
    last = report.find(case, run.ours.name, LAST)
    report.bar(f"{case}: last one, s, of all rounds", max(last.values) if last else None, lease + GRACE, "less")
    return report


def _kill(run: Run, report: Report, case: str, system: System, sessions: int) -> None:
    options = QUICK_OPTIONS if run.quick else OPTIONS.get(system.name, {})
    walk = Walk(turns=run.sized(20, 24), pause=PAUSE)
    ids = [f"walk-{number}" for number in range(sessions)]
    with run.bed(system) as bed:
        holder = bed.workers.start("holder", **options)
        bed.client.start(ids, walk)
        heir = bed.workers.launch("heir", **options)
        time.sleep(run.sized(BEFORE, 1))
        heir.ready()
        killed = time.monotonic()
        holder.kill()
        walks = [walk.check(output) for output in bed.client.outputs(ids)]
    waits = [_first(stamps, heir.pid, killed) for stamps in walks]
    run.note(report, case, system, {P50: median(waits), LAST: max(waits)})


def _first(stamps: Sequence[Stamp], pid: int, killed: float) -> float:
    """Seconds from the kill to the first turn on the surviving worker."""
    return min(one.at for one in stamps if one.pid == pid and one.at > killed) - killed
