"""``order``: turns of ordered activities beside the same turns without order, and turns beside a long order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.measures import RATE, Report, over_rounds
from bench.run import Bed, Run
from bench.scenarios.backlog import SLOWDOWN, SLOWDOWN_BAR
from bench.scenarios.turns import CPU
from bench.work import Walk, Walked

ORDERED_BAR = 0.75
"""Of the rate without order, where each walk has a session of its own: what the places of its items may cost."""

ORDERED = "ordered"


def order(run: Run) -> Report:
    """Walks with a session each, then several walks that share one, with order and without; one worker process.

    On a shared session ordered turns run one after the other, and the others at the same time: that figure says what
    waiting costs. Then walks without order, while 10,000 ordered items wait behind one that runs.
    """
    report = Report("order")
    walks, walk = run.sized(100, 4), Walk(turns=run.sized(50, 4))
    own = {f"walk-{number}": [f"session-{number}"] for number in range(walks)}
    shared = {name: [f"session-{number % max(1, walks // 5)}"] for number, name in enumerate(own)}
    measures = [
        partial(_measure, run, report, case, routes, walk, ordered=ordered)
        for case, routes in ((f"{walks} x {walk.turns}", own), (f"{walks} x {walk.turns}, five to a session", shared))
        for ordered in (False, True)
    ]
    over_rounds(run.rounds, measures)
    case = f"{walks} x {walk.turns}"
    report.ratio_bar(case, RATE, ORDERED, run.ours.name, ORDERED_BAR)
    _beside_a_long_order(run, report, walks, walk)
    return report


def _measure(
    run: Run, report: Report, case: str, routes: Mapping[str, Sequence[str]], walk: Walk, *, ordered: bool
) -> None:
    with run.bed(run.ours) as bed:
        (worker,) = bed.start_workers(1)
        bed.warm_up()
        before = worker.cpu_seconds()
        walked = _walk(bed, routes, walk, ordered=ordered)
        cpu = worker.cpu_seconds() - before
        name = ORDERED if ordered else run.ours.name
        run.note(report, case, name, {RATE: walked.rate, CPU: cpu / walked.turns * 1e6})


def _walk(bed: Bed, routes: Mapping[str, Sequence[str]], walk: Walk, *, ordered: bool = False) -> Walked:
    began = time.monotonic()
    bed.ours.start_on(routes, walk, ordered=ordered)
    return Walked(began=began, walks=[walk.check(output) for output in bed.client.outputs(list(routes))])


def _beside_a_long_order(run: Run, report: Report, walks: int, walk: Walk) -> None:
    sizes = {f"{size:,} blocked": size for size in (0, run.sized(10_000, 20))}
    with ExitStack() as stack:
        beds = {case: stack.enter_context(_blocked(run, size)) for case, size in sizes.items()}
        over_rounds(
            run.rounds, [partial(_measure_walk, run, report, case, bed, (walks, walk)) for case, bed in beds.items()]
        )
    (none, found), (*_, last) = [report.median(case, run.ours.name, RATE) for case in sizes], sizes
    if none is not None and found is not None:
        report.add(last, run.ours.name, {SLOWDOWN: none / found})
        report.bar(f"{last}: time / time of none", none / found, SLOWDOWN_BAR, "less")


@contextmanager
def _blocked(run: Run, size: int) -> Iterator[Bed]:
    """One ordered item that runs forever, and so many behind it."""
    with run.bed(run.ours) as bed:
        holder = bed.workers.start("holder", app="foreign")
        share = min(1_000, size)
        for _ in range(size // share if share else 0):
            bed.ours.flood("long", share, ordered=True)
        run.say(f"order  {size:,} items wait behind one")
        yield bed
        holder.kill()  # what it runs never ends


def _measure_walk(run: Run, report: Report, case: str, bed: Bed, size: tuple[int, Walk]) -> None:
    worker = bed.workers.start("walker")
    bed.warm_up()
    walked = bed.walk(f"walk-{worker.pid}", *size)
    worker.end()
    run.note(report, case, run.ours.name, {RATE: walked.rate})
