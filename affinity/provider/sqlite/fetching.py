"""Fetching work items.

A fetch that finds nothing must cost next to nothing, since idle workers poll: it looks first, on a snapshot, and
takes the write lock only when there is something to take or a stale mark to repair. It reads three index ranges,
never the items of other workers' sessions:

    own     items of sessions that the caller holds. One whose session it holds no more is a stale mark.
    free    session-free items.
    new     items whose session nobody holds, each of which claims it; looked at only while there is room for a session.
            One whose session is held by now is a stale mark.

Stale marks that are met are repaired on the spot. That bounds the scan without ever stranding work or spinning: a
fetch that met too many of them says ``raced``, and there are fewer of them when it is repeated.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from affinity.provider.contract import FetchOptions, WorkerIdentity, WorkFetch, WorkItem, WorkKey, WorkLock
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.database import Database, Row, Tx
from affinity.provider.sqlite.sessions import FREE, NEW, Lease, own_route
from affinity.provider.sqlite.tokens import Tokens
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "work_items.sql")

NOTHING: Final = WorkFetch(items=(), raced=False, next_due=None)

MAX_STALE: Final = 200
"""Stale marks that one fetch repairs before it stops to scan."""


class _Look(NamedTuple):
    """What a look at the queue showed."""

    worthwhile: bool  # there is something to take, or a mark to repair
    claims: bool  # the caller may claim sessions
    next_due: float | None = None


def fetch(database: Database, tokens: Tokens, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    """See `Provider.fetch_work_item`."""
    look = database.read(_look, identity, options)
    if look.worthwhile:
        return database.write(_take, tokens, identity, options)
    return WorkFetch(items=(), raced=False, next_due=look.next_due)


def _look(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> _Look:
    arguments = _arguments(tx, identity, options)
    row = tx.row(SQL["peek"], arguments)
    if row is None:
        return _Look(worthwhile=False, claims=False)
    draining, room, own_or_free = row
    claims = bool(room) and not draining
    if own_or_free or (claims and _one(tx, "peek_new", arguments)):
        return _Look(worthwhile=True, claims=claims)
    due = _one(tx, "next_due", {**arguments, "room": claims})
    return _Look(worthwhile=False, claims=claims, next_due=None if due is None else due - tx.now)


def _take(tx: Tx, tokens: Tokens, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    row = tx.row(SQL["peek"], _arguments(tx, identity, options))
    if row is None:  # the lease ended while we waited for the lock
        return NOTHING
    harvest = _Harvest(tx, tokens, identity, options)
    harvest.reap(own_route(identity.worker_id))
    harvest.reap(FREE)
    if row[1] and not row[0]:
        harvest.reap(NEW)
    return harvest.bring_in()


class _Harvest:
    """One fetch: candidates are picked range by range, then locked together."""

    def __init__(self, tx: Tx, tokens: Tokens, identity: WorkerIdentity, options: FetchOptions) -> None:
        self._tx = tx
        self._tokens = tokens
        self._identity = identity
        self._options = options
        self._names = frozenset(options.names)
        self._arguments = _arguments(tx, identity, options)
        self._own = own_route(identity.worker_id)
        self._picked: list[tuple[Row, Lease | None]] = []
        self._claimed: dict[str, Lease | None] = {}  # with their former lease
        self._stale: dict[str, str] = {}  # sessions by the mark that their items should have
        self._raced = False
        self._room = 0

    def reap(self, route: str) -> None:
        """Pick from one range, and repair the marks in it that turn out to be stale."""
        if route == NEW:
            held = sessions.count_held(self._tx, self._identity, self._options.max_sessions)
            self._room = self._options.max_sessions - held
        self._stale.clear()
        met = 0
        with self._tx.scan(SQL["scan"], {**self._arguments, "route": route, "any_name": route == self._own}) as rows:
            while len(self._picked) < self._options.limit and (row := next(rows, None)) is not None:
                met += not self._pick(row, route)
                if met >= MAX_STALE:
                    self._raced = bool(self._stale)
                    break
        reroute = sessions.Reroute(self._tx)
        for session_id, truth in self._stale.items():
            reroute(session_id, truth)

    def _pick(self, row: Row, route: str) -> bool:
        """Take the item if it is ours to take; False when the scan met it in vain."""
        session_id = row[6]
        lease = None if row[10] is None else Lease(row[10], row[11], row[12], bool(row[13]))
        if session_id is None or (lease is not None and lease.held_by(self._identity)):
            self._picked.append((row, lease))
            return True
        truth = NEW if lease is None else lease.route
        if truth != route:
            self._stale[session_id] = truth
            return False
        if session_id not in self._claimed:
            if not self._room:
                return False
            self._room -= 1
            self._claimed[session_id] = lease
        self._picked.append((row, None))
        return True

    def bring_in(self) -> WorkFetch:
        """Claim the sessions, lock the items."""
        timeouts = self._options.timeouts
        claimed = sessions.claim(self._tx, self._identity, self._claimed, timeouts.session_lock)
        sessions.touch(
            self._tx,
            self._identity,
            {row[6] for row, lease in self._picked if lease is not None},
            timeouts.session_lock,
        )
        items = [self._item(row, lease.epoch if lease else claimed.get(row[6])) for row, lease in self._picked]
        self._tx.many(SQL["lock"], [self._lock(row, item) for (row, _), item in zip(self._picked, items, strict=True)])
        return WorkFetch(items=items, raced=self._raced and not items, next_due=None)

    def _item(self, row: Row, epoch: int | None) -> WorkItem:
        _, instance_id, execution_id, activity_id, name, payload, session_id, attempts, failures, unknown_since, *_ = (
            row
        )
        return WorkItem(
            lock=WorkLock(WorkKey(instance_id, execution_id, activity_id), self._tokens.next()),
            name=name,
            payload=payload,
            session_id=session_id,
            session_epoch=epoch,
            attempts=attempts + 1,
            failures=failures,
            unknown_for=None if unknown_since is None else self._tx.now - unknown_since,
        )

    def _lock(self, row: Row, item: WorkItem) -> dict[str, Any]:
        return {
            "id": row[0],
            "worker_id": self._identity.worker_id,
            "incarnation": self._identity.incarnation,
            "token": item.lock.token,
            "locked_until": self._tx.now + self._options.timeouts.work_item_lock,
            "known": item.name in self._names,
        }


def _arguments(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> dict[str, Any]:
    return {
        "now": tx.now,
        "worker_id": identity.worker_id,
        "incarnation": identity.incarnation,
        "own": own_route(identity.worker_id),
        "max_sessions": options.max_sessions,
        "names": json.dumps(list(options.names)),
        "unknown_before": tx.now - options.unknown_after,
    }


def _one(tx: Tx, name: str, arguments: dict[str, Any]) -> Any:
    row = tx.row(SQL[name], arguments)
    return None if row is None else row[0]
