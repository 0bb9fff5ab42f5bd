"""The session cache: what is served, what is refused, and that every state is disposed exactly once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from affinity.errors import InvalidOptions, SessionError, UnknownSession
from affinity.session import CacheStats, SessionCache, SessionContext, SessionListener

pytestmark = pytest.mark.anyio


@dataclass
class Lease:
    """An activity context, as far as the cache looks at one."""

    session_id: str | None = "a"
    session_epoch: int | None = 1


@dataclass(eq=False)
class State:
    session_id: str
    number: int
    turns: int = 0


@dataclass
class Application:
    """Callbacks that write down what the cache asked for."""

    made: list[State] = field(default_factory=list)
    saved: list[tuple[str, int]] = field(default_factory=list)
    disposed: Counter[int] = field(default_factory=Counter)
    now: float = 0.0

    async def hydrate(self, session_id: str) -> State:
        await anyio.lowlevel.checkpoint()
        self.made.append(State(session_id, len(self.made) + 1))
        return self.made[-1]

    async def checkpoint(self, session_id: str, state: State) -> None:
        await anyio.lowlevel.checkpoint()
        self.saved.append((session_id, state.turns))

    async def dispose(self, session_id: str, state: State) -> None:
        assert session_id == state.session_id
        self.disposed[state.number] += 1
        await anyio.lowlevel.checkpoint()

    def cache(self, *, max_sessions: int = 100, idle_timeout: float | None = 10.0) -> SessionCache[State]:
        return SessionCache(
            hydrate=self.hydrate,
            checkpoint=self.checkpoint,
            dispose=self.dispose,
            max_sessions=max_sessions,
            idle_timeout=idle_timeout,
            timer=lambda: self.now,
        )


@pytest.fixture
def app() -> Application:
    return Application()


@asynccontextmanager
async def used(cache: SessionCache[State], lease: SessionContext) -> AsyncIterator[State]:
    """A use by another task, for as long as the block lasts."""
    leave, entered, states = anyio.Event(), anyio.Event(), []

    async def user() -> None:
        async with cache.use(lease) as state:
            states.append(state)
            entered.set()
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(user)
        await entered.wait()
        try:
            yield states[0]
        finally:
            leave.set()


async def visit(
    cache: SessionCache[State], session_id: str = "a", epoch: int = 1, *, error: Exception | None = None
) -> State:
    async with cache.use(Lease(session_id, epoch)) as state:
        state.turns += 1
        if error is not None:
            raise error
    return state


def noisy_cache(log: list[str], *, max_sessions: int = 100) -> SessionCache[str]:
    def hydrate(session_id: str) -> str:
        log.append(f"hydrate {session_id}")
        return session_id

    def dispose(session_id: str, _: str) -> None:
        log.append(f"dispose {session_id}")

    return SessionCache(hydrate=hydrate, dispose=dispose, max_sessions=max_sessions)


# --- hits, misses, checkpoints ----------------------------------------------------------------------------------------


async def test_state_is_hydrated_once_and_saved_after_each_use(app: Application) -> None:
    cache = app.cache()
    first, second = await visit(cache), await visit(cache)
    assert first is second
    assert app.saved == [("a", 1), ("a", 2)]
    assert cache.stats == CacheStats(hits=1, misses=1, hydrations=1, size=1)


async def test_checkpoint_can_be_left_to_a_later_use(app: Application) -> None:
    cache = app.cache()
    async with cache.use(Lease(), checkpoint=False) as state:
        state.turns += 1
    assert app.saved == []
    await visit(cache)
    assert app.saved == [("a", 2)]


async def test_sync_callbacks_and_none_at_all() -> None:
    saved: list[str] = []
    cache = SessionCache[list[str]](
        hydrate=lambda session_id: [session_id], checkpoint=lambda _, state: saved.extend(state)
    )
    async with cache.use(Lease("s")) as state:
        assert state == ["s"]
    assert saved == ["s"]
    await cache.aclose()


async def test_an_error_in_the_block_drops_the_copy_and_saves_nothing(app: Application) -> None:
    cache = app.cache()
    with pytest.raises(ZeroDivisionError):
        await visit(cache, error=ZeroDivisionError())
    assert app.saved == []
    assert app.disposed == {1: 1}
    assert (await visit(cache)).number == 2


async def test_an_error_in_the_checkpoint_drops_the_copy(app: Application) -> None:
    async def refuse(_: str, __: State) -> None:
        raise OSError("disk full")

    cache = SessionCache[State](hydrate=app.hydrate, checkpoint=refuse, dispose=app.dispose)
    with pytest.raises(OSError, match="disk full"):
        await visit(cache)
    assert app.disposed == {1: 1}
    assert cache.stats.size == 0


async def test_a_cancelled_use_drops_the_copy_and_disposes_it(app: Application) -> None:
    cache = app.cache()
    with anyio.CancelScope() as scope:
        async with cache.use(Lease()):
            scope.cancel()
            await anyio.sleep_forever()
    assert app.disposed == {1: 1}
    assert cache.stats.size == 0


async def test_checkpoints_of_concurrent_uses_keep_their_order(app: Application) -> None:
    inside = most = 0

    async def checkpoint(_: str, __: State) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.lowlevel.checkpoint()
        inside -= 1

    cache = SessionCache[State](hydrate=app.hydrate, checkpoint=checkpoint)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(visit, cache)
    assert most == 1


async def test_work_without_a_session_is_refused(app: Application) -> None:
    cache = app.cache()
    for lease in (Lease(None, None), Lease("a", None)):
        with pytest.raises(SessionError, match="on_session"):
            async with cache.use(lease):
                pass
        with pytest.raises(SessionError, match="on_session"):
            cache.peek(lease)


@pytest.mark.parametrize(
    "options", [{"max_sessions": 0}, {"max_sessions": -1}, {"idle_timeout": 0}, {"idle_timeout": -1}]
)
def test_bounds_must_be_positive(options: dict[str, int]) -> None:
    with pytest.raises(InvalidOptions, match=str(next(iter(options.values())))):
        SessionCache[State](**options)  # type: ignore[arg-type]


# --- single flight ----------------------------------------------------------------------------------------------------


async def test_concurrent_uses_hydrate_once(app: Application) -> None:
    cache = app.cache()
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(visit, cache)
    assert len(app.made) == 1
    assert app.made[0].turns == 20


async def test_a_failed_hydrate_reaches_all_waiters_and_caches_nothing() -> None:
    calls, errors, go = 0, [], anyio.Event()

    async def hydrate(session_id: str) -> State:
        nonlocal calls
        calls += 1
        await go.wait()
        if calls == 1:
            raise OSError("store is down")
        return State(session_id, calls)

    cache = SessionCache[State](hydrate=hydrate)

    async def waiter() -> None:
        try:
            await visit(cache)
        except OSError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert calls == 1
    assert len(errors) == 3
    assert cache.stats.size == 0
    assert (await visit(cache)).number == 2


async def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    await _cancel_one_of_two(first=False)


async def test_when_the_one_that_hydrates_is_cancelled_another_takes_over() -> None:
    await _cancel_one_of_two(first=True)


async def _cancel_one_of_two(*, first: bool) -> None:
    calls, got, go, scope = 0, [], anyio.Event(), anyio.CancelScope()

    async def hydrate(session_id: str) -> State:
        nonlocal calls
        calls += 1
        await go.wait()
        return State(session_id, calls)

    cache = SessionCache[State](hydrate=hydrate)

    async def cancelled() -> None:
        with scope:
            got.append(await visit(cache))

    async def patient() -> None:
        got.append(await visit(cache))

    async with anyio.create_task_group() as tasks:
        for task in (cancelled, patient) if first else (patient, cancelled):
            tasks.start_soon(task)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert [state.number for state in got] == [2 if first else 1]
    assert cache.stats.size == 1


async def test_when_the_only_one_that_hydrates_is_cancelled_nothing_stays(app: Application) -> None:
    async def hang(_: str) -> State:
        scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    cache = SessionCache[State](hydrate=hang, dispose=app.dispose)
    with anyio.CancelScope() as scope:
        await visit(cache)
    assert cache.stats.size == 0
    assert not app.disposed


# --- epochs -----------------------------------------------------------------------------------------------------------


async def test_a_newer_epoch_disposes_the_old_copy_before_it_hydrates() -> None:
    log: list[str] = []
    cache = noisy_cache(log)
    for epoch in (1, 2, 2):
        async with cache.use(Lease("a", epoch)):
            log.append(f"use {epoch}")
    assert log == ["hydrate a", "use 1", "dispose a", "hydrate a", "use 2", "use 2"]
    assert cache.stats.losses == 1


async def test_an_older_epoch_is_refused(app: Application) -> None:
    cache = app.cache()
    await visit(cache, epoch=2)
    with pytest.raises(UnknownSession, match=r"epoch 1.*epoch 2.*moved on"):
        await visit(cache, epoch=1)
    with pytest.raises(UnknownSession, match="moved on"):
        cache.peek(Lease("a", 1))
    with pytest.raises(UnknownSession, match="moved on"):
        await cache.put(Lease("a", 1), State("a", 9))
    assert not app.disposed
    assert cache.peek(Lease("a", 2)).number == 1


async def test_a_newer_epoch_waits_for_the_last_user_of_the_old_copy() -> None:
    app = Application()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose)
    numbers = []

    async def newer() -> None:
        numbers.append((await visit(cache, epoch=2)).number)
        assert app.disposed == {1: 1}

    async with anyio.create_task_group() as tasks, used(cache, Lease()):
        tasks.start_soon(newer)
        await anyio.wait_all_tasks_blocked()
        assert numbers == []
        assert not app.disposed
    assert numbers == [2]


# --- leases that end --------------------------------------------------------------------------------------------------


async def test_a_lost_session_is_disposed_at_once(app: Application) -> None:
    cache = app.cache()
    await visit(cache)
    await cache.lost("a", 1)
    await cache.lost("a")
    await cache.lost("never seen", 3)
    assert app.disposed == {1: 1}
    assert cache.stats == CacheStats(misses=1, hydrations=1, losses=1)


async def test_the_loss_of_an_older_lease_leaves_a_newer_copy_alone(app: Application) -> None:
    cache = app.cache()
    await visit(cache, epoch=5)
    await cache.lost("a", 4)
    assert cache.peek(Lease("a", 5)).number == 1
    await cache.lost("a", None)
    assert app.disposed == {1: 1}


async def test_a_session_lost_while_in_use_is_disposed_after_its_last_user_and_not_saved(app: Application) -> None:
    cache = app.cache()

    async def lose_while_in_use() -> None:
        async with cache.use(Lease()):
            await cache.lost("a", 1)
            assert not app.disposed

    with pytest.raises(UnknownSession, match="lost while in use"):
        await lose_while_in_use()
    assert app.disposed == {1: 1}
    assert app.saved == []


async def test_without_a_checkpoint_a_use_outlives_the_loss() -> None:
    app = Application()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose)
    async with cache.use(Lease()) as state:
        await cache.lost("a")
        state.turns += 1
    assert app.disposed == {1: 1}


async def test_an_activity_that_uses_a_lost_session_twice_does_not_wait_for_itself() -> None:
    app, lease = Application(), Lease()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose)
    async with cache.use(lease) as outer:
        await cache.lost("a")
        async with cache.use(lease) as inner:
            assert inner is outer
        assert not app.disposed
    assert app.disposed == {1: 1}


async def test_a_session_claimed_again_at_its_old_epoch_is_hydrated_again() -> None:
    app = Application()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose)
    async with anyio.create_task_group() as tasks, used(cache, Lease()):
        await cache.lost("a")
        tasks.start_soon(visit, cache)
        await anyio.wait_all_tasks_blocked()
        assert len(app.made) == 1
    assert len(app.made) == 2
    assert app.disposed == {1: 1}


async def test_a_loss_during_hydrate_disposes_what_it_brings() -> None:
    app, go = Application(), anyio.Event()

    async def hydrate(session_id: str) -> State:
        await go.wait()
        return await app.hydrate(session_id)

    cache = SessionCache[State](hydrate=hydrate, dispose=app.dispose)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(visit, cache)
        await anyio.wait_all_tasks_blocked()
        await cache.lost("a")
        go.set()
    assert app.disposed == {1: 1}
    assert cache.stats.size == 0


async def test_all_leases_lost_disposes_side_by_side(app: Application) -> None:
    together = 0

    async def dispose(session_id: str, state: State) -> None:
        nonlocal together
        together += 1
        if together == 3:
            all_there.set()
        await all_there.wait()

    all_there = anyio.Event()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=dispose)
    for session_id in "abc":
        await visit(cache, session_id)
    await cache.lost_all()
    assert cache.stats.size == 0
    assert cache.stats.losses == 3


async def test_close_disposes_and_the_cache_serves_the_next_worker(app: Application) -> None:
    cache = app.cache()
    await visit(cache)
    await cache.aclose()
    await cache.aclose()
    assert app.disposed == {1: 1}
    assert (await visit(cache)).number == 2


async def test_dispose_that_raises_is_logged_and_not_repeated(
    app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def dispose(session_id: str, _: State) -> None:
        calls.append(session_id)
        raise OSError("already closed")

    cache = SessionCache[State](hydrate=app.hydrate, dispose=dispose)
    await visit(cache)
    with caplog.at_level(logging.ERROR):
        await cache.lost("a")
    await cache.lost_all()
    assert calls == ["a"]
    assert "session 'a' at epoch 1" in caplog.text
    assert "already closed" in caplog.text


async def test_dispose_that_hangs_is_given_up(
    app: Application, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: str, __: State) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("affinity.session.cache.DISPOSE_SECONDS", 0.0)
    cache = SessionCache[State](hydrate=app.hydrate, dispose=hang)
    await visit(cache)
    await cache.lost("a")
    assert cache.stats.size == 0
    assert "TimeoutError" in caplog.text


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_the_least_recently_used_copy_is_evicted(app: Application) -> None:
    cache = app.cache(max_sessions=2)
    await visit(cache, "a")
    await visit(cache, "b")
    cache.peek(Lease("a"))
    await visit(cache, "c")
    assert app.disposed == {2: 1}
    assert cache.stats.evictions == 1
    assert cache.stats.size == 2


async def test_the_victim_is_disposed_before_its_place_is_filled(app: Application) -> None:
    log: list[str] = []
    cache = noisy_cache(log, max_sessions=1)
    for session_id in "ab":
        async with cache.use(Lease(session_id)):
            pass
    assert log == ["hydrate a", "dispose a", "hydrate b"]


async def test_when_all_copies_are_in_use_the_bound_is_exceeded_then_restored(app: Application) -> None:
    cache = app.cache(max_sessions=1)
    async with used(cache, Lease("a")), used(cache, Lease("b")):
        assert cache.stats.size == 2
        assert not app.disposed
    assert cache.stats.size == 1
    assert sum(app.disposed.values()) == 1


async def test_idle_copies_are_swept_and_used_ones_are_not(app: Application) -> None:
    cache = app.cache(idle_timeout=10)
    await visit(cache, "idle")
    async with used(cache, Lease("busy")):
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


async def test_an_idle_copy_is_not_served_even_when_nobody_sweeps(app: Application) -> None:
    cache = app.cache(idle_timeout=10)
    await visit(cache)
    app.now = 10
    with pytest.raises(UnknownSession):
        cache.peek(Lease())
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
    assert cache.peek(Lease("a", 2)).number == 2


async def test_without_an_idle_timeout_copies_stay(app: Application) -> None:
    cache = app.cache(idle_timeout=None)
    await visit(cache)
    app.now = 1e12
    await cache.sweep()
    assert cache.peek(Lease()).number == 1


# --- option A ---------------------------------------------------------------------------------------------------------


async def test_reactive_use_detects_the_migration_and_hydrates_by_an_activity(app: Application) -> None:
    cache = SessionCache[State](dispose=app.dispose)
    with pytest.raises(UnknownSession, match="no state of session 'a'"):
        cache.peek(Lease())
    with pytest.raises(UnknownSession, match="no state of session 'a'"):
        await visit(cache)
    state = State("a", 7)
    await cache.put(Lease(), state)
    assert cache.peek(Lease()) is state
    assert await visit(cache) is state
    with pytest.raises(UnknownSession, match="hydrate it again"):
        cache.peek(Lease("a", 2))
    await cache.put(Lease("a", 2), State("a", 8))
    assert app.disposed == {7: 1}
    assert cache.peek(Lease("a", 2)).number == 8
    assert cache.stats.hydrations == 2


async def test_put_again_replaces_and_the_same_state_stays(app: Application) -> None:
    cache = SessionCache[State](dispose=app.dispose)
    state = State("a", 1)
    await cache.put(Lease(), state)
    await cache.put(Lease(), state)
    assert not app.disposed
    await cache.put(Lease(), State("a", 2))
    assert app.disposed == {1: 1}
    assert cache.stats.hydrations == 2


async def test_put_within_a_use_of_the_same_activity_is_refused(app: Application) -> None:
    cache, lease = app.cache(), Lease()
    async with cache.use(lease):
        with pytest.raises(SessionError, match="in use"):
            await cache.put(lease, State("a", 2))
    assert cache.peek(lease).number == 1


async def test_put_respects_the_bound(app: Application) -> None:
    cache = app.cache(max_sessions=1)
    await cache.put(Lease("a"), State("a", 1))
    await cache.put(Lease("b"), State("b", 2))
    assert app.disposed == {1: 1}


# --- sync activities --------------------------------------------------------------------------------------------------


async def test_a_sync_activity_uses_the_state_from_its_thread(app: Application) -> None:
    cache = app.cache()

    def activity() -> int:
        with cache.use_sync(Lease()) as state:
            state.turns += 1
            return state.turns

    assert await anyio.to_thread.run_sync(activity) == 1
    assert app.saved == [("a", 1)]


async def test_a_sync_activity_that_raises_drops_the_copy(app: Application) -> None:
    cache = app.cache()

    def activity() -> None:
        with cache.use_sync(Lease()):
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
        with cache.use_sync(Lease()) as state:
            anyio.from_thread.run_sync(scope.cancel)
            state.turns += 1

    with anyio.CancelScope() as scope:
        await anyio.to_thread.run_sync(activity)
    assert app.saved == [("a", 1)]
    await cache.lost("a")
    assert app.disposed == {1: 1}


async def test_use_sync_needs_a_thread_of_anyio(app: Application) -> None:
    with pytest.raises(RuntimeError), app.cache().use_sync(Lease()):
        pass


def test_the_cache_is_what_a_worker_listens_with() -> None:
    listener: SessionListener = SessionCache[State]()
    assert listener
