"""The commit: a batch of turns becomes columns, one statement, and answers by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Final, LiteralString

from affinity.errors import Contention
from affinity.provider.contract import (
    Incarnation,
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
from affinity.provider.postgres.connections import Links
from affinity.provider.postgres.conversation import Params, Row
from affinity.provider.postgres.states import state_columns
from affinity.provider.postgres.turn_columns import (
    ends,
    finishes,
    hold_columns,
    lean_columns,
    place_columns,
    plain_columns,
    rest_columns,
    update_columns,
)
from affinity.provider.postgres.work_items import lengths
from affinity.provider.statements import load_statements
from affinity.records import StateWrite

_SQL: Final = load_statements(__package__, "turns.sql")
_COMMIT: Final = _SQL["commit"]
_PLAIN: Final = without(_SQL["plain"], "here")
_PLAIN_HERE: Final = without(_SQL["plain"], "anywhere")

# Most turns take the result of one activity and queue the next, on the same worker: a batch of such has a statement of
# its own, `plain`, in two forms, of which one takes for granted that the work stays here. Most of the general one would
# be started and stopped for nothing, which is most of what a small batch costs; so a batch has it with those parts only
# that it has a use for: `update` for what an instance says beyond its history, `rest` for whatever else a plain turn
# does not do, `hold` for holds and watches, `state` for session state, `twice` when two writes in the batch are of one
# session. Holds and states need all rows of sessions locked before anything is decided (`pinned`); without them, those
# that we hold are locked later, and are fewer.
_PARTS: Final = frozenset({"update", "same", "rest", "hold", "unheld", "state", "twice", "pinned", "unpinned"})

_NOWHERE: Final = Placed(item=None, holder=None)

_REMEMBERED: Final = 100_000
"""Sessions of which it is remembered whose they were; the oldest are forgotten first."""


class TurnVerbs(Verbs):
    """`commit_turn`."""

    def __init__(self, links: Links) -> None:
        super().__init__(links)
        # Sessions whose work was locked by its committer when it was queued last, and by which one. It is a guess where
        # the next belongs, and no more: it chooses between two statements, and each of them looks for itself.
        self._here: dict[str, Incarnation] = {}

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
                return await self._commit_plain(identity, turns, common, token)
        params = {**common, **lean_columns(turns), **_columns(turns, parts)}
        return self._noted(identity, turns, await self._links.commit.run(_statement(parts), params), token)

    async def _commit_plain(
        self, identity: WorkerIdentity, turns: Sequence[Turn], common: Params, token: str
    ) -> list[TurnResult]:
        """All of them, or `Contention` and nothing is changed."""
        items = [item for turn in turns for item in turn.work_items]
        params = {**common, **plain_columns(turns, items)}
        if self._all_here(identity, items):
            ((_, sessions, epochs),) = await self._links.commit.run(_PLAIN_HERE, params)
            return _placed_here(turns, dict(zip(sessions, epochs, strict=True)), token)
        rows = await self._links.commit.run(_PLAIN, {**params, **place_columns(items)})
        return self._noted(identity, turns, rows, token)

    def _all_here(self, identity: WorkerIdentity, items: Sequence[NewWorkItem]) -> bool:
        """Whether all of this new work is there to be locked by its committer, as far as we can tell."""
        me, here = identity.incarnation, self._here
        for item in items:
            if not item.lock_here or item.claim_here or item.delay > 0:
                return False
            if item.session_id is not None and here.get(item.session_id) != me:
                return False
        return bool(items)

    def _noted(
        self, identity: WorkerIdentity, turns: Sequence[Turn], rows: Sequence[Row], token: str
    ) -> list[TurnResult]:
        """The answers; what they say of sessions is remembered."""
        results = _results(turns, rows, token)
        for turn, result in zip(turns, results, strict=True):
            for item, place in zip(turn.work_items, result.placed, strict=False):  # none if it was not committed
                if item.session_id is not None and item.lock_here:
                    self._remember(item.session_id, identity.incarnation if place.item is not None else None)
        return results

    def _remember(self, session_id: str, holder: Incarnation | None) -> None:
        self._here.pop(session_id, None)  # and not only replaced, so that it becomes the newest
        if holder is not None:
            if len(self._here) >= _REMEMBERED:
                del self._here[next(iter(self._here))]
            self._here[session_id] = holder


def _needed(turns: Sequence[Turn]) -> frozenset[str]:
    """The parts of the statement that this batch has a use for."""
    if all(map(_is_plain, turns)):
        return frozenset()
    states = [write.new.session_id for turn in turns for write in turn.states]
    wanted = {
        "update": any(map(_updates, turns)),
        "rest": any(map(_does_more, turns)),
        "hold": any(map(_holds, turns)),
        "state": bool(states),
        "twice": len(set(states)) < len(states),
    }
    return frozenset(part for part, is_wanted in wanted.items() if is_wanted)


def _is_plain(turn: Turn) -> bool:
    """Whether it takes results and queues work, and does nothing else: it has no use for any part."""
    return (
        turn.update is None
        and turn.custom_status is None
        and not (turn.states or turn.holds or turn.unholds or turn.watches)
        and not _does_more(turn)
    )


def _updates(turn: Turn) -> bool:
    return turn.update is not None or turn.custom_status is not None


def _does_more(turn: Turn) -> bool:
    return bool(
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
    """The answers in the order of the batch: elements are numbered through all its turns."""
    found = _Found(token)
    for what, ord_, epoch, holder, flags in rows:
        if what == "here":
            found.here[ord_] = epoch
        elif what == "there":
            found.there[ord_] = holder
        elif what == "turns":
            found.committed = flags
        else:
            found.void[what].add(ord_)
    ack = state = item = 1  # numbers of the next turn's first ones
    results = []
    for turn, committed in zip(turns, found.committed, strict=True):
        finished = finishes(turn)
        if not committed:
            results.append(found.refused(turn, ack, state))
        elif finished:
            results.append(TurnResult(committed=True, placed=[_NOWHERE] * len(turn.work_items)))
        else:
            results.append(TurnResult(committed=True, placed=found.placed(turn.work_items, item)))
        ack += len(turn.acks)
        state += len(turn.states)
        item += 0 if finished else len(turn.work_items)  # those that were sent
    return results


def _placed_here(turns: Sequence[Turn], epochs: Mapping[str | None, int], token: str) -> list[TurnResult]:
    """The answers to turns all of whose work was locked; with the epochs of its sessions."""
    number = count(1)
    return [
        TurnResult(
            committed=True,
            placed=[
                Placed(_locked(item, Token(f"{token}.{next(number)}"), epochs.get(item.session_id)), None)
                for item in turn.work_items
            ],
        )
        for turn in turns
    ]


class _Found:
    """What a statement said, by the numbers of the elements of which it said it."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.committed: Sequence[bool] = ()
        self.here: dict[int, int | None] = {}  # items that were locked, with the epochs of their sessions
        self.there: dict[int, str] = {}  # items whose sessions others hold
        self.void: dict[str, set[int]] = {"lost": set(), "conflict": set()}  # acks, state writes

    def placed(self, items: Sequence[NewWorkItem], first: int) -> list[Placed]:
        """Where the items of a turn went."""
        here, there = self.here, self.there
        return [
            Placed(_locked(item, Token(f"{self.token}.{ord_}"), here[ord_]), None)
            if ord_ in here
            else Placed(None, there.get(ord_))
            for ord_, item in enumerate(items, first)
        ]

    def refused(self, turn: Turn, ack: int, state: int) -> TurnResult:
        """Why a turn was not committed, if it is not for its fence."""
        lost, conflict = self.void["lost"], self.void["conflict"]
        return TurnResult(
            committed=False,
            lost_acks=[lock for ord_, lock in enumerate(turn.acks, ack) if ord_ in lost],
            conflicts=[write.new.session_id for ord_, write in enumerate(turn.states, state) if ord_ in conflict],
        )


def _locked(item: NewWorkItem, token: Token, epoch: int | None) -> WorkItem:
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
