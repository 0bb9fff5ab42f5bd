"""Workers: leases on names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from affinity.errors import WorkerFenced
from affinity.limits import MAX_REROUTE
from affinity.provider.contract import WorkerIdentity, WorkerInfo, WorkerLease
from affinity.provider.postgres.operations import Operations, who
from affinity.provider.postgres.timeline import LEARN
from affinity.provider.statements import load_statements
from affinity.records import labels_of

_SQL: Final = load_statements(__package__, "workers.sql")


class WorkerOperations(Operations):
    """`register_worker` to `release_worker`, and their listing."""

    async def register_worker(
        self, identity: WorkerIdentity, lease: float, labels: Mapping[str, str], *, resume: bool = False
    ) -> WorkerLease:
        timeline = self._connections.timeline
        params = {**who(identity), "lease": lease, "labels": json.dumps(dict(labels)), "reroute": MAX_REROUTE}
        statements = ";".join([LEARN, _SQL["resume" if resume else "register"], _SQL["reclaim_marks"]])
        learned, rows, *_ = await self._connections.quick.simple_query(statements, {**params, **timeline.known})
        timeline.check(learned)
        if not rows:
            raise _fenced(identity)
        return WorkerLease(expires_in=lease, database_time=rows[0][0])

    async def renew_worker(self, identity: WorkerIdentity, lease: float) -> WorkerLease | None:
        timeline = self._connections.timeline
        learned, rows = await self._connections.quick.pipeline(
            [LEARN, _SQL["renew"]], {**who(identity), "lease": lease, **timeline.known}
        )
        timeline.check(learned)
        ((now, draining, holder),) = rows
        if now is not None:
            return WorkerLease(expires_in=lease, database_time=now, draining=draining)
        if holder not in (None, identity.incarnation):
            raise _fenced(identity)
        return None

    async def drain_worker(self, identity: WorkerIdentity) -> int:
        *_, [(held,)] = await self._connections.quick.simple_query(
            _SQL["drain"], {**who(identity), "reroute": MAX_REROUTE}
        )
        return int(held)

    async def release_worker(self, identity: WorkerIdentity) -> None:
        await self._connections.quick.simple_query(_SQL["release"], {**who(identity), "reroute": MAX_REROUTE})

    async def list_workers(self) -> Sequence[WorkerInfo]:
        return [
            WorkerInfo(
                worker_id=worker_id,
                incarnation=incarnation,
                alive=alive,
                draining=draining,
                expires_in=expires_in,
                started_at=started_at,
                sessions=sessions,
                labels=labels_of(labels),
            )
            for worker_id, incarnation, alive, draining, expires_in, started_at, labels, sessions in (
                await self._connections.misc.run(_SQL["list"])
            )
        ]


def _fenced(identity: WorkerIdentity) -> WorkerFenced:
    return WorkerFenced(f"worker {identity.worker_id!r}: another process has registered under this name")
