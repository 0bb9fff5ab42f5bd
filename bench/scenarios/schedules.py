"""``schedules``: how late ticks are, what many schedules cost while none is due, and many that are due together."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import quantiles

from affinity import Client
from affinity.schedules.firing import new_row
from affinity.schedules.spec import ScheduleSpec, new_spec
from affinity.schedules.store.contract import ScheduleWrite, schedules_of
from bench.measures import Metric, Report, over_rounds
from bench.run import Bed, Run
from bench.wire import wire

LATE_P99 = Metric(name="late, p99, ms", better="less", digits=1)
LATE_MOST = Metric(name="late, most, ms", better="less", digits=1)
STATEMENTS = Metric(name="statements/s", better="less", digits=1)
CPU = Metric(name="worker CPU, %", better="less", digits=2)
STARTED = Metric(name="starts/s")

LATE_BAR = 1_000.0
"""Milliseconds."""

CPU_BAR = 0.5
"""How much more of a processor than without schedules, in percent: below what idle workers differ by."""

WORKERS = 4
STEP = 500
SETTLE = 3.0
FAR = timedelta(days=300)


def schedules(run: Run) -> Report:
    """Ticks each second at rest; an idle worker without schedules and with many; many ticks of one moment."""
    report = Report("schedules")
    many = run.sized(10_000, 50)
    idle, full = "idle, no schedules", f"idle, {many:,} schedules"
    over_rounds(
        run.rounds,
        [
            partial(_lateness, run, report),
            partial(_cost, run, report, idle, 0),
            partial(_cost, run, report, full, many),
            partial(_burst, run, report, many),
        ],
    )
    ours = run.ours.name
    report.bar("ticks at rest: late, p99, ms", report.median("ticks at rest", ours, LATE_P99), LATE_BAR, "less")
    with_many, without = report.median(full, ours, CPU), report.median(idle, ours, CPU)
    if with_many is not None and without is not None:
        report.bar(f"{full}: more CPU than without, %", with_many - without, CPU_BAR, "less")
    return report


def _lateness(run: Run, report: Report) -> None:
    seconds, count = run.sized(30, 3), run.sized(20, 3)
    with run.bed(run.ours) as bed:
        bed.start_workers(WORKERS)
        bed.warm_up(WORKERS)
        _create(bed, [new_spec("waiting", {"every": 1.0, "overlap": "allow"}) for _ in range(count)])
        time.sleep(seconds)
        late = bed.ours.call(_late)
    assert len(late) >= count * (seconds - 2), f"{len(late)} ticks in {seconds} s of {count} schedules"
    figures = {LATE_P99: quantiles(late, n=100)[98], LATE_MOST: max(late)}
    run.note(report, "ticks at rest", run.ours, figures)


async def _late(client: Client) -> list[float]:
    found = [each async for each in client.list_instances(name="waiting", prefix="s")]
    due = [datetime.fromisoformat(each.instance_id.rpartition("@")[2]) for each in found]
    return [(each.created_at - at).total_seconds() * 1_000 for each, at in zip(found, due, strict=True)]


def _cost(run: Run, report: Report, case: str, count: int) -> None:
    seconds = run.sized(20, 1)
    with run.bed(run.ours) as bed, wire(bed.url) as counted:
        worker = bed.workers.start("worker", url=counted.url)
        bed.warm_up()
        far = datetime.now(UTC) + FAR
        _create(bed, [new_spec("waiting", {"every": 3600.0 * (1 + n % 24), "end": far}) for n in range(count)])
        time.sleep(SETTLE)
        statements, cpu = counted.statements, worker.cpu_seconds()
        time.sleep(seconds)
        statements, cpu = counted.statements - statements, worker.cpu_seconds() - cpu
    run.note(report, case, run.ours, {STATEMENTS: statements / seconds, CPU: cpu / seconds * 100})


def _burst(run: Run, report: Report, count: int) -> None:
    with run.bed(run.ours) as bed:
        bed.start_workers(WORKERS)
        bed.warm_up(WORKERS)
        due = datetime.now(UTC) + timedelta(seconds=run.sized(20, 3))
        _create(bed, [new_spec("waiting", {"at": [due]}) for _ in range(count)])
        while len(late := bed.ours.call(_late)) < count:
            time.sleep(1.0)
    run.note(report, f"{count:,} due together", run.ours, {STARTED: count / max(late) * 1_000, LATE_MOST: max(late)})


def _create(bed: Bed, specs: list[ScheduleSpec]) -> None:
    async def create(client: Client) -> None:
        now = datetime.now(UTC)
        for start in range(0, len(specs), STEP):
            rows = [new_row(f"s{start + n}", spec, now) for n, spec in enumerate(specs[start : start + STEP])]
            assert all(await schedules_of(client._provider).write_schedules([ScheduleWrite(row=row) for row in rows]))

    bed.ours.call(create)
