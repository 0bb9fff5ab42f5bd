"""Suspended instances: suspending, retrying with other code, resuming."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from affinity.provider.contract import Resumption, Suspend, WorkerIdentity
from affinity.provider.sqlite import orchestrations
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.messages import read_statuses, reroute_all_messages
from affinity.provider.sqlite.sessions import NEW, SUSPENDED, caller, own_route
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "suspension.sql")


def suspend(tx: Tx, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> list[bool]:
    alive = read_caller(tx, identity).alive
    return [alive and _suspend(tx, identity, one) for one in suspends]


def resume(tx: Tx, instance_ids: Sequence[str]) -> list[Resumption]:
    return [_resume(tx, instance_id) for instance_id in instance_ids]


def retry(tx: Tx, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int) -> list[str]:
    row = read_caller(tx, identity)
    if not row.alive or row.draining:
        return []
    found = [one for (one,) in tx.rows(SQL["untried"], {"names": to_json(list(names)), "code": code, "limit": limit})]
    for instance_id in found:
        tx.run(SQL["resume"], {"instance_id": instance_id, "now": tx.now})
        tx.run(SQL["close"], {"instance_id": instance_id, "now": tx.now, "forget": False})
    tx.many(orchestrations.SQL["take"], found, caller(tx, identity))
    reroute_all_messages(tx, found, own_route(identity.worker_id))
    return found


def _suspend(tx: Tx, identity: WorkerIdentity, one: Suspend) -> bool:
    arguments = {
        "instance_id": one.instance_id,
        "generation": one.generation,
        "execution_id": one.execution_id,
        "event_count": one.event_count,
        "error_type": one.error_type,
        "message": one.message,
        "code": one.code,
        "needs_code": one.needs_code,
        **caller(tx, identity),
    }
    if not tx.run(SQL["suspend"], arguments):
        return False
    tx.run(SQL["remember"], arguments)
    reroute_all_messages(tx, [one.instance_id], SUSPENDED)
    return True


def _resume(tx: Tx, instance_id: str) -> Resumption:
    if not tx.run(SQL["resume"], {"instance_id": instance_id, "now": tx.now}):
        return "not_suspended" if read_statuses(tx, [instance_id]) else "unknown"
    tx.run(SQL["close"], {"instance_id": instance_id, "now": tx.now, "forget": True})
    reroute_all_messages(tx, [instance_id], NEW)
    return "resumed"
