"""How full the workers are, for rebalancing, and whether it is suspended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.provider.contract import FleetLoad, WorkerIdentity
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.postgres.operations import Operations, caller_params
from affinity.provider.rows import to_load
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "rebalancing.sql")
_EXCHANGE: Final = (_SQL["report"], _SQL["load"])


class RebalancingOperations(Operations):
    """`exchange_load`, `get_load` and `suspend_rebalancing`."""

    async def exchange_load(self, identity: WorkerIdentity, held: int) -> FleetLoad:
        _, rows = await self._connections.rows.pipeline(_EXCHANGE, {**caller_params(identity), "sessions": held})
        return _fleet(rows)

    async def get_load(self) -> FleetLoad:
        return _fleet(await self._connections.rows.run(_SQL["load"]))

    async def suspend_rebalancing(self, *, suspended: bool) -> None:
        await self._connections.rows.run(_SQL["suspend"], {"suspended": suspended})


def _fleet(rows: Sequence[Row]) -> FleetLoad:
    ((suspended, *_), *_) = rows
    return to_load(bool(suspended), [(worker_id, *load) for _, worker_id, *load in rows if worker_id is not None])
