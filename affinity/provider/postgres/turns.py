"""The commit: a batch of turns becomes columns, one call of a function of the schema, and answers by position.

States of one batch::

    sent ──all turns pass──► committed
    sent ──one does not──► refused: nothing is written ──`check_fences`──► sent again without the turns that do not pass
    sent alone, in one call ──it passes, and its work is to run here, or is parked──► committed
    sent alone ──otherwise──► nothing is written; sent as any other batch

`check_fences` only reads. A turn that does not pass never passes later, since a fence that has moved never moves back.
A turn that passes is checked again by the next commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import count
from operator import attrgetter
from typing import Final, LiteralString, NamedTuple

from psycopg.errors import UniqueViolation

from affinity.errors import Contention
from affinity.provider.contract import NewWorkItem, Placed, Timeouts, Token, Turn, TurnResult, WorkerIdentity, WorkKey
from affinity.provider.postgres.changes import change_statement
from affinity.provider.postgres.commit_parts import LoneCall, Parking, by_guest
from affinity.provider.postgres.driver.errors import BATCH_REFUSED
from affinity.provider.postgres.driver.wire import Statement
from affinity.provider.postgres.operations import Database, call_of
from affinity.provider.postgres.parts import commit_of, commits
from affinity.provider.postgres.releasing import release_params
from affinity.provider.postgres.turn_columns import (
    CONSUME,
    KEEP_FAILURES,
    LABEL,
    REPLY,
    RESTRICT,
    WRITE_VALUES,
    commit_columns,
    consume_params,
    failure_params,
    fence_check_columns,
    find_parking,
    fused_params,
    label_params,
    reply_params,
    restriction_params,
    sent_items,
    takes_one_result,
    write_values_params,
)
from affinity.provider.postgres.work_items import lengths
from affinity.provider.rows import to_locked_item
from affinity.provider.statements import load_statements, with_guests
from affinity.records import CommitPart, constructor, frozen

_SQL: Final = load_statements(__package__, "turns.sql")
_result: Final = constructor(TurnResult)

_NOT_QUEUED: Final = Placed(item=None, holder=None)
_PARKED: Final = Placed(item=None, holder=None, parked=True)

_MAX_ROUNDS: Final = 5
"""Refused commits of one batch before `Contention` is raised: another worker changes a fence before each of them."""


async def commit_turn(
    db: Database, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, *, notify: Collection[str] = ()
) -> Sequence[TurnResult]:
    behind = change_statement(db.connections.target, notify)
    if len(turns) == 1 and (call := _lone_call(turns[0])):
        try:
            return [await _commit_one(db, identity, turns[0], timeouts, call, behind=behind)]
        except Contention as error:
            _check_refused(error)
    outcomes: dict[str, TurnResult] = {}
    if _writes_twice(turns):
        outcomes = await _check_fences(db, identity, turns)
    for _ in range(_MAX_ROUNDS):
        left = sorted([turn for turn in turns if turn.instance_id not in outcomes], key=_instance_id)
        if not left:
            break
        try:
            outcomes.update(await _commit(db, identity, left, timeouts, behind))
        except Contention as error:
            _check_refused(error)
            outcomes.update(await _check_fences(db, identity, left))
    else:
        raise Contention("a batch of turns was refused again and again, each time for another turn")
    return [outcomes[turn.instance_id] for turn in turns]


def _lone_call(turn: Turn) -> LoneCall | None:
    """Return the call that commits this turn if it comes alone; None for a turn that needs more."""
    if not turn.parts:
        return LoneCall("commit_turn", values) if (values := fused_params(turn)) else None
    if len(turn.parts) > 1 or len(turn.work_items) > 1 or not takes_one_result(turn):
        return None
    return commit_of(turn.parts[0].guest).lone(turn)


async def _commit_one(
    db: Database, identity: WorkerIdentity, turn: Turn, timeouts: Timeouts, call: LoneCall, *, behind: Statement | None
) -> TurnResult:
    """Commit this turn, and lock its one work item to the caller, or park it.

    Raises:
        Contention: the turn does not pass, or its item cannot be locked, or may not be parked; nothing was written.
    """
    params = {"worker": identity.worker_id, "incarnation": identity.incarnation, **lengths(timeouts), **call.values}
    token = db.token(identity)
    if "item_activity" in call.values:
        params["token"] = token = f"{token}.1"
    ((epoch,),) = await db.connections.commit.run(_call_one(call.function, tuple(params)), params, behind=behind)
    if "item_activity" not in call.values:
        return _result(committed=True, placed=[_PARKED] if turn.work_items else ())
    item = to_locked_item(turn.work_items[0], Token(token), epoch)
    return _result(committed=True, placed=[Placed(item, None)])


async def _commit(
    db: Database, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, behind: Statement | None
) -> dict[str, TurnResult]:
    """Commit all of these turns, which are in the order of their keys.

    Raises:
        Contention: one of them does not pass; nothing was written.
    """
    sent = [sent_items(turn) for turn in turns]
    token = db.token(identity)
    params = {
        "worker": identity.worker_id,
        "incarnation": identity.incarnation,
        **lengths(timeouts),
        "token": token,
        **commit_columns(turns, sent),
    }
    function = call_of("commit_turns", tuple(params))
    calls: list[LiteralString] = []
    if any(turn.consumed for turn in turns):
        calls.append(CONSUME)
        params.update(consume_params(turns))
    if restricted := [item for of_turn in sent for item in of_turn if item.is_restricted]:
        calls.append(RESTRICT)
        params.update(restriction_params(restricted))
    if any(turn.labels is not None for turn in turns):
        calls.append(LABEL)
        params.update(label_params(turns))
    if any(turn.failures for turn in turns):
        calls.append(KEEP_FAILURES)
        params.update(failure_params(turns))
    if any(turn.replies for turn in turns):
        calls.append(REPLY)
        params.update(reply_params(turns))
    if valued := [(turn.instance_id, turn.values) for turn in turns if turn.values]:
        calls.append(WRITE_VALUES)
        params.update(write_values_params(valued))
    if released := [session_id for turn in turns for session_id in turn.release_sessions]:
        calls.append("release_sessions(%(release)s, %(reroute)s)")
        params.update(release_params(released))
    parking = find_parking(turns)
    placing: int | None = None
    for guest, parts in _parts_to_commit(turns, parking).items():
        added = commit_of(guest).calls(parts, parking)
        if added.placing is not None:
            placing = len(calls) + added.placing
        calls += added.calls
        params.update(added.params)
    names: LiteralString = "held, epochs, locked, holders"
    call = f"SELECT {', '.join([*calls, names])} FROM {function}"  # noqa: S608 -- literals only
    ((*done, held, epochs, locked, holders),) = await db.connections.commit.run(call, params, behind=behind)
    answer = _Answer(token, dict(zip(held or (), epochs or (), strict=True)), locked, holders)
    numbers = count(1)
    places = [[answer.place(next(numbers), item) for item in of_turn] for of_turn in sent]
    parking_places = {} if placing is None else _parking_places(parking, done[placing])
    return {
        turn.instance_id: _result(
            committed=True,
            placed=found if len(of_turn) == len(turn.work_items) else _placed(turn, of_turn, found, parking_places),
        )
        for turn, of_turn, found in zip(turns, sent, places, strict=True)
    }


def _parts_to_commit(turns: Sequence[Turn], parking: Parking) -> Mapping[str, Sequence[CommitPart]]:
    """Return the parts of a batch by guest, also for guests that only park its items; in the order of `by_guest`."""
    found: dict[str, list[CommitPart]] = {}
    if parking.instances:
        found.update({guest: [] for guest, commit in commits().items() if commit.parks})
    for turn in turns:
        for part in turn.parts:
            found.setdefault(part.guest, []).append(part)
    return dict(sorted(found.items()))


async def _check_fences(db: Database, identity: WorkerIdentity, turns: Sequence[Turn]) -> dict[str, TurnResult]:
    """Return the turns that do not pass, with the reasons."""
    acks = [(turn.instance_id, ack) for turn in turns for ack in turn.acks]
    writes = [(turn.instance_id, write.new.session_id) for turn in turns for write in turn.states]
    parts = by_guest([(turn.instance_id, part) for turn in turns for part in turn.parts])
    params = {"worker": identity.worker_id, "incarnation": identity.incarnation, **fence_check_columns(turns)}
    for guest, own in parts.items():
        params.update(commit_of(guest).fence_params([part for _, part in own]))
    void: dict[str, set[int]] = {kind: set() for kind in ("turn", "ack", "state", *parts)}
    for kind, number in await db.connections.commit.run(_fence_checks(tuple(parts)), params):
        void[kind].add(number - 1)
    fenced = {turns[n].instance_id for n in void["turn"]}
    lost = [acks[n] for n in sorted(void["ack"])]
    conflicts = [writes[n] for n in sorted(void["state"])]
    for guest, own in parts.items():
        conflicts += [(own[n][0], own[n][1].session_id) for n in sorted(void[guest])]
    refused = fenced | {name for name, _ in lost} | {name for name, _ in conflicts}
    again = _second_writes([turn for turn in turns if turn.instance_id not in refused])
    return {
        name: TurnResult(
            committed=False,
            lost_acks=[ack for owner, ack in lost if owner == name],
            conflicts=[session for owner, session in (*conflicts, *again) if owner == name],
        )
        for name in refused | {name for name, _ in again}
    }


@cache
def _fence_checks(guests: tuple[str, ...]) -> LiteralString:
    """Return the statement of `_check_fences` for a batch with parts of these guests."""
    return with_guests(
        _SQL["check_fences"], branches="\n".join(f"UNION ALL\n{commit_of(guest).fences}" for guest in guests)
    )


_instance_id = attrgetter("instance_id")

_NOT_ALL_PASS: Final = frozenset({BATCH_REFUSED, UniqueViolation.sqlstate})
"""Codes of a batch with a turn that does not pass: refused, or the first version of a record is there already."""


def _check_refused(error: Contention) -> None:
    """Raise the error again, unless it says that the batch was refused: then nothing was written."""
    if error.code not in _NOT_ALL_PASS:
        raise error


def _placed(
    turn: Turn, sent: Sequence[NewWorkItem], places: list[Placed], parking_places: Mapping[WorkKey, Placed]
) -> list[Placed]:
    """Return the places of all work items of the turn. ``places`` has those of items that the commit itself queued."""
    found = {**parking_places, **{item.key: place for item, place in zip(sent, places, strict=True)}}
    return [found.get(item.key, _NOT_QUEUED) for item in turn.work_items]


def _parking_places(parking: Parking, queued: Sequence[str | None] | None) -> dict[WorkKey, Placed]:
    """Return the places of items that were to be parked, from the answer of ``park_items``."""
    keys = [item.key for item in parking.items]
    holders = queued if queued is not None else [None] * len(keys)
    return {
        key: _PARKED if holder is None else Placed(None, holder or None)
        for key, holder in zip(keys, holders, strict=True)
    }


class _Written(NamedTuple):
    """A write of a turn for a session: its record of state, or rows of a guest."""

    row: tuple[str, str]  # guest, or "" for the record of state; session
    session_id: str  # the session of the conflict that is reported if another turn has written it


def _written(turn: Turn) -> list[_Written]:
    """Return the records of state and the rows of guests that a turn writes or creates."""
    found = [_Written(("", write.new.session_id), write.new.session_id) for write in turn.states]
    for part in turn.parts:
        found += [_Written((part.guest, session_id), part.session_id) for session_id in part.sessions]
    return found


def _writes_twice(turns: Sequence[Turn]) -> bool:
    written = [write.row for turn in turns for write in _written(turn)]
    return len(set(written)) < len(written)


def _second_writes(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """Return turns that write a row which an earlier turn of the batch writes too, with the ids of the sessions."""
    written: set[tuple[str, str]] = set()
    found: list[tuple[str, str]] = []
    for turn in turns:
        own = _written(turn)
        rows = [write.row for write in own]
        second = [write for n, write in enumerate(own) if write.row in written or write.row in rows[:n]]
        found += [(turn.instance_id, write.session_id) for write in second]
        if not second:
            written.update(rows)
    return found


@cache
def _call_one(function: LiteralString, names: tuple[LiteralString, ...]) -> LiteralString:
    """Return the call of this function with these arguments; the others are NULL."""
    return f"SELECT {call_of(function, names)}"


@frozen()
class _Answer:
    """The function's answer about new work, by the numbers of the items."""

    token: str
    epochs: Mapping[str | None, int]
    locked: Sequence[bool] | None
    holders: Sequence[str | None] | None

    def place(self, number: int, item: NewWorkItem) -> Placed:
        """Return the place of the item."""
        if self.locked is None or self.locked[number - 1]:
            token = Token(f"{self.token}.{number}")
            return Placed(to_locked_item(item, token, self.epochs.get(item.session_id)), None)
        return Placed(None, self.holders[number - 1] if self.holders else None)
