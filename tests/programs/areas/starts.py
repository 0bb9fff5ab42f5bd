"""Starts of few ids by several clients, which join, queue, replace or cancel each other, or wait at limits. They are
judged from the outside: by the histories of what has run, and by their times.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, TypeAlias

import anyio
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import TypeAdapter

import affinity
from affinity import Limit, LimitKey
from affinity.client import IfEnded, StartOutcome
from affinity.errors import (
    Contention,
    InstanceFinished,
    InstanceNotFinished,
    InstanceRunning,
    InvalidInput,
    UnknownInstance,
)
from affinity.orchestration import events as ev
from affinity.orchestration.overlap import IfRunning
from tests.programs.area import Area
from tests.programs.histories import Past, read_pasts
from tests.programs.play import Play
from tests.programs.program import Size
from tests.programs.slots import CLOCK, above_bound, until_declared

NAME: Final = "starts"
IDS: Final = 4

HALL: Final = Limit(f"{NAME}.hall", concurrency=2)
DESK: Final = Limit(f"{NAME}.desk", concurrency=1, keyed=True)
LIMITS: Final = (HALL, DESK)
BOUNDS: Final = {HALL.name: 2, DESK.name: 1}

Rooms: TypeAlias = Literal["", "hall", "desk", "both"]
ROOMS: Final[Mapping[Rooms, tuple[Limit | LimitKey, ...]]] = {
    "": (),
    "hall": (HALL,),
    "desk": (DESK.key("a"),),
    "both": (DESK.key("a", weight=2), HALL),
}

Debounce: TypeAlias = tuple[float, float | None]
"""``debounce`` and ``max_wait`` of a start."""

DEBOUNCES: Final[Sequence[Debounce | None]] = (None, None, None, (5.0, None), (20.0, None), (5.0, 8.0), (20.0, 60.0))


@dataclass(frozen=True)
class Stay:
    """The input of an instance."""

    mark: str = ""  # of the start
    rooms: Rooms = ""  # with whose limits it was started
    lasts: float = 0.0  # seconds of each execution
    rounds: int = 0  # continue-as-new so often
    fails: bool = False


@dataclass(frozen=True)
class StartAct:
    """A client starts an instance."""

    number: int = 0
    stay: Stay = Stay()
    if_running: IfRunning | None = None
    if_ended: IfEnded | None = None
    debounce: Debounce | None = None
    delay: float = 0.0
    priority: int = 0
    after: int = 0  # ticks of the program before it

    @property
    def waits(self) -> float:
        """Seconds for which it waits at least before it begins."""
        return self.delay if self.debounce is None else min(self.debounce[0], self.debounce[1] or self.debounce[0])


@dataclass(frozen=True)
class EndAct:
    """A client ends an instance, removes it, or opens it again."""

    what: Literal["cancel", "delete", "kill", "reset"] = "cancel"
    number: int = 0
    after: int = 0


@dataclass(frozen=True)
class LimitAct:
    """An operator changes a limit, and never raises its bounds."""

    what: Literal["pause", "resume", "lower", "pause_key", "reset"] = "pause"
    number: int = 0
    after: int = 0


Act: TypeAlias = StartAct | EndAct | LimitAct


@dataclass(frozen=True)
class StartsPart:
    """What each client does, one act after the other."""

    clients: tuple[tuple[Act, ...], ...] = ((StartAct(),),)


Outcome: TypeAlias = StartOutcome | Literal["refused"] | None

BEGINS: Final = frozenset({"created", "restarted", "replaced", "queued"})
"""Outcomes of starts that are carried out, unless a later one takes their place."""


@dataclass
class StartCall:
    """A start as its client has seen it."""

    act: StartAct
    at: datetime  # of the call, by the clock of the database
    begun: int  # in the order of all calls of clients
    ended: int = 0
    outcome: Outcome = None  # None: the call is under way


@dataclass
class Asked:
    """What clients have asked for."""

    calls: dict[str, StartCall] = field(default_factory=dict)  # by mark
    cancelled: set[int] = field(default_factory=set)  # ids, by number
    deleted: set[int] = field(default_factory=set)
    reset: set[int] = field(default_factory=set)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def next_place(self) -> int:
        """The place of a call in the order of all."""
        return next(self._order)


class Starts(Area[StartsPart, Asked]):
    """Each start that is carried out runs once, in its turn, and keeps its slots until its end."""

    name = NAME

    def strategy(self, size: Size) -> SearchStrategy[StartsPart]:
        most, clients = (3, 2) if size == "small" else (8, 4)
        acts = st.one_of(_STARTS, _STARTS, _STARTS, _STARTS, _ENDS, _CHANGES)
        drawn = st.lists(st.lists(acts, max_size=most).map(tuple), min_size=1, max_size=clients)
        return st.builds(StartsPart, clients=drawn.map(tuple))

    def include(self, app: affinity.App) -> None:
        app.include(_app)

    async def run(self, play: Play, part: StartsPart) -> Asked:
        asked = Asked()
        await until_declared(play.env.client.limits, LIMITS, partial(play.pause, 1))
        async with anyio.create_task_group() as tasks:
            for client, acts in enumerate(part.clients):
                tasks.start_soon(_play, play, asked, client, acts)
        for limit in LIMITS:
            await play.env.client.limits.reset(limit.name)
        await play.env.client.limits.reset(DESK.name, key="a")
        return asked

    async def check(self, play: Play, part: StartsPart, seen: Asked) -> None:
        pasts = await read_pasts(play.env.client, f"{NAME}.stay")
        Judge(pasts, seen).check()


_STARTS: Final[SearchStrategy[Act]] = st.builds(
    StartAct,
    number=st.integers(0, IDS - 1),
    stay=st.builds(
        Stay,
        rooms=st.sampled_from(("", "hall", "hall", "desk", "both")),
        lasts=st.sampled_from((0.0, 1.0, 7.0, 30.0)),
        rounds=st.sampled_from((0, 0, 1)),
        fails=st.sampled_from((False, False, False, True)),
    ),
    if_running=st.sampled_from((None, "queue_one", "queue_one", "cancel", "join", "fail")),
    if_ended=st.sampled_from((None, None, "restart", "return", "fail")),
    debounce=st.sampled_from(DEBOUNCES),
    delay=st.sampled_from((0.0, 0.0, 3.0)),
    priority=st.sampled_from((0, 0, 5)),
    after=st.sampled_from((0, 0, 1, 3, 10)),
).map(lambda act: act if act.debounce is None else replace(act, delay=0.0))

_numbers: Final = st.integers(0, IDS - 1)
_ticks: Final = st.integers(0, 10)
_ENDS: Final[SearchStrategy[Act]] = st.builds(
    EndAct, what=st.sampled_from(("cancel", "cancel", "delete", "kill", "reset")), number=_numbers, after=_ticks
)
_CHANGES: Final[SearchStrategy[Act]] = st.builds(
    LimitAct,
    what=st.sampled_from(("pause", "resume", "lower", "pause_key", "reset")),
    number=st.integers(0, len(LIMITS) - 1),
    after=_ticks,
)


# -- clients


async def _play(play: Play, asked: Asked, client: int, acts: Sequence[Act]) -> None:
    for number, act in enumerate(acts):
        await play.pause(act.after)
        match act:
            case StartAct():
                await _start(play, asked, f"{client}.{number}", act)
            case EndAct():
                await _end(play, asked, act)
            case LimitAct():
                await _bound(play, act)


async def _start(play: Play, asked: Asked, mark: str, act: StartAct) -> None:
    call = asked.calls[mark] = StartCall(act, play.env.now(), asked.next_place())
    debounce, max_wait = act.debounce or (None, None)
    try:
        handle = await play.env.client.start(
            _stay,
            replace(act.stay, mark=mark),
            instance_id=f"{NAME}-{act.number}",
            if_ended=act.if_ended,
            if_running=act.if_running,
            debounce=debounce,
            max_wait=max_wait,
            delay=act.delay,
            priority=act.priority,
            limits=ROOMS[act.stay.rooms],
        )
        call.outcome = handle.outcome
    except (InstanceRunning, InstanceFinished):
        call.outcome = "refused"
    call.ended = asked.next_place()


async def _end(play: Play, asked: Asked, act: EndAct) -> None:
    client, name = play.env.client, f"{NAME}-{act.number}"
    with suppress(UnknownInstance, InstanceFinished, InstanceNotFinished, Contention, InvalidInput):
        match act.what:
            case "cancel":
                asked.cancelled.add(act.number)
                await client.cancel(name)
            case "reset":
                asked.reset.add(act.number)
                await client.reset(name, to_event=1)
            case _:
                asked.deleted.add(act.number)
                await client.delete(name, force=act.what == "kill")


async def _bound(play: Play, act: LimitAct) -> None:
    limits, limit = play.env.client.limits, LIMITS[act.number % len(LIMITS)]
    match act.what:
        case "pause":
            await limits.pause(limit.name)
        case "resume":
            await limits.resume(limit.name, ramp=0.5)
        case "lower":
            await limits.set(limit.name, concurrency=0)
        case "pause_key":
            await limits.pause(DESK.name, key="a")
        case "reset":
            await limits.reset(limit.name)


# -- the oracle


@dataclass(frozen=True)
class Stretch:
    """What has become of one start: its executions, one after the other."""

    stay: Stay
    begin: datetime
    end: datetime
    outcome: ev.Event | None
    is_reset: bool


class Judge:
    """Judges histories by what clients have asked for. Each check raises AssertionError."""

    def __init__(self, pasts: Mapping[str, Past], asked: Asked) -> None:
        self._pasts = pasts
        self._asked = asked
        self._ran: dict[str, Sequence[Stretch]] = {}

    def check(self) -> None:
        """All of it."""
        for past in self._pasts.values():
            assert past.has_ended, f"{past.id} is {past.info.status}, and nothing will end it"
            assert past.info.next is None, f"{past.id} has ended, and a start waits for its end"
            self._ran[past.id] = [*stretches(past)]
        for number in range(IDS):
            self._check_one(number)
        for limit in LIMITS:
            self._check_slots(limit)

    def _check_one(self, number: int) -> None:
        """The starts of one id."""
        name, asked = f"{NAME}-{number}", self._asked
        calls = {mark: call for mark, call in asked.calls.items() if call.act.number == number}
        ran = self._ran.get(name, [])
        for mark, call in calls.items():
            assert call.outcome in _possible(call.act), f"{name}: {mark}, {call}"
        created = [mark for mark, call in calls.items() if call.outcome == "created"]
        assert len(created) <= 1 or number in asked.deleted, f"{name} was created by {created}"
        for before, after in itertools.pairwise(ran):
            assert before.end <= after.begin, f"{name}: {after} began before the end of {before}"
        for mark, count in Counter(each.stay.mark for each in ran).items():
            assert calls[mark].outcome in BEGINS, f"{name}: {mark} ran, and was {calls[mark]}"
            assert count == 1, f"{name}: {mark} ran {count} times"
        for each in ran:
            self._check_stretch(name, each, calls[each.stay.mark])
        if number not in asked.deleted:
            self._check_none_is_lost(name, calls, {each.stay.mark for each in ran})

    def _check_none_is_lost(self, name: str, calls: Mapping[str, StartCall], ran: set[str]) -> None:
        """What has not run had a later start in its place, which ran, or had yet a later one."""
        for mark, call in calls.items():
            if call.outcome in BEGINS and mark not in ran:
                later = [each for each in ran if calls[each].outcome in _REPLACE and calls[each].ended > call.begun]
                assert later, f"{name}: {mark} was {call.outcome}, and did not run; {sorted(ran)} did: {calls}"

    def _check_stretch(self, name: str, found: Stretch, call: StartCall) -> None:
        """Began in time with the input of its start, and has ended as that says, or as a client has asked."""
        act, where = call.act, f"{name}: {found.stay.mark}, {call}"
        assert replace(found.stay, mark="") == act.stay, f"{where}, has the input {found.stay}"
        is_cancelled = act.number in self._asked.cancelled or any(
            other.act.number == act.number and other.act.if_running == "cancel" for other in self._asked.calls.values()
        )
        if not is_cancelled:
            waited = found.begin - call.at
            assert waited >= timedelta(seconds=act.waits - CLOCK), f"{where} began after {waited}"
        match found.outcome:
            case ev.OrchestrationCompleted(result=result):
                assert not act.stay.fails, f"{where} has completed"
                assert result == f'"{found.stay.mark}"', f"{where} gave {result}"
            case ev.OrchestrationFailed():
                assert act.stay.fails, f"{where} ended with {found.outcome}"
            case ev.OrchestrationCancelled():
                assert is_cancelled, f"{where} was cancelled, and no client has asked for it"
            case _:
                raise AssertionError(f"{where} ended with {found.outcome}")

    def _check_slots(self, limit: Limit) -> None:
        """No more run at a time than the limit has slots. What was opened again after its end has none."""
        inside: defaultdict[str, list[tuple[datetime, datetime, str]]] = defaultdict(list)
        for name, ran in self._ran.items():
            for each in ran:
                uses = {use.limit: use.key for use in (place._use for place in ROOMS[each.stay.rooms])}
                if limit.name in uses and not each.is_reset:
                    inside[uses[limit.name]].append((each.begin, each.end, f"{name}: {each.stay.mark}"))
        for key, stays in inside.items():
            for marks in above_bound(stays, BOUNDS[limit.name]):
                raise AssertionError(f"{marks} ran at the same time, and {limit.name} {key!r} has fewer slots: {stays}")


_REPLACE: Final = frozenset({"replaced", "queued"})
"""Outcomes of starts that may take the place of others."""


def _possible(act: StartAct) -> set[Outcome]:
    """The outcomes that the options of a start allow."""
    while_running = act.if_running or ("join" if act.debounce is None else "queue_one")
    follows = act.debounce is not None or while_running in {"queue_one", "cancel"}
    after_end = act.if_ended or ("restart" if follows else "return")
    found: set[Outcome] = {"created"}
    found.add({"restart": "restarted", "return": "ended", "fail": "refused"}[after_end])  # type: ignore[arg-type]
    found.add({"join": "running", "fail": "refused"}.get(while_running, "queued"))  # type: ignore[arg-type]
    return found | ({"replaced"} if act.debounce is not None else set())


_STAY: Final = TypeAdapter(Stay)


def stretches(past: Past) -> Iterator[Stretch]:
    """What has become of each start of an id, oldest first."""
    for runs in past.generations:
        last = runs[-1]
        events = (event for run in runs for event in run.events)  # the first may have but a cancel, and be reset
        start = next(event for event in events if isinstance(event, ev.OrchestrationStarted))
        yield Stretch(
            _STAY.validate_json(start.input),
            next(run.began_at for run in runs if run.began_at is not None),
            last.origins[len(last.events)].recorded_at,
            last.outcome,
            any(run.is_reset for run in runs),
        )


# -- what runs

_app: Final = affinity.App(NAME, limits=LIMITS)


class Planned(Exception):
    """The error of an instance that is to fail."""


@_app.orchestration(name=f"{NAME}.stay")
async def _stay(ctx: affinity.OrchestrationContext, stay: Stay) -> str:
    if stay.lasts:
        await ctx.schedule_timer(stay.lasts)
    if stay.rounds:
        ctx.continue_as_new(replace(stay, rounds=stay.rounds - 1))
    if stay.fails:
        raise Planned(stay.mark)
    return stay.mark


STARTS: Final = Starts()
