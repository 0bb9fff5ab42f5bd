"""Fetching work items.

A fetch that finds nothing must cost next to nothing, since idle workers poll: it looks first, on a snapshot, and
takes the write lock only when there is something to take or a stale mark to repair. It reads four index ranges,
never the items of other workers' sessions:

    own     items of sessions that the caller holds. One whose session it holds no more is a stale mark.
    free    session-free items.
    new     items whose session nobody holds, each of which claims it; looked at only while there is room for a session.
            One whose session is held by now is a stale mark. Those that are offered to the caller come first, then a
            share of those that are anyone's.

Stale marks that are met are repaired on the spot. That bounds the scan without ever stranding work or spinning: a
fetch that met too many of them says ``raced``, and there are fewer of them when it is repeated.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, NamedTuple

from affinity.limits import MAX_BATCH, fair_share
from affinity.provider.contract import FetchOptions, WorkerIdentity, WorkFetch, WorkItem, WorkKey, WorkLock
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.database import Database, Row, Tx, to_json
from affinity.provider.sqlite.payloads import read_payloads
from affinity.provider.sqlite.sessions import FREE, NEW, Lease, offer_route, own_route
from affinity.provider.sqlite.tokens import Tokens
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "work_items.sql")

NOTHING: Final = WorkFetch(items=(), raced=False, next_due=None)

SPARES: Final = (0, 50, 50, 50)
"""Scans of one range, each but the first after the repair of stale marks that the one before met: how many items they
read beyond those that are wanted, since where one mark was stale there may be more.
"""


class _Candidate(NamedTuple):
    """A row of the scan."""

    id: int
    key: WorkKey
    name: str
    session_id: str | None
    attempts: int
    failures: int
    unknown_for: float | None
    queued_for: float
    lease: Lease | None


def fetch(database: Database, tokens: Tokens, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    """See `Provider.fetch_work_item`."""
    nothing = database.read(_look, identity, options)
    return database.write(_take, tokens, identity, options) if nothing is None else nothing


def _look(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch | None:
    """The answer when there is nothing to take and no mark to repair; None when there is."""
    arguments = _arguments(tx, identity, options)
    row = tx.row(SQL["peek"], arguments)
    if row is None:
        return NOTHING
    claims = _may_claim(row, options)
    if _anything(tx, row, claims, arguments):
        return None
    due = tx.value(SQL["next_due"], {**arguments, "claims": claims})
    return WorkFetch(items=(), raced=False, next_due=None if due is None else due - tx.now)


def _may_claim(peeked: Row, options: FetchOptions) -> bool:
    draining, _, held, _ = peeked
    return bool(held < options.max_sessions and not draining)


def _anything(tx: Tx, peeked: Row, claims: bool, arguments: dict[str, Any]) -> bool:
    *_, own_or_free = peeked
    return bool(own_or_free or (claims and tx.value(SQL["peek_new"], arguments)))


def _take(tx: Tx, tokens: Tokens, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    arguments = _arguments(tx, identity, options)
    row = tx.row(SQL["peek"], arguments)
    if row is None:  # the lease ended while we waited for the lock
        return NOTHING
    _, workers, held, _ = row
    harvest = _Harvest(tx, tokens, identity, options, arguments)
    harvest.reap(arguments["own"])
    harvest.reap(FREE)
    if _may_claim(row, options):
        harvest.claim(options.max_sessions - held, workers)
    return harvest.bring_in()


class _Harvest:
    """One fetch: candidates are picked range by range, then locked together."""

    def __init__(
        self, tx: Tx, tokens: Tokens, identity: WorkerIdentity, options: FetchOptions, arguments: dict[str, Any]
    ) -> None:
        self._tx = tx
        self._tokens = tokens
        self._identity = identity
        self._options = options
        self._arguments = arguments
        self._picked: dict[int, _Candidate] = {}
        self._claimed: dict[str, Lease | None] = {}  # with their former lease
        self._stale: defaultdict[str, set[str]] = defaultdict(set)  # sessions by the mark that their items should have
        self._room = 0
        self._raced = False
        self._left = False

    def claim(self, room: int, workers: int) -> None:
        """Pick from what nobody holds, up to ``room`` sessions; ``workers`` could do so, the caller being one."""
        self.reap(self._arguments["offer"], room)
        room -= len(self._claimed)
        if workers > 1:
            waiting = self._tx.value(SQL["count_new"], {**self._arguments, "count": MAX_BATCH})
            share = fair_share(waiting, workers)
            self._left = share < waiting
            room = min(room, share)
        self.reap(NEW, room)

    def reap(self, route: str, room: int = 0) -> None:
        """Pick from one range, and repair the marks in it that turn out to be stale; ``room`` is for new sessions."""
        self._room = room
        for spare in SPARES:
            for candidate in self._scan(route, spare):
                if len(self._picked) < self._options.limit:
                    self._pick(candidate, route)
            if not self._repair():
                return
        self._raced = True

    def bring_in(self) -> WorkFetch:
        """Claim the sessions, lock the items."""
        picked = self._picked.values()
        if not picked:
            return WorkFetch(items=(), raced=self._raced, next_due=None)
        session_lock = self._options.timeouts.session_lock
        claimed = sessions.claim(self._tx, self._identity, self._claimed, session_lock)
        held = {one.session_id for one in picked if one.session_id is not None and one.session_id not in claimed}
        sessions.touch(self._tx, self._identity, held, session_lock)
        tokens = {one.id: self._tokens.next() for one in picked}
        until = {"locked_until": self._tx.now + self._options.timeouts.work_item_lock}
        self._tx.many(SQL["lock"], list(tokens.items()), {**self._arguments, **until})
        payloads = read_payloads(self._tx, SQL["payloads"], list(tokens))
        items = [
            WorkItem(
                lock=WorkLock(one.key, tokens[one.id]),
                name=one.name,
                payload=payloads[one.id],
                session_id=one.session_id,
                session_epoch=_epoch(one, claimed),
                attempts=one.attempts + 1,
                failures=one.failures,
                unknown_for=one.unknown_for,
                queued_for=one.queued_for,
            )
            for one in picked
        ]
        return WorkFetch(items=items, raced=False, next_due=None, left=self._left, more=self._more())

    def _more(self) -> bool:
        """After all that was picked is locked, whether there would be something for another fetch."""
        if len(self._picked) < self._options.limit:
            return False
        peeked = self._tx.row(SQL["peek"], self._arguments)
        assert peeked is not None
        return _anything(self._tx, peeked, _may_claim(peeked, self._options), self._arguments)

    def _scan(self, route: str, spare: int) -> list[_Candidate]:
        if len(self._picked) >= self._options.limit:
            return []
        own = route == self._arguments["own"]
        limits = {"route": route, "any_name": own, "limit": self._options.limit + spare}
        rows = self._tx.gather(SQL["scan"], {**self._arguments, **limits})
        return [_candidate(row) for row in rows if row[0] not in self._picked]

    def _pick(self, one: _Candidate, route: str) -> None:
        """Take the item if it is ours to take."""
        session_id, lease = one.session_id, one.lease
        if session_id is None or (lease is not None and lease.held_by(self._identity)):
            self._picked[one.id] = one
            return
        truth = NEW if lease is None else lease.route
        if truth != route and not (truth == NEW and route == self._arguments["offer"]):
            self._stale[truth].add(session_id)
        elif session_id in self._claimed or self._room:
            self._room -= session_id not in self._claimed
            self._claimed[session_id] = lease
            self._picked[one.id] = one

    def _repair(self) -> bool:
        """Re-mark what the scan found to be stale; whether there was anything."""
        found = bool(self._stale)
        for truth, session_ids in self._stale.items():
            sessions.reroute(self._tx, session_ids, truth)
        self._stale.clear()
        return found


def _candidate(row: list[Any]) -> _Candidate:
    row_id, instance_id, execution_id, activity_id, name, session_id, attempts, failures, *rest = row
    unknown_for, queued_for, *lease = rest
    return _Candidate(
        id=row_id,
        key=WorkKey(instance_id, execution_id, activity_id),
        name=name,
        session_id=session_id,
        attempts=attempts,
        failures=failures,
        unknown_for=unknown_for,
        queued_for=queued_for,
        lease=None if lease[0] is None else Lease(*lease),
    )


def _epoch(one: _Candidate, claimed: dict[str, int]) -> int | None:
    if one.session_id in claimed:
        return claimed[one.session_id]
    return None if one.lease is None else one.lease.epoch


def _arguments(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> dict[str, Any]:
    return {
        "now": tx.now,
        "worker_id": identity.worker_id,
        "incarnation": identity.incarnation,
        "own": own_route(identity.worker_id),
        "offer": offer_route(identity.worker_id),
        "names": to_json(list(options.names)),
        "unknown_before": tx.now - options.unknown_after,
        "uncounted_after": options.uncounted_after,
    }
