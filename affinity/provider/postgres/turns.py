"""The commit: a batch of turns becomes columns, one statement, and answers by position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, LiteralString

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
from affinity.provider.postgres.arrays import Bools, Floats, Ints, Texts
from affinity.provider.postgres.base import Verbs, who
from affinity.provider.postgres.connections import Params, Row
from affinity.provider.postgres.work_items import lengths
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "turns.sql")

# Most turns take the result of one activity and queue the next. For them, half of the statement would be started and
# stopped for nothing, which is most of what a small batch costs: they have the same statement without the rest.
_COMMIT: Final = _SQL["commit"]
_LEAN: Final[LiteralString] = re.sub(r"-- \[rest.*?-- rest\]\n", "", _COMMIT, flags=re.DOTALL)

_NOTHING: Final = InstanceUpdate(status="running")
_NOWHERE: Final = Placed(item=None, holder=None)


class TurnVerbs(Verbs):
    """`commit_turn`."""

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts
    ) -> Sequence[TurnResult]:
        """See `affinity.provider.contract.Provider`."""
        if not turns:
            return []
        token = self._token(identity)
        params = {**who(identity), **lengths(timeouts), "token": token, **_lean_columns(turns)}
        if all(map(_is_lean, turns)):
            rows = await self._links.commit.run(_LEAN, params)
        else:
            rows = await self._links.commit.run(_COMMIT, {**params, **_rest_columns(turns)})
        return _results(turns, rows, token)


def finishes(turn: Turn) -> bool:
    """Whether the instance ends with this turn."""
    return turn.update is not None and turn.update.status in FINISHED


def _is_lean(turn: Turn) -> bool:
    return not (
        turn.consumed
        or turn.messages
        or turn.instances
        or turn.cancel_activities
        or turn.cancel_timers
        or finishes(turn)
    )


def _lean_columns(turns: Sequence[Turn]) -> Params:
    return {**_turn_columns(turns), **_event_columns(turns), **_ack_columns(turns), **_item_columns(turns)}


def _rest_columns(turns: Sequence[Turn]) -> Params:
    return {**_removal_columns(turns), **_message_columns(turns), **_child_columns(turns)}


def _turn_columns(turns: Sequence[Turn]) -> Params:
    updates = [turn.update or _NOTHING for turn in turns]
    return {
        "instance": Texts(turn.instance_id for turn in turns),
        "execution": Ints(turn.execution_id for turn in turns),
        "events": Ints(turn.event_count for turn in turns),
        "added": Ints(len(turn.history) for turn in turns),
        "status": Texts(turn.update.status if turn.update else None for turn in turns),
        "version": Texts(update.version for update in updates),
        "output": Texts(update.output for update in updates),
        "error": Texts(update.error for update in updates),
        "continued": Bools(update.continued for update in updates),
        "custom_status": Texts(turn.custom_status for turn in turns),
    }


def _event_columns(turns: Sequence[Turn]) -> Params:
    events = [(n, turn, number, event) for n, turn in _numbered(turns) for number, event in enumerate(turn.history, 1)]
    return {
        "event_turn": Ints(n for n, *_ in events),
        "event_instance": Texts(turn.instance_id for _, turn, *_ in events),
        "event_execution": Ints(turn.execution_id for _, turn, *_ in events),
        "event_id": Ints(turn.event_count + number for _, turn, number, _ in events),
        "event": Texts(event for *_, event in events),
    }


def _ack_columns(turns: Sequence[Turn]) -> Params:
    acks = [(n, ack) for n, turn in _numbered(turns) for ack in turn.acks]
    return {
        "ack_turn": Ints(n for n, _ in acks),
        "ack_instance": Texts(ack.key.instance_id for _, ack in acks),
        "ack_execution": Ints(ack.key.execution_id for _, ack in acks),
        "ack_activity": Ints(ack.key.activity_id for _, ack in acks),
        "ack_token": Texts(ack.token for _, ack in acks),
    }


def _removal_columns(turns: Sequence[Turn]) -> Params:
    consumed = [(n, message) for n, turn in _numbered(turns) for message in turn.consumed]
    cancelled = [(n, turn, activity) for n, turn in _numbered(turns) for activity in turn.cancel_activities]
    timers = [(n, turn, timer) for n, turn in _numbered(turns) for timer in turn.cancel_timers]
    finishing = [(n, turn) for n, turn in _numbered(turns) if finishes(turn)]
    return {
        "consume_turn": Ints(n for n, _ in consumed),
        "consume_id": Ints(message for _, message in consumed),
        "cancel_turn": Ints(n for n, *_ in cancelled),
        "cancel_instance": Texts(turn.instance_id for _, turn, _ in cancelled),
        "cancel_execution": Ints(turn.execution_id for _, turn, _ in cancelled),
        "cancel_activity": Ints(activity for *_, activity in cancelled),
        "timer_turn": Ints(n for n, *_ in timers),
        "timer_instance": Texts(turn.instance_id for _, turn, _ in timers),
        "timer_execution": Ints(turn.execution_id for _, turn, _ in timers),
        "timer_id": Ints(timer for *_, timer in timers),
        "finish_turn": Ints(n for n, _ in finishing),
        "finish_instance": Texts(turn.instance_id for _, turn in finishing),
    }


def _item_columns(turns: Sequence[Turn]) -> Params:
    items = _items(turns)
    return {
        "item_turn": Ints(n for n, _ in items),
        "item_instance": Texts(item.key.instance_id for _, item in items),
        "item_execution": Ints(item.key.execution_id for _, item in items),
        "item_activity": Ints(item.key.activity_id for _, item in items),
        "item_name": Texts(item.name for _, item in items),
        "item_session": Texts(item.session_id for _, item in items),
        "item_payload": Texts(item.payload for _, item in items),
        "item_delay": Floats(item.delay for _, item in items),
        "item_here": Bools(item.lock_here for _, item in items),
    }


def _message_columns(turns: Sequence[Turn]) -> Params:
    messages = [(n, message) for n, turn in _numbered(turns) for message in turn.messages]
    return {
        "message_turn": Ints(n for n, _ in messages),
        "message_instance": Texts(message.instance_id for _, message in messages),
        "message": Texts(message.payload for _, message in messages),
        "message_delay": Floats(message.delay for _, message in messages),
        "message_execution": Ints(message.timer and message.timer[0] for _, message in messages),
        "message_timer": Ints(message.timer and message.timer[1] for _, message in messages),
    }


def _child_columns(turns: Sequence[Turn]) -> Params:
    children = [(n, child) for n, turn in _numbered(turns) for child in turn.instances]
    return {
        "child_turn": Ints(n for n, _ in children),
        "child_instance": Texts(child.instance_id for _, child in children),
        "child_name": Texts(child.name for _, child in children),
        "child_version": Texts(child.version for _, child in children),
        "child_start": Texts(child.start for _, child in children),
        "child_parent": Texts(child.parent_id for _, child in children),
        "child_delay": Floats(child.delay for _, child in children),
        "child_on_exists": Texts(child.on_exists for _, child in children),
    }


def _items(turns: Sequence[Turn]) -> list[tuple[int, NewWorkItem]]:
    """The items to queue. An instance that ends has no rows in any queue, so its own last ones are not even sent."""
    return [(n, item) for n, turn in _numbered(turns) if not finishes(turn) for item in turn.work_items]


def _numbered(turns: Sequence[Turn]) -> Sequence[tuple[int, Turn]]:
    return list(enumerate(turns, 1))


def _results(turns: Sequence[Turn], rows: Sequence[Row], token: str) -> list[TurnResult]:
    found: dict[str, dict[int, Row]] = {"turn": {}, "lost": {}, "here": {}, "there": {}}
    for row in rows:
        found[row[0]][row[1]] = row
    answers = _Answers(found, token)
    return [answers.of(n, turn) for n, turn in _numbered(turns)]


class _Answers:
    """Reads what was found in the order of the batch: elements are numbered through all its turns."""

    def __init__(self, found: dict[str, dict[int, Row]], token: str) -> None:
        self._found = found
        self._token = token
        self._acks = self._items = 0

    def of(self, n: int, turn: Turn) -> TurnResult:
        """The answer for the next turn."""
        lost, placed = self._lost(turn), self._placed(turn)
        if n in self._found["turn"]:
            return TurnResult(committed=True, placed=placed)
        return TurnResult(committed=False, lost_acks=lost)

    def _lost(self, turn: Turn) -> list[WorkLock]:
        first, self._acks = self._acks + 1, self._acks + len(turn.acks)
        return [ack for ord_, ack in enumerate(turn.acks, first) if ord_ in self._found["lost"]]

    def _placed(self, turn: Turn) -> list[Placed]:
        if finishes(turn):
            return [_NOWHERE] * len(turn.work_items)
        first, self._items = self._items + 1, self._items + len(turn.work_items)
        return [self._place(ord_, item) for ord_, item in enumerate(turn.work_items, first)]

    def _place(self, ord_: int, item: NewWorkItem) -> Placed:
        if (here := self._found["here"].get(ord_)) is not None:
            return Placed(item=_locked(item, Token(f"{self._token}.{ord_}"), here[2]), holder=None)
        there = self._found["there"].get(ord_)
        return Placed(item=None, holder=there[3]) if there is not None else _NOWHERE


def _locked(item: NewWorkItem, token: Token, epoch: Any) -> WorkItem:
    return WorkItem(
        lock=WorkLock(item.key, token),
        name=item.name,
        payload=item.payload,
        session_id=item.session_id,
        session_epoch=epoch,
        attempts=1,
        failures=0,
        unknown_for=None,
    )
