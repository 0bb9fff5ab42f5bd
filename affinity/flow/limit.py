"""Limits as code declares and names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from math import isfinite
from typing import Any, Final

from affinity.errors import InvalidId, InvalidLimit, InvalidOptions
from affinity.flow.store.contract import LimitSpec, RateBound
from affinity.limits import MAX_WEIGHT, check_id, check_integer, is_number, seconds_of
from affinity.orchestration.gates import LimitUse
from affinity.user_code import call_sync, check_function

MIN_SECONDS: Final = 0.1
"""Shortest window of a rate, and shortest ``aging``."""

_DECLARED: Final = set["Limit"]()
"""What the apps of this process declare."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` units in any window of ``per`` seconds, by the database's clock. Each piece of work counts one
    unit, or the ``units`` of its `LimitKey`.

    Raises:
        InvalidLimit: a value is out of range; the message has it.
    """

    count: int
    """Units in a window; at least 1."""

    _: KW_ONLY

    per: float
    """Length of the window in seconds; at least 0.1."""

    burst: int | None = None
    """Units that may come at one moment; beyond them, units are evenly spaced. None: all units of a window."""

    smooth: bool = False
    """Whether units are evenly spaced, as with ``burst=1``."""

    def __post_init__(self) -> None:
        _check_integer(self.count, "count of a rate", 1)
        object.__setattr__(self, "per", _check_seconds(self.per, "per"))
        if self.burst is not None:
            _check_integer(self.burst, "burst of a rate", 1)
        if type(self.smooth) is not bool:
            raise InvalidLimit(f"smooth is True or False, not {self.smooth!r:.80}")
        if self.burst is not None and (self.smooth or self.burst > self.count):
            remedy = "leave one of the two out" if self.smooth else f"no more than the count of {self.count} can come"
            raise InvalidLimit(f"burst={self.burst} of a rate{' with smooth=True' * self.smooth}: {remedy}")

    @property
    def _bound(self) -> RateBound:
        return RateBound(count=self.count, per=self.per, burst=1 if self.smooth else self.burst)


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on work that runs, or begins, at the same time in all workers of a database.

    ::

        model = affinity.Limit("model", concurrency=20, rate=affinity.Rate(600, per=60))
        tenant = affinity.Limit("tenant", concurrency=5, keyed=True)
        app = affinity.App("support", limits=[tenant])


        @app.activity(limits=[model])
        async def ask_model(ctx: affinity.ActivityContext, prompt: str) -> str: ...

    An app declares its limits: those of ``App(..., limits=)`` and those in ``limits=`` of its activities. A limit that
    no app declares holds nothing back. Without bounds it is a switch: work waits while an operator has paused it.

    Raises:
        InvalidLimit: a value is out of range; the message has it.
    """

    name: str
    """Unique in the database, of all apps. Two equal limits are one."""

    _: KW_ONLY

    concurrency: int | None = None
    """Pieces of work that have a slot at the same time; 0: none, as if paused. None: any number."""

    rate: Rate | None = None
    """Pieces of work, or units of them, that may begin in a time. None: any number."""

    keyed: bool = False
    """Whether the bounds count for each key, as of ``limit.key("acme")``, in place of for all work."""

    aging: float = 3600.0
    """Seconds of waiting after which work counts as of the next higher priority."""

    def __post_init__(self) -> None:
        _check_text(self.name, "name of a limit")
        if self.concurrency is not None:
            _check_integer(self.concurrency, f"concurrency of limit {self.name!r}", 0)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidLimit(f"rate of limit {self.name!r} is a Rate, as Rate(600, per=60), not {self.rate!r:.80}")
        if type(self.keyed) is not bool:
            raise InvalidLimit(f"keyed is True or False, not {self.keyed!r:.80}")
        object.__setattr__(self, "aging", _check_seconds(self.aging, "aging"))

    def key(self, key: str, *, weight: float = 1.0, units: int = 1) -> LimitKey:
        """Return a key of the limit: the bounds count for each key.

        Args:
            key: whose work it is, such as a tenant: a non-empty string of at most 256 bytes.
            weight: share of the key's work among the keys that wait, from 0.001 to ``limits.MAX_WEIGHT``.
            units: that one piece of work counts in the rate; at least 1.

        Raises:
            InvalidLimit: the limit has no keys, or an argument is out of range.
        """
        if not self.keyed:
            raise InvalidLimit(f"limit {self.name!r} has no keys: make it with keyed=True, or leave .key(...) out")
        _check_text(key, f"key of limit {self.name!r}")
        return LimitKey(limit=self, key=key, weight=_check_weight(weight), units=self._check_units(units))

    def by(self, function: Callable[[Any], str | LimitKey | None], *, units: int = 1) -> LimitBy:
        """Return the limit for work whose key depends on something, as in
        ``Conversations(..., limits=[tenant.by(lambda info: info.owner)])``.

        Args:
            function: returns the key, or what `key` makes of it, as for a weight. It must not block.
            units: that one piece of work counts in the rate, if the function returns a text.

        Raises:
            InvalidLimit: the limit has no keys, or ``function`` cannot be called with one argument.
        """
        if not self.keyed:
            raise InvalidLimit(f"limit {self.name!r} has no keys: make it with keyed=True, or leave .by(...) out")
        check_function(function, f"the function of limit {self.name!r}", "info", error=InvalidLimit)
        return LimitBy(limit=self, function=function, units=self._check_units(units))

    def units(self, units: int) -> LimitKey:
        """Return the limit for a piece of work that counts so many units in its rate. It has no keys; with keys it is
        ``limit.key("acme", units=...)``.

        Raises:
            InvalidLimit: the limit has keys, or ``units`` is out of range.
        """
        if self.keyed:
            raise InvalidLimit(f"limit {self.name!r} has keys: name one, as in .key('acme', units=...)")
        return LimitKey(limit=self, key="", weight=1.0, units=self._check_units(units))

    def to_text(self) -> str:
        """Return it as text: a part of the version of the code."""
        return repr(self)

    def _check_units(self, units: object) -> int:
        checked = _check_integer(units, f"units of limit {self.name!r}", 1)
        if self.rate is not None and checked > self.rate.count:
            raise InvalidLimit(
                f"{checked} units of limit {self.name!r} would never be admitted: its rate is {self.rate.count} in "
                f"{self.rate.per:g} s"
            )
        return checked

    @property
    def _spec(self) -> LimitSpec:
        bound = None if self.rate is None else self.rate._bound
        return LimitSpec(name=self.name, keyed=self.keyed, concurrency=self.concurrency, rate=bound, aging=self.aging)

    @property
    def _use(self) -> LimitUse:
        if self.keyed:
            raise InvalidLimit(f"limit {self.name!r} has keys: name one, as in .key('acme')")
        return LimitUse(self.name)

    @property
    def _place(self) -> tuple[str, str]:
        return self.name, ""

    @property
    def _is_declared(self) -> bool:
        return self in _DECLARED


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKey:
    """A limit, or one of its keys, and how a piece of work counts there: `Limit.key` and `Limit.units` return it."""

    limit: Limit

    key: str
    """Empty, if the limit has no keys."""

    weight: float
    """Share of the key's work among the keys that wait."""

    units: int
    """That a piece of work counts in the limit's rate."""

    @property
    def _use(self) -> LimitUse:
        return LimitUse(self.limit.name, self.key, self.units, self.weight)

    @property
    def _place(self) -> tuple[str, str]:
        return self.limit.name, self.key

    @property
    def _is_declared(self) -> bool:
        return self.limit._is_declared


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitBy:
    """A limit whose key a function returns: `Limit.by` returns it."""

    limit: Limit

    function: Callable[[Any], str | LimitKey | None]
    """Returns the key."""

    units: int
    """That a piece of work counts in the limit's rate."""

    def _key_of(self, value: object) -> LimitKey:
        """Return the key of the function's argument.

        Raises:
            InvalidLimit: the function has returned neither a key of this limit nor a text that can be one.
            Exception: the function has raised it.
        """
        name, found = self.limit.name, call_sync(self.function, value)
        if isinstance(found, LimitKey):
            if found.limit != self.limit:
                raise InvalidLimit(f"the function of limit {name!r} has returned a key of limit {found.limit.name!r}")
            return found
        try:
            return self.limit.key(found, units=self.units)  # type: ignore[arg-type]  # it is checked
        except InvalidLimit as error:
            raise InvalidLimit(f"the function of limit {name!r} has returned no key: {error}") from None


