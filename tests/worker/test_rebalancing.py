"""Which sessions a worker offers, to whom and when: the decisions, without a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from affinity import RuntimeOptions, SessionCache
from affinity.provider.contract import (
    FleetLoad,
    Incarnation,
    PlannedMove,
    PlanOutcome,
    Provider,
    WorkerIdentity,
    WorkerLoad,
)
from affinity.worker.rebalancing import LEAST_SURPLUS, MOST_OFFERS, ROUNDS_WITHOUT_GAIN, Rebalancer, choose_targets
from affinity.worker.retry import DatabaseHealth
from affinity.worker.services import WorkerServices
from affinity.worker.sessions import HeldSessions


def load(name: str, held: int | None, capacity: int = 100, **more: Any) -> WorkerLoad:
    """A worker of the app "shop"."""
    load = {"draining": False, "age": 1_000.0, "app": "shop", "code_version": "v1", **more}
    return WorkerLoad(worker_id=name, sessions=held, capacity=capacity, **load)


def choose(*loads: WorkerLoad, me: str = "me", pending: int = 0) -> list[str]:
    return choose_targets(FleetLoad(workers=loads, suspended=False), me, settled_after=60.0, pending=pending)


def test_a_worker_that_holds_much_more_than_its_share_offers() -> None:
    """To workers that hold less than their share, a few in each round."""
    targets = choose(load("me", 100), load("full", 60), load("new", 20), load("newer", 20))
    assert len(targets) == MOST_OFFERS
    assert set(targets) <= {"new", "newer"}


def test_offers_follow_what_the_others_lack() -> None:
    """The emptier worker gets more of them; none gets more than it lacks to its share."""
    rounds = [choose(load("me", 100), load("a", 0), load("b", 47)) for _ in range(400)]
    chosen = Counter(name for one in rounds for name in one)
    assert chosen["a"] > 5 * chosen["b"] > 0
    assert max(Counter(one)["b"] for one in rounds) <= 2


def test_the_share_follows_the_capacity() -> None:
    """A worker that may hold three times as many sessions has three times the share."""
    assert choose(load("me", 75, 300), load("b", 25, 100)) == []
    assert set(choose(load("me", 50, 100), load("b", 50, 300))) == {"b"}
    assert choose(load("me", 50, 300), load("none", 0, 0)) == []


@pytest.mark.parametrize(
    "others",
    [
        [load("b", 95)],
        [load("b", 0, draining=True)],
        [load("b", 0, age=59.0)],
        [load("b", 0, code_version="v2")],
        [load("b", 0, app="other")],
        [load("b", None)],
        [],
    ],
    ids=[
        "near its share",
        "one drains",
        "one is young",
        "two versions",
        "another app",
        "one says nothing",
        "alone",
    ],
)
def test_no_offers(others: Sequence[WorkerLoad]) -> None:
    """Near its share, or while the fleet changes."""
    assert choose(load("me", 100), *others) == []


def test_workers_of_another_app_do_not_count() -> None:
    """Neither in the share, nor as targets."""
    assert choose(load("me", 50), load("b", 50), load("c", 0, app="other")) == []
    assert set(choose(load("me", 50), load("b", 20), load("c", 0, app="other", age=1.0))) == {"b"}


def test_few_sessions_are_not_worth_a_move() -> None:
    """However uneven the shares are, the surplus must be so many sessions."""
    assert choose(load("me", 2 * LEAST_SURPLUS - 1), load("b", 0)) == []
    assert choose(load("me", 2 * LEAST_SURPLUS), load("b", 0)) == ["b"]


def test_offers_that_are_not_taken_yet_count_as_gone() -> None:
    """A session without work stays until its next; more offers would not make it faster."""
    assert choose(load("me", 100), load("b", 0), pending=45) == []


class Clock:
    """In place of the monotonic clock of the sessions."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def held_until_the_end(session_ids: Collection[str]) -> Mapping[str, float]:
    return dict.fromkeys(session_ids, 1_000.0)


def spawn(*_: object) -> None:
    raise AssertionError("no session is assigned here")


def used(held: HeldSessions, session_id: str, times: int = 1, epoch: int = 1) -> None:
    for _ in range(times):
        held.begin(session_id, epoch)
        held.end(session_id)


async def test_idle_sessions_are_offered_once(clock: Clock) -> None:
    """Without work, idle for long enough, and not offered already; until work comes."""
    held = HeldSessions([], 300.0, held_until_the_end, spawn, clock.monotonic)
    used(held, "idle")
    held.begin("busy", 1)
    clock.now += 29
    assert held.movable(idle=30, most=5) == []
    clock.now += 1
    assert held.movable(idle=30, most=5) == ["idle"]
    held.note_offers(["idle"])
    assert held.count_offered() == 1
    assert held.movable(idle=30, most=5) == []
    used(held, "idle")
    clock.now += 30
    assert held.count_offered() == 0
    assert held.movable(idle=30, most=5) == ["idle"]


async def test_the_cheapest_go_first(clock: Clock) -> None:
    """By the time of the hydrate and by how often the session is used."""
    held = HeldSessions([], 300.0, held_until_the_end, spawn, clock.monotonic)
    for epoch, (name, times, seconds) in enumerate((("often", 50, 1.0), ("slow", 5, 20.0), ("cheap", 5, 0.1))):
        used(held, name, times, epoch)
        held.note_hydrates({epoch: seconds})
    clock.now += 60
    assert held.movable(idle=30, most=5) == ["cheap", "often", "slow"]
    assert held.movable(idle=30, most=1) == ["cheap"]


