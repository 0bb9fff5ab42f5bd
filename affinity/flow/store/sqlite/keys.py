"""Keys of limits: the bounds that count now, what some work lacks there, and what an admission uses."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from affinity.flow.store.contract import RateBound, WaitCause
from affinity.flow.store.rows import to_rate
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "keys.sql")

STEPS: Final = 64
"""Parts of a rate's window: uses of one part leave the window together, when all of them are old enough."""

_PACE_WEIGHT: Final = 0.2
"""Weight of the last admissions in `LimitKey.pace`."""

_ROUNDING: Final = 1e-6
"""Seconds by which evenly spaced work may come too early: the clock counts microseconds."""

_LATE: Final = 0.1
"""Seconds by which the admission of evenly spaced work may be late without moving later ones, at most."""


class Lack(NamedTuple):
    """What some work lacks at a key."""

    cause: WaitCause
    opens: float | None = None  # when it may have that because time passes


@dataclass(slots=True)
class Bounds:
    """The bounds of a limit, as they are declared and changed."""

    declared: bool
    concurrency: int | None
    rate: Sequence[Any] | None
    aging: float
    changes: Mapping[str, Any]
    paused: bool
    ramp: float | None
    resumed_at: float | None
    closed_until: float | None


@dataclass(slots=True)
class LimitKey:
    """A key of a limit."""

    key_id: int
    limit: str
    key: str
    changes: Mapping[str, Any]
    paused: bool
    ramp: float | None
    resumed_at: float | None
    closed_until: float | None
    in_use: int
    waiting: int
    used: list[tuple[float, int]]  # uses of the rate: time of the step, and units
    spaced_to: float
    virtual_times: dict[str, float]  # by priority
    is_pending: bool
    opens_at: float | None
    admitted: int
    waited: float
    last_admitted: float | None
    pace: float | None
    bounds: Bounds | None  # None: no code has declared the limit
    served: int = field(default=0)
    """Work that is admitted in this transaction."""

    @property
    def concurrency(self) -> int | None:
        """Slots that there are, apart from a ramp; None: as many as are wanted."""
        bound: int | None = self._bound("concurrency")
        return bound

    @property
    def rate(self) -> RateBound | None:
        """The rate that counts."""
        return to_rate(self._bound("rate"))

    @property
    def aging(self) -> float:
        """Seconds in which waiting work rises by one priority."""
        return 3600.0 if self.bounds is None else self.bounds.aging

    def units_used(self, now: float) -> int:
        """Return the units in the last window of the rate."""
        rate = self.rate
        return 0 if rate is None else sum(units for _, units in self._in_window(rate, now))

    def free_slots(self, now: float) -> float:
        """Return how many slots are free, whatever else it lacks."""
        slots, _ = self._slots(now)
        return max(0.0, slots - self.in_use)

    def find_lack(self, units: int, now: float) -> Lack | None:
        """Return what work with so many units lacks here."""
        if self.bounds is None or not self.bounds.declared:
            return None
        if self.bounds.paused or self.paused:
            return Lack("paused")
        closed_until = max(self.bounds.closed_until or 0.0, self.closed_until or 0.0)
        if closed_until > now:
            return Lack("closed", closed_until)
        slots, grows_at = self._slots(now)
        if self.in_use >= slots:
            return Lack("concurrency", grows_at)
        rate = self.rate
        return None if rate is None else self._find_rate_lack(rate, units, now)

    def open_at(self, at: float | None) -> None:
        """Let its lines be looked at again at a time, if not before. None: when a slot is freed."""
        if at is not None:
            self.opens_at = at if self.opens_at is None else min(self.opens_at, at)

    def admit(self, units: int, waited: float, now: float) -> None:
        """Give a slot to work that has waited for it."""
        self.in_use += 1
        self.waiting -= 1
        self.admitted += 1
        self.waited += waited
        self.served += 1
        self.use_rate(units, now, waited)

    def use_rate(self, units: int, now: float, waited: float = 0.0) -> None:
        """Count units in the rate, for work that has waited so many seconds."""
        rate = self.rate
        if rate is None or units <= 0:
            return
        step = rate.per / STEPS
        at = math.floor(now / step) * step
        self.used = self._in_window(rate, now)
        if self.used and self.used[-1][0] == at:
            units_there = self.used.pop()[1]
            self.used.append((at, units_there + units))
        else:
            self.used.append((at, units))
        if rate.burst is not None and rate.count > 0:
            late = min(_LATE, rate.per / 10, waited)
            self.spaced_to = max(self.spaced_to, now - late) + units * rate.per / rate.count

    def take_pace(self, now: float) -> None:
        """Learn from the admissions of this transaction how fast they follow each other."""
        if self.last_admitted is not None:
            gap = max(0.0, now - self.last_admitted) / self.served
            self.pace = gap if self.pace is None else (1 - _PACE_WEIGHT) * self.pace + _PACE_WEIGHT * gap
        self.last_admitted = now

    def _bound(self, name: str) -> Any:
        if self.bounds is None or not self.bounds.declared:
            return None
        if name in self.changes:
            return self.changes[name]
        return self.bounds.changes[name] if name in self.bounds.changes else getattr(self.bounds, name)

    def _slots(self, now: float) -> tuple[float, float | None]:
        """Return the slots, and when a ramp adds one to those in use."""
        concurrency = self.concurrency
        slots = math.inf if concurrency is None else float(concurrency)
        of = self if self.ramp is not None else self.bounds
        if of is None or of.ramp is None or of.resumed_at is None:
            return slots, None
        ramped = math.floor(of.ramp * max(0.0, now - of.resumed_at)) + 1
        if ramped >= slots:
            return slots, None
        return ramped, of.resumed_at + self.in_use / of.ramp + _ROUNDING

    def _find_rate_lack(self, rate: RateBound, units: int, now: float) -> Lack | None:
        if rate.count <= 0:
            return Lack("rate")
        if units <= 0:
            return None
        if rate.burst is not None:
            # At most a burst ahead of even spacing. Work of more units than a burst waits for all of it.
            opens = self.spaced_to - max(0, rate.burst - units) * rate.per / rate.count
            if opens > now + _ROUNDING:
                return Lack("rate", opens)
        uses = self._in_window(rate, now)
        used = sum(there for _, there in uses)
        # Work of more units than the rate has them all, once.
        most = max(rate.count, units)
        for at, there in uses:
            if used + units <= most:
                break
            used -= there
            opens = at + rate.per * (STEPS + 1) / STEPS
            if used + units <= most:
                return Lack("rate", opens)
        return None

    @staticmethod
    def _window_start(rate: RateBound, now: float) -> float:
        return now - rate.per * (STEPS + 1) / STEPS

    def _in_window(self, rate: RateBound, now: float) -> list[tuple[float, int]]:
        start = self._window_start(rate, now)
        return [(at, units) for at, units in self.used if at > start]


