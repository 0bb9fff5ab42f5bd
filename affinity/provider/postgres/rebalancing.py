"""Rebalancing: the load of the workers, and whether rebalancing is suspended."""

from __future__ import annotations

from typing import Final

from affinity.provider.contract import FleetLoad, WorkerIdentity
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.operations import Database, caller_params
from affinity.provider.rows import to_load
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "rebalancing.sql")
_REPORT: Final = (_SQL["report"], _SQL["load"])


async def get_load(db: Database, identity: WorkerIdentity | None = None, *, held: int = 0) -> FleetLoad:
    if identity is None:
        rows = await db.connections.rows.run(_SQL["load"])
    else:
        _, rows = await db.connections.rows.pipeline(_REPORT, {**caller_params(identity), "sessions": held})
    ((suspended, *_), *_) = rows
    return to_load(bool(suspended), [(worker_id, *load) for _, worker_id, *load in rows if worker_id is not None])


async def suspend_rebalancing(db: Database, *, suspended: bool) -> None:
    params = {"suspended": suspended}
    await db.connections.rows.run(*with_shares(db.shares, _SQL["suspend"], _SQL["suspended"], params))
