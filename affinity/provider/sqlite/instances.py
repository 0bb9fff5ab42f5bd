"""Instances: taking them with their messages, reading their histories, letting them go.

A worker that fetches messages of instances that it owns writes nothing: they stay in the queue until a turn that
consumed them commits. Only to take an instance, or to repair a stale mark, does a fetch need the write lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from affinity.limits import MAX_BATCH
from affinity.provider.contract import Message, OrchestrationFetch, OrchestrationItem, Release, WorkerIdentity
from affinity.provider.sqlite.database import Database, Row, Tx
from affinity.provider.sqlite.messages import reroute_instance
from affinity.provider.sqlite.sessions import NEW, own_route
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "instances.sql")

NOTHING: Final = OrchestrationFetch(items=(), raced=False, next_due=None)

MAX_STALE: Final = 200
"""Instances with stale marks that one fetch repairs before it stops to scan."""

MAX_SCAN: Final = 2 * MAX_BATCH
"""Further messages of instances already found that a scan passes over: one busy instance must not make every fetch
dear.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a worker asks for when it fetches instances."""

    limit: int
    names: Collection[str]
    unknown_after: float
    exclude: Collection[int]


def fetch(database: Database, identity: WorkerIdentity, wanted: Wanted) -> OrchestrationFetch:
    """See `Provider.fetch_orchestration_item`."""
    found = database.read(_look, identity, wanted)
    return database.write(_take, identity, wanted) if found is None else found


def read_histories(tx: Tx, keys: Sequence[tuple[str, int]]) -> list[list[str]]:
    """See `Provider.read_history`."""
    return [
        [row[0] for row in tx.rows(SQL["history"], {"instance_id": instance_id, "execution_id": execution_id})]
        for instance_id, execution_id in keys
    ]


def release(tx: Tx, identity: WorkerIdentity, releases: Sequence[Release]) -> None:
    """See `Provider.release_instance`."""
    if read_caller(tx, identity).alive:
        for one in releases:
            _release(tx, identity, one)


def _release(tx: Tx, identity: WorkerIdentity, one: Release) -> None:
    caller = {"worker_id": identity.worker_id, "incarnation": identity.incarnation}
    place = {"instance_id": one.instance_id, "now": tx.now}
    if not tx.run(SQL["release"], {**place, **caller, "unknown": one.unknown}):
        return
    handed = one.to is not None and tx.run(SQL["hand_over"], {**place, "heir": one.to})
    reroute_instance(tx, one.instance_id, own_route(one.to) if handed and one.to is not None else NEW)


def _look(tx: Tx, identity: WorkerIdentity, wanted: Wanted) -> OrchestrationFetch | None:
    """What a fetch gives without writing; None when it must write."""
    search = _Search(tx, identity, wanted)
    row = tx.row(SQL["peek"], search.arguments)
    if row is None:
        return NOTHING
    draining, unowned = row
    search.scan(search.own)
    if search.stale or (unowned and not search.full):
        return None
    if search.found:
        return search.answer()
    due = tx.row(SQL["next_due"], {**search.arguments, "draining": draining})
    assert due is not None
    return OrchestrationFetch(items=(), raced=False, next_due=None if due[0] is None else due[0] - tx.now)


def _take(tx: Tx, identity: WorkerIdentity, wanted: Wanted) -> OrchestrationFetch:
    search = _Search(tx, identity, wanted)
    row = tx.row(SQL["peek"], search.arguments)
    if row is None:  # the lease ended while we waited for the lock
        return NOTHING
    search.scan(search.own)
    search.repair()
    if not row[0]:
        search.scan(NEW)
        search.repair()
    search.take()
    return search.answer()


class _Search:
    """One fetch: instances are found by their messages, range by range."""

    def __init__(self, tx: Tx, identity: WorkerIdentity, wanted: Wanted) -> None:
        self._tx = tx
        self._identity = identity
        self._limit = wanted.limit
        self.own = own_route(identity.worker_id)
        self.arguments: dict[str, Any] = {
            "now": tx.now,
            "worker_id": identity.worker_id,
            "incarnation": identity.incarnation,
            "own": self.own,
            "names": json.dumps(list(wanted.names)),
            "unknown_before": tx.now - wanted.unknown_after,
            "exclude": json.dumps(list(wanted.exclude)),
        }
        self.found: dict[str, Row] = {}
        self.stale: dict[str, str] = {}  # instances by the mark that their messages should have
        self._unowned: set[str] = set()
        self._raced = False

    @property
    def full(self) -> bool:
        """Whether as many instances were found as were asked for."""
        return len(self.found) >= self._limit

    def scan(self, route: str) -> None:
        """Find instances in one range, and the marks in it that are stale."""
        passed = 0
        with self._tx.scan(SQL["scan"], {**self.arguments, "route": route, "any_name": route == self.own}) as rows:
            while not self.full and passed < MAX_SCAN and (row := next(rows, None)) is not None:
                passed += row[0] in self.found or row[0] in self.stale
                self._see(row, route)
                if len(self.stale) >= MAX_STALE:
                    self._raced = True
                    break

    def repair(self) -> None:
        """Re-mark what the scan found to be stale."""
        for instance_id, truth in self.stale.items():
            reroute_instance(self._tx, instance_id, truth)
        self.stale.clear()

    def take(self) -> None:
        """Make those of the instances that nobody owns the caller's."""
        caller = {"worker_id": self._identity.worker_id, "incarnation": self._identity.incarnation}
        for instance_id in self._unowned:
            self._tx.run(SQL["take"], {**caller, "instance_id": instance_id})
            reroute_instance(self._tx, instance_id, self.own)

    def answer(self) -> OrchestrationFetch:
        """What was found, with its messages."""
        items = [self._item(row) for row in self.found.values()]
        return OrchestrationFetch(items=items, raced=self._raced and not items, next_due=None)

    def _see(self, row: Row, route: str) -> None:
        instance_id, owner, incarnation = row[0], row[7], row[8]
        truth = NEW if owner is None else own_route(owner)
        if truth != route:
            self.stale[instance_id] = truth
        if owner == self._identity.worker_id and incarnation == self._identity.incarnation:
            self.found[instance_id] = row
        elif truth == route:
            self.found[instance_id] = row
            self._unowned.add(instance_id)

    def _item(self, row: Row) -> OrchestrationItem:
        instance_id, execution_id, name, version, event_count, claims, unknown_since, *_ = row
        return OrchestrationItem(
            instance_id=instance_id,
            execution_id=execution_id,
            name=name,
            version=version,
            event_count=event_count,
            claims=claims + (instance_id in self._unowned),
            unknown_for=None if unknown_since is None else self._tx.now - unknown_since,
            messages=self._messages(instance_id),
        )

    def _messages(self, instance_id: str) -> list[Message]:
        rows = self._tx.rows(SQL["messages"], {**self.arguments, "instance_id": instance_id, "limit": MAX_BATCH})
        return [Message(*row) for row in rows]
