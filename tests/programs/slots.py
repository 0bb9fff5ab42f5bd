"""Limits of the activities of random programs, and rules about them that are counted from the outside: by the rows of
the queue, and by the activities themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from affinity import Limit, LimitKey, Rate
from affinity.errors import UnknownLimit
from affinity.flow.client import Limits
from affinity.orchestration import events as ev
from affinity.orchestration.gates import gate_of, read_gate
from tests.programs.names import NAME
from tests.programs.tables import Row, Tables

ONE: Final = Limit(f"{NAME}.one", concurrency=1)
KEYED: Final = Limit(f"{NAME}.keyed", concurrency=2, keyed=True)
RATED: Final = Limit(f"{NAME}.rated", rate=Rate(3, per=10))
SMOOTH: Final = Limit(f"{NAME}.smooth", rate=Rate(5, per=10, smooth=True))
SWITCH: Final = Limit(f"{NAME}.switch")
ROOM: Final = Limit(f"{NAME}.room", concurrency=2)
"""Of instances, from their begin to their end."""

LIMITS: Final = (ONE, KEYED, RATED, SMOOTH, SWITCH, ROOM)

Places: TypeAlias = Literal["", "one", "key", "keys", "both", "rated", "smooth", "switch"]
"""Limits of an activity, by a short name."""

PLACES: Final[Mapping[Places, tuple[Limit | LimitKey, ...]]] = {
    "": (),
    "one": (ONE,),
    "key": (KEYED.key("a"),),
    "keys": (KEYED.key("a"), KEYED.key("b", weight=3)),
    "both": (KEYED.key("b"), ONE),
    "rated": (RATED.units(2),),
    "smooth": (SMOOTH, SWITCH),
    "switch": (SWITCH,),
}

BOUNDS: Final = {limit.name: limit.concurrency for limit in LIMITS}

Place: TypeAlias = tuple[str, str]
"""A limit, and a key of it."""

WAITING: Final = frozenset({"gate", "gated"})
"""Routes of work that waits at its gate."""


# -- by the rows of the queue


def wrong_gate(row: Row, event: ev.ActivityScheduled) -> Iterator[str]:
    """The gate of a row is that of its event; what waits at it has no session yet."""
    gate = gate_of(event.limits, event.priority)
    if row.get("gate") != (None if gate is None else gate.text):
        yield f"has the gate {row.get('gate')}; it was scheduled as {event}"


def too_many_slots(db: Tables) -> Iterator[str]:
    """Limits of which more work is admitted than there are slots. Only lower bounds come while a program runs, and none
    of what is admitted is cancelled by them.
    """
    taken: Counter[Place] = Counter()
    for row in db.rows["worker_queue"]:
        if row["limited"] and row["route"] not in WAITING | {"blocked"}:
            taken.update((use.limit, use.key) for use in read_gate(row["gate"])[1])
    for (limit, key), count in taken.items():
        bound = BOUNDS.get(limit)
        if bound is not None and count > bound:
            yield f"{count} activities have slots of {limit} {key!r}, which has {bound}"


# -- by the activities


@dataclass
class Begun:
    """Attempts of activities that have begun, in this process."""

    times: dict[str, list[tuple[float, int, str]]] = field(default_factory=lambda: defaultdict(list))
    """By limit: when, how many units, and the mark of the activity; of those without a session."""
    crowded: list[tuple[Place, Sequence[str]]] = field(default_factory=list)
    """Marks of activities that ran at the same time, and were more than there are slots."""
    comings: Counter[str] = field(default_factory=Counter)
    """Attempts by the mark of their activity, also those that have given their work back."""
    _running: dict[Place, list[str]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def running(self, mark: str, places: Places, *, now: float, is_bound: bool) -> Iterator[None]:
        """Note that an attempt runs in the block; ``is_bound``: on a session, which may let it wait."""
        uses = [limit._use for limit in PLACES[places]]
        for use in uses:
            running = self._running[use.limit, use.key]
            running.append(mark)
            bound = BOUNDS[use.limit]
            if bound is not None and len(running) > bound:
                self.crowded.append(((use.limit, use.key), [*running]))
            if not is_bound:
                self.times[use.limit].append((now, use.units, mark))
        try:
            yield
        finally:
            for use in uses:
                self._running[use.limit, use.key].remove(mark)

    def count(self, mark: str) -> int:
        """Count an attempt; return how many the activity has had."""
        self.comings[mark] += 1
        return self.comings[mark]

    def violations(self, ended: Collection[str], *, rates: bool) -> Iterator[str]:
        """Where more ran, or began, than a limit allows.

        Args:
            ended: marks of the activities that have a result: all others may have been cancelled, and then run on for
                a moment.
            rates: also of rates: what is admitted begins immediately.
        """
        for (limit, key), marks in self.crowded:
            counted = [mark for mark in marks if mark in ended]
            bound = BOUNDS[limit]
            if bound is not None and len(counted) > bound:
                yield f"{counted} ran at the same time, and {limit} {key!r} has {bound} slots"
        for rated in (RATED, SMOOTH) if rates else ():
            yield from _above_rate(rated, [(at, units) for at, units, _ in sorted(self.times[rated.name])])


def _above_rate(limit: Limit, begun: Sequence[tuple[float, int]]) -> Iterator[str]:
    rate = limit.rate
    assert rate is not None
    for at, _ in begun:
        units = sum(count for when, count in begun if at <= when < at + rate.per - CLOCK)
        if units > rate.count:
            yield f"{units} units of {limit.name} began in {rate.per:g} s from {at}: {begun}"
    if rate.smooth:
        for (before, units), (after, _) in pairwise(begun):
            if after - before < rate.per / rate.count * units - CLOCK:
                yield f"{limit.name}: {after - before} s after the one before: {begun}"


Stay: TypeAlias = tuple[datetime, datetime, str]
"""Begin and end of an instance that keeps a slot meanwhile, and its name."""


def above_bound(stays: Sequence[Stay], bound: int) -> Iterator[Sequence[str]]:
    """The instances that ran when one began, where they are more than there are slots."""
    for at, *_ in stays:
        inside = [name for begin, end, name in stays if begin <= at < end]
        if len(inside) > bound:
            yield inside


CLOCK: Final = 1e-4
"""Seconds by which two times of one moment may differ."""


# -- operators


LimitActKind: TypeAlias = Literal["pause", "resume", "lower", "pause_key", "reset"]


async def change(limits: Limits, what: LimitActKind, number: int) -> None:
    """Do what an operator does with a limit; never raise its bounds."""
    name = LIMITS[number % len(LIMITS)].name
    with suppress(UnknownLimit):  # no worker has declared it yet
        match what:
            case "pause":
                await limits.pause(name)
            case "resume":
                await limits.resume(name, ramp=0.5)
            case "lower":
                await limits.set(name, concurrency=0)
            case "pause_key":
                await limits.pause(KEYED.name, key="a")
            case "reset":
                await limits.reset(name)


async def open_all(limits: Limits) -> None:
    """Take back all that operators have changed, so that all work can end; and let all instances begin, since some that
    keep a slot may wait for ever.
    """
    for limit in await limits.list():
        await limits.reset(limit.name)
        if limit.keyed:
            await limits.reset(limit.name, key="a")
    with suppress(UnknownLimit):
        await limits.set(ROOM.name, concurrency=None)


async def until_declared(limits: Limits, wanted: Collection[Limit], pause: Callable[[], Awaitable[None]]) -> None:
    """Wait until a worker has declared these limits: without that nothing waits at them."""
    names = {limit.name for limit in wanted}
    while not names <= {limit.name for limit in await limits.list()}:
        await pause()