async def test_a_cache_may_keep_its_sessions(clock: Clock) -> None:
    """``movable=False``: while it has their states in memory."""

    async def hydrate(session_id: str) -> str:
        return session_id

    class Context:
        session_id, session_epoch = "kept", 1

    cache = SessionCache[str](hydrate=hydrate, movable=False)
    held = HeldSessions([cache], 300.0, held_until_the_end, spawn, clock.monotonic)
    used(held, "kept")
    used(held, "other")
    async with cache.use(Context()):
        pass
    clock.now += 60
    assert held.movable(idle=30, most=5) == ["other"]
    await cache.lost("kept")
    assert sorted(held.movable(idle=30, most=5)) == ["kept", "other"]


async def test_a_session_that_has_come_stays_for_a_while(clock: Clock) -> None:
    """For ``session_lock_timeout``: no session moves twice within that."""
    held = HeldSessions([], 300.0, held_until_the_end, spawn, clock.monotonic)
    held.add("moved", 2)
    clock.now += 299
    used(held, "moved", epoch=2)
    assert held.movable(idle=0, most=5) == []
    clock.now += 1
    assert held.movable(idle=0, most=5) == ["moved"]


@dataclass
class Fleet:
    """In place of a provider: one other worker, to which each session may go."""

    suspended: bool = False
    other: str = "other"
    outcome: PlanOutcome = "planned"
    moves: list[PlannedMove] = field(default_factory=list)
    held: int = 0

    async def get_load(self, identity: WorkerIdentity, *, held: int) -> FleetLoad:
        self.held = held
        return FleetLoad(workers=[load(identity.worker_id, held), load(self.other, 0)], suspended=self.suspended)

    async def move_session(self, moves: Sequence[PlannedMove]) -> Sequence[PlanOutcome]:
        self.moves += moves
        return [self.outcome] * len(moves)


def rebalancer(fleet: Fleet, held: HeldSessions, **options: Any) -> Rebalancer:
    unused = cast("Any", None)
    services = WorkerServices(
        provider=cast("Provider", fleet),
        identity=WorkerIdentity(worker_id="me", incarnation=Incarnation("i")),
        options=RuntimeOptions.make(worker_node_id="me", **options),
        health=DatabaseHealth("me"),
        metrics=unused,
        fetch_state=unused,
        notifier=unused,
        lease=unused,
    )
    return Rebalancer(services, held)


def filled(clock: Clock, count: int) -> HeldSessions:
    """That many sessions, idle for a minute."""
    held = HeldSessions([], 300.0, held_until_the_end, spawn, clock.monotonic)
    for n in range(count):
        used(held, f"session-{n}")
    clock.now += 60
    return held


async def test_a_round_offers_a_few_sessions(clock: Clock) -> None:
    """It reports the load, and offers a tenth of the sessions, each once."""
    fleet, held = Fleet(), filled(clock, 30)
    one = rebalancer(fleet, held)
    await one.run_round()
    assert fleet.held == 30
    assert [(move.to, move.within, move.reason) for move in fleet.moves] == [("other", None, "rebalanced")] * 3
    await one.run_round()
    assert len({move.session_id for move in fleet.moves}) == 6


@pytest.mark.parametrize("options", [{"rebalance": "off"}, {"placement": "pack"}])
async def test_a_worker_may_make_no_offers(clock: Clock, options: dict[str, Any]) -> None:
    """It still says how many sessions it holds."""
    fleet = Fleet()
    await rebalancer(fleet, filled(clock, 30), **options).run_round()
    assert (fleet.held, fleet.moves) == (30, [])


async def test_no_worker_makes_offers_while_they_are_suspended(clock: Clock) -> None:
    fleet = Fleet(suspended=True)
    one = rebalancer(fleet, filled(clock, 30))
    await one.run_round()
    assert fleet.moves == []
    fleet.suspended = False
    await one.run_round()
    assert len(fleet.moves) == 3


async def test_a_worker_stops_when_its_offers_do_not_help(clock: Clock) -> None:
    """After three rounds in which no session has gone; until one goes, or another worker joins."""
    fleet, held = Fleet(), filled(clock, 100)
    one = rebalancer(fleet, held)
    for _ in range(10):
        await one.run_round()
    assert len(fleet.moves) == MOST_OFFERS * (1 + ROUNDS_WITHOUT_GAIN)
    await held.remove(fleet.moves[0].session_id)
    await one.run_round()
    assert len(fleet.moves) == MOST_OFFERS * (2 + ROUNDS_WITHOUT_GAIN)
    for _ in range(10):
        await one.run_round()
    offered, fleet.other = len(fleet.moves), "joined"
    await one.run_round()
    assert len(fleet.moves) == offered + MOST_OFFERS


async def test_a_session_that_cannot_go_is_offered_again(clock: Clock) -> None:
    """When it had work, or a hold, in the eyes of the database."""
    fleet, held = Fleet(outcome="busy"), filled(clock, 10)
    one = rebalancer(fleet, held)
    await one.run_round()
    assert held.count_offered() == 0
    await one.run_round()
    assert len(fleet.moves) == 2
