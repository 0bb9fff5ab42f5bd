"""Session leases: reading, touching, claiming and freeing them, and moving the marks of their queued items along."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import TOUCH_SLACK, WorkerIdentity
from affinity.provider.sqlite.database import Tx
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "sessions.sql")

FREE: Final = "free"
NEW: Final = "new"


class Lease(NamedTuple):
    """A row of ``sessions``, and whether it is held now."""

    worker_id: str
    incarnation: str
    epoch: int
    held: bool

    def held_by(self, identity: WorkerIdentity) -> bool:
        """Whether this very incarnation holds it now."""
        return self.held and self.of(identity)

    def of(self, identity: WorkerIdentity) -> bool:
        """Whether this incarnation was the last to hold it."""
        return self.incarnation == identity.incarnation and self.worker_id == identity.worker_id

    @property
    def route(self) -> str:
        """The right mark of its queued items."""
        return own_route(self.worker_id) if self.held else NEW


class Reroute:
    """Re-marks items of sessions, up to `MAX_REROUTE` rows in all; the sweep does the rest."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._left = MAX_REROUTE

    def __call__(self, session_id: str, route: str) -> None:
        if self._left > 0:
            marks = {"session_id": session_id, "route": route, "limit": self._left}
            self._left -= self._tx.run(SQL["reroute"], marks)


def own_route(worker_id: str) -> str:
    """The mark of what belongs to a worker."""
    return f"w:{worker_id}"


def read_leases(tx: Tx, session_ids: Collection[str]) -> dict[str, Lease]:
    """Rows of the sessions among ``session_ids`` that have one."""
    if not session_ids:
        return {}
    rows = tx.rows(SQL["leases"], {"session_ids": json.dumps(list(session_ids)), "now": tx.now})
    return {
        session_id: Lease(worker, incarnation, epoch, bool(held))
        for session_id, worker, incarnation, epoch, held in rows
    }


def touch(tx: Tx, identity: WorkerIdentity, session_ids: Collection[str], timeout: float) -> None:
    """Extend the sessions that the caller, which must be alive, holds."""
    if session_ids:
        arguments = {
            "session_ids": json.dumps(list(session_ids)),
            "worker_id": identity.worker_id,
            "incarnation": identity.incarnation,
            "now": tx.now,
            "locked_until": tx.now + timeout,
            "touch_before": tx.now + timeout * (1 - TOUCH_SLACK),
        }
        tx.run(SQL["touch"], arguments)


def count_held(tx: Tx, identity: WorkerIdentity, limit: int) -> int:
    """Sessions that the caller, which must be alive, holds; ``limit`` when there are more."""
    row = tx.row(
        SQL["count_held"],
        {"worker_id": identity.worker_id, "incarnation": identity.incarnation, "now": tx.now, "limit": limit},
    )
    assert row is not None
    held: int = row[0]
    return held


def next_epochs(tx: Tx, count: int) -> Iterable[int]:
    """As many epochs as asked for, each greater than any that was ever given out."""
    if not count:
        return ()
    row = tx.row(SQL["next_epochs"], {"count": count})
    assert row is not None
    return range(row[0] - count + 1, row[0] + 1)


def claim(tx: Tx, identity: WorkerIdentity, former: Mapping[str, Lease | None], timeout: float) -> dict[str, int]:
    """Make sessions that nobody holds the caller's; their epochs.

    ``former`` has the row of each session, if there is one: an incarnation that comes back to its own keeps the epoch.
    """
    fresh = [session_id for session_id, lease in former.items() if lease is None or not lease.of(identity)]
    epochs = {session_id: lease.epoch for session_id, lease in former.items() if lease is not None}
    epochs |= zip(fresh, next_epochs(tx, len(fresh)), strict=True)
    common = {
        "worker_id": identity.worker_id,
        "incarnation": identity.incarnation,
        "now": tx.now,
        "locked_until": tx.now + timeout,
    }
    tx.many(
        SQL["claim"], [{**common, "session_id": session_id, "epoch": epoch} for session_id, epoch in epochs.items()]
    )
    reroute = Reroute(tx)
    for session_id in epochs:
        reroute(session_id, own_route(identity.worker_id))
    return epochs


def inherit(tx: Tx, identity: WorkerIdentity) -> None:
    """Give a new incarnation the sessions that its name holds, each with a new epoch."""
    session_ids = [row[0] for row in tx.rows(SQL["of_worker"], {"worker_id": identity.worker_id, "now": tx.now})]
    common = {"incarnation": identity.incarnation, "now": tx.now}
    epochs = zip(session_ids, next_epochs(tx, len(session_ids)), strict=True)
    tx.many(SQL["inherit"], [{**common, "session_id": session_id, "epoch": epoch} for session_id, epoch in epochs])


def free(tx: Tx, identity: WorkerIdentity, session_ids: Sequence[str], reroute: Reroute | None = None) -> None:
    """Give up those of the sessions that the caller holds, and mark their items as anyone's."""
    reroute = reroute or Reroute(tx)
    common = {"worker_id": identity.worker_id, "incarnation": identity.incarnation, "now": tx.now}
    for session_id in session_ids:
        if tx.run(SQL["free"], {**common, "session_id": session_id}):
            reroute(session_id, NEW)
