"""Runs two operations; the first stops at a chosen call of the database until the second has run. Or until what both
cause has come to the queues, so that instances get it in one turn.

The points of an operation are the calls that it causes when it runs alone: calls of its client, and calls of the
workers until nothing is left to do. A point is before a call or behind it, so that an operation is held between what it
read and what it commits, and between a commit and its reply.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, cast

import anyio

import affinity
from affinity.errors import AffinityError
from affinity.provider.contract import Provider
from affinity.provider.timeline import Timeline
from affinity.testing import Env
from affinity.testing.env.traffic import BROUGHT, LOOK_SECONDS, observed, steps
from affinity.testing.env.waiting import EnvDatabase
from tests.programs.databases import Copies
from tests.programs.rest import find, unexplained
from tests.programs.tables import Tables, read_tables

ASIDE: Final = frozenset(
    {
        "renew_worker", "renew_work_item_lock", "notify_changes", "notify_workers", "sweep",
        "end_waits", "retry_suspended", "check_work_item", "list_sessions", "report_session_moves", "register_worker",
        "list_workers", "list_code",
        "take_unused_resources", "release_idle_session", "list_work_items", "read_origins", "write_stream", "aclose",
        "get_load", "begin_wait", "end_wait", "get_waits", "release_unknown_locks", "find_unused_resources",
    }
)  # fmt: skip
"""Calls that workers repeat whatever happens, and calls that only explain."""

REPEATS: Final = 3
"""Points at calls of one name; further ones are as these."""

HANG_SECONDS: Final = 60.0
"""Of real time, in which two operations end that nothing holds any more, on a busy machine too."""

CALM: Final = 2
"""Looks of all workers that bring nothing: then an operation that has not ended waits for the one that is held."""

ORDERS: Final = ((False, False), (True, False), (False, True), (True, True))
"""Of two operations, one after the other: whether the second comes first, and whether the workers do what the earlier
one causes before the later one begins.
"""

Where: TypeAlias = str | Copies | None
"""The URL of a PostgreSQL database, or a server with copies of one; None: SQLite."""

Outcome: TypeAlias = str
"""The result of an operation, or the name of the error that it raised."""


class Point(NamedTuple):
    """Where an operation is held."""

    side: Literal["client", "worker"]
    call: str
    nth: int
    """Of the calls of this name on this side since the operation began, from 1. A fetch counts if it brought work."""
    place: Literal["before", "after"]

    def __str__(self) -> str:
        return f"{self.place} {self.side}.{self.call}#{self.nth}"


class Gates:
    """Counts the calls of one operation, and holds one of them."""

    def __init__(self) -> None:
        self.trace: list[Point] = []
        self.target: Point | None = None
        self.held = 0
        self.reached = anyio.Event()
        self.release = anyio.Event()
        self._workers = anyio.Event()
        self._workers.set()
        self._stopped = ""
        self._counts: Counter[tuple[str, str]] = Counter()

    def stop_workers(self, call: str = "") -> None:
        """Hold all calls of workers that begin, or all of this name, until `start_workers`."""
        self._workers, self._stopped = anyio.Event(), call

    def start_workers(self) -> None:
        """Let them go on."""
        self._workers.set()

    async def enter(self, side: str, call: str) -> None:
        """Wait while the workers are stopped."""
        if side == "worker" and call.startswith(self._stopped) and not self._workers.is_set():
            self.held += 1
            await self._workers.wait()
            self.held -= 1

    def begin(self, target: Point | None = None) -> None:
        """Count from now on, and hold the call at ``target``."""
        self.trace, self.target = [], target
        self.reached, self.release = anyio.Event(), anyio.Event()
        self._counts.clear()

    def count(self, side: str, call: str) -> int:
        """The number of this call."""
        self._counts[side, call] += 1
        return self._counts[side, call]

    async def reach(self, point: Point) -> None:
        """Wait here if this is the point."""
        self.trace.append(point)
        if point == self.target:
            self.target = None
            self.held += 1
            self.reached.set()
            try:
                await self.release.wait()
            finally:
                self.held -= 1


class _Gated:
    """Forwards everything; calls of the database pass the gates; so for the store of session states in it."""

    def __init__(self, gated: Any, gates: Gates, side: Literal["client", "worker"], prefix: str = "") -> None:
        self._gated, self._gates, self._side, self._prefix = gated, gates, side, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._gated, name)
        if name == "states":
            found = _Gated(found, self._gates, self._side, "states.")
        elif inspect.iscoroutinefunction(found) and name not in ASIDE:
            found = self._held(self._prefix + name, found)
        else:
            return found
        setattr(self, name, found)  # the next look-up does not come here
        return found

    def _held(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        gates, side, brought = self._gates, self._side, BROUGHT.get(name)

        @wraps(call)
        async def held(*args: Any, **kwargs: Any) -> Any:
            await gates.enter(side, name)
            if brought is not None:  # a call that brings nothing is repeated: it is known behind it
                result = await call(*args, **kwargs)
                if brought(result):
                    await gates.reach(Point(side, name, gates.count(side, name), "after"))
                return result
            nth = gates.count(side, name)
            await gates.reach(Point(side, name, nth, "before"))
            result = await call(*args, **kwargs)
            await gates.reach(Point(side, name, nth, "after"))
            return result

        return held


class RaceEnv(Env):
    """An `Env` whose clock moves by hand, and whose calls of the database pass gates."""

    def __init__(self, app: affinity.App, where: Where = None) -> None:
        super().__init__(app, url=where if isinstance(where, str) else None, workers=2)
        self.gates = Gates()
        self._copies = where if isinstance(where, Copies) else None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        gated = cast("Provider", _Gated(self._own, self.gates, "client"))
        self.client = await self._stack.enter_async_context(
            affinity.Client.from_provider(observed(gated, self._traffic))
        )
        self._stack.enter_context(self.freeze())
        return self

    async def _create_database(self) -> EnvDatabase:
        return await (super()._create_database() if self._copies is None else self._copies.create())

    async def _open(self, timeline: Timeline | None = None, *, one_connection: bool = False) -> Provider:
        provider = await super()._open(timeline, one_connection=one_connection)
        if one_connection:  # of a thread that renews leases
            return provider
        return cast("Provider", _Gated(provider, self.gates, "worker"))

    async def calm(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run until nothing more happens beside the call that is held, or until this holds. The clock stands still."""
        looks = 0
        while looks < CALM and not until():
            changes = self._traffic.changes
            for worker in self._alive:
                worker.look()
            self.client._look_now()
            await self._finish_calls(until)
            for _ in range(CALM):
                if self.gates.held or all(worker.has_looked for worker in self._alive):
                    break
                await self._traffic.wait(LOOK_SECONDS)
            await self._finish_calls(until)
            looks = looks + 1 if self._traffic.changes == changes else 0

    async def come_to_the_point(self) -> None:
        """Run until a call is held, with jumps of the clock if they are needed; or until nothing is due."""
        await self.calm(self.gates.reached.is_set)
        running = asyncio.ensure_future(self.run_until_idle())
        reached = asyncio.ensure_future(self.gates.reached.wait())
        await asyncio.wait([running, reached], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, reached):
            task.cancel()
        await asyncio.wait([running, reached])

    async def _finish_calls(self, until: Callable[[], bool]) -> None:
        await steps()
        while self._traffic.in_flight > self.gates.held and not until():
            await self._traffic.wait(LOOK_SECONDS)
            await steps()


