"""What workers measure of limits, for their metrics. No label has a key: clients make keys up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from affinity.flow.store.contract import LimitProvider, LimitRow
from affinity.worker.measures import Measure, Measured

MAX_LIMITS: Final = 100
"""Limits that have a label, the first ones by name: code may make names up, too."""

_IN_USE: Final = Measure("limit_slots_in_use", "Slots of a limit that are in use, of all keys", "limit")
_WAITING: Final = Measure("limit_waiting", "Pieces of work that wait at a limit, of all keys", "limit")
_OLDEST: Final = Measure(
    "limit_oldest_waiting_seconds", "Seconds for which the oldest work at a limit has waited", "limit"
)
_PAUSED: Final = Measure("limit_paused", "1: an operator has paused the limit", "limit")
_ADMISSIONS: Final = Measure("limit_admissions", "Pieces of work that a limit has admitted", "limit", grows=True)
_WAITED: Final = Measure(
    "limit_wait_seconds", "Seconds that admitted work has waited at a limit, together", "limit", grows=True
)

MEASURES: Final[Sequence[Measure]] = (_IN_USE, _WAITING, _OLDEST, _PAUSED, _ADMISSIONS, _WAITED)
"""For the part of a worker."""


REST: Final = 200
"""How many times as long as a reading has taken it serves further scrapes: all keys are added up, of which there may be
many.
"""


class LimitMeasurement:
    """Reads the values of `MEASURES`.

    Args:
        store: of the limits.
        now: returns the database's time in Unix seconds.
        monotonic: returns seconds that only grow.
    """

    def __init__(
        self, store: LimitProvider, now: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._now = now
        self._monotonic = monotonic
        self._last: Measured = {}
        self._rests_until = -math.inf

    async def read(self) -> Measured:
        """Return the values by measure, and by name of a declared limit."""
        began = self._monotonic()
        if began >= self._rests_until:
            self._last = _values(await self._store.list_limits(), datetime.fromtimestamp(self._now(), UTC))
            ended = self._monotonic()
            self._rests_until = ended + REST * (ended - began)
        return self._last


def _values(found: Sequence[LimitRow], now: datetime) -> Measured:
    rows = {row.spec.name: row for row in [row for row in found if row.declared][:MAX_LIMITS]}
    waits = {name: 0.0 if row.oldest is None else (now - row.oldest).total_seconds() for name, row in rows.items()}
    return {
        _IN_USE.name: {name: row.in_use for name, row in rows.items()},
        _WAITING.name: {name: row.waiting for name, row in rows.items()},
        _OLDEST.name: {name: max(0.0, seconds) for name, seconds in waits.items()},
        _PAUSED.name: {name: row.paused for name, row in rows.items()},
        _ADMISSIONS.name: {name: row.admitted for name, row in rows.items()},
        _WAITED.name: {name: row.waited for name, row in rows.items()},
    }
