"""Rounds of retention through rows that an index finds by their age, when some of the rows have to stay.

A round goes from the oldest row to the newest that is old enough, in steps. The database has one row for each kind of
round, so that all workers together make one round. Rows that have to stay are looked at again with the next round.
After a round that has removed nothing the pause doubles.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

LONGEST_PAUSE: Final = 3600.0
"""Seconds between two rounds at most."""

FIRST_PAUSE: Final = 60.0
"""Seconds after a round that has removed something."""

SHARE: Final = 20
"""A pause is at most this part of the retention, so a row is removed at most so much too late."""


class Round(NamedTuple):
    """The row of one kind of round."""

    place: str | None = None  # as JSON, where its next step begins; None: at the oldest row
    removed: int = 0  # so far
    pause: float = 0.0  # before it


class Step(NamedTuple):
    """The result of one step of a round."""

    removed: int
    place: Any  # where the next step begins; None: the round has ended


class RoundKind(NamedTuple):
    """One kind of round."""

    name: str  # of its count in `Sweep`, or in `Sweep.removed`
    retention: float  # seconds
    run: Callable[[Any], Awaitable[Step]]


class RoundStore(Protocol):
    """The rows of rounds."""

    async def due(self, names: Sequence[str]) -> Mapping[str, Round]:
        """Return the rounds of these kinds of which a step is due. A round without a row is new."""
        ...

    async def save(self, name: str, state: Round, wait: float) -> None:
        """Write a row, whose next step is due after ``wait`` seconds."""
        ...


async def run_rounds(kinds: Sequence[RoundKind], store: RoundStore) -> tuple[dict[str, int], bool]:
    """Run one step of each kind that is due. Return how much each has removed, and whether there is more to remove."""
    removed: dict[str, int] = {}
    backlog = False
    due = await store.due([kind.name for kind in kinds]) if kinds else {}
    for kind in kinds:
        if (state := due.get(kind.name)) is None:
            continue
        step = await kind.run(None if state.place is None else json.loads(state.place))
        removed[kind.name] = step.removed
        backlog = backlog or (step.removed > 0 and step.place is not None)
        await store.save(kind.name, *_next(kind, state, step))
    return removed, backlog


def _next(kind: RoundKind, state: Round, step: Step) -> tuple[Round, float]:
    removed = state.removed + step.removed
    if step.place is not None:
        return Round(json.dumps(step.place), removed, state.pause), 0.0
    longest = min(LONGEST_PAUSE, kind.retention / SHARE)
    pause = min(longest, FIRST_PAUSE if removed or not state.pause else 2 * state.pause)
    return Round(pause=pause), pause
