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
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Operations
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "retention.sql")

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


class RetentionOperations(Operations):
    """`prune_instances` and `prune_histories`, and the share that a sweep does of them."""

    async def prune_instances(
        self, status: frozenset[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
    ) -> InstancePruning:
        return await self._prune(status, older_than, after, dry_run=dry_run)

    async def prune_histories(self, older_than: float, *, dry_run: bool = False) -> HistoryPruning:
        bounds = {"older_than": float(older_than), "window": Int8(PRUNE_WINDOW), "events": Int8(PRUNE_EVENTS)}
        if dry_run:
            ((executions,),) = await self._connections.misc.run(
                _SQL["count_histories"], {"older_than": float(older_than)}
            )
            return HistoryPruning(executions=executions, limit_reached=False)
        ((executions, more),) = await self._connections.misc.run(_SQL["prune_histories"], bounds)
        return HistoryPruning(executions=executions, limit_reached=more)

    async def _sweep_ended(self, retention: Retention, after: datetime | None) -> tuple[int, int]:
        """One step of each that is wanted; instances and executions that were removed."""
        instances = executions = 0
        if retention.instances is not None:
            step = await self._sweep_instances(retention.instances, after)
            if step.after != after:
                await self._connections.misc.run(_SQL["set_pruned"], {"after": step.after})
            instances = step.instances
        if retention.histories is not None:
            executions = (await self.prune_histories(retention.histories)).executions
        return instances, executions

    async def _sweep_instances(self, older_than: float, after: datetime | None) -> InstancePruning:
        step = partial(self._prune, SWEPT_STATUSES, older_than, after, largest=PRUNE_TREE_EVENTS)
        try:
            return await step()
        except StatementTimeout:  # a tree has more former executions than one statement removes: pass it over
            return replace(await step(dry_run=True), roots=0, instances=0)

    async def _prune(
        self,
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
        ((roots, instances, next_after),) = await self._connections.misc.run(_SQL["prune"], params)
        return InstancePruning(roots=roots, instances=instances, after=next_after)
