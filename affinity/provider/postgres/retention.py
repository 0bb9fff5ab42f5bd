"""Retention: removing instances and histories that ended long ago, step by step."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from psycopg.types.numeric import Int8

from affinity.errors import StatementTimeout
from affinity.limits import PRUNE_EVENTS, PRUNE_TREE_EVENTS, PRUNE_WINDOW
from affinity.provider.contract import SWEPT_STATUSES, HistoryPruning, InstancePruning, Retention
from affinity.provider.postgres.audit import with_entries
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "retention.sql")

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


async def prune_instances(
    db: Database, status: frozenset[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
) -> InstancePruning:
    return await _prune(db, status, older_than, after, dry_run=dry_run)


async def prune_histories(db: Database, older_than: float, *, dry_run: bool = False) -> HistoryPruning:
    bounds = {"older_than": float(older_than), "window": Int8(PRUNE_WINDOW), "events": Int8(PRUNE_EVENTS)}
    if dry_run:
        ((executions,),) = await db.connections.misc.run(_SQL["count_histories"], {"older_than": float(older_than)})
        return HistoryPruning(executions=executions, limit_reached=False)
    asked = with_entries(db.entries, _SQL["prune_histories"], _SQL["pruned_histories"], bounds)
    ((executions, more),) = await db.connections.misc.run(*asked)
    return HistoryPruning(executions=executions, limit_reached=more)


async def sweep_ended(db: Database, retention: Retention, after: datetime | None) -> tuple[int, int]:
    """One step of each that is wanted; instances and executions that were removed."""
    instances = executions = 0
    if retention.instances is not None:
        step = await _sweep_instances(db, retention.instances, after)
        if step.after != after:
            await db.connections.misc.run(_SQL["set_pruned"], {"after": step.after})
        instances = step.instances
        ended = {"older_than": float(retention.instances), "window": Int8(PRUNE_WINDOW)}
        await db.connections.misc.run(_SQL["remove_ended_schedules"], ended)
    if retention.histories is not None:
        executions = (await prune_histories(db, retention.histories)).executions
    return instances, executions


async def _sweep_instances(db: Database, older_than: float, after: datetime | None) -> InstancePruning:
    step = partial(_prune, db, SWEPT_STATUSES, older_than, after, largest=PRUNE_TREE_EVENTS)
    try:
        return await step()
    except StatementTimeout:  # a tree has more former executions than one statement removes: pass it over
        return replace(await step(dry_run=True), roots=0, instances=0)


async def _prune(
    db: Database,
    status: frozenset[str],
    older_than: float,
    after: datetime | None,
    *,
    largest: int | None = None,
    dry_run: bool = False,
) -> InstancePruning:
    params = {
        "status": Texts(sorted(status)),
        "older_than": float(older_than),
        "after": after or _BEGINNING,
        "window": Int8(PRUNE_WINDOW),
        "events": Int8(PRUNE_EVENTS),
        "largest": None if largest is None else Int8(largest),
        "dry_run": dry_run,
    }
    asked = with_entries(db.entries, _SQL["prune"], _SQL["pruned"], params)
    ((roots, instances, next_after),) = await db.connections.misc.run(*asked)
    return InstancePruning(roots=roots, instances=instances, after=next_after)
