"""``idle``: what a worker does when there is nothing to do."""

from __future__ import annotations

import time
from functools import partial

from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.systems.base import System, WaitingClient
from bench.wire import wire

STATEMENTS = Metric(name="statements/s", better="less", digits=1)
CPU = Metric(name="worker CPU, %", better="less", digits=2)

STATEMENTS_BAR = 5.0
CPU_BAR = 1.0

SETTLE = 3.0
"""Seconds until the workflows wait and nothing more follows from their start."""


def idle(run: Run) -> Report:
    """One worker whose workflows all wait for an event; its statements are counted on the wire."""
    report = Report("idle")
    instances = run.sized(1_000, 10)
    case = f"{instances:,} waiting"
    over_rounds(run.rounds, [partial(_watch, run, report, case, one, instances) for one in run.having()])
    ours = run.ours.name
    report.bar(f"{case}: statements/s", report.median(case, ours, STATEMENTS), STATEMENTS_BAR, "less")
    report.bar(f"{case}: CPU, %", report.median(case, ours, CPU), CPU_BAR, "less")
    return report


def _watch(run: Run, report: Report, case: str, system: System, instances: int) -> None:
    seconds = run.sized(20, 1)
    ids = [f"waiting-{number}" for number in range(instances)]
    with run.bed(system) as bed, wire(bed.url) as counted:
        assert isinstance(bed.client, WaitingClient)
        worker = bed.workers.start("worker", url=counted.url)
        bed.client.start_waiting(ids)
        bed.warm_up()
        time.sleep(SETTLE)
        statements, cpu = counted.statements, worker.cpu_seconds()
        time.sleep(seconds)
        statements, cpu = counted.statements - statements, worker.cpu_seconds() - cpu
        bed.client.release(ids[:1])
        assert bed.client.outputs(ids[:1]) == [True], "a waiting workflow does not go on"
    run.note(report, case, system, {STATEMENTS: statements / seconds, CPU: cpu / seconds * 100})
