"""Fetching work items.

A fetch that finds nothing must be cheap, since idle workers poll: it first reads a snapshot, and takes the write lock
only when there is an item to take or a stale route to repair. It reads four index ranges, never the items of other
workers' sessions:

    own     items of sessions that the caller holds. If it no longer holds the session, the route is stale.
    free    session-free items: a share of them. One range for each tag of the caller, as for new.
    offer   items whose session no worker holds, and that are offered to the caller; read only while it may claim a
            session. If the session is held by now, the route is stale.
    new     items whose session no worker holds, and that any worker may claim: a share of them.

It takes the oldest of what it finds there.

It repairs the stale routes that it meets. That bounds the scan, and no work is stranded: a fetch that met too many of
them returns ``claim_lost``, and there are fewer of them when it is repeated.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any, Final, NamedTuple

from affinity.limits import MAX_BATCH, MIN_SHARE, SHARE_DIVISOR, fair_share
from affinity.provider.contract import (
    MAX_ASSIGNED,
    NEWER_SECONDS,
    FetchOptions,
    WorkerIdentity,
    WorkFetch,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.payloads import OF_ITEMS, read_payloads
from affinity.provider.sqlite.sessions import FREE, NEW, Lease, offer_route, own_route
from affinity.provider.sqlite.workers import is_outdated
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "fetching.sql")

NOTHING: Final = WorkFetch(items=(), claim_lost=False, next_due=None)

SPARES: Final = (0, 50, 50, 50)
"""Number of items beyond the limit that each scan of a range reads, by scan. All but the first scan follow a repair of
stale routes: then there may be more stale routes to pass over.
"""


class _CandidateRow(NamedTuple):
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
    visible_at: float
    ordered: bool
    limited: bool
    tag: str | None
    route: str  # on which it was found

    def session_tag(self) -> str | None:
        """The tag of its session; its own, if its session begins with it."""
        begun = self.lease is not None and self.lease.has_begun
        return self.lease.tag if begun and self.lease is not None else self.tag


def fetch(database: Database, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    if options.only_own:
        found = database.read(_has_own, identity, options)
        return database.write(_take_own, identity, options) if found else NOTHING
    nothing = database.read(_look, identity, options)
    return database.write(_take, identity, options) if nothing is None else nothing


def _look(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch | None:
    """The answer if there is nothing to take and no route to repair; else None."""
    arguments = _arguments(tx, identity, options)
    row = tx.row(SQL["peek"], arguments)
    if row is None:
        return NOTHING
    peeked = _PeekRow(*row)
    outdated = _check_outdated(tx, identity, options, peeked, arguments)
    claims = peeked.may_claim(options)
    if peeked.own_or_free or (claims and _unheld(tx, arguments)):
        return None
    due = tx.value(SQL["next_due"], {**arguments, "claims": claims})
    return WorkFetch(
        items=(),
        claim_lost=False,
        next_due=None if due is None else due - tx.now,
        crowded=peeked.is_full(options) and _unheld(tx, arguments),
        workers=peeked.workers,
        draining=bool(peeked.draining),
        assigned=peeked.assigned_to(options),
        outdated=outdated,
    )


def _check_outdated(
    tx: Tx, identity: WorkerIdentity, options: FetchOptions, peeked: _PeekRow, arguments: dict[str, Any]
) -> bool:
    """Whether the caller leaves new and freed sessions to workers of newer code, or with a lower ordinal. Then it takes
    only work that has waited for `NEWER_SECONDS`.
    """
    outdated = bool(peeked.versions_differ) and is_outdated(tx, identity)
    if options.pack and not outdated and _unheld(tx, arguments):
        outdated = bool(tx.value(SQL["lower_has_room"], arguments))
    if outdated:
        arguments["until"] -= NEWER_SECONDS
    return outdated


class _PeekRow(NamedTuple):
    """The result of the first look of a fetch."""

    draining: int
    workers: int  # that could claim
    versions_differ: int | None  # of their code
    held: int  # sessions
    own_or_free: int  # whether there is something to fetch without claiming a session
    assigned: str  # JSON: sessions that are to move to the caller by a plan with a bound

    def may_claim(self, options: FetchOptions) -> bool:
        """Whether the caller takes work that claims a session."""
        return self.held < options.max_sessions and not self.draining

    def assigned_to(self, options: FetchOptions) -> list[str]:
        """The sessions that are to move to the caller, if it takes any."""
        names: list[str] = json.loads(self.assigned)
        return names if self.may_claim(options) else []

    def is_full(self, options: FetchOptions) -> bool:
        """Whether the caller would take such work if it held fewer sessions."""
        return self.held >= options.max_sessions > 0 and not self.draining


def _unheld(tx: Tx, arguments: dict[str, Any]) -> bool:
    """Whether there is work that claims a session."""
    return bool(tx.value(SQL["peek_new"], arguments))


def _take(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    arguments = _arguments(tx, identity, options)
    row = tx.row(SQL["peek"], arguments)
    if row is None:  # the lease ended while we waited for the lock
        return NOTHING
    peeked = _PeekRow(*row)
    outdated = _check_outdated(tx, identity, options, peeked, arguments)
    batch = _FetchBatch(tx, identity, options, arguments)
    batch.scan(arguments["own"])
    batch.scan_free(peeked.workers)
    if peeked.may_claim(options):
        batch.scan(arguments["offer"])
        batch.scan_new(peeked.workers)
    batch.pick(options.max_sessions - peeked.held)
    crowded = peeked.is_full(options) and _unheld(tx, arguments)
    return replace(
        batch.lock(),
        crowded=crowded,
        workers=peeked.workers,
        draining=bool(peeked.draining),
        assigned=sorted(batch.assigned.union(peeked.assigned_to(options))),
        outdated=outdated,
    )


def _has_own(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> bool:
    """Whether there may be an item for `FetchOptions.only_own`."""
    return bool(tx.value(SQL["peek_own"], _arguments(tx, identity, options)))


def _take_own(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
    if not _has_own(tx, identity, options):  # the lease ended while we waited for the lock
        return NOTHING
    batch = _FetchBatch(tx, identity, options, _arguments(tx, identity, options))
    batch.scan(own_route(identity.worker_id))
    batch.pick(0)
    return batch.lock()


class _FetchBatch:
    """One fetch: candidates are found range by range, then the oldest of them are locked together."""

    def __init__(self, tx: Tx, identity: WorkerIdentity, options: FetchOptions, arguments: dict[str, Any]) -> None:
        self._tx = tx
        self._new = frozenset(options.tags.routes(NEW))
        self._identity = identity
        self._options = options
        self._arguments = arguments
        self._found: list[_CandidateRow] = []
        self._picked: dict[int, _CandidateRow] = {}
        self._claimed: dict[str, Lease | None] = {}  # with their former lease
        self._tags: dict[str | None, str | None] = {}  # of sessions with picked items
        self._stale: defaultdict[str, set[str]] = defaultdict(set)  # sessions by the route that their items should have
        self._share: int | None = None  # of the sessions that any worker may claim
        self.assigned: set[str] = set()
        """Sessions whose work waits here, and that are to move to the caller."""
        self._raced = False
        self._left = False

    def scan_free(self, workers: int) -> None:
        """Find session-free items: a share, if there are other ``workers`` than the caller."""
        share = self._share_of("count_free", workers) if workers > 1 else self._options.limit
        found = [one for route in self._options.tags.routes(FREE) for one in self._scan(route)]
        self._found += sorted(found, key=_age)[:share]

    def scan_new(self, workers: int) -> None:
        """Find items whose session any worker may claim, and how many of these sessions the caller may claim."""
        if workers > 1:
            self._share = self._share_of("count_new", workers)
        for route in self._options.tags.routes(NEW):
            self.scan(route)

    def _share_of(self, count: str, workers: int) -> int:
        """The share of one fetch of what ``workers``, the caller among them, may take."""
        limit = self._options.limit
        if limit <= MIN_SHARE:
            return MIN_SHARE
        most = min(MAX_BATCH, SHARE_DIVISOR * workers * limit)
        waiting = self._tx.value(SQL[count], {**self._arguments, "count": most})
        share = fair_share(waiting, workers)
        self._left |= share < min(waiting, limit)
        return share

    def scan(self, route: str) -> None:
        """Find items in one range."""
        self._found += self._scan(route)

    def _scan(self, route: str) -> list[_CandidateRow]:
        """The items that may be taken in one range; stale routes in it are repaired."""
        for spare in SPARES:
            found = [one for one in self._read(route, spare) if self._check_route(one, route)]
            if not self._repair():
                break
        else:
            self._raced = True
        return found[: self._options.limit]

    def pick(self, room: int) -> None:
        """Choose the oldest of the found items, with up to ``room`` new sessions."""
        for one in sorted(self._found, key=_age):
            if len(self._picked) < self._options.limit and self._reserve_session(one, room):
                self._picked[one.id] = one
                self._tags.setdefault(one.session_id, one.session_tag())

    def _reserve_session(self, one: _CandidateRow, room: int) -> bool:
        """Reserve the item's session, unless it is held or reserved; returns False when there is no room for it."""
        session_id = one.session_id
        if session_id is None or session_id in self._claimed or (one.lease is not None and one.lease.held):
            return True
        is_new = one.route in self._new
        if len(self._claimed) >= room or (is_new and self._share == 0):
            return False
        if is_new and self._share is not None:
            self._share -= 1
        self._claimed[session_id] = one.lease
        return True

    def lock(self) -> WorkFetch:
        """Claim the sessions, lock the items."""
        payloads = read_payloads(self._tx, OF_ITEMS, list(self._picked), self._options.max_bytes)
        picked = [one for one in self._picked.values() if one.id in payloads]
        if not picked:
            return WorkFetch(items=(), claim_lost=self._raced, next_due=None)
        wanted = {one.session_id for one in picked}
        self._claimed = {name: lease for name, lease in self._claimed.items() if name in wanted}
        session_lock = self._options.timeouts.session_lock
        tags = {name: self._tags[name] for name in self._claimed}
        claimed = sessions.claim(self._tx, self._identity, self._claimed, session_lock, tags)
        held = {one.session_id for one in picked if one.session_id is not None and one.session_id not in claimed}
        sessions.touch(self._tx, self._identity, held, session_lock)
        tokens = {one.id: self._tx.tokens.next() for one in picked}
        until = {"locked_until": self._tx.now + self._options.timeouts.work_item_lock}
        self._tx.many(SQL["lock"], list(tokens.items()), {**self._arguments, **until})
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
                ordered=one.ordered,
                limited=one.limited,
                session_tag=None if one.session_id is None else self._tags[one.session_id],
            )
            for one in picked
        ]
        more = len(items) < len(self._picked) or self._has_more()
        return WorkFetch(
            items=items, claim_lost=False, next_due=None, unclaimed_remaining=self._left, limit_reached=more
        )

    def _has_more(self) -> bool:
        """Whether another fetch would find something, now that the picked items are locked."""
        if len(self._picked) < self._options.limit:
            return False
        if self._options.only_own:
            return _has_own(self._tx, self._identity, self._options)
        row = self._tx.row(SQL["peek"], self._arguments)
        assert row is not None
        peeked = _PeekRow(*row)
        return bool(peeked.own_or_free) or (peeked.may_claim(self._options) and _unheld(self._tx, self._arguments))

    def _read(self, route: str, spare: int) -> list[_CandidateRow]:
        own = route == self._arguments["own"]
        limits = {"route": route, "any_name": own, "limit": self._options.limit + spare}
        if route not in self._new:
            limits["until"] = self._tx.now
        return [_candidate(row, route) for row in self._tx.gather(SQL["scan"], {**self._arguments, **limits})]

    def _check_route(self, one: _CandidateRow, route: str) -> bool:
        """Return whether the item may be taken; record its route as stale if not."""
        session_id, lease = one.session_id, one.lease
        if session_id is None or (lease is not None and lease.served_by(self._identity)):
            return True
        if lease is not None and lease.held and lease.next_worker == self._identity.worker_id:
            self.assigned.add(session_id)  # behind `sessions.take`
            return False
        right_route = NEW if lease is None else lease.route
        if right_route == route or (right_route == NEW and (route == self._arguments["offer"] or route in self._new)):
            return True
        self._stale[right_route].add(session_id)
        return False

    def _repair(self) -> bool:
        """Repair the stale routes that the scan found; whether there were any."""
        found = bool(self._stale)
        for right_route, session_ids in self._stale.items():
            sessions.reroute(self._tx, session_ids, right_route)
        self._stale.clear()
        return found


