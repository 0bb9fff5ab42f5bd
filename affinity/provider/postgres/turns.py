"""The commit: a batch of turns becomes columns, one statement, and answers by position."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, LiteralString

from affinity.errors import Contention
from affinity.provider.contract import (
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
from affinity.provider.postgres.base import Verbs, who, without
from affinity.provider.postgres.conversation import Params, Row
from affinity.provider.postgres.states import state_columns
from affinity.provider.postgres.turn_columns import (
    ends,
    finishes,
    hold_columns,
    lean_columns,
    plain_columns,
    rest_columns,
    update_columns,
)
from affinity.provider.postgres.work_items import lengths
from affinity.provider.statements import load_statements
from affinity.records import StateWrite

_SQL: Final = load_statements(__package__, "turns.sql")
_COMMIT: Final = _SQL["commit"]
_PLAIN: Final = _SQL["plain"]

# Most turns take the result of one activity and queue the next: a batch of such has a statement of its own, `plain`.
# Most of the general one would be started and stopped for nothing, which is most of what a small batch costs; so a
# batch has it with those parts only that it has a use for: `update` for what an instance says beyond its history,
# `rest` for whatever else a plain turn does not do, `hold` for holds and watches, `state` for session state, `twice`
# when two writes in the batch are of one session. Holds and states need all rows of sessions locked before anything is
# decided (`pinned`); without them, those that we hold are locked later, and are fewer.
_PARTS: Final = frozenset({"update", "same", "rest", "hold", "unheld", "state", "twice", "pinned", "unpinned"})

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
        common = {**who(identity), **lengths(timeouts), "token": token}
        parts = _needed(turns)
        if not parts:
            with suppress(Contention):  # nothing was changed
                return _results(turns, await self._links.commit.run(_PLAIN, {**common, **plain_columns(turns)}), token)
        params = {**common, **lean_columns(turns), **_columns(turns, parts)}
        return _results(turns, await self._links.commit.run(_statement(parts), params), token)


def _needed(turns: Sequence[Turn]) -> frozenset[str]:
    """The parts of the statement that this batch has a use for."""
    states = [write.new.session_id for turn in turns for write in turn.states]
    wanted = {
        "update": any(map(_updates, turns)),
        "rest": not all(map(_is_plain, turns)),
        "hold": any(map(_holds, turns)),
        "state": bool(states),
        "twice": len(set(states)) < len(states),
    }
    return frozenset(part for part, is_wanted in wanted.items() if is_wanted)


def _updates(turn: Turn) -> bool:
    return turn.update is not None or turn.custom_status is not None


def _is_plain(turn: Turn) -> bool:
    return not (
        turn.consumed
        or turn.messages
        or turn.instances
        or turn.cancel_activities
        or turn.cancel_timers
        or finishes(turn)
    )


def _holds(turn: Turn) -> bool:
    return bool(turn.holds or turn.unholds or turn.watches) or ends(turn)


@cache
def _statement(parts: frozenset[str]) -> LiteralString:
    pinned = "pinned" if parts & {"hold", "state"} else "unpinned"
    kept = parts | {pinned, "hold" if "hold" in parts else "unheld", "update" if "update" in parts else "same"}
    return without(_COMMIT, *sorted(_PARTS - kept))


def _columns(turns: Sequence[Turn], parts: frozenset[str]) -> Params:
    return {
        **(update_columns(turns) if "update" in parts else {}),
        **(rest_columns(turns) if "rest" in parts else {}),
        **(hold_columns(turns) if "hold" in parts else {}),
        **(state_columns(_writes(turns)) if "state" in parts else {}),
    }


def _writes(turns: Sequence[Turn]) -> Sequence[tuple[int, StateWrite]]:
    return [(n, write) for n, turn in enumerate(turns, 1) for write in turn.states]


def _results(turns: Sequence[Turn], rows: Sequence[Row], token: str) -> list[TurnResult]:
    found: dict[str, dict[int, Row]] = {name: {} for name in ("turns", "lost", "conflict", "here", "there")}
    for row in rows:
        found[row[0]][row[1]] = row
    ((*_, flags),) = found["turns"].values()
    answers = _Answers(found, token)
    return [answers.of(turn, committed) for turn, committed in zip(turns, flags, strict=True)]


class _Answers:
    """Reads what was found in the order of the batch: elements are numbered through all its turns."""

    def __init__(self, found: dict[str, dict[int, Row]], token: str) -> None:
        self._found = found
        self._token = token
        self._ack = self._state = self._item = 1  # numbers of the next turn's first ones

    def of(self, turn: Turn, committed: bool) -> TurnResult:
        """The answer for the next turn."""
        if committed:
            answer = TurnResult(committed=True, placed=self._placed(turn))
        else:
            answer = TurnResult(committed=False, lost_acks=self._lost(turn), conflicts=self._conflicts(turn))
        self._ack += len(turn.acks)
        self._state += len(turn.states)
        self._item += 0 if finishes(turn) else len(turn.work_items)  # those that were sent
        return answer

    def _lost(self, turn: Turn) -> list[WorkLock]:
        return [ack for ord_, ack in enumerate(turn.acks, self._ack) if ord_ in self._found["lost"]]

    def _conflicts(self, turn: Turn) -> list[str]:
        numbered = enumerate(turn.states, self._state)
        return [write.new.session_id for ord_, write in numbered if ord_ in self._found["conflict"]]

    def _placed(self, turn: Turn) -> list[Placed]:
        if finishes(turn):
            return [_NOWHERE] * len(turn.work_items)
        return [self._place(ord_, item) for ord_, item in enumerate(turn.work_items, self._item)]

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
