"""The sweep: the safety net under the marks in both queues, and the end of rows that nobody needs."""

from __future__ import annotations

from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import OFFER_SECONDS, Sweep
from affinity.provider.postgres.base import Verbs
from affinity.provider.statements import load_statements

WINDOW: Final = 5_000
"""Queued sessions, and session rows, that one sweep looks at: some tens of milliseconds, however many there are."""

_SQL: Final = load_statements(__package__, "sweep.sql")


class SweepVerbs(Verbs):
    """`sweep`."""

    async def sweep(self, *, interval: float, session_retention: float, worker_retention: float) -> Sweep:
        """See `affinity.provider.contract.Provider`."""
        begun = await self._links.misc.run(_SQL["begin"], {"interval": float(interval)})
        if not begun:
            return Sweep(swept=False)
        bounds = {
            **dict(zip(("queued_session", "queued_route", "session"), begun[0], strict=True)),
            "window": Int8(WINDOW),
            "reroute": Int8(MAX_REROUTE),
            "offer_seconds": OFFER_SECONDS,
            "session_retention": float(session_retention),
            "worker_retention": float(worker_retention),
        }
        ((items, messages, sessions, workers, holds),) = await self._links.misc.run(_SQL["repair"], bounds)
        more = max(items, messages, sessions, workers, holds) >= MAX_REROUTE
        if more:
            await self._links.misc.run(_SQL["again"])
        return Sweep(
            swept=True,
            rerouted=items + messages,
            sessions_removed=sessions,
            workers_removed=workers,
            more=more,
        )
