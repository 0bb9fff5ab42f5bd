"""Committing turns: the write of the hot loop.

A batch is one transaction. Each turn is checked against its fence. Passing turns are applied together, statement by
statement: a batch of fifty runs as many statements as a single turn.

Order matters in four places. Instances move on before messages are sent: a finished instance takes none. Children are
created before messages to them. Cancelled work is removed last, because the same turn may have queued it. Items are
parked between the writes of guests to the sessions of the activities, which may keep them in the queue, and the writes
to others, which may unpark them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from affinity.provider.contract import (
    InstanceUpdate,
    NewWorkItem,
    Placed,
    Timeouts,
    Turn,
    TurnResult,
    WorkerIdentity,
    WorkKey,
)
from affinity.provider.sqlite import failures, holds, instances, parking, releasing, replies, sessions, values
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.messages import insert_new, send
from affinity.provider.sqlite.parts import PartWriters
from affinity.provider.sqlite.placing import NOT_QUEUED, PARKED, WorkItemPlacer
from affinity.provider.sqlite.session_states import FenceChecker
from affinity.provider.sqlite.work_items import HeldItemRow, find, remove
from affinity.provider.sqlite.workers import read_caller
from affinity.provider.statements import load_statements
from affinity.records import labels_text

SQL: Final = load_statements(__package__, "turns.sql")

_Fence: TypeAlias = tuple[Any, ...]
"""Generation, execution id and number of events of an instance."""

_Checkers: TypeAlias = tuple[FenceChecker, PartWriters]


class _PassedTurn(NamedTuple):
    """A turn whose fences pass."""

    turn: Turn
    acked: list[HeldItemRow]


def commit(tx: Tx, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts) -> list[TurnResult]:
    if not turns:
        return []
    caller = read_caller(tx, identity)
    fences = _read_fences(tx, identity, turns) if caller.alive else {}
    checker = FenceChecker(tx, [write for turn in turns for write in turn.states])
    parts = PartWriters(tx, [part for turn in turns for part in turn.parts])
    outcomes = _check_all(turns, fences, find(tx, [lock for turn in turns for lock in turn.acks]), (checker, parts))
    passed = [outcome for outcome in outcomes if isinstance(outcome, _PassedTurn)]
    _move_on(tx, identity, passed)
    checker.write_accepted()
    parts.write_accepted()
    parked = parking.park(tx, [item for accepted in passed for item in _parkable(accepted.turn)])
    parts.write_to_others()
    named = {item.session_id for accepted in passed for item in accepted.turn.work_items if item.session_id is not None}
    placer = WorkItemPlacer(tx, identity, named, may_lock=not caller.draining)
    placed = iter([_place(placer, accepted.turn, parked) for accepted in passed])
    placer.queue(timeouts.work_item_lock)
    acked = {held.session_id for accepted in passed for held in accepted.acked if held.session_id is not None}
    sessions.touch(tx, identity, acked | placer.sessions_here, timeouts.session_lock, placer.leases)
    holds.apply(tx, [accepted.turn for accepted in passed], timeouts.session_lock)
    _cancel(tx, [accepted.turn for accepted in passed])
    replies.reply(tx, [accepted.turn for accepted in passed if accepted.turn.replies])
    if valued := [(accepted.turn.instance_id, accepted.turn.values) for accepted in passed if accepted.turn.values]:
        values.write(tx, valued)
    if released := [session_id for accepted in passed for session_id in accepted.turn.release_sessions]:
        releasing.release(tx, released)
    return [
        TurnResult(committed=True, placed=next(placed)) if isinstance(outcome, _PassedTurn) else outcome
        for outcome in outcomes
    ]


def _read_fences(tx: Tx, identity: WorkerIdentity, turns: Sequence[Turn]) -> dict[str, _Fence]:
    """Return the fences of the instances that the caller owns and that have not finished."""
    arguments = {"instance_ids": to_json([turn.instance_id for turn in turns]), **sessions.caller(tx, identity)}
    return {name: tuple(fence) for name, *fence in tx.gather(SQL["fences"], arguments)}


def _check_all(
    turns: Sequence[Turn], fences: dict[str, _Fence], found: Sequence[HeldItemRow | None], checkers: _Checkers
) -> list[_PassedTurn | TurnResult]:
    """Check all turns; ``found`` has the items that their acks name, one after the other."""
    remaining = iter(found)
    spent: set[int] = set()
    return [_check(turn, list(islice(remaining, len(turn.acks))), fences, spent, checkers) for turn in turns]


def _check(
    turn: Turn, found: Sequence[HeldItemRow | None], fences: dict[str, _Fence], spent: set[int], checkers: _Checkers
) -> _PassedTurn | TurnResult:
    """Check a turn. Rows that it uses up (messages, acks, states, rows of guests) are gone for others of the batch."""
    states, parts = checkers
    acked = [held for held in found if held is not None and held.id not in spent]
    missing = len(acked) < len(found)
    lost = [lock for lock, held in zip(turn.acks, found, strict=True) if held not in acked] if missing else []
    conflicts = states.find_conflicts(turn.states)
    if turn.parts:
        conflicts += parts.find_conflicts(turn.parts)
    if lost or conflicts or fences.get(turn.instance_id) != (turn.generation, turn.execution_id, turn.event_count):
        return TurnResult(committed=False, lost_acks=lost, conflicts=conflicts)
    del fences[turn.instance_id]
    spent.update(held.id for held in acked)
    states.accept(turn.states)
    if turn.parts:
        parts.accept(turn.parts)
    return _PassedTurn(turn, acked)


def _move_on(tx: Tx, identity: WorkerIdentity, passed: Sequence[_PassedTurn]) -> None:
    """Remove the rows that the turns used up, write their histories, and send their messages."""
    turns = [accepted.turn for accepted in passed]
    remove(tx, [held for accepted in passed for held in accepted.acked])
    tx.many(SQL["consume"], [(turn.instance_id, message) for turn in turns for message in turn.consumed])
    tx.many(SQL["append"], _events(turns), {"now": tx.now, "worker_id": identity.worker_id})
    tx.many(SQL["add_runs"], [row for turn in turns if turn.runs for row in _runs(turn)])
    tx.many(SQL["go_on"], [_go_on(turn) for turn in turns if turn.update is None], {"now": tx.now})
    tx.many(SQL["advance"], [_advance(turn, turn.update) for turn in turns if turn.update], {"now": tx.now})
    failures.keep(tx, [turn for turn in turns if turn.failures])
    tx.many(SQL["label"], [(turn.instance_id, labels_text(turn.labels)) for turn in turns if turn.labels is not None])
    _, outbox = insert_new(tx, [instance for turn in turns for instance in turn.instances])
    send(tx, [*outbox, *(message for turn in turns for message in turn.messages)])


def _events(turns: Sequence[Turn]) -> list[tuple[Any, ...]]:
    return [
        row for turn in turns for row in event_rows(turn.instance_id, turn.execution_id, turn.event_count, turn.history)
    ]


def event_rows(instance_id: str, execution_id: int, after: int, events: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows for "append" of events that are recorded together, after the first ``after`` of the execution."""
    rows: list[tuple[Any, ...]] = [
        (instance_id, execution_id, number, event) for number, event in enumerate(events, after + 1)
    ]
    if rows:
        rows[0] = (*rows[0], len(rows))
    return rows


