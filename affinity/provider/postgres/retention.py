"""Retention: removing instances and histories that ended long ago, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.limits import PRUNE_EVENTS, PRUNE_WINDOW
from affinity.provider.contract import HistoryPruning, InstancePruning
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "retention.sql")

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


async def prune_instances(
    db: Database, status: frozenset[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
) -> InstancePruning:
    return await prune(db, status, older_than, after, dry_run=dry_run)


async def prune_histories(
    db: Database, older_than: float, *, instance_id: str | None = None, dry_run: bool = False
) -> HistoryPruning:
    return await prune_former(db, older_than, instance_id=instance_id, dry_run=dry_run)


async def prune_former(
    db: Database,
    older_than: float,
    *,
    instance_id: str | None = None,
    dry_run: bool = False,
    events: int | None = None,
) -> HistoryPruning:
    """One step of removing histories of former executions, of at most so many ``events``."""
    most = PRUNE_EVENTS if events is None else events
    of_one = {} if instance_id is None else {"instance": instance_id}
    which = {"older_than": float(older_than), **of_one}
    if dry_run:
        ((executions,),) = await db.connections.misc.run(_of_one("count_histories", of_one), which)
        return HistoryPruning(executions=executions, limit_reached=False)
    bounds = {**which, "window": Int8(PRUNE_WINDOW), "events": Int8(most)}
    asked = with_shares(db.shares, _of_one("prune_histories", of_one), _SQL["pruned_histories"], bounds)
    ((executions, more),) = await db.connections.misc.run(*asked)
    return HistoryPruning(executions=executions, limit_reached=more)


def _of_one(name: str, of_one: Mapping[str, str]) -> LiteralString:
    """Return a statement, for one instance if there is one: the index that finds it is another."""
    wanted: LiteralString = "= %(instance)s" if of_one else "IS NOT NULL"
    return _SQL[name].replace("IS NOT NULL -- or one", wanted)


async def set_pruned(db: Database, after: datetime | None) -> None:
    """Note where the next sweep goes on."""
    await db.connections.misc.run(_SQL["set_pruned"], {"after": after})


async def prune(
    db: Database,
    status: frozenset[str],
    older_than: float,
    after: datetime | None,
    *,
    events: int | None = None,
    largest: int | None = None,
    dry_run: bool = False,
) -> InstancePruning:
    """One step, which ends when it has removed so many ``events``; trees of more than the ``largest`` stay."""
    params = {
        "status": Texts(sorted(status)),
        "older_than": float(older_than),
        "after": after or _BEGINNING,
        "window": Int8(PRUNE_WINDOW),
        "events": Int8(PRUNE_EVENTS if events is None else events),
        "largest": None if largest is None else Int8(largest),
        "dry_run": dry_run,
    }
    asked = with_shares(db.shares, _SQL["prune"], _SQL["pruned"], params)
    ((roots, instances, next_after),) = await db.connections.misc.run(*asked)
    return InstancePruning(roots=roots, instances=instances, after=next_after)
