"""The sweep: the safety net under the marks in both queues, and the end of rows that nobody needs."""

from __future__ import annotations

from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import Sweep
from affinity.provider.postgres.base import Verbs
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "sweep.sql")


class SweepVerbs(Verbs):
    """`sweep`."""

    async def sweep(self, *, interval: float, session_retention: float, worker_retention: float) -> Sweep:
        """See `affinity.provider.contract.Provider`.

        Each step is a short statement of its own, waits for nobody, and may be repeated: an interrupted sweep has done
        so much less, and the next one does the rest.
        """
        if not await self._links.misc.run(_SQL["begin"], {"interval": float(interval)}):
            return Sweep(swept=False)
        items = await self._step("reroute_items")
        messages = await self._step("reroute_messages")
        sessions = await self._step("remove_sessions", session_retention)
        workers = await self._step("remove_workers", worker_retention)
        more = max(items, messages, sessions, workers) >= MAX_REROUTE
        if more:
            await self._links.misc.run(_SQL["again"])
        return Sweep(
            swept=True,
            rerouted=items + messages,
            sessions_removed=sessions,
            workers_removed=workers,
            more=more,
        )

    async def _step(self, name: str, retention: float = 0.0) -> int:
        params = {"reroute": Int8(MAX_REROUTE), "retention": float(retention)}
        return len(await self._links.misc.run(_SQL[name], params))
