"""Rebalancing: a worker that holds more than its share of the sessions offers idle ones to workers with more room.

An offer is a `PlannedMove` without a bound. It changes nothing until the session's next work arrives: then the other
worker takes the session with that work, if it still can. So a session without work never pays, and its holder keeps
its state warm.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

from affinity.provider.contract import FleetLoad, PlannedMove
from affinity.worker.options import PACK
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.sessions import HeldSessions

logger: logging.Logger = logging.getLogger("affinity.worker")

OVER_SHARE = 1.2
"""A worker offers sessions while it holds more than this multiple of its share, by capacity."""

LEAST_SURPLUS = 3
"""And only while it holds at least this number of sessions more than its share."""

MOST_OFFERS = 5
"""Sessions that one round offers at most."""

MOST_PART = 0.1
"""Part of the held sessions that one round offers at most; at least one session."""

ROUNDS_WITHOUT_GAIN = 3
"""Rounds of offers without effect, after which a worker makes no more offers until a worker joins or leaves."""


def choose_targets(load: FleetLoad, me: str, *, settled_after: float, pending: int = 0) -> list[str]:
    """The workers to which ``me`` offers a session each in this round; an id may be there several times.

    Args:
        load: of all workers that are alive.
        me: the worker that asks.
        settled_after: seconds for which every worker must have run.
        pending: sessions that ``me`` has offered and that are not taken yet.
    """
    load = load.of_app(me)
    share = load.shares()
    is_mixed = len({worker.code_version for worker in load.workers}) > 1
    if me not in share or is_mixed or any(worker.draining or worker.age < settled_after for worker in load.workers):
        return []  # a worker has not said its load, or the fleet is about to change
    held = {worker.worker_id: worker.sessions or 0 for worker in load.workers}
    mine = held[me] - pending
    if mine <= OVER_SHARE * share[me] or mine - share[me] < LEAST_SURPLUS:
        return []
    most = min(MOST_OFFERS, max(1, int(held[me] * MOST_PART)), int(mine - share[me]))
    # At random, weighted by what each lacks: workers that offer at the same time do not all choose the same one.
    lacks = {name: lack for name in share if (lack := share[name] - held[name]) >= 1}
    chosen: list[str] = []
    while lacks and len(chosen) < most:
        (name,) = random.choices([*lacks], [*lacks.values()])  # noqa: S311 -- placement, not a secret
        chosen.append(name)
        lacks[name] -= 1
        if lacks[name] < 1:
            del lacks[name]
    return chosen


class Rebalancer(WorkerPart):
    """The rounds of one worker."""

    def __init__(self, services: WorkerServices, sessions: HeldSessions) -> None:
        super().__init__(services)
        self._sessions = sessions
        self._offers = services.options.rebalance == "offer" and services.options.placement != PACK
        self._fleet: frozenset[str] = frozenset()
        self._best = 0
        self._in_vain = 0

    async def run(self) -> None:
        """One round every ``rebalance_interval`` seconds, until cancelled."""
        while True:
            await self._pause(self._options.rebalance_interval * random.uniform(0.9, 1.1))  # noqa: S311
            if self._lease.is_alive:
                await self.run_round()

    async def run_round(self) -> None:
        """Report the load, also while draining, and offer sessions if there are too many here."""
        held = len(self._sessions)
        load = await self._health.call_seldom(partial(self._provider.get_load, self._identity, held=held), self.run)
        if not self._offers or load.suspended or not self._has_gained(load, held):
            return
        targets = choose_targets(
            load,
            self._identity.worker_id,
            settled_after=self._options.rebalance_after,
            pending=self._sessions.count_offered(),
        )
        candidates = self._sessions.movable(idle=self._options.session_min_idle, most=len(targets))
        moves = [
            PlannedMove(session_id=session_id, to=to, within=None, reason="rebalanced")
            for session_id, to in zip(candidates, targets, strict=False)
        ]
        if moves:
            await self._offer(moves)

    async def _offer(self, moves: Sequence[PlannedMove]) -> None:
        outcomes = await self._health.call_seldom(partial(self._provider.move_session, moves), self.run)
        made = [move for move, outcome in zip(moves, outcomes, strict=True) if outcome == "planned"]
        self._sessions.note_offers([move.session_id for move in made])
        for to, number in Counter(move.to for move in made).items():
            logger.info("worker %s: offers %d idle sessions to worker %s", self._identity.worker_id, number, to)

    def _has_gained(self, load: FleetLoad, held: int) -> bool:
        """Whether offers have helped lately, or the workers are others than before."""
        fleet = frozenset(worker.worker_id for worker in load.workers)
        if fleet != self._fleet or held < self._best or not self._sessions.count_offered():
            self._fleet, self._best, self._in_vain = fleet, held, 0
        else:
            self._in_vain += 1
        return self._in_vain <= ROUNDS_WITHOUT_GAIN
