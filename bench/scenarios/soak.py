"""``soak``: a million turns, minute by minute; not part of ``all``."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg

from bench.measures import RATE, Metric, Report
from bench.run import Bed, Run
from bench.work import Walk, Walked

TURNS = 1_000_000
WALKS = 100
LENGTH = 100

KEEPS_BAR = 0.9
QUEUES = ("worker_queue", "orchestrator_queue", "sessions", "workers")
"""Tables that hold no history: they must stay as large as they are."""

CHURNING = Metric(name="MB of queues and sessions", better="less", digits=1)
FLAT_BAR = 2.0
"""Times that these tables may grow after the first minute."""


def soak(run: Run) -> Report:
    """Waves of walks until all turns are done; the rate and the sizes of each minute."""
    report = Report("soak")
    turns, done, minutes = run.sized(TURNS, 100), 0, 0
    with run.bed(run.ours) as bed:
        bed.start_workers(1)
        bed.warm_up()
        while done < turns:
            minutes += 1
            waves = list(_minute(run, bed, minutes, turns - done))
            done += sum(wave.turns for wave in waves)
            rate = sum(wave.turns for wave in waves) / sum(wave.seconds for wave in waves)
            run.note(report, "each minute", run.ours, {RATE: rate, CHURNING: _size(bed) / 1e6})
    _judge(run, report)
    return report


def _minute(run: Run, bed: Bed, minute: int, turns: int) -> Iterator[Walked]:
    """Waves for a minute, or until ``turns`` are done."""
    ends = time.monotonic() + run.sized(60, 1)
    while time.monotonic() < ends and turns > 0:
        wave = _wave(bed, f"wave-{minute}-{turns}", run.sized(WALKS, 5), Walk(turns=run.sized(LENGTH, 5)))
        turns -= wave.turns
        yield wave


def _wave(bed: Bed, prefix: str, walks: int, walk: Walk) -> Walked:
    """Walks on the same sessions in every wave: a worker holds a session for minutes after its last work."""
    routes = {f"{prefix}-{number}": [f"session-{number}"] for number in range(walks)}
    began = time.monotonic()
    bed.ours.start_on(routes, walk)
    return Walked(began=began, walks=[walk.check(output) for output in bed.client.outputs(list(routes))])


def _judge(run: Run, report: Report) -> None:
    rates, sizes = (report.find("each minute", run.ours.name, metric) for metric in (RATE, CHURNING))
    if rates is not None and sizes is not None:
        report.bar("rate of the last minute / of the first", rates.values[-1] / rates.values[0], KEEPS_BAR)
        report.bar("size of the queues, last / first", sizes.values[-1] / sizes.values[0], FLAT_BAR, "less")


def _size(bed: Bed) -> int:
    with psycopg.connect(bed.url) as connection:
        found = connection.execute(
            "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE relname = ANY (%s)",
            [list(QUEUES)],
        ).fetchone()
    assert found is not None
    return int(found[0])
