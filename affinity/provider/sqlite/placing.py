"""Placing new work items: each where its session is, or locked to the worker that commits them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from affinity.provider.contract import NewWorkItem, Placed, WorkerIdentity
from affinity.provider.rows import to_locked_item
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import GateKeeper, gate_keeper
from affinity.provider.sqlite.sessions import BLOCKED, FREE, GATE, NEW, Lease, offer_route
from affinity.provider.sqlite.work_items import SQL

NOT_QUEUED: Final = Placed(item=None, holder=None)
"""The place of an item that its own turn cancels."""

PARKED: Final = Placed(item=None, holder=None, parked=True)


class OrderPlacer:
    """Gives ordered items of one transaction their places behind the items that are in the queue."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._last: dict[str, int] = {}

    def next_place(self, session_id: str) -> int:
        """The place of the next item of the session: 1 if none is before it."""
        last = self._last.get(session_id)
        if last is None:
            last = self._tx.value(SQL["last_in_order"], {"session_id": session_id})
        self._last[session_id] = last + 1
        return last + 1


class WorkItemPlacer:
    """Places the work items of one commit, then queues them together.

    Args:
        tx: of the commit.
        identity: of the committer, which is alive.
        session_ids: that the items name.
        may_lock: whether the committer takes items at all.
    """

    def __init__(self, tx: Tx, identity: WorkerIdentity, session_ids: Collection[str], *, may_lock: bool) -> None:
        self._tx = tx
        self._identity = identity
        self._may_lock = may_lock
        self.leases: dict[str, Lease] = sessions.read_leases(tx, session_ids)
        """Rows of the sessions that the items name."""
        self._orders = OrderPlacer(tx)
        self._keeper: GateKeeper | None = None
        self._rows: list[Any] = []
        self._all_locked = True  # all are locked here, and have no more columns
        self.sessions_here: set[str] = set()
        """Sessions of the items that are locked here."""

    def place(self, item: NewWorkItem) -> Placed:
        """Where an item goes."""
        lease = None if item.session_id is None else self.leases.get(item.session_id)
        place = None if item.order is None else self._orders.next_place(item.order)
        if not self._passes(item, place) and (waiting := waiting_row(item, place)) is not None:
            self._all_locked = False
            self._rows.append(waiting)
            return Placed(item=None, holder=lease.serving if lease is not None and lease.held else None)
        token = self._tx.tokens.next() if self._locks_here(item, lease) else None
        route = self._route(item, lease)
        row = (item.key, item.name, item.session_id, route, item.delay, token, item.payload)
        is_plain = place is None and not item.is_restricted and item.gate is None
        self._rows.append(row if is_plain else (*row, item.order, place, *more_columns(item)))
        self._all_locked = self._all_locked and is_plain and token is not None
        if token is None:
            return Placed(item=None, holder=lease.serving if lease is not None and lease.held else None)
        if item.session_id is not None:
            self.sessions_here.add(item.session_id)
        return Placed(item=to_locked_item(item, token, None if lease is None else lease.epoch), holder=None)

    def _passes(self, item: NewWorkItem, place: int | None) -> bool:
        """Return whether an item passes a limited gate with the commit."""
        if item.gate is None or not item.gate.limited or item.delay > 0 or (place is not None and place > 1):
            return False
        if self._keeper is None and (keeper := gate_keeper()) is not None:
            self._keeper = keeper(self._tx)
        return self._keeper is not None and self._keeper.passes(item)

    def queue(self, lock: float) -> None:
        """Queue placed items; an item that is locked here is locked for ``lock`` seconds."""
        common = {**sessions.caller(self._tx, self._identity), "locked_until": self._tx.now + lock}
        self._tx.many(SQL["insert_locked" if self._all_locked else "insert"], self._rows, common)
        if self._keeper is not None:
            self._keeper.write()

    def _locks_here(self, item: NewWorkItem, lease: Lease | None) -> bool:
        if not item.lock_here or item.parked or not self._may_lock or item.delay > 0:
            return False
        return item.session_id is None or (lease is not None and lease.served_by(self._identity))

    def _route(self, item: NewWorkItem, lease: Lease | None) -> str:
        if item.session_id is None:
            return FREE
        if lease is not None and lease.held:
            return lease.route
        return offer_route(self._identity.worker_id) if item.claim_here and item.delay <= 0 else NEW


def waiting_row(item: NewWorkItem, place: int | None) -> tuple[Any, ...] | None:
    """Return the row for "insert" of an item that waits behind another in its order, or at its gate, if it does."""
    is_limited = item.gate is not None and item.gate.limited
    is_behind = place is not None and place > 1
    if not is_limited and not is_behind:
        return None
    route = BLOCKED if is_behind else GATE
    return (item.key, item.name, None, route, item.delay, None, item.payload, item.order, place, *more_columns(item))


def more_columns(item: NewWorkItem) -> tuple[Any, ...]:
    """The last columns of a row that "insert" takes: which workers may take the item, how long it waits, its gate."""
    restriction = (item.tag, item.takeover_after, item.fail_after)
    if item.gate is None:
        return restriction
    limited = item.gate.limited
    return (*restriction, item.gate.text, limited, item.session_id if limited else None, item.gate.head_start)
