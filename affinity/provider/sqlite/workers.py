"""Workers: registering, renewing, draining and releasing their leases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from typing import Any, Final, NamedTuple

from affinity.limits import MAX_REROUTE, SCRAPE_COUNT
from affinity.provider.contract import (
    MoveReason,
    RegisteredCode,
    WorkerDemand,
    WorkerIdentity,
    WorkerInfo,
    WorkerLease,
    WorkerProfile,
)
from affinity.provider.rows import to_code, to_worker, worker_fenced
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.driver import timeline
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.messages import reroute_messages
from affinity.provider.sqlite.sessions import caller, own_route
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "workers.sql")


class _LeaseRow(NamedTuple):
    """The row of a name in ``workers``."""

    incarnation: str
    locked_until: float
    draining: int


class CallerRow(NamedTuple):
    """The state of the incarnation that calls, from its row in ``workers``."""

    alive: bool
    draining: bool
    replaced: bool = False  # by another incarnation


def read_caller(tx: Tx, identity: WorkerIdentity) -> CallerRow:
    """Whether the caller is the current incarnation of its name with a lease that runs."""
    row = _read(tx, identity)
    if row is None or row.incarnation != identity.incarnation:
        return CallerRow(alive=False, draining=False, replaced=row is not None)
    return CallerRow(alive=row.locked_until > tx.now, draining=bool(row.draining))


def takes_work(tx: Tx, worker_id: str, tag: str | None) -> bool:
    """Whether a worker of this name is alive, not draining, and takes sessions with this tag."""
    return bool(tx.value(SQL["takes"], {"worker_id": worker_id, "now": tx.now, "tag": tag}))


def register(
    tx: Tx,
    identity: WorkerIdentity,
    lease: float,
    labels: Mapping[str, str],
    *,
    resume: bool = False,
    profile: WorkerProfile,
) -> WorkerLease:
    row = _read(tx, identity)
    known = row is not None and row.incarnation == identity.incarnation
    if resume and row is not None and not known:
        raise worker_fenced(identity)
    timeline.advance(tx)
    code = {"app": profile.app, "code_version": profile.code_version}
    reported: dict[str, Any] = {"labels": json.dumps(dict(labels)), "capacity": profile.capacity, **code}
    reported |= {"tags": json.dumps(list(profile.tags.tags)), "only_tagged": profile.tags.only, "named": profile.named}
    reported |= {"registered": json.dumps(profile.registered), "interfaces": json.dumps(profile.interfaces)}
    reported["code_since"] = _version_since(tx, identity, code)
    tx.run(SQL["put"], {**caller(tx, identity), **reported, "locked_until": tx.now + lease})
    if not resume and not known:  # an incarnation that registers twice has lost an answer, not its sessions
        sessions.inherit(tx, identity, profile.tags)
    return _lease(tx, lease)


def renew(
    tx: Tx, identity: WorkerIdentity, lease: float, labels: Mapping[str, str] | None = None
) -> WorkerLease | None:
    row = _read(tx, identity)
    if row is None:
        return None
    if row.incarnation != identity.incarnation:
        raise worker_fenced(identity)
    if row.locked_until <= tx.now:
        return None
    timeline.advance(tx)
    new = None if labels is None else json.dumps(dict(labels))
    tx.run(SQL["extend"], {**caller(tx, identity), "locked_until": tx.now + lease, "labels": new})
    return _lease(tx, lease, draining=bool(row.draining))


def drain(tx: Tx, identity: WorkerIdentity, *, restarts: bool = False, if_wanted: bool = False) -> int | None:
    if not tx.run(SQL["set_draining"], {**caller(tx, identity), "if_wanted": if_wanted}):
        return None
    idle = sessions.read_idle(tx, identity)
    if restarts:
        idle = idle[: max(0, _newer_room(tx, identity) - sessions.count_drained(tx, identity))]
    sessions.free(tx, identity, idle, "drained")
    return sessions.count_held(tx, identity)


def _version_since(tx: Tx, identity: WorkerIdentity, code: Mapping[str, str]) -> float:
    """The time since when a version is deployed, for a worker that registers it.

    It is the latest time that live workers of the version have, or that the worker's own row has for it; else now. It
    is now, too, if the worker's row has another version with a later time: the worker changes from that version to this
    one, so this one is the newer, also in a rollback.
    """
    row = tx.row(SQL["version_since"], {**caller(tx, identity), **code})
    assert row is not None
    since, former = row
    return tx.now if since is None or (former is not None and since <= former) else float(since)


def is_outdated(tx: Tx, identity: WorkerIdentity) -> bool:
    """Whether a worker leaves new and freed sessions to workers of newer code."""
    return _newer_room(tx, identity) > 0


def _newer_room(tx: Tx, identity: WorkerIdentity) -> int:
    """How many more sessions live workers may hold that run newer code of the caller's app, the newest of it."""
    return sum(room for (room,) in tx.rows(SQL["newer_room"], {"worker_id": identity.worker_id, "now": tx.now}))


def release(tx: Tx, identity: WorkerIdentity, *, restart_grace: float = 0.0) -> None:
    """End the lease and keep the row.

    That frees the item locks and instances that name this incarnation. A later start of the same process still sees
    whether another one has taken the name since.
    """
    row = _read(tx, identity)
    if row is None or row.incarnation != identity.incarnation:
        return
    returns = restart_grace and row.locked_until > tx.now and not tx.row(SQL["drain_wanted"], caller(tx, identity))
    if returns and sessions.leave(tx, identity):
        tx.run(SQL["leave"], {**caller(tx, identity), "left": identity.left, "locked_until": tx.now + restart_grace})
    else:
        reason: MoveReason = "drained" if row.draining else "lease_expired"
        sessions.free(tx, identity, sessions.read_held_by_name(tx, identity), reason)
        ended = {"locked_until": min(tx.now, row.locked_until), "labels": None}
        tx.run(SQL["extend"], {**caller(tx, identity), **ended})
    reroute_messages(tx, own_route(identity.worker_id), MAX_REROUTE)


def set_drain_wanted(tx: Tx, worker_id: str, *, wanted: bool) -> bool:
    return tx.run(SQL["want_drain"], {"worker_id": worker_id, "wanted": int(wanted)}) > 0


def list_workers(tx: Tx) -> list[WorkerInfo]:
    return [to_worker(row, instant) for row in tx.rows(SQL["list"], {"now": tx.now, "most": SCRAPE_COUNT})]


def list_code(tx: Tx) -> list[RegisteredCode]:
    return [to_code(*row) for row in tx.rows(SQL["code"], {"now": tx.now})]


def measure_demand(tx: Tx) -> WorkerDemand:
    row = tx.row(SQL["demand"], {"now": tx.now})
    assert row is not None
    held, waiting, capacity = row
    desired = ceil((held + waiting) / capacity)
    return WorkerDemand(held=held, waiting=waiting, capacity=capacity, desired=desired)


def _read(tx: Tx, identity: WorkerIdentity) -> _LeaseRow | None:
    row = tx.row(SQL["get"], {"worker_id": identity.worker_id})
    return None if row is None else _LeaseRow._make(row)


def _lease(tx: Tx, lease: float, *, draining: bool = False) -> WorkerLease:
    return WorkerLease(expires_in=lease, database_time=instant(tx.now), draining=draining)
