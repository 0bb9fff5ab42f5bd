"""``restart``: how soon a worker takes work while many instances wait in the database."""

from __future__ import annotations

import time
from functools import partial

import psycopg

from bench.measures import Metric, Report, over_rounds
from bench.run import Bed, Run

READY = Metric(name="ready after, s", better="less", digits=2)
SERVED = Metric(name="first event served after, s", better="less", digits=2)
SCANNED = Metric(name="rows read by full scans", better="less")

READY_BAR = 1.0

SETTLE = 2.5
"""Seconds until the server has published what it counted."""


def restart(run: Run) -> Report:
    """Instances wait for an event; a new worker starts, and one of them gets its event."""
    report = Report("restart")
    instances = run.sized(10_000, 50)
    case = f"{instances:,} waiting"
    with run.bed(run.ours) as bed:
        _fill(bed, instances)
        over_rounds(run.rounds, [partial(_restart, run, report, case, bed, instances)])
    ours = run.ours.name
    report.bar(f"{case}: ready, s", report.median(case, ours, READY), READY_BAR, "less")
    scanned = report.median(case, ours, SCANNED)
    report.bar(f"{case}: rows read by full scans of tables with as many rows", scanned, 0, "less")
    return report


def _fill(bed: Bed, instances: int) -> None:
    """Start the instances, wait until each has taken its first turn, and end their worker."""
    worker = bed.workers.start("filler")
    ids = [f"waiting-{number}" for number in range(instances)]
    bed.ours.start_waiting(ids)
    while not all(bed.ours.history_lengths(ids[-1:])):
        time.sleep(0.1)
    bed.warm_up()
    worker.end()


def _restart(run: Run, report: Report, case: str, bed: Bed, instances: int) -> None:
    found = report.find(case, run.ours.name, READY)
    chosen = [f"waiting-{len(found.values) if found else 0}"]
    time.sleep(SETTLE)
    scanned, began = _scanned(bed, instances), time.monotonic()
    worker = bed.workers.start("worker")
    ready = time.monotonic() - began
    bed.ours.release(chosen)
    assert bed.client.outputs(chosen) == [True], "the instance does not go on"
    served = time.monotonic() - began
    worker.end()
    time.sleep(SETTLE)
    run.note(report, case, run.ours, {READY: ready, SERVED: served, SCANNED: float(_scanned(bed, instances) - scanned)})


def _scanned(bed: Bed, rows: int) -> int:
    """Rows that sequential scans have read so far of the tables with at least so many."""
    with psycopg.connect(bed.url) as connection:
        found = connection.execute(
            "SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE n_live_tup >= %s", [rows]
        ).fetchone()
    assert found is not None
    return int(found[0])
