"""Workers: registering, renewing, draining and releasing their leases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_REROUTE, SCRAPE_COUNT
from affinity.provider.contract import (
    RegisteredCode,
    WorkerDemand,
    WorkerIdentity,
    WorkerInfo,
    WorkerLease,
    WorkerProfile,
)
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.timeline import ESTABLISH
from affinity.provider.postgres.operations import Database, caller_params, same_time
from affinity.provider.rows import to_code, to_worker, worker_fenced
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "workers.sql")


async def register_worker(
    db: Database,
    identity: WorkerIdentity,
    lease: float,
    labels: Mapping[str, str],
    *,
    resume: bool = False,
    profile: WorkerProfile,
) -> WorkerLease:
    timeline = db.connections.timeline
    reported = {
        "labels": json.dumps(dict(labels)),
        "capacity": profile.capacity,
        "app": profile.app,
        "code": profile.code_version,
        "tags": list(profile.tags.tags),
        "only_tagged": profile.tags.only,
        "named": profile.named,
        "registered": json.dumps(profile.registered),
        "interfaces": json.dumps(profile.interfaces),
    }
    params = {**caller_params(identity), **reported, "lease": lease, "reroute": MAX_REROUTE}
    statements = ";".join([ESTABLISH, _SQL["resume" if resume else "register"], _SQL["reclaim_routes"]])
    learned, rows, *_ = await db.connections.quick.simple_query(statements, {**params, **timeline.known})
    timeline.check(learned)
    if not rows:
        raise worker_fenced(identity)
    ((now,),) = rows
    return WorkerLease(expires_in=lease, database_time=now)


async def renew_worker(
    db: Database, identity: WorkerIdentity, lease: float, labels: Mapping[str, str] | None = None
) -> WorkerLease | None:
    new = None if labels is None else json.dumps(dict(labels))
    timeline = db.connections.timeline
    learned, rows = await db.connections.quick.pipeline(
        [ESTABLISH, _SQL["renew"]], {**caller_params(identity), "lease": lease, "labels": new, **timeline.known}
    )
    timeline.check(learned)
    ((now, draining, holder),) = rows
    if now is not None:
        return WorkerLease(expires_in=lease, database_time=now, draining=draining)
    if holder not in (None, identity.incarnation):
        raise worker_fenced(identity)
    return None


async def drain_worker(
    db: Database, identity: WorkerIdentity, *, restarts: bool = False, if_wanted: bool = False
) -> int | None:
    drains, *_, [(held,)] = await db.connections.quick.simple_query(
        _SQL["drain"],
        {**caller_params(identity), "restarts": restarts, "if_wanted": if_wanted, "reroute": MAX_REROUTE},
    )
    return int(held) if drains else None


async def set_drain_wanted(db: Database, worker_id: str, *, wanted: bool) -> bool:
    params = {"worker": worker_id, "wanted": wanted}
    return bool(
        await db.connections.rows.run(*with_shares(db.shares, _SQL["want_drain"], _SQL["drain_wanted"], params))
    )


async def release_worker(db: Database, identity: WorkerIdentity, *, restart_grace: float = 0.0) -> None:
    params = {**caller_params(identity), "left": identity.left, "grace": restart_grace, "reroute": MAX_REROUTE}
    # If `leave` has given the name to the incarnation `identity.left`, `release` does nothing.
    statements = [_SQL["leave"], _SQL["release"]] if restart_grace else [_SQL["release"]]
    await db.connections.quick.simple_query(";".join(statements), params)


async def list_workers(db: Database) -> Sequence[WorkerInfo]:
    rows = await db.connections.misc.run(_SQL["list"], {"most": Int8(SCRAPE_COUNT)})
    return [to_worker(row, same_time) for row in rows]


async def list_code(db: Database) -> Sequence[RegisteredCode]:
    return [to_code(*row) for row in await db.connections.misc.run(_SQL["code"])]


async def desired_workers(db: Database) -> WorkerDemand:
    ((held, waiting, capacity, desired),) = await db.connections.misc.run(_SQL["demand"])
    return WorkerDemand(held=held, waiting=waiting, capacity=capacity, desired=desired)
