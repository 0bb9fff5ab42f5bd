"""Instances: taking them with their messages, reading their histories, letting them go.

A worker that fetches messages of instances that it owns writes nothing: they stay in the queue until a turn that
consumed them commits. Only to take an instance, or to repair a stale route, does a fetch need the write lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from affinity.limits import MAX_BATCH, MAX_BATCH_BYTES, MAX_PAGE_EVENTS, fair_share
from affinity.provider.contract import (
    Generation,
    HistoryCursor,
    HistoryPage,
    OrchestrationFetch,
    OrchestrationItem,
    QueuedMessage,
    Release,
    WorkerIdentity,
)
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.messages import reroute_instances
from affinity.provider.sqlite.payloads import OF_MESSAGES, portions, read_payloads
from affinity.provider.sqlite.sessions import NEW, SUSPENDED, caller, own_route
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "orchestrations.sql")

MAX_SCAN: Final = 2 * MAX_BATCH
"""Further messages of instances already found that a scan passes over: one busy instance must not make every fetch
expensive.
"""


class _InstanceFetch(NamedTuple):
    """The arguments of a fetch of instances."""

    limit: int
    names: Collection[str]
    unknown_after: float
    exclude: Collection[int]
    max_bytes: int


def fetch(
    database: Database,
    identity: WorkerIdentity,
    *,
    limit: int,
    names: Collection[str],
    unknown_after: float,
    exclude: Collection[int] = (),
    max_bytes: int = MAX_BATCH_BYTES,
) -> OrchestrationFetch:
    options = _InstanceFetch(limit, names, unknown_after, exclude, max_bytes)
    found = database.read(_look, identity, options)
    return database.write(_take, identity, options) if found is None else found


def read_histories(tx: Tx, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES) -> list[HistoryPage]:
    pages: list[HistoryPage] = []
    for cursor in cursors:
        page, size = _read_page(tx, cursor, max_bytes)
        pages.append(page)
        max_bytes -= size
    return pages


def release(tx: Tx, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
    if read_caller(tx, identity).alive:
        for one in releases:
            _release(tx, identity, one)


def _read_page(tx: Tx, cursor: HistoryCursor, max_bytes: int) -> tuple[HistoryPage, int]:
    """A page, and its bytes."""
    events: list[str] = []
    size = 0
    at = {"instance_id": cursor.instance_id, "execution_id": cursor.execution_id}
    for portion in portions():
        if size >= max_bytes or len(events) >= MAX_PAGE_EVENTS:
            break
        most = min(portion, MAX_PAGE_EVENTS - len(events))
        limits = {"after": cursor.after + len(events), "page": most, "max_bytes": max_bytes - size}
        rows = tx.gather(SQL["history"], {**at, **limits})
        events += [event for event, _ in rows]
        size += max((total for _, total in rows), default=0)
        if len(rows) < most and size < max_bytes:
            return HistoryPage(events=events, more=False), size
    return HistoryPage(events=events, more=True), size


def _release(tx: Tx, identity: WorkerIdentity, one: Release) -> None:
    place = {"instance_id": one.instance_id, "now": tx.now}
    if not tx.run(SQL["release"], {**place, **caller(tx, identity), "unknown": one.unknown}):
        return
    handed = one.to is not None and tx.run(SQL["hand_over"], {**place, "heir": one.to})
    reroute_instances(tx, [one.instance_id], own_route(one.to) if handed and one.to is not None else NEW)


def _look(tx: Tx, identity: WorkerIdentity, options: _InstanceFetch) -> OrchestrationFetch | None:
    """The result of a fetch that needs no write; None when it must write."""
    search = _Search(tx, identity, options)
    row = tx.row(SQL["peek"], search.arguments)
    if row is None:
        return _nothing(tx, identity)
    draining, _, unowned = row
    search.scan(search.own)
    if search.stale or (unowned and not search.full):
        return None
    search.read_messages()
    return search.answer(draining)


def _take(tx: Tx, identity: WorkerIdentity, options: _InstanceFetch) -> OrchestrationFetch:
    search = _Search(tx, identity, options)
    row = tx.row(SQL["peek"], search.arguments)
    if row is None:  # the lease ended while we waited for the lock
        return _nothing(tx, identity)
    search.scan(search.own)
    search.repair()
    draining, workers, _ = row
    if not draining:
        search.scan(NEW, most=search.share(workers))
        search.repair()
    search.read_messages()
    search.take()
    return search.answer(draining)


def _nothing(tx: Tx, identity: WorkerIdentity) -> OrchestrationFetch:
    """The answer to a caller that is not alive or not current."""
    return OrchestrationFetch(items=(), claim_lost=False, next_due=None, fenced=read_caller(tx, identity).replaced)


class _FoundRow(NamedTuple):
    """A message, by its instance."""

    instance_id: str
    generation: Generation
    execution_id: int
    name: str
    version: str | None
    event_count: int
    claims: int
    unknown_for: float | None
    owner: str | None  # that is alive
    incarnation: str | None
    session_id: str | None
    value_bytes: int
    suspended: int


class _Search:
    """One fetch: instances are found by their messages, range by range."""

    def __init__(self, tx: Tx, identity: WorkerIdentity, options: _InstanceFetch) -> None:
        self._tx = tx
        self._identity = identity
        self._limit = options.limit
        self._max_bytes = options.max_bytes
        self.own = own_route(identity.worker_id)
        self.arguments: dict[str, Any] = {
            **caller(tx, identity),
            "own": self.own,
            "names": to_json(list(options.names)),
            "unknown_before": tx.now - options.unknown_after,
            "exclude": to_json(list(options.exclude)),
        }
        self.found: dict[str, _FoundRow] = {}
        self._messages: dict[str, list[QueuedMessage]] = {}
        self.stale: dict[str, str] = {}  # instances by the route that their messages should have
        self._unowned: set[str] = set()
        self._raced = False
        self._left = False
        self._cut = False  # a bound of messages or of bytes has left some

    @property
    def full(self) -> bool:
        """Whether as many instances were found as were asked for."""
        return len(self.found) >= self._limit

    def scan(self, route: str, most: int = 0) -> None:
        """Find instances in one range, ``most`` of them without an owner, and the stale routes in it."""
        page = 4 * self._limit
        at = {**self.arguments, "route": route, "any_name": route == self.own, "page": page}
        for offset in range(0, max(MAX_SCAN, page), page):
            rows = self._tx.gather(SQL["scan"], {**at, "offset": offset})
            for row in rows:
                self._see(_FoundRow._make(row), route, most)
            if self.full or len(rows) < page or (self._unowned and len(self._unowned) >= most):
                return
        self._raced = bool(self.stale)

    def share(self, workers: int) -> int:
        """How many instances without an owner the caller may take, one of ``workers`` that may."""
        if workers == 1:
            return self._limit
        waiting = self._tx.value(SQL["count_unowned"], {**self.arguments, "count": MAX_BATCH})
        share = fair_share(waiting, workers)
        self._left = share < waiting
        return share

    def repair(self) -> None:
        """Repair the stale routes that the scan found."""
        by_route: defaultdict[str, list[str]] = defaultdict(list)
        for instance_id, right_route in self.stale.items():
            by_route[right_route].append(instance_id)
        for right_route, instance_ids in by_route.items():
            reroute_instances(self._tx, instance_ids, right_route)
        self.stale.clear()

    def read_messages(self) -> None:
        """Read the messages of the found instances, as many as fit; an instance that gets none is left alone."""
        if not self.found:
            return
        wanted = {"instance_ids": to_json(list(self.found)), "most": MAX_BATCH}
        ids = self._tx.gather(SQL["messages"], {**self.arguments, **wanted})
        payloads = read_payloads(self._tx, OF_MESSAGES, [row_id for _, row_id in ids], self._max_bytes)
        for (instance_id, row_id), payload in zip(ids, payloads.values(), strict=False):
            self._messages.setdefault(instance_id, []).append(QueuedMessage(row_id, payload))
        most = max([len(messages) for messages in self._messages.values()], default=0)
        self._cut = len(payloads) < len(ids) or most == MAX_BATCH
        self.found = {name: row for name, row in self.found.items() if name in self._messages}
        self._unowned.intersection_update(self.found)

    def take(self) -> None:
        """Make the caller the owner of the instances that have none."""
        if self._unowned:
            self._tx.many(SQL["take"], list(self._unowned), self.arguments)
            reroute_instances(self._tx, self._unowned, self.own)

    def answer(self, draining: bool) -> OrchestrationFetch:
        """The found instances, with their messages."""
        items = [self._item(row, self._messages[row.instance_id]) for row in self.found.values()]
        more = self._raced or self._left or self._cut or self.full
        return OrchestrationFetch(
            items=items,
            claim_lost=self._raced and not items,
            next_due=0.0 if items and more else self._next_due(draining),
            unclaimed_remaining=self._left,
        )

    def _next_due(self, draining: bool) -> float | None:
        due = self._tx.value(SQL["next_due"], {**self.arguments, "draining": draining})
        return None if due is None else due - self._tx.now

    def _see(self, row: _FoundRow, route: str, most: int) -> None:
        instance_id, owner = row.instance_id, row.owner
        right_route = SUSPENDED if row.suspended else NEW if owner is None else own_route(owner)
        ours = owner == self._identity.worker_id and row.incarnation == self._identity.incarnation
        if right_route != route:
            self.stale[instance_id] = right_route
        if self.full or not (ours or right_route == route):
            return
        if ours:
            self.found[instance_id] = row
        elif instance_id in self._unowned or len(self._unowned) < most:
            self.found[instance_id] = row
            self._unowned.add(instance_id)

    def _item(self, row: _FoundRow, messages: list[QueuedMessage]) -> OrchestrationItem:
        return OrchestrationItem(
            instance_id=row.instance_id,
            generation=row.generation,
            execution_id=row.execution_id,
            name=row.name,
            version=row.version,
            event_count=row.event_count,
            claims=row.claims + (row.instance_id in self._unowned),
            unknown_for=row.unknown_for,
            messages=messages,
            session_id=row.session_id,
            value_bytes=row.value_bytes,
        )
