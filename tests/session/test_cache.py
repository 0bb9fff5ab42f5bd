"""The session cache: served and refused states, and that every state is disposed exactly once."""

from __future__ import annotations

import logging

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from affinity import SessionCache
from affinity.errors import InvalidOptions, SessionError, UnknownSession
from affinity.session import CacheStats
from tests.session.application import Application, LeaseContext, State, noisy_cache, used, visit

pytestmark = pytest.mark.anyio


# --- hits, misses, checkpoints ----------------------------------------------------------------------------------------


async def test_state_is_hydrated_once_and_saved_after_each_use(app: Application) -> None:
    cache = app.cache()
    first, second = await visit(cache), await visit(cache)
    assert first is second
    assert app.saved == [("a", 1), ("a", 2)]
    assert cache.stats == CacheStats(hits=1, misses=1, hydrations=1, size=1)


async def test_checkpoint_can_be_left_to_a_later_use(app: Application) -> None:
    cache = app.cache()
    async with cache.use(LeaseContext(), checkpoint=False) as state:
        state.turns += 1
    assert app.saved == []
    await visit(cache)
    assert app.saved == [("a", 2)]


async def test_sync_callbacks_and_none_at_all() -> None:
    saved: list[str] = []
    cache = SessionCache[list[str]](
        hydrate=lambda session_id: [session_id], checkpoint=lambda _, state: saved.extend(state)
    )
    async with cache.use(LeaseContext("s")) as state:
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
        async with cache.use(LeaseContext()):
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
    for lease in (LeaseContext(None, None), LeaseContext("a", None)):
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
        async with cache.use(LeaseContext("a", epoch)):
            log.append(f"use {epoch}")
    assert log == ["hydrate a", "use 1", "dispose a", "hydrate a", "use 2", "use 2"]
    assert cache.stats.losses == 1


async def test_an_older_epoch_is_refused(app: Application) -> None:
    cache = app.cache()
    await visit(cache, epoch=2)
    with pytest.raises(UnknownSession, match=r"epoch 1.*epoch 2.*moved on"):
        await visit(cache, epoch=1)
    with pytest.raises(UnknownSession, match="moved on"):
        cache.peek(LeaseContext("a", 1))
    with pytest.raises(UnknownSession, match="moved on"):
        await cache.put(LeaseContext("a", 1), State("a", 9))
    assert not app.disposed
    assert cache.peek(LeaseContext("a", 2)).number == 1


async def test_a_newer_epoch_waits_for_the_last_user_of_the_old_copy() -> None:
    app = Application()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose)
    numbers = []

    async def newer() -> None:
        numbers.append((await visit(cache, epoch=2)).number)
        assert app.disposed == {1: 1}

    async with anyio.create_task_group() as tasks, used(cache, LeaseContext()):
        tasks.start_soon(newer)
        await anyio.wait_all_tasks_blocked()
        assert numbers == []
        assert not app.disposed
    assert numbers == [2]


# --- leases that end --------------------------------------------------------------------------------------------------


async def test_a_lost_session_is_disposed_immediately(app: Application) -> None:
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
    assert cache.peek(LeaseContext("a", 5)).number == 1
    await cache.lost("a", None)
    assert app.disposed == {1: 1}


async def test_a_session_lost_while_in_use_is_disposed_after_its_last_user_and_not_saved(app: Application) -> None:
    cache = app.cache()

    async def lose_while_in_use() -> None:
        async with cache.use(LeaseContext()):
            await cache.lost("a", 1)
            assert not app.disposed

    with pytest.raises(UnknownSession, match="lost while in use"):
        await lose_while_in_use()
    assert app.disposed == {1: 1}
    assert app.saved == []


async def test_without_a_checkpoint_a_use_outlives_the_loss() -> None:
    app = Application()
    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose)
    async with cache.use(LeaseContext()) as state:
        await cache.lost("a")
        state.turns += 1
    assert app.disposed == {1: 1}


async def test_an_activity_that_uses_a_lost_session_twice_does_not_wait_for_itself() -> None:
    app, lease = Application(), LeaseContext()
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
    async with anyio.create_task_group() as tasks, used(cache, LeaseContext()):
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
    await cache._lost_all()
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
    await cache._lost_all()
    assert calls == ["a"]
    assert "session 'a' at epoch 1" in caplog.text
    assert "already closed" in caplog.text


async def test_dispose_that_hangs_is_given_up(
    app: Application, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: str, __: State) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("affinity.session.resources.DISPOSE_SECONDS", 0.0)
    cache = SessionCache[State](hydrate=app.hydrate, dispose=hang)
    await visit(cache)
    await cache.lost("a")
    assert cache.stats.size == 0
    assert "TimeoutError" in caplog.text


async def test_a_hydrate_that_is_cancelled_after_the_loss_leaves_nothing_to_dispose(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disposed: list[str] = []

    async def hydrate(_: str) -> State:
        await anyio.sleep_forever()
        raise AssertionError

    cache = SessionCache[State](hydrate=hydrate, dispose=lambda session_id, _: disposed.append(session_id))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(visit, cache)
        await anyio.wait_all_tasks_blocked()
        await cache._lost_all()
        tasks.cancel_scope.cancel()
    assert (disposed, caplog.records, cache.stats.size) == ([], [], 0)