def read_keys(tx: Tx, key_ids: Collection[int]) -> dict[int, LimitKey]:
    """Return keys by id."""
    if not key_ids:
        return {}
    rows = tx.gather(SQL["keys"], {"key_ids": to_json(list(key_ids))})
    return {row[0]: _to_key(*row) for row in rows}


def add_keys(tx: Tx, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the ids of keys, by limit and key; new ones are added."""
    if not names:
        return {}
    tx.many(SQL["add"], list(names))
    found = tx.gather(SQL["ids"], {"names": to_json(list(names))})
    return {(limit, key): key_id for limit, key, key_id in found}


def write_keys(tx: Tx, keys: Collection[LimitKey], now: float) -> None:
    """Write what a transaction has changed of keys."""
    rows: list[Sequence[Any]] = []
    for key in keys:
        if key.served:
            key.take_pace(now)
        counts = (key.in_use, key.waiting, to_json(key.used), key.spaced_to, to_json(key.virtual_times), key.is_pending)
        rows.append((key.key_id, *counts, key.opens_at, key.admitted, key.waited, key.last_admitted, key.pace))
    tx.many(SQL["write"], rows)


def _to_key(key_id: int, limit: str, key: str, *rest: Any) -> LimitKey:
    changes, paused, ramp, resumed_at, closed_until, in_use, waiting, used, spaced_to, *more = rest
    virtual_times, is_pending, opens_at, admitted, waited, last_admitted, pace, *of_limit = more
    return LimitKey(
        key_id=key_id,
        limit=limit,
        key=key,
        changes=json.loads(changes),
        paused=bool(paused),
        ramp=ramp,
        resumed_at=resumed_at,
        closed_until=closed_until,
        in_use=in_use,
        waiting=waiting,
        used=[(at, units) for at, units in json.loads(used)],
        spaced_to=spaced_to,
        virtual_times=json.loads(virtual_times),
        is_pending=bool(is_pending),
        opens_at=opens_at,
        admitted=admitted,
        waited=waited,
        last_admitted=last_admitted,
        pace=pace,
        bounds=None if of_limit[0] is None else _to_bounds(*of_limit),
    )


def _to_bounds(declared: int, concurrency: int | None, rate: str | None, *rest: Any) -> Bounds:
    aging, changes, paused, ramp, resumed_at, closed_until = rest
    return Bounds(
        declared=bool(declared),
        concurrency=concurrency,
        rate=None if rate is None else json.loads(rate),
        aging=aging,
        changes=json.loads(changes),
        paused=bool(paused),
        ramp=ramp,
        resumed_at=resumed_at,
        closed_until=closed_until,
    )
