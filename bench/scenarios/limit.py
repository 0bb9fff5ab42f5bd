"""``limit``: how near we are to the database, which is the rows of our turns written by SQL alone."""

from __future__ import annotations

from functools import partial

from bench.fused import FusedLoop
from bench.measures import RATE, Report, over_rounds
from bench.run import Run, walk_fresh
from bench.work import Walk

BATCH = 100
SHARE_BAR = 0.3

WARM_UP = 20
"""Statements that do not count."""


def limit(run: Run) -> Report:
    """The loop one turn at a time, in batches, and our worker with as many sessions as a batch has turns.

    Walks are long enough for their start not to count.
    """
    report = Report("limit")
    turns = run.sized(200, 5)
    case = f"{BATCH} x {turns}"
    over_rounds(
        run.rounds,
        [
            partial(_loop, run, report, "one at a time", 1, run.sized(2_000, 20)),
            partial(_loop, run, report, case, BATCH, run.sized(100, 5)),
            partial(_ours, run, report, case, run.sized(BATCH, 10), turns),
        ],
    )
    ours, bare = report.median(case, run.ours.name, RATE), report.median(case, "sql", RATE)
    if ours is not None and bare is not None:
        report.bar(f"{case}: share of the same rows by SQL alone", ours / bare, SHARE_BAR)
    return report


def _loop(run: Run, report: Report, case: str, batch: int, statements: int) -> None:
    with run.place.database(run.ours) as url:
        loop = FusedLoop(url, batch)
        loop.run(min(WARM_UP, statements))
        seconds = sum(loop.run(statements))
        loop.close()
    report.add(case, "sql", {RATE: batch * statements / seconds})
    run.say(f"{report.scenario}  {case}  sql: {batch * statements / seconds:,.0f} {RATE.name}")


def _ours(run: Run, report: Report, case: str, walks: int, turns: int) -> None:
    walked = walk_fresh(run, run.ours, walks, Walk(turns=turns)).walked
    run.note(report, case, run.ours, {RATE: walked.rate})