def limit_of(limit: object) -> Limit:
    """Return the limit, also of one of its keys.

    Raises:
        InvalidLimit: it is something else.
    """
    found = limit.limit if isinstance(limit, LimitKey | LimitBy) else limit
    if not isinstance(found, Limit):
        raise InvalidLimit(f"a limit is made by affinity.Limit, not {limit!r:.200}")
    return found


def mark_declared(limit: Limit) -> None:
    """Note that an app of this process declares the limit."""
    _DECLARED.add(limit)


def _check_text(value: object, what: str) -> str:
    try:
        return check_id(value, what)
    except InvalidId as error:
        raise InvalidLimit(str(error)) from None


def _check_integer(value: object, what: str, least: int) -> int:
    try:
        return check_integer(value, what, least)
    except InvalidOptions as error:
        raise InvalidLimit(str(error)) from None


def _check_seconds(value: object, what: str) -> float:
    try:
        seconds = seconds_of(what, value)
    except InvalidOptions as error:
        raise InvalidLimit(str(error)) from None
    if seconds < MIN_SECONDS:
        raise InvalidLimit(f"{what} must be at least {MIN_SECONDS:g} s, not {value!r:.80}")
    return seconds


def _check_weight(value: object) -> float:
    if not is_number(value) or not isfinite(value) or not 1 / MAX_WEIGHT <= value <= MAX_WEIGHT:
        raise InvalidLimit(f"weight must be a number from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}, not {value!r:.80}")
    return float(value)
