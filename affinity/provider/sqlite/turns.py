"""Committing turns: THE write of the hot loop.

A batch is one transaction. Each turn is checked against its fence; those that pass are applied together, statement
by statement rather than turn by turn, so that a batch costs few more statements than a single turn. Order matters
in three places: instances move on before messages are sent (a finished one takes none), children are created before
anything is sent to them, and what a turn cancels goes last, as it may have been queued by that same turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from affinity.provider.contract import (
    FINISHED,
    InstanceUpdate,
    NewWorkItem,
    Placed,
    Timeouts,
    Token,
    Turn,
    TurnResult,
    WorkerIdentity,
    WorkItem,
    WorkLock,
)
from affinity.provider.sqlite import sessions, work_items
from affinity.provider.sqlite.database import Row, Tx
from affinity.provider.sqlite.messages import create, send
from affinity.provider.sqlite.sessions import FREE, NEW, Lease
from affinity.provider.sqlite.tokens import Tokens
from affinity.provider.sqlite.workers import Caller, read_caller
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "turns.sql")

_GOES_ON: Final = InstanceUpdate(status="running")


class _Passed(NamedTuple):
    """A turn that its fence let through."""

    turn: Turn
    acked: list[Row]  # row id, session and locker of each work item that it acknowledges


def commit(
    tx: Tx, tokens: Tokens, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts
) -> list[TurnResult]:
    """See `Provider.commit_turn`."""
    if not turns:
        return []
    caller = read_caller(tx, identity)
    fences = _read_fences(tx, identity, turns) if caller.alive else {}
    spent: set[int] = set()
    verdicts = [_judge(tx, turn, fences, spent) for turn in turns]
    passed = [verdict for verdict in verdicts if isinstance(verdict, _Passed)]
    _move_on(tx, passed)
    placement = _Placement(tx, tokens, identity, caller, timeouts)
    placements = iter(placement.place(passed))
    _cancel(tx, [one.turn for one in passed])
    return [
        TurnResult(committed=True, placed=next(placements)) if isinstance(verdict, _Passed) else verdict
        for verdict in verdicts
    ]


def _read_fences(tx: Tx, identity: WorkerIdentity, turns: Sequence[Turn]) -> dict[str, tuple[int, int]]:
    """Execution and number of events of the instances that the caller owns and that have not finished."""
    arguments = {
        "instance_ids": json.dumps([turn.instance_id for turn in turns]),
        "worker_id": identity.worker_id,
        "incarnation": identity.incarnation,
    }
    return {row[0]: (row[1], row[2]) for row in tx.rows(SQL["fences"], arguments) if row[3] not in FINISHED}


def _judge(tx: Tx, turn: Turn, fences: dict[str, tuple[int, int]], spent: set[int]) -> _Passed | TurnResult:
    """Check a turn; what it uses up, the fence and its acks, is there for no other turn of the batch."""
    found = [(lock, work_items.find(tx, lock)) for lock in turn.acks]
    acked = [row for _, row in found if row is not None and row[0] not in spent]
    if len(acked) < len(found):
        lost = [lock for lock, row in found if row is None or row[0] in spent]
        return TurnResult(committed=False, lost_acks=lost)
    if fences.get(turn.instance_id) != (turn.execution_id, turn.event_count):
        return TurnResult(committed=False)
    del fences[turn.instance_id]
    spent.update(row[0] for row in acked)
    return _Passed(turn, acked)


def _move_on(tx: Tx, passed: Sequence[_Passed]) -> None:
    """Take what the turns used up, write their histories, and send what they send."""
    turns = [one.turn for one in passed]
    tx.many(work_items.SQL["remove"], [{"id": row[0]} for one in passed for row in one.acked])
    tx.many(SQL["consume"], [(message, turn.instance_id) for turn in turns for message in turn.consumed])
    tx.many(SQL["append"], _events(turns))
    tx.many(SQL["advance"], [_advance(tx, turn) for turn in turns])
    for turn in turns:
        for instance in turn.instances:
            create(tx, instance)
    for turn in turns:
        for message in turn.messages:
            send(tx, message)


def _events(turns: Iterable[Turn]) -> list[tuple[str, int, int, str]]:
    return [
        (turn.instance_id, turn.execution_id, number, event)
        for turn in turns
        for number, event in enumerate(turn.history, turn.event_count + 1)
    ]


def _advance(tx: Tx, turn: Turn) -> dict[str, Any]:
    update = turn.update or _GOES_ON
    return {
        "now": tx.now,
        "instance_id": turn.instance_id,
        "events": len(turn.history),
        "continued": update.continued,
        "status": update.status,
        "version": update.version,
        "custom_status": turn.custom_status,
        "output": update.output,
        "error": update.error,
    }


def _cancel(tx: Tx, turns: Sequence[Turn]) -> None:
    """Remove the rows that the turns gave up, and all rows of what has finished."""
    tx.many(
        SQL["cancel_activity"],
        [(turn.instance_id, turn.execution_id, number) for turn in turns for number in turn.cancel_activities],
    )
    tx.many(
        SQL["cancel_timer"],
        [(turn.instance_id, turn.execution_id, number) for turn in turns for number in turn.cancel_timers],
    )
    finished = [(turn.instance_id,) for turn in turns if _finishes(turn)]
    tx.many(SQL["clear_items"], finished)
    tx.many(SQL["clear_messages"], finished)


def _finishes(turn: Turn) -> bool:
    return turn.update is not None and turn.update.status in FINISHED


class _Placement:
    """Queues the work items of a batch, each where its session is, or locks them to the committer."""

    def __init__(self, tx: Tx, tokens: Tokens, identity: WorkerIdentity, caller: Caller, timeouts: Timeouts) -> None:
        self._tx = tx
        self._tokens = tokens
        self._identity = identity
        self._may_lock = caller.alive and not caller.draining
        self._timeouts = timeouts
        self._leases: dict[str, Lease] = {}
        self._touched: set[str] = set()

    def place(self, passed: Sequence[_Passed]) -> list[list[Placed]]:
        """Queue all work items; where they went, turn by turn. Touches the sessions of acks and of items locked
        here.
        """
        named = {item.session_id for one in passed for item in one.turn.work_items if item.session_id is not None}
        self._leases = sessions.read_leases(self._tx, named)
        self._touched = {row[1] for one in passed for row in one.acked if row[1] is not None}
        rows: list[Row] = []
        placed = [[self._place(one.turn, item, rows) for item in one.turn.work_items] for one in passed]
        self._tx.many(work_items.SQL["insert"], rows)
        sessions.touch(self._tx, self._identity, self._touched, self._timeouts.session_lock)
        return placed

    def _place(self, turn: Turn, item: NewWorkItem, rows: list[Row]) -> Placed:
        if _finishes(turn) or item.key.activity_id in turn.cancel_activities:
            return Placed(item=None, holder=None)  # given up before it began
        lease = None if item.session_id is None else self._leases.get(item.session_id)
        here = self._locks_here(item, lease)
        token = self._tokens.next() if here else None
        rows.append(self._row(item, lease, token))
        if token is None:
            return Placed(item=None, holder=lease.worker_id if lease is not None and lease.held else None)
        if item.session_id is not None:
            self._touched.add(item.session_id)
        return Placed(item=_delivered(item, token, lease), holder=None)

    def _locks_here(self, item: NewWorkItem, lease: Lease | None) -> bool:
        if not item.lock_here or not self._may_lock or item.delay > 0:
            return False
        return item.session_id is None or (lease is not None and lease.held_by(self._identity))

    def _row(self, item: NewWorkItem, lease: Lease | None, token: Token | None) -> Row:
        now = self._tx.now
        visible_at = now + max(item.delay, 0.0)
        head = (*item.key, item.name, item.session_id, _route(item, lease), visible_at, item.payload)
        if token is None:
            return (*head, None, None, None, None, 0, now)
        locked_until = now + self._timeouts.work_item_lock
        return (*head, self._identity.worker_id, self._identity.incarnation, token, locked_until, 1, now)


def _route(item: NewWorkItem, lease: Lease | None) -> str:
    if item.session_id is None:
        return FREE
    return NEW if lease is None else lease.route


def _delivered(item: NewWorkItem, token: Token, lease: Lease | None) -> WorkItem:
    return WorkItem(
        lock=WorkLock(item.key, token),
        name=item.name,
        payload=item.payload,
        session_id=item.session_id,
        session_epoch=None if lease is None else lease.epoch,
        attempts=1,
        failures=0,
        unknown_for=None,
    )
