"""``rollout``: all workers are replaced, one after the other under its name, while all sessions have work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from affinity.provider import open_provider
from affinity.provider.contract import MoveFilter
from bench.measures import Metric, Report, over_rounds
from bench.run import Run
from bench.work import Stamp, WrongResults

MOVES = Metric(name="moves a session", better="less", digits=2)
MOST = Metric(name="moves of one session, at most", better="less")
MEDIAN_GAP = Metric(name="longest gap of a session, median, s", better="less", digits=2)
LONGEST_GAP = Metric(name="longest gap of any session, s", better="less", digits=2)
RATE = Metric(name="turns/s meanwhile")
SECONDS = Metric(name="the rollout, s", better="less", digits=1)

MOST_BAR = 1

SIZES = (3, 10)
PAUSE = 0.25
"""Seconds that a turn takes."""

SETTLE = 1.0
"""Seconds between two workers, in the place of ``minReadySeconds``."""

GRACE = 60.0
PAGE = 100
BEFORE = "without"
"""As before there were versions: all workers say that their code is the same, and what one frees any may take."""


def rollout(run: Run) -> Report:
    """Workers that leave their sessions to newer code and to their next start, beside workers that free them."""
    report = Report("rollout")
    sizes = (2,) if run.quick else SIZES
    sessions = run.sized(10, 2)
    variants: dict[str, tuple[Mapping[str, Any], str]] = {
        run.ours.name: ({"restart_grace": GRACE}, "2"),
        BEFORE: ({}, "1"),
    }
    over_rounds(
        run.rounds,
        [
            partial(_replace, run, report, name, size=size, sessions=size * sessions, options=options, code=code)
            for size in sizes
            for name, (options, code) in variants.items()
        ],
    )
    for size in sizes:
        case = _case(size, size * sessions)
        most = report.find(case, run.ours.name, MOST)
        report.bar(f"{case}: moves of one session, of all rounds", max(most.values) if most else None, MOST_BAR, "less")
    return report


def _case(size: int, sessions: int) -> str:
    return f"{size} workers, {sessions} sessions"


def _replace(
    run: Run, report: Report, name: str, *, size: int, sessions: int, options: Mapping[str, Any], code: str
) -> None:
    ids = [f"stay-{number}" for number in range(sessions)]
    with TemporaryDirectory() as folder, run.bed(run.ours) as bed:
        stop = Path(folder) / "stop"
        processes = bed.start_workers(size, code_version="1", **options)
        bed.ours.start_staying(ids, PAUSE, str(stop))
        while min(bed.ours.history_lengths(ids)) < 1:
            time.sleep(0.1)
        time.sleep(SETTLE)
        began = time.monotonic()
        for number, worker in enumerate(processes):
            worker.end()
            bed.workers.start(f"worker-{number}", code_version=code, **options)
            time.sleep(SETTLE)
        ended = time.monotonic()
        stop.touch()
        stays = [_check(output) for output in bed.client.outputs(ids)]
        moves = anyio.run(_count_moves, bed.url)
    gaps = [max(after.at - before.at for before, after in pairwise(stamps) if after.at > began) for stamps in stays]
    meanwhile = sum(began <= one.at < ended for stamps in stays for one in stamps)
    values = {
        MOVES: mean(moves[one] for one in ids),
        MOST: max(moves[one] for one in ids),
        MEDIAN_GAP: median(gaps),
        LONGEST_GAP: max(gaps),
        RATE: meanwhile / (ended - began),
        SECONDS: ended - began,
    }
    run.note(report, _case(size, sessions), name, values)


def _check(output: Any) -> Sequence[Stamp]:
    """The stamps of an instance, which has each turn once."""
    stamps = [Stamp(*row[:3]) for row in output]
    if [one.turn for one in stamps] != list(range(len(stamps))):
        raise WrongResults(f"a session gave {[one.turn for one in stamps][:100]}")
    return stamps


async def _count_moves(url: str) -> Counter[str]:
    """How often each session has moved since its first claim."""
    moves: Counter[str] = Counter()
    provider = await open_provider(url)
    try:
        page = await provider.list_session_moves(MoveFilter(), after=0, limit=PAGE)
        while page:
            moves.update(move.session_id for move in page if move.reason != "new")
            page = await provider.list_session_moves(MoveFilter(), after=page[-1].epoch, limit=PAGE)
    finally:
        await provider.aclose()
    return moves
