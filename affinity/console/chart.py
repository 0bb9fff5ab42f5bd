"""The moves of sessions over time: a bar of each few minutes, in the colours of the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

from affinity.console.strip import WIDTH
from affinity.provider.contract import MoveReason, SessionMove

STEP: Final = timedelta(minutes=5)
STEPS: Final = 12
HEIGHT: Final = 100
GAP: Final = 4.0

REASONS: Final[Mapping[MoveReason, int]] = {reason: place for place, reason in enumerate(get_args(MoveReason))}
"""The number of the colour of each, in the style sheet."""


@dataclass(frozen=True, slots=True)
class ChartBar:
    """The moves of one reason in one step."""

    x: float
    y: float
    width: float
    height: float
    color: int
    reason: MoveReason
    at: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Chart:
    """The moves of the last steps."""

    bars: Sequence[ChartBar]
    reasons: Sequence[tuple[MoveReason, int, int]]  # with colour and count, the most frequent one first
    begin: datetime
    highest: int  # moves in one step


def chart_of(moves: Sequence[SessionMove], now: datetime | None = None) -> Chart:
    """The bars of the last hour; ``moves`` may be older."""
    last = max([now or datetime.now(UTC), *(move.moved_at for move in moves)])
    begin = _floor(last) - STEP * (STEPS - 1)
    counts = [Counter[MoveReason]() for _ in range(STEPS)]
    for move in moves:
        if move.moved_at >= begin:
            counts[(move.moved_at - begin) // STEP][move.reason] += 1
    highest = max(each.total() for each in counts)
    bars = [bar for place, each in enumerate(counts) for bar in _stacked(each, place, begin + STEP * place, highest)]
    totals = sum(counts, Counter[MoveReason]())
    return Chart(bars, [(reason, REASONS[reason], n) for reason, n in totals.most_common()], begin, highest)


def _floor(at: datetime) -> datetime:
    return at - (at - datetime(at.year, at.month, at.day, tzinfo=at.tzinfo)) % STEP


def _stacked(counts: Counter[MoveReason], place: int, at: datetime, highest: int) -> Sequence[ChartBar]:
    width, top, bars = WIDTH / STEPS, float(HEIGHT), []
    for reason, color in REASONS.items():
        if count := counts[reason]:
            height = count / highest * HEIGHT
            top -= height
            x = place * width + GAP / 2
            bars.append(
                ChartBar(round(x, 2), round(top, 2), round(width - GAP, 2), round(height, 2), color, reason, at, count)
            )
    return bars
