"""The sweep: repairs stale routes, and removes dead rows.

Every route is right when it is written. It goes stale when a session changes hands or is freed with more than
`MAX_REROUTE` queued items, when a session lock expires, and when a worker dies. So the sweep looks there, and
nowhere else:

* routes to workers that are not alive, and offers that were not taken in time, found by jumping through the index from
  route to route;
* sessions that are to move to another worker;
* other sessions that live workers hold: two probes of the index for each, for routes below and above the right one;
* sessions of the living whose lock ended since the last complete sweep (with a margin). A lock that ended earlier was
  seen by that sweep, and what was queued since then was routed to ``'new'`` from the start.

Marks in the message queue of instances that are no longer owned by a worker that lives are repaired by that
worker's fetches.
"""

from __future__ import annotations

import math
from typing import Any, Final

from affinity.limits import DRAINED_RETENTION_SECONDS, MAX_REROUTE, SWEEP_ROWS
from affinity.provider.contract import LEFT, OFFER_SECONDS, Sweep
from affinity.provider.sqlite import activity_waits, instances, messages, work_items
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import ask
from affinity.provider.sqlite.sessions import is_offer, own_route
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "sweep.sql")

MARGIN: Final = 60.0
"""Seconds by which the look at expired locks reaches back behind the last complete sweep: clocks are set back now
and then.
"""


def sweep(tx: Tx, *, interval: float, session_retention: float, worker_retention: float) -> Sweep:
    if not tx.run(SQL["begin"], {"now": tx.now, "interval": interval}):
        return Sweep(swept=False)
    repair = _Repair(tx)
    repair.run()
    begun = instances.begin_next_starts(tx, SWEEP_ROWS)
    sessions_removed = tx.run(
        SQL["remove_sessions"], {"expired_before": tx.now - session_retention, "limit": SWEEP_ROWS}
    )
    ended = {"ended_before": tx.now - worker_retention, "now": tx.now}
    ended["drained_before"] = tx.now - max(worker_retention, DRAINED_RETENTION_SECONDS)
    workers_removed = tx.run(SQL["remove_workers"], ended)
    holds_removed = tx.run(SQL["remove_holds"], {"now": tx.now, "limit": SWEEP_ROWS})
    activity_waits.remove(tx)
    if repair.exhausted:
        tx.run(SQL["due_immediately"])
    return Sweep(
        swept=True,
        rerouted=repair.rerouted + begun,
        sessions_removed=sessions_removed,
        workers_removed=workers_removed,
        limit_reached=repair.exhausted,
        backlog=max(begun, sessions_removed, holds_removed) >= SWEEP_ROWS,
        due=ask(tx, "due"),
    )


class _Repair:
    """Repairs the routes of up to `MAX_REROUTE` rows of both queues."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.rerouted = 0

    @property
    def exhausted(self) -> bool:
        """Whether there may be more to do."""
        return self.rerouted >= MAX_REROUTE

    def run(self) -> None:
        """Look wherever a route can be stale."""
        workers = self._tx.rows(SQL["workers"], {"now": self._tx.now})
        living = {worker_id: incarnation for worker_id, incarnation, alive in workers if alive}
        self._end_plans()
        self._reroute("reroute_planned", {})
        left = {worker_id for worker_id, incarnation in living.items() if incarnation.startswith(LEFT)}
        self._orphans({own_route(worker_id) for worker_id in living}, {own_route(worker_id) for worker_id in left})
        since = self._last_clean()
        for worker_id, incarnation in living.items():
            self._living(worker_id, incarnation, since)
        if not self.exhausted:
            self._tx.run(SQL["set_swept_clean"], {"now": self._tx.now})

    def _end_plans(self) -> None:
        now = self._tx.now
        self._tx.run(SQL["end_plans"], {"now": now})
        self._tx.run(
            SQL["end_refused"], {"now": now, "offered_before": now - OFFER_SECONDS, "last": now + OFFER_SECONDS}
        )

    def _orphans(self, alive: set[str], left: set[str]) -> None:
        """Routes to workers that are not alive, and offers of some time ago. Workers that have ``left`` for a restart
        keep their sessions, and own no instances.
        """
        for route in work_items.find_routes(self._tx, "new:"):
            if route not in alive:
                until = self._tx.now - OFFER_SECONDS if is_offer(route) else math.inf
                self._reroute("reroute_orphans", {"route": route, "until": until})
        for route in messages.find_routes(self._tx, "w:"):
            if route not in alive - left and not self.exhausted:
                self.rerouted += messages.reroute_messages(self._tx, route, MAX_REROUTE - self.rerouted)

    def _living(self, worker_id: str, incarnation: str, since: float) -> None:
        """Items that are not routed to the holder of their session, or are so although its lock has ended."""
        at = {"worker_id": worker_id, "incarnation": incarnation, "route": own_route(worker_id), "since": since}
        self._reroute("reroute_held", at)
        self._reroute("reroute_expired", at)

    def _reroute(self, statement: str, arguments: dict[str, Any]) -> None:
        if not self.exhausted:
            limit = MAX_REROUTE - self.rerouted
            self.rerouted += self._tx.run(SQL[statement], {**arguments, "now": self._tx.now, "limit": limit})

    def _last_clean(self) -> float:
        last: float = self._tx.value(SQL["swept_clean"])
        return min(last, self._tx.now) - MARGIN
