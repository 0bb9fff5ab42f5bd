"""The session cache: its bounds, the reactive option, sync activities, and everything together."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from affinity import SessionCache
from affinity.errors import SessionError, UnknownSession
from affinity.orchestration.app import SessionListener
from tests.session.application import Application, LeaseContext, State, noisy_cache, used, visit

pytestmark = pytest.mark.anyio


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_the_least_recently_used_copy_is_evicted(app: Application) -> None:
    cache = app.cache(max_sessions=2)
    await visit(cache, "a")
    await visit(cache, "b")
    cache.peek(LeaseContext("a"))
    await visit(cache, "c")
    assert app.disposed == {2: 1}
    assert cache.stats.evictions == 1
    assert cache.stats.size == 2


async def test_the_victim_is_disposed_before_its_place_is_filled(app: Application) -> None:
    log: list[str] = []
    cache = noisy_cache(log, max_sessions=1)
    for session_id in "ab":
        async with cache.use(LeaseContext(session_id)):
            pass
    assert log == ["hydrate a", "dispose a", "hydrate b"]


async def test_when_all_copies_are_in_use_the_bound_is_exceeded_then_restored(app: Application) -> None:
    cache = app.cache(max_sessions=1)
    async with used(cache, LeaseContext("a")), used(cache, LeaseContext("b")):
        assert cache.stats.size == 2
        assert not app.disposed
    assert cache.stats.size == 1
    assert sum(app.disposed.values()) == 1


async def test_idle_copies_are_swept_and_used_ones_are_not(app: Application) -> None:
    cache = app.cache(idle_timeout=10)
    await visit(cache, "idle")
    async with used(cache, LeaseContext("busy")):
        app.now = 9
        await cache.sweep()
        assert not app.disposed
        app.now = 10
        await cache.sweep()
        assert app.disposed == {1: 1}
    app.now = 19
    await cache.sweep()
    assert cache.stats.size == 1
    app.now = 20
    await cache.sweep()
    assert app.disposed == {1: 1, 2: 1}
    assert cache.stats.evictions == 2


async def test_an_idle_copy_is_not_served_even_without_a_sweep(app: Application) -> None:
    cache = app.cache(idle_timeout=10)
    await visit(cache)
    app.now = 10
    with pytest.raises(UnknownSession):
        cache.peek(LeaseContext())
    assert (await visit(cache)).number == 2
    assert app.disposed == {1: 1}


async def test_a_session_lost_after_it_expired_is_disposed_once(app: Application) -> None:
    cache = app.cache(idle_timeout=10)
    await visit(cache)
    app.now = 10
    await cache.lost("a")
    await visit(cache, epoch=2)
    await cache.sweep()
    assert app.disposed == {1: 1}
    assert cache.peek(LeaseContext("a", 2)).number == 2


async def test_without_an_idle_timeout_copies_stay(app: Application) -> None:
    cache = app.cache(idle_timeout=None)
    await visit(cache)
    app.now = 1e12
    await cache.sweep()
    assert cache.peek(LeaseContext()).number == 1


# --- code that detects a move of the session itself -------------------------------------------------------------------


async def test_reactive_use_detects_the_migration_and_hydrates_by_an_activity(app: Application) -> None:
    cache = SessionCache[State](dispose=app.dispose)
    with pytest.raises(UnknownSession, match="no state of session 'a'"):
        cache.peek(LeaseContext())
    with pytest.raises(UnknownSession, match="no state of session 'a'"):
        await visit(cache)
    state = State("a", 7)
    await cache.put(LeaseContext(), state)
    assert cache.peek(LeaseContext()) is state
    assert await visit(cache) is state
    with pytest.raises(UnknownSession, match="hydrate it again"):
        cache.peek(LeaseContext("a", 2))
    await cache.put(LeaseContext("a", 2), State("a", 8))
    assert app.disposed == {7: 1}
    assert cache.peek(LeaseContext("a", 2)).number == 8
    assert cache.stats.hydrations == 2


async def test_put_again_replaces_and_the_same_state_stays(app: Application) -> None:
    cache = SessionCache[State](dispose=app.dispose)
    state = State("a", 1)
    await cache.put(LeaseContext(), state)
    await cache.put(LeaseContext(), state)
    assert not app.disposed
    await cache.put(LeaseContext(), State("a", 2))
    assert app.disposed == {1: 1}
    assert cache.stats.hydrations == 2


async def test_put_within_a_use_of_the_same_activity_is_refused(app: Application) -> None:
    cache, lease = app.cache(), LeaseContext()
    async with cache.use(lease):
        with pytest.raises(SessionError, match="in use"):
            await cache.put(lease, State("a", 2))
    assert cache.peek(lease).number == 1


async def test_put_respects_the_bound(app: Application) -> None:
    cache = app.cache(max_sessions=1)
    await cache.put(LeaseContext("a"), State("a", 1))
    await cache.put(LeaseContext("b"), State("b", 2))
    assert app.disposed == {1: 1}


# --- sync activities --------------------------------------------------------------------------------------------------


async def test_a_sync_activity_uses_the_state_from_its_thread(app: Application) -> None:
    cache = app.cache()

    def activity() -> int:
        with cache.use_sync(LeaseContext()) as state:
            state.turns += 1
            return state.turns

    assert await anyio.to_thread.run_sync(activity) == 1
    assert app.saved == [("a", 1)]


async def test_a_sync_activity_that_raises_drops_the_copy(app: Application) -> None:
    cache = app.cache()

    def activity() -> None:
        with cache.use_sync(LeaseContext()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await anyio.to_thread.run_sync(activity)
    assert app.disposed == {1: 1}
    assert app.saved == []


@pytest.mark.parametrize("early", [True, False])
async def test_a_sync_activity_that_is_cancelled_ends_its_use(app: Application, early: bool) -> None:
    cache = app.cache()

    def activity() -> None:
        if early:
            anyio.from_thread.run_sync(scope.cancel)
        with cache.use_sync(LeaseContext()) as state:
            anyio.from_thread.run_sync(scope.cancel)
            state.turns += 1

    with anyio.CancelScope() as scope:
        await anyio.to_thread.run_sync(activity)
    assert app.saved == [("a", 1)]
    await cache.lost("a")
    assert app.disposed == {1: 1}


async def test_use_sync_needs_a_thread_of_anyio(app: Application) -> None:
    with pytest.raises(RuntimeError), app.cache().use_sync(LeaseContext()):
        pass


def test_the_cache_is_what_a_worker_listens_with() -> None:
    listener: SessionListener = SessionCache[State]()
    assert listener


# --- everything together ----------------------------------------------------------------------------------------------


class RandomUses:
    """Random uses, cancellations, losses, moves and sweeps over few sessions, with every callback giving way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.app = Application()
        self.alive = Counter[str]()
        self.in_use = Counter[int]()
        self.epochs = dict.fromkeys("abcd", 1)
        self.cache = SessionCache[State](
            hydrate=self.hydrate,
            checkpoint=self.app.checkpoint,
            dispose=self.dispose,
            max_sessions=2,
            idle_timeout=5,
            timer=lambda: self.app.now,
        )

    async def give_way(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await anyio.lowlevel.checkpoint()

    async def hydrate(self, session_id: str) -> State:
        await self.give_way()
        if self.chance.random() < 0.1:
            raise OSError("store is down")
        state = await self.app.hydrate(session_id)
        self.alive[session_id] += 1
        assert self.alive[session_id] == 1, "two copies of one session"
        return state

    async def dispose(self, session_id: str, state: State) -> None:
        assert not self.in_use[state.number]
        await self.app.dispose(session_id, state)
        await self.give_way()
        self.alive[session_id] -= 1

    async def activity(self, session_id: str) -> None:
        epoch = self.epochs[session_id] - self.chance.choice([0, 0, 0, 1])
        with suppress(OSError, UnknownSession):
            async with self.cache.use(LeaseContext(session_id, epoch)) as state:
                await self.work_on(state)

    async def work_on(self, state: State) -> None:
        self.in_use[state.number] += 1
        try:
            await self.give_way()
            if self.chance.random() < 0.1:
                raise OSError("model is down")
        finally:
            self.in_use[state.number] -= 1

    async def cancelled_activity(self, session_id: str) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.activity, session_id)
            await self.give_way()
            tasks.cancel_scope.cancel()

    async def something(self) -> None:
        session_id = self.chance.choice("abcd")
        self.app.now += 1
        match self.chance.randrange(8):
            case 0:
                await self.cancelled_activity(session_id)
            case 1:
                await self.cache.lost(session_id, self.epochs[session_id])
            case 2:
                self.epochs[session_id] += 1
            case 3:
                await self.cache.sweep()
            case _:
                await self.activity(session_id)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_each_state_is_disposed_once_and_never_in_use(seed: int) -> None:
    chaos = RandomUses(seed)
    async with anyio.create_task_group() as tasks:
        for _ in range(300):
            tasks.start_soon(chaos.something)
            await chaos.give_way()
    assert chaos.cache.stats.size <= 2
    await chaos.cache.aclose()
    assert chaos.cache.stats.size == 0
    assert not +chaos.alive
    assert chaos.app.disposed == dict.fromkeys(range(1, len(chaos.app.made) + 1), 1)
