"""Old data that a sweep removes: a step for each kind that has a retention, in transactions of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from affinity.errors import StatementTimeout
from affinity.limits import PRUNE_TREE_EVENTS, SWEEP_EVENTS, SWEEP_LOOK, SWEEP_ROWS
from affinity.provider.contract import NO_RETENTION, SWEPT_STATUSES, InstancePruning, Retention
from affinity.provider.postgres import retention
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database
from affinity.provider.postgres.parts import expressions, parts
from affinity.provider.postgres.session_store import delete_records
from affinity.provider.rounds import Round, RoundKind, Step, run_rounds
from affinity.provider.statements import load_statements, with_conditions

_SQL: Final = load_statements(__package__, "old_data.sql")

_RECORDS: Final = "records_removed"
"""A round, and a field of `Sweep`."""


async def remove_old(db: Database, keep: Retention, after: datetime | None) -> dict[str, Any]:
    """Do one step of each kind. Return fields of a `Sweep`; ``after``: where the last step of instances stopped."""
    removed: dict[str, Any] = {}
    backlog = False
    if keep.moves is not None:
        bounds = {"older_than": float(keep.moves), "limit": Int8(SWEEP_ROWS)}
        ((rows,),) = await db.connections.misc.run(_SQL["remove_moves"], bounds)
        removed["moves_removed"] = rows
        backlog |= rows >= SWEEP_ROWS
    if keep.failures is not None:
        bounds = {"older_than": float(keep.failures), "limit": Int8(SWEEP_ROWS)}
        ((rows,),) = await db.connections.misc.run(_SQL["remove_failures"], bounds)
        removed["failures_removed"] = rows
        backlog |= rows >= SWEEP_ROWS
    if keep.instances is not None:
        step = await _sweep_instances(db, keep.instances, after)
        if step.after != after:
            await retention.set_pruned(db, step.after)
        removed["instances_removed"] = step.instances
        backlog |= step.instances > 0 and step.after is not None
    if keep.histories is not None:
        pruned = await retention.prune_former(db, keep.histories, events=SWEEP_EVENTS)
        removed["executions_removed"] = pruned.executions
        backlog |= pruned.limit_reached
    of_guests, more = await _remove_of_guests(db, keep)
    counts, more_rounds = await run_rounds(_kinds(db, keep), _Rounds(db))
    removed[_RECORDS] = counts.pop(_RECORDS, 0)
    of_guests |= {name: rows for name, rows in counts.items() if rows}
    return {**removed, "removed": of_guests, "backlog": backlog or more or more_rounds}


async def _remove_of_guests(db: Database, keep: Retention) -> tuple[dict[str, int], bool]:
    """Do one step of each guest. Return the rows that it has removed, and whether any guest may have more."""
    if keep == NO_RETENTION:
        return {}, False
    steps = {guest: part.remove_old for guest, part in parts().items() if part.remove_old is not None}
    done = {guest: await step(db, keep) for guest, step in steps.items()}
    return {guest: rows for guest, (rows, _) in done.items() if rows}, any(more for _, more in done.values())


async def _sweep_instances(db: Database, older_than: float, after: datetime | None) -> InstancePruning:
    step = partial(
        retention.prune, db, SWEPT_STATUSES, older_than, after, events=SWEEP_EVENTS, largest=PRUNE_TREE_EVENTS
    )
    try:
        return await step()
    except StatementTimeout:  # a tree has more former executions than one statement removes: pass it over
        return replace(await step(dry_run=True), roots=0, instances=0)


class _Rounds:
    """The rows of rounds."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def due(self, names: Sequence[str]) -> Mapping[str, Round]:
        rows = await self._db.connections.misc.run(_SQL["due_rounds"], {"names": Texts(names)})
        return {name: Round(*state) for name, *state in rows}

    async def save(self, name: str, state: Round, wait: float) -> None:
        row = {"name": name, "place": state.place, "removed": Int8(state.removed), "pause": state.pause, "wait": wait}
        await self._db.connections.misc.run(_SQL["save_round"], row)


def _kinds(db: Database, keep: Retention) -> list[RoundKind]:
    of_guests = [kind for part in parts().values() if part.rounds is not None for kind in part.rounds(db, keep)]
    if keep.records is None:
        return of_guests
    return [RoundKind(_RECORDS, keep.records, partial(_records, db, keep.records)), *of_guests]


async def _records(db: Database, older_than: float, place: Any) -> Step:
    rows = await db.connections.misc.run(_old_records(), _bounds(older_than, place))
    found = {row[0]: (row[1], row[2]) for row in rows if row[4]}
    gone = await delete_records(db.connections, found)
    return Step(len(gone), [rows[-1][3], rows[-1][0]] if len(rows) == SWEEP_LOOK else None)


def _bounds(older_than: float, place: Any) -> Mapping[str, Any]:
    after_time, after_id = place or (None, None)
    return {
        "older_than": float(older_than),
        "after_time": after_time,
        "after_id": after_id,
        "window": Int8(SWEEP_LOOK),
    }


def _old_records() -> LiteralString:
    return with_conditions(_SQL["old_records"], expressions("needs_record").values())
