"""Suspended instances: suspending, retrying with other code, resuming."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import Resumption, Suspend, WorkerIdentity
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Bools, Ints, Texts
from affinity.provider.postgres.operations import Database, caller_params, flags
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "suspension.sql")


async def suspend_instance(db: Database, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> Sequence[bool]:
    if not suspends:
        return []
    params = {
        **caller_params(identity),
        "instance": Texts(suspend.instance_id for suspend in suspends),
        "generation": Texts(suspend.generation for suspend in suspends),
        "execution": Ints(suspend.execution_id for suspend in suspends),
        "events": Ints(suspend.event_count for suspend in suspends),
        "error_type": Texts(suspend.error_type for suspend in suspends),
        "message": Texts(suspend.message for suspend in suspends),
        "code": Texts(suspend.code for suspend in suspends),
        "needs_code": Bools(suspend.needs_code for suspend in suspends),
    }
    rows = await db.connections.quick.run(_SQL["suspend"], params)
    return flags(len(suspends), (n for (n,) in rows))


async def retry_suspended(
    db: Database, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int
) -> Sequence[str]:
    params = {**caller_params(identity), "names": Texts(names), "code": code, "limit": Int8(limit)}
    return [instance_id for (instance_id,) in await db.connections.misc.run(_SQL["retry"], params)]


async def resume_instance(db: Database, instance_ids: Sequence[str]) -> Sequence[Resumption]:
    params = {"instance": Texts(instance_ids)}
    rows = await db.connections.quick.run(*with_shares(db.shares, _SQL["resume"], _SQL["resumed"], params))
    suspended: dict[str, bool] = dict(rows)
    resumptions: list[Resumption] = []
    for instance_id in instance_ids:
        found = suspended.get(instance_id)
        resumptions.append("unknown" if found is None else "resumed" if found else "not_suspended")
        if found:
            suspended[instance_id] = False  # named twice, it is not suspended the second time
    return resumptions
