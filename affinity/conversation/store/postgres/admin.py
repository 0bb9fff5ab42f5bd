"""Journals as operators see them: listing, deletion, retention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Final

from psycopg.types.numeric import Int8

from affinity.conversation.journal import Description, JournalFilter, JournalInfo, JournalPruning, JournalRetention
from affinity.conversation.store.listing import list_portions
from affinity.limits import PRUNE_LOOK_SECONDS, PRUNE_STEP_SECONDS
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.wire import Row
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "admin.sql")


async def list_journals(db: Database, where: JournalFilter, limit: int) -> Sequence[JournalInfo]:
    return await list_portions(partial(_read_portion, db), where, limit, same_time)


async def _read_portion(db: Database, where: JournalFilter, window: int, limit: int) -> Sequence[Row]:
    after_time, after_id = where.after or (None, None)
    params = {
        "session_id": where.session_id,
        "status": where.status,
        "window": Int8(window),
        "kind": where.kind,
        "prefix": where.prefix,
        "parent": where.parent,
        "parent_journal": where.parent_journal,
        "closed": where.closed,
        "since": where.updated_since,
        "before": where.updated_before,
        "made_from": where.made_from,
        "owner": where.owner,
        "labels": json.dumps(dict(where.labels)) if where.labels else None,
        "with_requests": where.with_requests or where.status == "requires_action",
        "after_time": after_time,
        "after_id": after_id,
        "limit": Int8(limit),
    }
    return await db.connections.misc.run(_SQL["list"], params)


async def describe_journal(db: Database, session_id: str, kind: str, changes: Description) -> bool:
    params = {"session": session_id, "kind": kind, "changes": json.dumps(changes)}
    asked = with_shares(db.shares, _SQL["describe"], _SQL["described"], params)
    ((found,),) = await db.connections.misc.run(*asked)
    return bool(found)


async def delete_journal(db: Database, session_ids: Sequence[str]) -> Sequence[bool]:
    asked = with_shares(db.shares, _SQL["delete"], _SQL["deleted"], {"session": Texts(session_ids)})
    ((deleted,),) = await db.connections.misc.run(*asked)
    left = set(deleted or ())
    outcomes: list[bool] = []
    for session_id in session_ids:
        outcomes.append(session_id in left)
        left.discard(session_id)  # a session that is named twice has no journal the second time
    return outcomes


async def prune_journals(
    db: Database,
    retention: JournalRetention,
    *,
    limit: int,
    after: int = 0,
    dry_run: bool = False,
    everything: bool = False,
) -> JournalPruning:
    """Prune a step. An index finds the journals near a bound on entries or bytes; the statement checks them."""
    if retention == JournalRetention():
        return JournalPruning(entries=0, after=None)
    params = {
        "age": None if retention.age is None else float(retention.age),
        "entries": None if retention.entries is None else Int8(retention.entries),
        "size": None if retention.size is None else Int8(retention.size),
        "limit": Int8(limit),
        "after": Int8(after),
        "milliseconds": Int8(round(1000 * (PRUNE_LOOK_SECONDS if dry_run else PRUNE_STEP_SECONDS))),
        "dry_run": dry_run,
    }
    statement = _SQL["prune_all" if everything else "prune"]
    ((removed, goes_on),) = await db.connections.misc.run(*with_shares(db.shares, statement, _SQL["pruned"], params))
    return JournalPruning(entries=removed, after=goes_on)
