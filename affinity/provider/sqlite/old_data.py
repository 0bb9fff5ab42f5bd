"""Old data that a sweep removes: a step for each kind that has a retention, in transactions of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from affinity.journal import JournalPruning, JournalRetention
from affinity.limits import SWEEP_EVENTS, SWEEP_LOOK
from affinity.provider.contract import Retention
from affinity.provider.rounds import Round, RoundKind, Step, first_rows, run_rounds
from affinity.provider.sqlite import instances, moves, retention, session_states, sessions
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.parts import parts
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "old_data.sql")


class Access(NamedTuple):
    """What the steps need of the provider: each call is a transaction."""

    write: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    read: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    prune_journals: Callable[..., Awaitable[JournalPruning]]


async def remove_old(access: Access, keep: Retention) -> dict[str, Any]:
    """One step of each kind, as fields of a `Sweep`."""
    removed: dict[str, Any] = {}
    backlog = False
    steps: tuple[tuple[str, object, Callable[..., tuple[int, bool]]], ...] = (
        ("moves_removed", keep.moves, moves.remove),
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
    return {**removed, **counts, "backlog": backlog or more}


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
    kinds = []
    if keep.entries != JournalRetention():
        kinds.append(RoundKind("entries_removed", 0.0, partial(_entries, access, keep.entries)))
    for name, older_than, step in (
        ("records_removed", keep.records, _records),
        ("journals_removed", keep.journals, _journals),
    ):
        if older_than is not None:
            kinds.append(RoundKind(name, older_than, partial(_old, access, older_than, step)))
    return kinds


async def _entries(access: Access, keep: JournalRetention, place: Any) -> Step:
    step = await access.prune_journals(keep, limit=SWEEP_EVENTS, after=place or 0)
    return Step(step.entries, step.after)


async def _old(access: Access, older_than: float, step: Callable[..., Step], place: Any) -> Step:
    done: Step = await access.write(partial(step, older_than=older_than, place=place))
    return done


def _records(tx: Tx, older_than: float, place: Any) -> Step:
    rows = tx.rows(SQL["old_records"], _bounds(tx, older_than, place))
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


def _journals(tx: Tx, older_than: float, place: Any) -> Step:
    rows = tx.rows(SQL["old_journals"], _bounds(tx, older_than, place))
    taken = first_rows(rows, SWEEP_EVENTS)
    doomed = [row.session_id for row in taken if row.at_rest]
    if doomed:
        instances.delete_instances(tx, doomed, force=True)
        sessions.renew_epochs(tx, doomed)
        session_states.remove(tx, doomed)
    is_last = len(taken) == len(rows) < SWEEP_LOOK
    return Step(len(doomed), None if is_last else [taken[-1].created_at, taken[-1].session_id])


def _bounds(tx: Tx, older_than: float, place: Any) -> Mapping[str, Any]:
    after_time, after_id = place or (0.0, "")
    return {
        "now": tx.now,
        "cutoff": tx.now - older_than,
        "after_time": after_time,
        "after_id": after_id,
        "window": SWEEP_LOOK,
    }
