"""Retention: removing instances and histories that ended long ago, in steps of some milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from time import monotonic
from typing import Any, Final, LiteralString, NamedTuple

from affinity.limits import PRUNE_EVENTS, PRUNE_STEP_SECONDS, PRUNE_TREE_EVENTS, PRUNE_WINDOW, SWEEP_EVENTS
from affinity.provider.contract import SWEPT_STATUSES, HistoryPruning, InstancePruning, Retention
from affinity.provider.sqlite import instances as stored
from affinity.provider.sqlite import replies
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.replies import OF_ONE
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "retention.sql")

_MICROSECOND: Final = 1e-6
"""Precision that a time may lose as a datetime: no two transactions are as close."""


def prune_instances(
    tx: Tx, status: Iterable[str], older_than: float, *, after: datetime | None = None, dry_run: bool = False
) -> InstancePruning:
    behind = 0.0 if after is None else after.timestamp() + _MICROSECOND
    step = _prune(tx, status, older_than, after=behind, dry_run=dry_run)
    return InstancePruning(
        roots=step.roots, instances=step.instances, after=None if step.after is None else instant(step.after)
    )


def prune_histories(
    tx: Tx, older_than: float, *, instance_id: str | None = None, dry_run: bool = False
) -> HistoryPruning:
    return _prune_histories(tx, older_than, instance_id=instance_id, events=PRUNE_EVENTS, dry_run=dry_run)


def _prune_histories(
    tx: Tx, older_than: float, *, instance_id: str | None = None, events: int, dry_run: bool = False
) -> HistoryPruning:
    until = monotonic() + PRUNE_STEP_SECONDS
    cutoff = tx.now - older_than
    which = {} if instance_id is None else {"instance_id": instance_id}
    if dry_run:
        count = _of_one(SQL["count_histories"], instance_id)
        return HistoryPruning(executions=tx.value(count, {"cutoff": cutoff, **which}), limit_reached=False)
    more_keys = replies.forget(tx, cutoff, instance_id)
    due = tx.rows(_of_one(SQL["histories"], instance_id), {"cutoff": cutoff, "window": PRUNE_WINDOW, **which})
    room, executions = events, 0
    for of, execution_id in due:
        at = {"instance_id": of, "execution_id": execution_id}
        room -= tx.run(SQL["cut_history"], {**at, "events": room})
        if room <= 0:
            return HistoryPruning(executions=executions, limit_reached=True)
        executions += tx.run(SQL["forget"], at)
        tx.run(SQL["forget_failures"], at)
        if monotonic() > until:
            return HistoryPruning(executions=executions, limit_reached=True)
    return HistoryPruning(executions=executions, limit_reached=more_keys or len(due) == PRUNE_WINDOW)


def _of_one(statement: LiteralString, instance_id: str | None) -> LiteralString:
    """Return the statement, for one instance if it is given: the index that finds it is another."""
    return statement if instance_id is None else statement.replace("WHERE NOT is_last", OF_ONE + "NOT is_last")


def sweep_instances(tx: Tx, retention: Retention) -> tuple[int, bool]:
    """One step of a sweep: instances that it removed, and whether there may be more."""
    if retention.instances is None:
        return 0, False
    after = tx.value(SQL["pruned_to"])
    bounds: dict[str, Any] = {"largest": PRUNE_TREE_EVENTS, "events": SWEEP_EVENTS}
    step = _prune(tx, SWEPT_STATUSES, retention.instances, after=after, **bounds)
    if step.after != after:
        tx.run(SQL["set_pruned"], {"after": step.after or 0.0})
    return step.instances, step.instances > 0 and step.after is not None


def sweep_histories(tx: Tx, retention: Retention) -> tuple[int, bool]:
    """One step of a sweep: executions whose histories it removed, and whether there may be more."""
    if retention.histories is None:
        return 0, False
    step = _prune_histories(tx, retention.histories, events=SWEEP_EVENTS)
    return step.executions, step.limit_reached


class _PruneStep(NamedTuple):
    roots: int
    instances: int
    after: float | None


def _prune(
    tx: Tx,
    status: Iterable[str],
    older_than: float,
    *,
    after: float,
    events: int = PRUNE_EVENTS,
    largest: float = float("inf"),
    dry_run: bool = False,
) -> _PruneStep:
    until = monotonic() + PRUNE_STEP_SECONDS
    cutoff = tx.now - older_than
    ended = {"cutoff": cutoff, "after": after, "status": to_json(sorted(status)), "window": PRUNE_WINDOW}
    rows = tx.rows(SQL["ended"], ended)
    roots = instances = removed = 0
    for instance_id, ended_at, is_due in rows:
        if not is_due:
            continue
        if not dry_run and (removed >= events or (instances and monotonic() > until)):
            earlier = [at for _, at, _ in rows if at < ended_at]
            return _PruneStep(roots, instances, earlier[-1] if earlier else after)
        size, found, all_ended = tx.rows(SQL["measure"], {"instance_id": instance_id, "cutoff": cutoff})[0]
        if not all_ended or found > largest:
            continue
        if not dry_run:
            stored.delete_instances(tx, [instance_id], force=False, tree=True)
        roots, instances, removed = roots + 1, instances + size, removed + found
    return _PruneStep(roots, instances, max(at for _, at, _ in rows) if len(rows) >= PRUNE_WINDOW else None)
