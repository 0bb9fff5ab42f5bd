"""Old data that a sweep removes: a step for each kind that has a retention, in transactions of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, LiteralString

from affinity.limits import SWEEP_LOOK
from affinity.provider.contract import Retention
from affinity.provider.rounds import Round, RoundKind, Step, run_rounds
from affinity.provider.sqlite import failures, moves, retention, session_states
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.parts import Access, parts
from affinity.provider.statements import load_statements, with_conditions

SQL: Final = load_statements(__package__, "old_data.sql")

_RECORDS: Final = "records_removed"
"""A round, and a field of `Sweep`."""


async def remove_old(access: Access, keep: Retention) -> dict[str, Any]:
    """One step of each kind, as fields of a `Sweep`."""
    removed: dict[str, Any] = {}
    backlog = False
    steps: tuple[tuple[str, object, Callable[..., tuple[int, bool]]], ...] = (
        ("moves_removed", keep.moves, moves.remove),
        ("failures_removed", keep.failures, failures.remove),
        ("instances_removed", keep.instances, retention.sweep_instances),
        ("executions_removed", keep.histories, retention.sweep_histories),
    )
    for name, older_than, step in steps:
        if older_than is not None:
            removed[name], more = await access.write(partial(step, retention=keep))
            backlog |= more
    of_guests = await access.write(partial(_remove_of_guests, keep=keep))
    backlog |= any(more for _, more in of_guests.values())
    removed["removed"] = {guest: rows for guest, (rows, _) in of_guests.items() if rows}
    counts, more = await run_rounds(_kinds(access, keep), _Rounds(access))
    removed[_RECORDS] = counts.pop(_RECORDS, 0)
    removed["removed"] |= {name: rows for name, rows in counts.items() if rows}
    return {**removed, "backlog": backlog or more}


def _remove_of_guests(tx: Tx, keep: Retention) -> dict[str, tuple[int, bool]]:
    """One step of each guest: the rows that it has removed, and whether there may be more."""
    steps = {guest: part.remove_old for guest, part in parts().items() if part.remove_old is not None}
    return {guest: step(tx, keep) for guest, step in steps.items()}


class _Rounds:
    """The rows of rounds."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def due(self, names: Sequence[str]) -> Mapping[str, Round]:
        found: Mapping[str, Round] = await self._access.read(partial(_due, names=names))
        return found

    async def save(self, name: str, state: Round, wait: float) -> None:
        await self._access.write(partial(_save, name=name, state=state, wait=wait))


def _due(tx: Tx, names: Sequence[str]) -> dict[str, Round]:
    rows = tx.rows(SQL["rounds"], {"names": to_json(list(names)), "now": tx.now})
    known = {name: Round(*state) if is_due else None for name, *state, is_due in rows}
    return {name: state for name in names if (state := known.get(name, Round())) is not None}


def _save(tx: Tx, name: str, state: Round, wait: float) -> None:
    row = {"name": name, "place": state.place, "removed": state.removed, "pause": state.pause, "wait": wait}
    tx.run(SQL["save_round"], {**row, "now": tx.now})


def _kinds(access: Access, keep: Retention) -> list[RoundKind]:
    of_guests = [kind for part in parts().values() if part.rounds is not None for kind in part.rounds(access, keep)]
    if keep.records is None:
        return of_guests
    return [RoundKind(_RECORDS, keep.records, partial(_old_records, access, keep.records)), *of_guests]


async def _old_records(access: Access, older_than: float, place: Any) -> Step:
    done: Step = await access.write(partial(_records, older_than=older_than, place=place))
    return done


def _records(tx: Tx, older_than: float, place: Any) -> Step:
    rows = tx.rows(_statement(), _bounds(tx, older_than, place))
    seen = {name: (version, generation) for name, version, generation, _, is_due in rows if is_due}
    asked = session_states.RecordDeletion(
        session_ids=list(seen),
        idle_only=True,
        versions={name: version for name, (version, _) in seen.items()},
        generations={name: generation for name, (_, generation) in seen.items()},
        families=None,
    )
    removed = len(session_states.delete(tx, asked)) if seen else 0
    return Step(removed, [rows[-1][3], rows[-1][0]] if len(rows) == SWEEP_LOOK else None)


def _bounds(tx: Tx, older_than: float, place: Any) -> Mapping[str, Any]:
    after_time, after_id = place or (0.0, "")
    return {
        "now": tx.now,
        "cutoff": tx.now - older_than,
        "after_time": after_time,
        "after_id": after_id,
        "window": SWEEP_LOOK,
    }


def _statement() -> LiteralString:
    conditions = [part.needs_record for part in parts().values() if part.needs_record is not None]
    return with_conditions(SQL["old_records"], conditions)
