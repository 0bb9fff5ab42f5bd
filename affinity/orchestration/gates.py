"""Gates, at which work waits before a worker may fetch it. A guest opens them; the kernel stores their text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from affinity import errors
from affinity.limits import MAX_GATE_BYTES, MAX_GATE_LIMITS, MAX_PRIORITY, PRIORITY_SECONDS
from affinity.records import Gate

DEFAULT_PRIORITY: Final = 0


class LimitUse(NamedTuple):
    """A place at a limit that work needs: the limit's name, its key, and how the work counts there."""

    limit: str
    key: str = ""  # "": the limit has no keys
    units: int = 1  # of the limit's rate
    weight: float = 1.0  # share of the key among the keys of the limit


LimitUses: TypeAlias = tuple[LimitUse, ...]


class HasLimitUse(Protocol):
    """A limit, or a key of one, as `affinity.Limit` and its methods make them."""

    @property
    def _use(self) -> LimitUse:
        """The place that work needs.

        Raises:
            InvalidLimit: the limit has keys, and none is named.
        """
        ...

    @property
    def _place(self) -> tuple[str, str]:
        """The limit's name, and the key; "" for a limit without keys, and for all keys of one that has some."""
        ...

    @property
    def _is_declared(self) -> bool:
        """Whether the code of an app of this process declares the limit."""
        ...


_MEMBERS: Final = ("_use", "_place", "_is_declared")


@runtime_checkable
class ChargesLimits(Protocol):
    """A guest's object for activities that counts what work has used beyond its admission."""

    async def charge_limit(self, use: LimitUse, units: int) -> None:
        """Count units in the rate of a limit, also above its bound."""
        ...


def gate_of(uses: Sequence[LimitUse], priority: int = DEFAULT_PRIORITY) -> Gate | None:
    """Return the gate of work that needs these places and has this priority. None: it waits for nothing."""
    if not uses and priority == DEFAULT_PRIORITY:
        return None
    return _gate(tuple(uses), priority)


@lru_cache(1000)
def _gate(uses: tuple[LimitUse, ...], priority: int) -> Gate:
    text = json.dumps([priority, *sorted(uses)], separators=(",", ":"), ensure_ascii=False)
    return Gate(text, limited=bool(uses), head_start=priority * PRIORITY_SECONDS)


def read_gate(text: str) -> tuple[int, list[LimitUse]]:
    """Return the priority and the places of a gate's text."""
    priority, *uses = json.loads(text)
    return priority, [LimitUse(*use) for use in uses]


def check_priority(priority: object) -> int:
    """Return the priority.

    Raises:
        InvalidInput: it is not an integer from 0 to `limits.MAX_PRIORITY`.
    """
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise errors.InvalidInput(f"a priority is an integer from 0 to {MAX_PRIORITY}, not {priority!r:.80}")
    return priority


def add_uses(own: Sequence[LimitUse], given: Sequence[LimitUse]) -> tuple[LimitUse, ...]:
    """Return the places of work whose definition has its ``own``, and whose call has ``given`` these: both, but of one
    limit that of the call. None are given: none at all.

    Raises:
        InvalidLimit: there are too many.
    """
    names = {use.limit for use in given}
    uses = (*(use for use in own if use.limit not in names), *given) if given else ()
    if len(uses) > MAX_GATE_LIMITS:
        raise errors.InvalidLimit(
            f"work has at most {MAX_GATE_LIMITS} limits, with those of its definition {len(uses)}"
        )
    return uses


def check_uses(limits: Sequence[object]) -> LimitUses:
    """Return the places that these limits, or keys of limits, stand for.

    Raises:
        InvalidLimit: one is no limit, a limit comes twice, a limit with keys has none, or there are too many.
    """
    if not isinstance(limits, list | tuple):
        raise errors.InvalidLimit(f"limits are a list of Limit objects, not {limits!r:.200}")
    uses = tuple(check_limit(limit)._use for limit in limits)
    if len({(use.limit, use.key) for use in uses}) < len(uses):
        raise errors.InvalidLimit("a limit is named twice: name each once, with units= for work that counts more")
    if len(uses) > MAX_GATE_LIMITS:
        raise errors.InvalidLimit(f"work has at most {MAX_GATE_LIMITS} limits, not {len(uses)}")
    if sum(len(use.limit) + len(use.key) for use in uses) * 4 > MAX_GATE_BYTES:
        _check_size(uses)
    return uses


def check_limit(limit: object) -> HasLimitUse:
    """Return the limit, or the key of one.

    Raises:
        InvalidLimit: it is something else.
    """
    if not all(hasattr(type(limit), name) for name in _MEMBERS):  # a property of the object may raise
        raise errors.InvalidLimit(f"a limit is a Limit, or a key of one as limit.key('acme'), not {limit!r:.200}")
    return cast(HasLimitUse, limit)


def check_declared(limit: HasLimitUse) -> None:
    """Check that the code of an app declares the limit: a limit that no app declares holds nothing back.

    Raises:
        InvalidLimit: none does.
    """
    if not limit._is_declared:
        name = limit._place[0]
        raise errors.InvalidLimit(
            f"no app declares the limit {name!r}, so it would hold nothing back: name it in App(..., limits=[...]), "
            "or in limits= of an activity"
        )


def _check_size(uses: LimitUses) -> None:
    gate = gate_of(uses)
    size = 0 if gate is None else len(gate.text.encode())
    if size > MAX_GATE_BYTES:
        raise errors.InvalidLimit(
            f"the limits of one piece of work, with their keys, have {size} bytes, over the limit of {MAX_GATE_BYTES}"
        )
