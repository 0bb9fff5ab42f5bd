"""Work that has waited for as long as it may: it fails, or its session is freed for other workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from affinity.provider.contract import EndedWaits, Token, WaitFailure, WorkerIdentity, WorkItem, WorkKey, WorkLock
from affinity.provider.sqlite import releasing, sessions
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.work_items import find_routes
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "waits.sql")

_TAGGED: Final = (("free#", "free$"), ("new#", "new$"))
"""Bounds of the routes with a tag."""


def end_waits(
    database: Database,
    identity: WorkerIdentity,
    *,
    limit: int,
    tag_timeout: float | None,
    item_lock: float,
) -> EndedWaits:
    """End waits. Takes the write lock only when there is something to do."""
    if not database.read(_has_work, tag_timeout, limit):
        return EndedWaits()
    end = partial(_end_waits, limit=limit, tag_timeout=tag_timeout, item_lock=item_lock)
    return database.write(end, identity)


def _has_work(tx: Tx, tag_timeout: float | None, limit: int) -> bool:
    return bool(tx.value(SQL["has_due"], {"now": tx.now}) or _stranded(tx, tag_timeout, limit))


def _end_waits(
    tx: Tx,
    identity: WorkerIdentity,
    *,
    limit: int,
    tag_timeout: float | None,
    item_lock: float,
) -> EndedWaits:
    if not read_caller(tx, identity).alive:
        return EndedWaits()
    due = tx.rows(SQL["due"], {"now": tx.now, "limit": limit})
    fates = {fate: [row_id for row_id, _, found in due if found == fate] for fate in ("running", "takeover", "busy")}
    tx.many(SQL["postpone_running"], fates["running"], {"now": tx.now})
    tx.many(SQL["postpone_waiting"], fates["takeover"], {"now": tx.now})
    wanted: list[tuple[int, WaitFailure]] = [(row_id, "busy") for row_id in fates["busy"]]
    seen = {row_id for row_id, *_ in due}
    wanted += [(row_id, "no_worker_with_tag") for row_id in _stranded(tx, tag_timeout, limit) if row_id not in seen]
    named = {**sessions.caller(tx, identity), "locked_until": tx.now + item_lock}
    failed = [
        (_lock(tx, {**named, "id": row_id, "token": (token := tx.tokens.next())}, token), why) for row_id, why in wanted
    ]
    moving = sorted({name for _, name, fate in due if fate == "takeover" and name is not None})
    return EndedWaits(failed=failed, freed=_free(tx, moving))


def list_waiting_tags(tx: Tx, limit: int) -> list[str]:
    routes = [route for first, last in _TAGGED for route in find_routes(tx, first, last)]
    return sorted({route.partition("#")[2] for route in routes})[:limit]


def _stranded(tx: Tx, tag_timeout: float | None, limit: int) -> list[int]:
    """Items that have waited for so long, and no worker with their tag was alive in that time."""
    if tag_timeout is None:
        return []
    at = {"now": tx.now, "since": tx.now - tag_timeout, "limit": limit}
    routes = [route for first, last in _TAGGED for route in find_routes(tx, first, last)]
    missing = [one for one in routes if not tx.value(SQL["had_tag"], {**at, "tag": one.partition("#")[2]})]
    return [row_id for route in missing for row_id in tx.gather(SQL["stranded"], {**at, "route": route})]


def _lock(tx: Tx, arguments: dict[str, object], token: Token) -> WorkItem:
    row = tx.row(SQL["lock"], arguments)
    assert row is not None
    instance_id, execution_id, activity_id, name, payload, session_id, attempts, failures, queued_for, *flags = row
    ordered, limited = flags
    return WorkItem(
        lock=WorkLock(WorkKey(instance_id, execution_id, activity_id), token),
        name=name,
        payload=payload,
        session_id=session_id,
        session_epoch=None,
        attempts=attempts,
        failures=failures,
        unknown_for=None,
        queued_for=queued_for,
        ordered=bool(ordered),
        limited=bool(limited),
    )


def _free(tx: Tx, session_ids: Sequence[str]) -> list[str]:
    """Free the sessions that another worker may take, and that have no running item."""
    leases = sessions.read_leases(tx, session_ids)
    wanted = [
        name
        for name, lease in leases.items()
        if lease.held
        and lease.next_worker is None
        and tx.value(SQL["has_room_elsewhere"], {"session_id": name, "now": tx.now})
    ]
    outcomes = releasing.free(tx, wanted, "holder_busy")
    return [name for name, outcome in zip(wanted, outcomes, strict=True) if outcome == "released"]
