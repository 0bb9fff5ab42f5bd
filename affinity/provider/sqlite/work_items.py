"""Work items in hand: renewing, checking, acknowledging, giving back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from affinity.provider.contract import NewMessage, Timeouts, WorkAbandon, WorkAck, WorkerIdentity, WorkLock
from affinity.provider.sqlite import failures, sessions
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.messages import send
from affinity.provider.sqlite.parts import PartWriters
from affinity.provider.sqlite.session_states import FenceChecker
from affinity.provider.sqlite.sessions import FREE, NEW
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "work_items.sql")


class HeldItemRow(NamedTuple):
    """A work item found by its live token."""

    id: int
    session_id: str | None
    incarnation: str  # that took the token


def find(tx: Tx, locks: Sequence[WorkLock]) -> list[HeldItemRow | None]:
    """Return the items whose tokens are live, each at the place of its lock."""
    if not locks:
        return []
    rows = tx.gather(SQL["find"], {"locks": to_json(locks), "now": tx.now})
    found = {place: HeldItemRow(*held) for place, *held in rows}
    return [found.get(place) for place in range(len(locks))]


def find_routes(tx: Tx, first: str = "", last: str = "\U0010ffff") -> list[str]:
    """Return the routes of queued items between ``first`` and ``last``, in order."""
    return [route for (route,) in tx.rows(SQL["routes"], {"first": first, "last": last})]


def remove(tx: Tx, items: Sequence[HeldItemRow]) -> None:
    """Remove finished items."""
    tx.many(SQL["remove"], [item.id for item in items])


def renew(tx: Tx, identity: WorkerIdentity, locks: Sequence[WorkLock], timeouts: Timeouts) -> list[bool]:
    found = find(tx, locks)
    ours = [item for item in found if item is not None and item.incarnation == identity.incarnation]
    tx.many(SQL["extend"], [item.id for item in ours], {"locked_until": tx.now + timeouts.work_item_lock})
    _touch(tx, identity, ours, timeouts)
    return [item in ours for item in found]


def check(tx: Tx, locks: Sequence[WorkLock]) -> list[bool]:
    carried = set(tx.gather(SQL["carries"], {"locks": to_json(locks)}))
    return [place in carried for place in range(len(locks))]


def ack(tx: Tx, identity: WorkerIdentity, acks: Sequence[WorkAck], timeouts: Timeouts) -> list[bool]:
    checker = FenceChecker(tx, [work_ack.state for work_ack in acks if work_ack.state is not None])
    parts = PartWriters(tx, [part for work_ack in acks for part in work_ack.parts])
    first: dict[int, tuple[int, HeldItemRow]] = {}  # of several acks of one item the first counts
    for place, held in enumerate(find(tx, [work_ack.lock for work_ack in acks])):
        if held is not None:
            first.setdefault(held.id, (place, held))
    done = {place: held for place, held in first.values() if _passes(checker, parts, acks[place])}
    remove(tx, [held for place, held in done.items() if acks[place].message is not None])
    checker.write_accepted()
    parts.write_accepted()
    parts.write_to_others()
    passed = [(acks[place].lock.key.instance_id, acks[place].message) for place in done]
    send(tx, [NewMessage(instance_id=name, payload=message) for name, message in passed if message is not None])
    _touch(tx, identity, list(done.values()), timeouts)
    return [place in done for place in range(len(acks))]


def abandon(tx: Tx, identity: WorkerIdentity, items: Sequence[WorkAbandon]) -> list[bool]:
    alive = read_caller(tx, identity).alive
    return [_abandon(tx, identity, item, may_free=alive) for item in items]


def release_unknown_locks(
    tx: Tx, identity: WorkerIdentity, known: Sequence[WorkLock], delivered: Sequence[WorkLock] = ()
) -> int:
    tokens = {"known": _tokens(known), "delivered": _tokens(delivered)}
    return tx.run(SQL["release_unknown_locks"], {"incarnation": identity.incarnation, "now": tx.now, **tokens})


def begin(tx: Tx, identity: WorkerIdentity, lock: WorkLock, attempt: int, *, pause: float) -> bool:
    (held,) = find(tx, [lock])
    if held is None or held.incarnation != identity.incarnation:
        return False
    return tx.run(SQL["begin"], {"id": held.id, "attempt": attempt, "visible_at": tx.now + pause}) > 0


def _tokens(locks: Sequence[WorkLock]) -> str:
    return to_json([lock.token for lock in locks])


def _passes(checker: FenceChecker, parts: PartWriters, work_ack: WorkAck) -> bool:
    states = [] if work_ack.state is None else [work_ack.state]
    if checker.find_conflicts(states) or parts.find_conflicts(work_ack.parts):
        return False
    checker.accept(states)
    parts.accept(work_ack.parts)
    return True


def _abandon(tx: Tx, identity: WorkerIdentity, item: WorkAbandon, *, may_free: bool) -> bool:
    (held,) = find(tx, [item.lock])
    if held is None:
        return False
    if item.release_session and may_free and held.session_id is not None:
        sessions.free(tx, identity, [held.session_id], "code_missing")
    outcome = {
        "id": held.id,
        "route": _route(tx, held.session_id),
        "now": tx.now,
        "delay": item.delay,
        "uncounted": not item.count_attempt,
        "failed": item.failed,
        "unknown": item.unknown,
        "needs": item.needs,
        "error": item.error,
    }
    tx.run(SQL["give_back"], outcome)
    if item.failed:
        failures.keep_attempt(tx, held.id, item)
    return True


def _route(tx: Tx, session_id: str | None) -> str:
    if session_id is None:
        return FREE
    lease = sessions.read_leases(tx, [session_id]).get(session_id)
    return NEW if lease is None else lease.route


def _touch(tx: Tx, identity: WorkerIdentity, items: Sequence[HeldItemRow], timeouts: Timeouts) -> None:
    session_ids = {item.session_id for item in items if item.session_id is not None}
    if session_ids and read_caller(tx, identity).alive:
        sessions.touch(tx, identity, session_ids, timeouts.session_lock)
