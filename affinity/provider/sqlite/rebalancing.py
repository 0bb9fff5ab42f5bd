"""How full the workers are, for rebalancing, and whether it is suspended."""

from __future__ import annotations

from typing import Final

from affinity.provider.contract import FleetLoad, WorkerIdentity
from affinity.provider.rows import to_load
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.sessions import caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "rebalancing.sql")


def get_load(tx: Tx, identity: WorkerIdentity | None, held: int) -> FleetLoad:
    if identity is not None:
        tx.run(SQL["report"], {**caller(tx, identity), "sessions": held})
    return to_load(bool(tx.value(SQL["suspended"])), tx.rows(SQL["load"], {"now": tx.now}))


def suspend(tx: Tx, *, suspended: bool) -> None:
    tx.run(SQL["suspend"], {"suspended": suspended})
