"""Releasing sessions before their time: by hand, with a turn, or to make room for new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from affinity.provider.contract import (
    OFFER_SECONDS,
    FetchOptions,
    IdleSession,
    Incarnation,
    MoveReason,
    SessionRelease,
    WorkerIdentity,
)
from affinity.provider.sqlite import sessions
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.sessions import NEW, Lease, offer_route
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "releasing.sql")


def release(tx: Tx, session_ids: Sequence[str]) -> list[SessionRelease]:
    return free(tx, session_ids, "released")


def free(tx: Tx, session_ids: Collection[str], reason: MoveReason) -> list[SessionRelease]:
    """As `release`; ``reason``: of the move that follows."""
    leases = {name: lease for name, lease in sessions.read_leases(tx, session_ids).items() if lease.held}
    busy = set(tx.gather(SQL["busy"], {"session_ids": to_json(list(leases)), "now": tx.now}))
    for name in leases.keys() - busy:
        sessions.free(tx, _holder(leases[name]), [name], reason)
    return ["not_held" if name not in leases else "busy" if name in busy else "released" for name in session_ids]


def _holder(lease: Lease) -> WorkerIdentity:
    return WorkerIdentity(worker_id=lease.worker_id, incarnation=Incarnation(lease.incarnation))


def release_idle(
    tx: Tx, identity: WorkerIdentity, options: FetchOptions, *, order: Sequence[IdleSession]
) -> Sequence[str]:
    who = sessions.caller(tx, identity)
    row = tx.row(SQL["room"], who)
    if row is None:
        return []
    others_have_room, held = row
    looked_for = {
        "names": to_json(list(options.names)),
        "new": to_json(options.tags.routes(NEW)),
        "since": tx.now - (OFFER_SECONDS if others_have_room else 0.0),
        "limit": options.limit,
    }
    waiting = dict(tx.gather(SQL["waiting"], {**who, **looked_for}))
    room = options.max_sessions - held
    if room > 0 or not waiting or not options.max_sessions:
        return []
    late = sum(first <= tx.now - OFFER_SECONDS for first in waiting.values())
    known = to_json([[idle.session_id, idle.only_user, idle.in_use] for idle in order])
    idle = tx.gather(SQL["idle"], {**who, "known": known, "limit": len(waiting) - room})
    freed = [name for n, (name, in_use) in enumerate(idle) if not in_use or (late and n < late - room)]
    sessions.free(tx, identity, freed, "room_needed")
    for_us = to_json(list(waiting)[: max(0, room + len(freed))])
    tx.run(SQL["offer"], {"session_ids": for_us, "route": offer_route(identity.worker_id), "new": looked_for["new"]})
    return freed
