"""The strip of a session's life: a bar for each holder on a time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zlib import crc32

from affinity.client import SessionHolding, SessionLife

WIDTH: Final = 1000
"""Units of the axis."""

COLORS: Final = 8
"""Colours of workers, in the style sheet."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One holder on the axis."""

    x: float
    width: float
    color: int
    holding: SessionHolding


@dataclass(frozen=True, slots=True)
class Strip:
    """The bars, oldest first, and the ends of the axis."""

    bars: Sequence[Bar]
    begin: datetime
    end: datetime


def color_of(worker_id: str) -> int:
    """The number of the colour of a worker, the same on all pages."""
    return crc32(worker_id.encode()) % COLORS


def strip_of(life: SessionLife) -> Strip | None:
    """The bars of a life; None: it has no holder."""
    if not life.holdings:
        return None
    begin, last = life.holdings[0].since, life.holdings[-1].since
    end = max(datetime.now(UTC), last)
    free = timedelta(seconds=life.free_seconds or 0.0)
    whole = max((end - begin).total_seconds(), 0.001)
    bars = [_bar(each, begin, max(end - free, last), whole) for each in life.holdings]
    return Strip(bars, begin, end)


def _bar(holding: SessionHolding, begin: datetime, end: datetime, whole: float) -> Bar:
    x = (holding.since - begin).total_seconds() / whole * WIDTH
    width = ((holding.until or end) - holding.since).total_seconds() / whole * WIDTH
    return Bar(round(x, 2), round(max(width, 1.0), 2), color_of(holding.worker_id), holding)
