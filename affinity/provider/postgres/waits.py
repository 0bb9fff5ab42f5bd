"""Work that has waited for as long as it may: it fails, or its session is freed for other workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import EndedWaits, WorkerIdentity
from affinity.provider.postgres.fetching import ItemRow, to_work_item
from affinity.provider.postgres.operations import Database, caller_params
from affinity.provider.postgres.releasing import release_params
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "waits.sql")


async def end_waits(
    db: Database, identity: WorkerIdentity, *, limit: int, tag_timeout: float | None, item_lock: float
) -> EndedWaits:
    params = {
        **caller_params(identity),
        "limit": Int8(limit),
        "tag_timeout": tag_timeout,
        "item_lock": float(item_lock),
        "token": db.token(identity),
    }
    rows = await db.connections.rows.run(_SQL["end_waits"], params)
    ((sessions, *_), *_) = rows
    taken = [ItemRow(n, *item) for _, n, *item in rows if n is not None]
    failed = [(to_work_item(row), row.failure) for row in taken if row.failure is not None]
    return EndedWaits(failed=failed, freed=await _release_busy(db, sessions) if sessions else ())


async def _release_busy(db: Database, session_ids: Sequence[str]) -> Sequence[str]:
    """Free the sessions of busy holders. If this call fails, the items are due again after ``takeover_after``."""
    ((freed,),) = await db.connections.rows.run(_SQL["release_busy"], release_params(session_ids))
    return list(freed)


async def list_waiting_tags(db: Database, limit: int) -> Sequence[str]:
    return [tag for (tag,) in await db.connections.fetch.run(_SQL["tags"], {"limit": Int8(limit)})]
