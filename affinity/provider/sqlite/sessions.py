"""Session leases: reading, touching, claiming and freeing them, and routing their queued items."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from affinity.limits import MAX_PAGE, MAX_REROUTE
from affinity.provider.contract import TOUCH_SLACK, MoveReason, SessionInfo, WorkerIdentity, WorkerTags
from affinity.provider.rows import to_session
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements, with_parts

SQL: Final = load_statements(__package__, "sessions.sql")
_PAGE_OF: Final = with_parts(SQL["list"], frozenset({"page", "of"}))
_PAGE: Final = with_parts(SQL["list"], frozenset({"page"}))
_SOME: Final = with_parts(SQL["list"], frozenset({"some"}))

FREE: Final = "free"
NEW: Final = "new"
BLOCKED: Final = "blocked"
GATE: Final = "gate"
GATED: Final = "gated"
SUSPENDED: Final = "suspended"


class Lease(NamedTuple):
    """A row of ``sessions``, and whether it is held now."""

    worker_id: str
    incarnation: str
    epoch: int
    held: bool
    next_worker: str | None  # to which a plan that has not ended moves it
    tag: str | None
    locked_until: float

    def served_by(self, identity: WorkerIdentity) -> bool:
        """Whether this very incarnation holds it now, and starts its work: no plan moves it elsewhere."""
        return self.held and self.next_worker is None and self.of(identity)

    def of(self, identity: WorkerIdentity) -> bool:
        """Whether this incarnation was the last to hold it."""
        return self.incarnation == identity.incarnation and self.worker_id == identity.worker_id

    @property
    def serving(self) -> str:
        """The worker that starts its next work, while it is held."""
        return self.next_worker or self.worker_id

    @property
    def route(self) -> str:
        """The right route of its queued items."""
        if not self.held:
            return NEW
        return own_route(self.worker_id) if self.next_worker is None else offer_route(self.next_worker)

    @property
    def has_begun(self) -> bool:
        """Whether work has claimed the session, and has given it its tag: `renew_epochs` makes rows too."""
        return self.worker_id != ""


NO_LEASES: Final[Mapping[str, Lease]] = MappingProxyType({})


def own_route(worker_id: str) -> str:
    """The route to a worker."""
    return f"w:{worker_id}"


def offer_route(worker_id: str) -> str:
    """The route of an item whose session no worker holds and that is offered to one worker first."""
    return f"{NEW}:{worker_id}"


def is_offer(route: str) -> bool:
    """Whether the route is an offer to a worker."""
    return route.startswith(offer_route(""))


def read_leases(tx: Tx, session_ids: Collection[str]) -> dict[str, Lease]:
    """Rows of the sessions among ``session_ids`` that have one."""
    if not session_ids:
        return {}
    rows = tx.gather(SQL["leases"], {"session_ids": to_json(list(session_ids)), "now": tx.now})
    return {session_id: Lease(*lease) for session_id, *lease in rows}


def list_sessions(
    tx: Tx,
    session_ids: Collection[str] | None = None,
    *,
    worker_id: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[SessionInfo]:
    arguments: dict[str, Any] = {"now": tx.now}
    page = arguments | {"after": after or "", "limit": min(limit, MAX_PAGE)}
    if session_ids is None and worker_id is None:
        rows = tx.rows(_PAGE, page)
    elif session_ids is None:
        rows = tx.rows(_PAGE_OF, page | {"worker_id": worker_id})
    else:
        rows = tx.rows(_SOME, arguments | {"session_ids": to_json(list(session_ids)), "limit": -1})
    return [to_session(row) for row in rows]


def touch(
    tx: Tx,
    identity: WorkerIdentity,
    session_ids: Collection[str],
    timeout: float,
    leases: Mapping[str, Lease] = NO_LEASES,
) -> None:
    """Extend the sessions that the caller, which must be alive, holds; ``leases`` are rows that were read already."""
    before = tx.now + timeout * (1 - TOUCH_SLACK)
    due = [name for name in session_ids if name not in leases or leases[name].locked_until <= before]
    if due:
        arguments = {
            **caller(tx, identity),
            "session_ids": to_json(due),
            "locked_until": tx.now + timeout,
            "touch_before": before,
        }
        tx.run(SQL["touch"], arguments)


def count_held(tx: Tx, identity: WorkerIdentity) -> int:
    """Sessions that the caller, which must be alive, holds."""
    held: int = tx.value(SQL["count_held"], caller(tx, identity))
    return held


def read_held_by_name(tx: Tx, identity: WorkerIdentity) -> list[str]:
    """Sessions that the caller's name holds by an unexpired lock, whichever its incarnation."""
    return tx.gather(SQL["of_worker"], caller(tx, identity))


