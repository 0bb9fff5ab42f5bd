"""Work items in hand: renewing, checking, acknowledging, giving back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from affinity.provider.contract import NewMessage, Timeouts, WorkAbandon, WorkAck, WorkerIdentity, WorkLock
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.database import Row, Tx
from affinity.provider.sqlite.messages import send
from affinity.provider.sqlite.sessions import FREE, NEW, Reroute
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "work_items.sql")


def find(tx: Tx, lock: WorkLock) -> Row | None:
    """Row id, session and locker of the item, if the token is live."""
    return tx.row(SQL["find"], {**_named(lock), "now": tx.now})


def renew(tx: Tx, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts) -> list[bool]:
    """See `Provider.renew_work_item_lock`."""
    found = [find(tx, lock) for lock in locks]
    ours = [row for row in found if row is not None and row[2] == identity.incarnation]
    locked_until = tx.now + timeouts.work_item_lock
    tx.many(SQL["extend"], [{"id": row[0], "locked_until": locked_until} for row in ours])
    _touch(tx, identity, ours, timeouts)
    return [row is not None and row[2] == identity.incarnation for row in found]


def check(tx: Tx, locks: Sequence[WorkLock]) -> list[bool]:
    """See `Provider.check_work_item`."""
    return [bool(row and row[0]) for row in (tx.row(SQL["has_token"], _named(lock)) for lock in locks)]


def ack(tx: Tx, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts) -> list[bool]:
    """See `Provider.ack_work_item`."""
    removed: list[Row] = []
    outcome: list[bool] = []
    for done in acks:
        if row := find(tx, done.lock):
            tx.run(SQL["remove"], {"id": row[0]})
            send(tx, NewMessage(instance_id=done.lock.key.instance_id, payload=done.message))
            removed.append(row)
        outcome.append(row is not None)
    _touch(tx, identity, removed, timeouts)
    return outcome


def abandon(tx: Tx, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> list[bool]:
    """See `Provider.abandon_work_item`."""
    alive = read_caller(tx, identity).alive
    reroute = Reroute(tx)
    return [_abandon(tx, identity, item, reroute if alive else None) for item in items]


def disown(tx: Tx, identity: WorkerIdentity, known: Sequence[WorkLock]) -> int:
    """See `Provider.disown_work_item`."""
    tokens = json.dumps([lock.token for lock in known])
    return tx.run(SQL["disown"], {"incarnation": identity.incarnation, "known": tokens})


def _abandon(tx: Tx, identity: WorkerIdentity, item: WorkAbandon, reroute: Reroute | None) -> bool:
    """Give one item back; ``reroute`` is for its session, None when the caller can hold none."""
    row = find(tx, item.lock)
    if row is None:
        return False
    row_id, session_id, _ = row
    if item.release_session and session_id is not None and reroute is not None:
        sessions.free(tx, identity, [session_id], reroute)
    state = {
        "id": row_id,
        "route": _route(tx, session_id),
        "now": tx.now,
        "delay": item.delay,
        "uncounted": not item.count_attempt,
        "failed": item.failed,
        "unknown": item.unknown,
    }
    tx.run(SQL["give_back"], state)
    return True


def _route(tx: Tx, session_id: str | None) -> str:
    if session_id is None:
        return FREE
    lease = sessions.read_leases(tx, [session_id]).get(session_id)
    return NEW if lease is None else lease.route


def _touch(tx: Tx, identity: WorkerIdentity, rows: Sequence[Row], timeouts: Timeouts) -> None:
    session_ids = {row[1] for row in rows if row[1] is not None}
    if session_ids and read_caller(tx, identity).alive:
        sessions.touch(tx, identity, session_ids, timeouts.session_lock)


def _named(lock: WorkLock) -> dict[str, Any]:
    (instance_id, execution_id, activity_id), token = lock
    return {"instance_id": instance_id, "execution_id": execution_id, "activity_id": activity_id, "token": token}
