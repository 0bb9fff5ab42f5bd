"""Activities that wait for instances: who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.limits import MAX_WAITS_READ
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import expressions
from affinity.provider.statements import load_statements, with_conditions
from affinity.records import ActivityWait, WaitEdge

_SQL: Final = load_statements(__package__, "activity_waits.sql")


async def begin_wait(db: Database, wait: ActivityWait) -> None:
    params = {
        "wait": Int8(wait.wait_id),
        "instance": wait.instance_id,
        "execution": Int8(wait.execution_id),
        "activity": Int8(wait.activity_id),
        "worker": wait.worker_id,
        "awaited": wait.awaited,
        "target": None if wait.target_id is None else Int8(wait.target_id),
        "seq": None if wait.seq is None else Int8(wait.seq),
    }
    await db.connections.misc.run(_SQL["begin"], params)


async def end_wait(db: Database, wait_id: int) -> None:
    await db.connections.misc.run(_SQL["end"], {"wait": Int8(wait_id)})


async def get_waits(db: Database, instance_id: str) -> Sequence[WaitEdge]:
    rows = await db.connections.misc.run(_read(), {"instance": instance_id, "limit": Int8(MAX_WAITS_READ)})
    return [WaitEdge(*row) for row in rows]


@cache
def _read() -> LiteralString:
    return with_conditions(_SQL["read"], expressions("awaits").values())