def read_idle(tx: Tx, identity: WorkerIdentity) -> list[str]:
    """Sessions that the caller holds, without a work item in hand."""
    return tx.gather(SQL["idle_of_worker"], caller(tx, identity))


def count_drained(tx: Tx, identity: WorkerIdentity) -> int:
    """Sessions that the caller's drain has freed and that no worker has claimed since."""
    drained: int = tx.value(SQL["count_drained"], caller(tx, identity))
    return drained


def claim(
    tx: Tx,
    identity: WorkerIdentity,
    former: Mapping[str, Lease | None],
    timeout: float,
    tags: Mapping[str, str | None],
) -> dict[str, int]:
    """Claim sessions that no worker holds; their epochs.

    ``former`` has the row of each session, if there is one: an incarnation that comes back to its own keeps the epoch.
    ``tags`` has the tag of the work for which it is claimed: a session that begins gets it.
    """
    if not former:
        return {}
    fresh = [session_id for session_id, lease in former.items() if lease is None or not lease.of(identity)]
    epochs = {session_id: lease.epoch for session_id, lease in former.items() if lease is not None}
    epochs |= zip(fresh, _next_epochs(tx, len(fresh)), strict=True)
    rows = [(session_id, epoch, tags.get(session_id)) for session_id, epoch in epochs.items()]
    tx.many(SQL["claim"], rows, {**caller(tx, identity), "locked_until": tx.now + timeout})
    reroute(tx, epochs, own_route(identity.worker_id))
    _notify_watchers(tx, [session_id for session_id in fresh if _had_holder(former[session_id])])
    return epochs


def _had_holder(former: Lease | None) -> bool:
    return former is not None and former.has_begun


def inherit(tx: Tx, identity: WorkerIdentity, tags: WorkerTags) -> None:
    """Give a new incarnation the sessions that its name holds and whose work it takes, each with a new epoch."""
    taken = {"tags": to_json(list(tags.tags)), "only_tagged": tags.only}
    session_ids: list[str] = tx.gather(SQL["to_inherit"], {**caller(tx, identity), **taken})
    epochs = _next_epochs(tx, len(session_ids))
    tx.many(SQL["inherit"], list(zip(session_ids, epochs, strict=True)), caller(tx, identity))
    _notify_watchers(tx, session_ids)


def renew_epochs(tx: Tx, session_ids: Collection[str]) -> None:
    """Give sessions new epochs. State in the memory of their holders is not used any more, nor is state that a first
    claim is hydrating at that moment.
    """
    rows = list(zip(session_ids, _next_epochs(tx, len(session_ids)), strict=True))
    tx.many(SQL["renew_epochs"], rows, {"now": tx.now})


def free(tx: Tx, identity: WorkerIdentity, session_ids: Collection[str], reason: MoveReason) -> None:
    """Release sessions, if the caller holds all of them, and route their items to any worker. ``reason``: of the move
    that follows.
    """
    if tx.run(SQL["free"], {**caller(tx, identity), "session_ids": to_json(list(session_ids)), "reason": reason}):
        reroute(tx, session_ids, NEW)


def leave(tx: Tx, identity: WorkerIdentity) -> int:
    """Have the caller's sessions kept for the next start of its worker; their number."""
    return tx.run(SQL["leave"], {**caller(tx, identity), "left": identity.left})


def reroute(tx: Tx, session_ids: Collection[str], route: str) -> int:
    """Route items of sessions, up to `MAX_REROUTE` rows in all, since the sweep does the rest; their number."""
    arguments = {"session_ids": to_json(list(session_ids)), "route": route, "limit": MAX_REROUTE}
    return tx.run(SQL["reroute"], arguments)


def _notify_watchers(tx: Tx, moved: Sequence[str]) -> None:
    """Queue the messages of watches of sessions that have another holder now than before."""
    tx.many(SQL["notify_watchers"], moved, {"now": tx.now})


def _next_epochs(tx: Tx, count: int) -> range:
    """The next epochs: greater than all epochs that were issued before."""
    last: int = tx.value(SQL["next_epochs"], {"count": count}) if count else 0
    return range(last - count + 1, last + 1)


def caller(tx: Tx, identity: WorkerIdentity) -> dict[str, Any]:
    """The caller and the time, as arguments."""
    return {"worker_id": identity.worker_id, "incarnation": identity.incarnation, "now": tx.now}
