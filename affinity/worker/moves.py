"""Reports what hydrates, and loads of resources, have cost, and counts the moves of sessions to this worker by reason.

Nothing of this is on the path of a turn: epochs and hydrates are noted in memory, and one round of maintenance sends
them together. A worker to which no session moves sends nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from affinity.limits import MAX_BATCH
from affinity.orchestration.app import HasHydrates
from affinity.provider.contract import MoveReport
from affinity.records import Hydrate
from affinity.redaction import redacted
from affinity.user_code import call_sync
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.sessions import HeldSessions

logger: logging.Logger = logging.getLogger("affinity.worker")

COUNTED_MOVES = 10_000
"""Epochs that are remembered as counted: a session that comes back at its epoch has not moved."""


class MoveReporter(WorkerPart):
    """Collects the reports of one worker."""

    def __init__(self, services: WorkerServices, sessions: HeldSessions) -> None:
        super().__init__(services)
        self._report = services.provider.report_session_moves
        self._sessions = sessions
        self._sources = [one for one in sessions.notified if isinstance(one, HasHydrates)]
        self._counted: dict[int, None] = {}  # in the order in which they were counted

    async def report(self) -> None:
        """Send the hydrates and arrivals since the last call, if any."""
        hydrates = self._take_hydrates()
        arrived = self._take_arrivals()
        reports = [*hydrates, *map(MoveReport, arrived)]
        for start in range(0, len(reports), MAX_BATCH):
            batch = reports[start : start + MAX_BATCH]
            reasons = await self._health.retry(partial(self._report, batch))
            for reason in reasons[max(0, len(hydrates) - start) :]:
                if reason is not None:
                    self._metrics.count_move(reason)

    def _take_hydrates(self) -> list[MoveReport]:
        taken = [hydrate for source in self._sources for hydrate in _hydrates_of(source)]
        loads: defaultdict[int, float] = defaultdict(float)
        for one in taken:
            if one.resource is None:
                self._metrics.observe_hydrate(one.seconds)
            else:
                self._metrics.observe_load(one.resource, one.seconds)
                loads[one.epoch] += one.seconds
        if taken:
            self._sessions.note_hydrates({one.epoch: one.seconds for one in taken if one.resource is None})
            self._sessions.note_loads(loads)
        return [_report_of(one) for one in taken]

    def _take_arrivals(self) -> list[int]:
        arrivals = self._sessions.arrivals
        fresh = [epoch for epoch in dict.fromkeys(arrivals) if epoch not in self._counted]
        arrivals.clear()
        self._counted.update(dict.fromkeys(fresh))
        while len(self._counted) > COUNTED_MOVES:
            del self._counted[next(iter(self._counted))]
        return fresh


def _report_of(hydrate: Hydrate) -> MoveReport:
    if hydrate.resource is None:
        return MoveReport(hydrate.epoch, hydrate.seconds, hydrate.bytes)
    return MoveReport(hydrate.epoch, resource_seconds={hydrate.resource: hydrate.seconds})


def _hydrates_of(source: HasHydrates) -> Sequence[Hydrate]:
    try:
        return call_sync(lambda: [*source._take_hydrates()])
    except Exception as error:
        logger.exception("a session listener failed", exc_info=redacted(error))
        return []