def _runs(turn: Turn) -> list[tuple[Any, ...]]:
    return [(turn.instance_id, turn.execution_id, event_id, *run) for event_id, run in turn.runs.items()]


def _go_on(turn: Turn) -> tuple[Any, ...]:
    return (turn.instance_id, len(turn.history), turn.custom_status, turn.unread)


def _advance(turn: Turn, to: InstanceUpdate) -> tuple[Any, ...]:
    values = (to.status, to.version, turn.custom_status, to.output, to.error, turn.unread)
    return (turn.instance_id, len(turn.history), int(to.continued), *values)


def _parkable(turn: Turn) -> list[NewWorkItem]:
    """Return the items that a turn parks, unless a guest queues them."""
    parkable = [item for item in turn.work_items if item.parked]
    if not parkable or turn.ends:
        return []
    return [item for item in parkable if item.key.activity_id not in turn.cancel_activities]


def _place(placer: WorkItemPlacer, turn: Turn, parked: Collection[WorkKey]) -> list[Placed]:
    given_up = set(turn.cancel_activities)
    return [
        NOT_QUEUED
        if turn.finishes or item.key.activity_id in given_up or (item.parked and turn.ends)
        else PARKED
        if item.key in parked
        else placer.place(item)
        for item in turn.work_items
    ]


def _cancel(tx: Tx, turns: Sequence[Turn]) -> None:
    """Remove the rows that the turns gave up, and all rows of finished instances."""
    activities = [
        WorkKey(turn.instance_id, turn.execution_id, number) for turn in turns for number in turn.cancel_activities
    ]
    timers = [(turn.instance_id, turn.execution_id, number) for turn in turns for number in turn.cancel_timers]
    if tx.many(SQL["cancel_activities"], activities) < len(activities):
        tx.many(parking.SQL["cancel"], activities)
    tx.many(SQL["cancel_timers"], timers)
    instances.clear(tx, [turn.instance_id for turn in turns if turn.finishes])
