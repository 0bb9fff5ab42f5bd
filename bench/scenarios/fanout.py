"""``fanout``: one orchestration that starts many activities together, without a session, on several workers."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.work import Walk

SIZES = (1, 2, 4)
"""Worker processes."""

SECONDS = Metric(name="all done after, s", better="less", digits=2)
BUSIEST = Metric(name="activities on the busiest worker, %", better="less")

UNEVEN = 1.5
"""How many times its equal part the busiest worker may have."""


def fanout(run: Run) -> Report:
    """The spread of a fan-out; how much faster it is depends on the cores that there are."""
    report = Report("fanout")
    sizes = SIZES[:2] if run.quick else SIZES
    over_rounds(run.rounds, [partial(_fan_out, run, report, size) for size in sizes])
    for size in sizes[1:]:
        share = report.median(_case(size), run.ours.name, BUSIEST)
        report.bar(f"{_case(size)}: activities on the busiest, %", share, 100 * UNEVEN / size, "less")
    return report


def _case(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"


def _fan_out(run: Run, report: Report, workers: int) -> None:
    width, cpu = run.sized(100, 10), 0.01 if run.quick else 0.1
    with run.bed(run.ours) as bed:
        bed.start_workers(workers)
        bed.warm_up(workers)
        began = time.monotonic()
        bed.ours.start_fan_out("fan", width, cpu)
        (output,) = bed.client.outputs(["fan"])
        seconds = time.monotonic() - began
    ran = Counter(one.pid for one in Walk(turns=width - 1).check(output))
    counts = sorted(ran.values(), reverse=True) + [0] * (workers - len(ran))
    run.note(report, _case(workers), run.ours, {SECONDS: seconds, BUSIEST: counts[0] / width * 100})
    report.notes.append(f"{_case(workers)}: {' / '.join(map(str, counts))} activities")