@dataclass
class Stage:
    """The database, client and ids of one run. Each run has ids of its own, so that runs share a database."""

    env: RaceEnv
    number: int
    kept: dict[str, Any] = field(default_factory=dict)
    """Data of the setup: ids of requests, exports."""

    @property
    def client(self) -> affinity.Client:
        return self.env.client

    def id(self, name: str) -> str:
        """The id of an instance, session or conversation of this run."""
        return f"{self.number}.{name}"

    def name(self, text: str) -> str:
        """The part of an id behind the number of the run."""
        return text.partition(".")[2]

    def mine(self, text: str | None) -> bool:
        """Whether it is an id of this run."""
        return text is not None and text.startswith(f"{self.number}.")


@dataclass(frozen=True)
class Operation:
    """One call, or a few, of a client."""

    name: str
    run: Callable[[Stage], Awaitable[Hashable]]
    errors: Collection[type[AffinityError]] = ()
    """That its documentation names, and that another operation at the same time may cause."""
    atomic: bool = True
    """With an error, it has changed nothing."""
    compares: bool = True
    """What it leaves does not depend on how far others are."""
    but_not_with: str = ""
    """The one operation for which that is not so."""

    async def outcome(self, stage: Stage) -> Outcome:
        """Run it.

        Raises:
            Exception: one that it may not raise: not an error of affinity.
        """
        try:
            return repr(await self.run(stage))
        except AffinityError as error:
            return type(error).__name__

    def compares_with(self, other: Operation) -> bool:
        """Whether what both leave is what one leaves after the other."""
        return self.compares and self.but_not_with != other.name

    def allows(self, outcome: Outcome) -> bool:
        """Whether it is one of the errors, or of a subclass."""
        return outcome in {each.__name__ for error in self.errors for each in (error, *error.__subclasses__())}


State: TypeAlias = Mapping[str, Hashable]
"""The rows that are left at the end, by id."""


