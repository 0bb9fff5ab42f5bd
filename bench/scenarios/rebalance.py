"""``rebalance``: workers join others that are full; how soon are the sessions spread, and what does it cost?"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from affinity import Client
from affinity.limits import MAX_PAGE
from bench.measures import Metric, Report, over_rounds
from bench.run import Bed, Run
from bench.work import Walk

SPREAD_AFTER = Metric(name="fullest worker at 1.2 times its share after, s", better="less", digits=1)
MOVED = Metric(name="sessions that moved")
MOST_MOVES = Metric(name="moves of one session, at most", better="less")
LOST = Metric(name="turns lost", better="less")
KEPT = Metric(name="turns/s while sessions move, % of before", digits=1)

OPTIONS: dict[str, Any] = {"session_min_idle": 1.0, "rebalance_interval": 1.0, "rebalance_after": 0.0}
"""A tenth of the defaults and less, so that a round takes seconds: offers every second, of sessions idle for one."""

OVER_SHARE = 1.2
MOST_MOVES_BAR = 1.0
KEPT_BAR = 95.0

STEP = 0.05
"""Seconds between two batches of work."""

PATIENCE = 120.0
LOOK = 0.2


class Traffic:
    """Turns at a steady rate, each on a session at random."""

    def __init__(self, bed: Bed, sessions: Sequence[str], rate: float) -> None:
        self._bed, self._sessions, self._rate = bed, sessions, rate
        self._ids: list[str] = []
        self.asked = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[float]:
        """When each turn was taken, of all that were asked for."""
        self._stopped.set()
        self._thread.join()
        walk = Walk(turns=1)
        return [walk.check(output)[0].at for output in self._bed.client.outputs(self._ids)]

    def _run(self) -> None:
        dice, began = random.Random(0), time.monotonic()  # noqa: S311 -- work, not secrets
        while not self._stopped.wait(STEP):
            due = int((time.monotonic() - began) * self._rate) - self.asked
            batch = {f"turn-{self.asked + n}": [dice.choice(self._sessions)] for n in range(due)}
            self._bed.ours.start_on(batch, Walk(turns=1))
            self._ids += batch
            self.asked += due


def rebalance(run: Run) -> Report:
    """So many workers, full of sessions; as many join."""
    report = Report("rebalance")
    workers, each = run.sized(4, 1), run.sized(100, 40)
    case = f"{workers} workers with {each} sessions each, {workers} join"
    over_rounds(run.rounds, [lambda: _join(run, report, case, workers, each)])
    ours = run.ours.name
    report.bar(f"{case}: moves of one session", report.median(case, ours, MOST_MOVES), MOST_MOVES_BAR, "less")
    report.bar(f"{case}: turns lost", report.median(case, ours, LOST), 0, "less")
    report.bar(f"{case}: turns/s while sessions move, %", report.median(case, ours, KEPT), KEPT_BAR)
    return report


def _join(run: Run, report: Report, case: str, workers: int, each: int) -> None:
    sessions = [f"session-{number}" for number in range(workers * each)]
    options = OPTIONS | {"max_sessions_per_runtime": each}
    with run.bed(run.ours) as bed:
        bed.start_workers(workers, **options)
        bed.ours.start_on({f"first-{one}": [one] for one in sessions}, Walk(turns=1))
        bed.client.outputs([f"first-{one}" for one in sessions])
        began = time.monotonic()
        turns = Traffic(bed, sessions, run.sized(100, 50))
        time.sleep(run.sized(10, 2))
        joined = time.monotonic()
        for worker in [bed.workers.launch(f"joined-{number}", **options) for number in range(workers)]:
            worker.ready()
        spread = _until_spread(bed, len(sessions) / workers / 2)
        at = turns.stop()
        moves = Counter(bed.ours.call(_moved))
    before = sum(began <= one < joined for one in at) / (joined - began)
    during = sum(joined <= one < spread for one in at) / (spread - joined)
    values = {
        SPREAD_AFTER: spread - joined,
        MOVED: len(moves),
        MOST_MOVES: max(moves.values(), default=0),
        LOST: turns.asked - len(at),
        KEPT: during / before * 100,
    }
    run.note(report, case, run.ours, values)


def _until_spread(bed: Bed, share: float) -> float:
    """When no worker held more than 1.2 times its share any more."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        held = [worker.sessions for worker in bed.ours.call(lambda client: client.workers())]
        if max(held) <= OVER_SHARE * share:
            return time.monotonic()
        time.sleep(LOOK)
    raise AssertionError(f"the sessions were not spread in {PATIENCE:g} s: {held}")


async def _moved(client: Client) -> list[str]:
    """The session of each move by an offer."""
    found, last = list[str](), 0
    while page := await client.session_moves(reason="rebalanced", after=last, limit=MAX_PAGE):
        found += [move.session_id for move in page]
        last = page[-1].epoch
    return found
