"""Limits as activities use them: units that they have used, what is left of a rate, and limits that they close."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from affinity.batching import Batcher
from affinity.flow.store.contract import (
    LimitCharge,
    LimitClosing,
    LimitKeyRow,
    LimitProvider,
    LimitRow,
    RateBound,
    Unchanged,
)
from affinity.orchestration import ActivityContext
from affinity.orchestration.gates import LimitUse
from affinity.records import frozen

T = TypeVar("T")


@frozen()
class Budget:
    """How much of the rate of a limit, or of one of its keys, is used now."""

    use: LimitUse
    used: int = 0
    """Units in the last window of the rate; they may be more than it has."""
    rate: RateBound | None = None
    """That counts now. None: it has none, or no code declares the limit."""
    paused: bool = False
    closed_until: datetime | None = None
    """An activity has closed it (`affinity.RetryAfter`)."""

    @property
    def is_open(self) -> bool:
        """Whether it can pay for more: some units are left, and it is neither paused nor closed."""
        return not self.paused and self.closed_until is None and (self.rate is None or self.used < self.rate.count)

    def __str__(self) -> str:
        """Return a sentence for people: what is used, and when there is more."""
        key = f" of {self.use.key!r}" if self.use.key else ""
        name = f"the budget {self.use.limit!r}{key}"
        if self.paused:
            return f"{name} is paused"
        if self.closed_until is not None:
            return f"{name} is closed until {self.closed_until:%Y-%m-%d %H:%M:%S} UTC"
        if self.rate is None:
            return f"{name} has no bound"
        state = "has" if self.is_open else "is used up: it has"
        return f"{name} {state} {self.rate.count} units in {self.rate.per:g} s, and {self.used} are used"


class _Retry(Protocol):
    """Repeats a call until the database answers."""

    def __call__(self, verb: Callable[[], Awaitable[T]], /) -> Awaitable[T]: ...


class WorkerLimits:
    """The `affinity.orchestration.gates.ChargesLimits` of a worker, which also closes limits. Calls of activities that
    run at the same time share a call of the database.
    """

    def __init__(self, store: LimitProvider, retry: _Retry) -> None:
        """``retry`` repeats a call until the database answers."""
        self._store, self._retry = store, retry
        self._charges = Batcher(self._charge, _unlimited, owner="worker")
        self._closings = Batcher(self._close, _unlimited, owner="worker")

    async def charge_limit(self, use: LimitUse, units: int) -> None:
        """Count units in the rate of a limit, also above its bound."""
        await self._charges.submit(LimitCharge(limit=use.limit, key=use.key, units=units))

    async def close_limit(self, place: tuple[str, str], seconds: float, reason: str) -> None:
        """Let a limit admit nothing for some seconds, or one key of it; without a key, with all its keys."""
        limit, key = place
        await self._closings.submit(LimitClosing(limit=limit, key=key, seconds=seconds, reason=reason))

    async def get_budget(self, use: LimitUse) -> Budget:
        """Return how much of the rate of a limit, or of a key, is used now."""
        limits = await self._retry(lambda: self._store.list_limits([use.limit]))
        if not limits or not limits[0].declared:
            return Budget(use)
        keys = await self._retry(lambda: self._store.list_limit_keys(use.limit, keys=[use.key], most=1))
        return _budget(use, limits[0], keys[0] if keys else None)

    async def aclose(self) -> None:
        """End the calls: the worker has ended."""
        await self._charges.aclose()
        await self._closings.aclose()

    async def _charge(self, charges: Sequence[LimitCharge]) -> Sequence[None]:
        await self._retry(lambda: self._store.charge_limits(charges))
        return [None] * len(charges)

    async def _close(self, closings: Sequence[LimitClosing]) -> Sequence[None]:
        await self._retry(lambda: self._store.close_limits(closings))
        return [None] * len(closings)


def limits_in(ctx: ActivityContext) -> WorkerLimits | None:
    """Return the limits of the worker's database; None: it keeps none, or a test has made the context."""
    return next((guest for guest in ctx._guests.values() if isinstance(guest, WorkerLimits)), None)


def _budget(use: LimitUse, limit: LimitRow, key: LimitKeyRow | None) -> Budget:
    closings = [row.closed_until for row in (limit, key) if row is not None and row.closed_until is not None]
    return Budget(
        use,
        used=0 if key is None else key.used,
        rate=_rate(limit, key),
        paused=limit.paused or (key is not None and key.paused),
        closed_until=max(closings, default=None),
    )


def _rate(limit: LimitRow, key: LimitKeyRow | None) -> RateBound | None:
    """Return the rate that counts: of the key, as changed; else of the limit, as changed; else as declared."""
    if key is not None and not isinstance(key.rate, Unchanged):
        return key.rate
    return limit.spec.rate if isinstance(limit.rate, Unchanged) else limit.rate


async def _unlimited(verb: Callable[[], Awaitable[T]], /, *, unless: object) -> T:
    """Call once: the verb repeats itself."""
    return await verb()