@dataclass(frozen=True)
class Area:
    """Operations on the same things."""

    name: str
    app: affinity.App
    setup: Callable[[Stage], Awaitable[None]]
    operations: Sequence[Operation]
    describe: Callable[[Stage, Tables], State]
    find: Callable[[Stage, Tables], Iterable[str]] = lambda *_: ()
    """What is wrong at rest, beside the rules of tables."""

    def pairs(self, only: Collection[str] = ()) -> Iterator[tuple[Operation, Operation]]:
        """All ordered pairs, each operation with itself too; ``only``: of these two, or with this one."""
        for first in self.operations:
            for second in self.operations:
                if set(only) <= {first.name, second.name}:
                    yield first, second


class Ended(NamedTuple):
    """A run."""

    outcomes: tuple[Outcome, Outcome]
    state: State
    wrong: Sequence[str]
    """By the rules of tables at rest."""


class Race(NamedTuple):
    """Two operations, and how the first is held; without a point they run one after the other."""

    first: Operation
    second: Operation
    point: Point | None = None
    together: bool = False
    """No turn begins from the point on until nothing else is left to do: an instance gets all that came in one turn."""

    def __str__(self) -> str:
        how = "one after the other" if self.point is None else f"held {self.point}{' together' * self.together}"
        return f"{self.first.name} {how}, {self.second.name}"


@dataclass(frozen=True)
class Finding:
    """A violation in one run."""

    area: str
    race: Race
    wrong: Sequence[str]

    def __str__(self) -> str:
        return f"{self.area}: {self.race}:\n  " + "\n  ".join(self.wrong)