def _age(one: _CandidateRow) -> tuple[float, int]:
    return one.visible_at, one.id


def _candidate(row: list[Any], route: str) -> _CandidateRow:
    row_id, instance_id, execution_id, activity_id, name, session_id, attempts, failures, *rest = row
    unknown_for, queued_for, visible_at, ordered, limited, tag, *lease = rest
    return _CandidateRow(
        id=row_id,
        key=WorkKey(instance_id, execution_id, activity_id),
        name=name,
        session_id=session_id,
        attempts=attempts,
        failures=failures,
        unknown_for=unknown_for,
        queued_for=queued_for,
        lease=None if lease[0] is None else Lease(*lease),
        visible_at=visible_at,
        ordered=bool(ordered),
        limited=bool(limited),
        tag=tag,
        route=route,
    )


def _epoch(one: _CandidateRow, claimed: dict[str, int]) -> int | None:
    if one.session_id in claimed:
        return claimed[one.session_id]
    return None if one.lease is None else one.lease.epoch


def _arguments(tx: Tx, identity: WorkerIdentity, options: FetchOptions) -> dict[str, Any]:
    return {
        **sessions.caller(tx, identity),
        "until": tx.now,
        "most_assigned": MAX_ASSIGNED,
        "own": own_route(identity.worker_id),
        "offer": offer_route(identity.worker_id),
        "free": to_json(options.tags.routes(FREE)),
        "new": to_json(options.tags.routes(NEW)),
        "names": to_json(list(options.names)),
        "unknown_before": tx.now - options.unknown_after,
        "uncounted_after": options.uncounted_after,
    }