class Races:
    """Runs the pairs of one area; reuses an env for several runs."""

    def __init__(self, area: Area, where: Where = None, *, runs_per_env: int = 5) -> None:
        self.area, self._where, self._most = area, where, runs_per_env
        self.runs = 0
        self.missed = 0
        """Runs in which the first operation did not come to its point: the second could not be held back by it."""
        self._env: RaceEnv | None = None
        self._left = 0
        self._points: dict[str, Sequence[Point]] = {}
        self._serial: dict[tuple[str, str], list[Ended]] = {}
        self._states: dict[str, State] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def points(self, operation: Operation) -> Sequence[Point]:
        """Where it can be held: its calls when it runs alone."""
        if operation.name not in self._points:
            stage = await self._stage()
            stage.env.gates.begin()
            await self._alone(stage, operation)
            self._points[operation.name] = [one for one in stage.env.gates.trace if one.nth <= REPEATS]
        return self._points[operation.name]

    async def look(
        self, only: Collection[str] = (), *, at: str = "", draw: random.Random | None = None, runs: int | None = None
    ) -> AsyncIterator[Finding]:
        """The findings of all pairs at all points.

        Args:
            only: pairs of these two operations, or with this one.
            at: points with this text.
            draw: takes one point of each pair in a random order, and begins again.
            runs: how many, at most.
        """
        pairs = [*self.area.pairs(only)]
        for _ in count() if draw is not None else range(1):
            if draw is not None:
                draw.shuffle(pairs)
            for first, second in pairs:
                points = [point for point in await self.points(first) if at in str(point)]
                for point in points if draw is None else draw.sample(points, min(len(points), 1)):
                    for together in (False, True) if draw is None else [draw.random() < 0.5]:
                        if runs is not None and self.runs >= runs:
                            return
                        if (finding := await self.race(Race(first, second, point, together))) is not None:
                            yield finding

    async def race(self, race: Race) -> Finding | None:
        """Hold the first at the point while the second runs; returns a violation."""
        stage = await self._stage()
        self.runs += 1
        try:
            ended = await self._held(stage, race)
        except TimeoutError as error:
            await self._close()
            return self._finding(race, [str(error)])
        if ended.wrong:
            await self._close()
            return self._finding(race, ended.wrong)
        return await self._judge(race, ended)

    async def _judge(self, race: Race, ended: Ended) -> Finding | None:
        """Compare with what comes out of both, one after the other, in one order after the next while they differ."""
        first, second = race.first, race.second
        serial = self._serial.setdefault((first.name, second.name), [])
        for number, (swapped, works) in enumerate(ORDERS):
            if number == len(serial):
                serial.append(await self._one_after_the_other(first, second, swapped=swapped, works=works))
            if serial[number].wrong:
                return self._finding(Race(first, second), serial[number].wrong)
            if not [*_differences((first, second), ended, serial, [one.state for one in serial])]:
                return None
        states = [one.state for one in serial]
        if not (first.compares_with(second) and second.compares_with(first)):
            states.append(ended.state)
        for operation, outcome, other in zip((first, second), ended.outcomes, (second, first), strict=True):
            if operation.allows(outcome):
                states.append(await self._left_by(other) if operation.atomic else ended.state)
        return self._finding(race, [*_differences((first, second), ended, serial, states)])

    def _finding(self, race: Race, wrong: Sequence[str]) -> Finding | None:
        return Finding(self.area.name, race, wrong) if wrong else None

    async def _left_by(self, operation: Operation) -> State:
        """The rows that are left when only this operation runs."""
        if operation.name not in self._states:
            stage = await self._stage()
            outcome = await self._alone(stage, operation)
            self._states[operation.name] = (await self._end(stage, (outcome, outcome))).state
        return self._states[operation.name]

    async def _one_after_the_other(self, first: Operation, second: Operation, *, swapped: bool, works: bool) -> Ended:
        stage = await self._stage()
        stage.env.gates.begin()
        earlier, later = (second, first) if swapped else (first, second)
        if works:
            outcomes = [await self._alone(stage, earlier), await self._alone(stage, later)]
        else:
            stage.env.gates.stop_workers()
            tasks = []
            for operation in (earlier, later):
                tasks.append(asyncio.ensure_future(operation.outcome(stage)))
                await stage.env.calm(tasks[-1].done)
            stage.env.gates.start_workers()
            outcomes = [await self._drive(stage, task) for task in tasks]
        one, two = outcomes[::-1] if swapped else outcomes
        return await self._end(stage, (one, two))

    async def _held(self, stage: Stage, race: Race) -> Ended:
        env, gates = stage.env, stage.env.gates
        gates.begin(race.point)
        one = asyncio.ensure_future(race.first.outcome(stage))
        await env.come_to_the_point()
        self.missed += not gates.reached.is_set()
        if race.together:
            gates.stop_workers("fetch_orchestration_item")
        two = asyncio.ensure_future(race.second.outcome(stage))
        await env.calm()
        gates.target = None
        gates.release.set()
        if race.together:
            await env.calm()
            gates.start_workers()
        outcomes = await self._drive(stage, one), await self._drive(stage, two)
        return await self._end(stage, outcomes)

    async def _alone(self, stage: Stage, operation: Operation) -> Outcome:
        outcome = await self._drive(stage, asyncio.ensure_future(operation.outcome(stage)))
        await stage.env.run_until_idle()
        return outcome

    async def _drive(self, stage: Stage, task: asyncio.Future[Outcome]) -> Outcome:
        """Run until the operation has ended; jump to the next due time if it waits for that.

        Raises:
            TimeoutError: it does not end.
        """
        with anyio.move_on_after(HANG_SECONDS):
            await stage.env.calm(task.done)
            while not task.done():
                await stage.env.run_until_idle()
                await asyncio.wait([task], timeout=LOOK_SECONDS)
        if not task.done():
            task.cancel()
            raise TimeoutError(f"hangs: {await stage.env.describe()}")
        return await task

    async def _end(self, stage: Stage, outcomes: tuple[Outcome, Outcome]) -> Ended:
        await stage.env.run_until_idle()
        tables = await read_tables(stage.env)
        wrong = [*find(tables), *await unexplained(stage.env, tables), *self.area.find(stage, tables)]
        return Ended(outcomes, self.area.describe(stage, tables), wrong)

    async def _stage(self) -> Stage:
        """A new one, in the env as long as it serves."""
        if self._env is not None and self._left <= 0:
            await self._close()
        if self._env is None:
            self._env = await RaceEnv(self.area.app, self._where).__aenter__()
            self._left = self._most
        self._left -= 1
        stage = Stage(self._env, self._left)
        await self._setup(stage)
        return stage

    async def _setup(self, stage: Stage) -> None:
        stage.env.gates.begin()
        task = asyncio.ensure_future(self.area.setup(stage))
        await self._drive(stage, cast("asyncio.Future[Outcome]", task))
        await stage.env.run_until_idle()

    async def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            await env.__aexit__(None, None, None)


def _differences(
    operations: tuple[Operation, Operation], ended: Ended, allowed: Sequence[Ended], states: Sequence[State]
) -> Iterable[str]:
    """Outcomes and rows that no serial order gives."""
    for place, operation in enumerate(operations):
        outcome = ended.outcomes[place]
        known = {one.outcomes[place] for one in allowed}
        if outcome not in known and not operation.allows(outcome):
            yield f"{operation.name} gives {outcome}; one after the other they give {sorted(known)}"
    for key in dict.fromkeys([*ended.state, *(key for state in states for key in state)]):
        value, known_values = ended.state.get(key), {state.get(key) for state in states}
        if value not in known_values:
            yield f"{key} is {value}; one after the other it is {' or '.join(map(str, known_values))}"
