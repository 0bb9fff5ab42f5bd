"""The bound on bytes, and what the caches count, in `SessionCache` and in `Sessions`."""

from __future__ import annotations

import anyio
import pytest

from affinity import SessionCache, Sessions
from affinity.errors import InvalidOptions, SessionWriteConflict
from affinity.session.state_cache import Address, CacheEntry, StateCache
from tests.session.activities import Chat, Host
from tests.session.application import Application, LeaseContext, State, used

pytestmark = pytest.mark.anyio


def cache_of(app: Application, max_bytes: int) -> SessionCache[State]:
    return SessionCache[State](
        hydrate=app.hydrate, dispose=app.dispose, max_bytes=max_bytes, size_of=lambda state: state.turns * 10 + 10
    )


async def visit(cache: SessionCache[State], session_id: str, turns: int = 0) -> State:
    async with cache.use(LeaseContext(session_id)) as state:
        state.turns += turns
    return state


async def test_the_least_recently_used_copies_go_when_there_are_too_many_bytes(app: Application) -> None:
    cache = cache_of(app, 30)
    for session_id in "abc":
        await visit(cache, session_id)
    assert cache.stats.bytes == 30
    await visit(cache, "a")
    await visit(cache, "d")
    assert app.disposed == {2: 1}
    await visit(cache, "d", turns=1)  # grows, and pushes c out
    assert app.disposed == {2: 1, 3: 1}
    assert (cache.stats.bytes, cache.stats.size, cache.stats.evictions) == (30, 2, 2)


async def test_room_for_a_hydrated_state_is_made_immediately(app: Application) -> None:
    cache = cache_of(app, 10)
    await visit(cache, "a")
    async with cache.use(LeaseContext("b")):
        assert app.disposed == {1: 1}


async def test_a_copy_in_use_stays_however_large(app: Application) -> None:
    cache = cache_of(app, 10)
    async with used(cache, LeaseContext("a")), used(cache, LeaseContext("b")):
        assert cache.stats.bytes == 20
        assert not app.disposed
    assert cache.stats.bytes == 10


async def test_a_copy_over_the_bound_on_its_own_does_not_stay(app: Application) -> None:
    cache = cache_of(app, 5)
    await visit(cache, "a")
    assert app.disposed == {1: 1}
    assert (cache.stats.size, cache.stats.bytes) == (0, 0)


async def test_the_bytes_of_a_put_count(app: Application) -> None:
    cache = cache_of(app, 100)
    await cache.put(LeaseContext("a"), State("a", 1, turns=4))
    assert cache.stats.bytes == 50
    await cache.lost("a")
    assert cache.stats.bytes == 0


async def test_copies_that_wait_for_their_last_user_count(app: Application) -> None:
    cache = cache_of(app, 100)
    async with used(cache, LeaseContext("a")):
        await cache.lost("a")
        assert (cache.stats.size, cache.stats.bytes) == (1, 10)
    assert cache.stats.bytes == 0


async def test_a_size_that_cannot_be_measured_drops_the_copy(app: Application) -> None:
    def size_of(_: State) -> int:
        raise LookupError("unknown")

    cache = SessionCache[State](hydrate=app.hydrate, dispose=app.dispose, size_of=size_of)
    with pytest.raises(LookupError):
        await cache.put(LeaseContext("a"), State("a", 7))
    await cache.lost("a")
    assert app.disposed == {7: 1}


def test_a_bound_on_bytes_needs_a_size() -> None:
    with pytest.raises(InvalidOptions, match="size_of"):
        SessionCache[State](max_bytes=10)
    with pytest.raises(InvalidOptions, match="max_bytes = 0"):
        SessionCache[State](max_bytes=0, size_of=lambda _: 1)


async def test_a_checkpoint_that_is_refused_is_a_conflict(app: Application) -> None:
    def refuse(session_id: str, _: State) -> None:
        raise SessionWriteConflict(session_id, 1, 2, "moved")

    cache = SessionCache[State](hydrate=app.hydrate, checkpoint=refuse)
    with pytest.raises(SessionWriteConflict):
        await visit(cache, "a")
    assert cache.stats.conflicts == 1


# --- the cache itself -------------------------------------------------------------------------------------------------


async def test_a_caller_that_waits_for_a_released_entry_disposes_it() -> None:
    log: list[str] = []

    async def dispose(entry: CacheEntry[str]) -> None:
        log.append(f"dispose {entry}")

    async def hydrate(entry: CacheEntry[str]) -> None:
        log.append(f"load {entry}")

    cache = StateCache[CacheEntry[str]](
        CacheEntry, dispose=dispose, max_sessions=9, max_bytes=None, idle_timeout=None, timer=lambda: 0.0
    )
    users = object(), object()
    old = await cache.pin(Address("s", 1, ""), users[0], hydrate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cache.pin, Address("s", 2, ""), users[1], hydrate)
        await anyio.wait_all_tasks_blocked()
        cache.release(old, id(users[0]))
    epochs = [f"session 's' at epoch {epoch}" for epoch in (1, 2)]
    assert log == [f"load {epochs[0]}", f"dispose {epochs[0]}", f"load {epochs[1]}"]


# --- Sessions ---------------------------------------------------------------------------------------------------------


async def test_by_default_a_state_is_as_large_as_its_encoded_form() -> None:
    host, chats = Host(), Sessions(Chat, kind="chat", max_bytes=250)
    for session_id in "abc":
        await host.say(chats, "x" * 70, ctx=host.activity(session_id))
    assert chats.stats.bytes == 2 * len((await host.stored("a")).state) <= 250
    assert (chats.stats.size, chats.stats.evictions) == (2, 1)
    await chats._lost_all()
    await host.read(chats, "a", epoch=2)
    assert chats.stats.bytes == len((await host.stored("a")).state)


async def test_a_size_function_of_the_state() -> None:
    host, chats = Host(), Sessions(Chat, max_bytes=3, size_of=lambda chat: chat.turns)
    for session_id in "abcd":
        await host.say(chats, ctx=host.activity(session_id))
    assert (chats.stats.size, chats.stats.bytes) == (3, 3)


async def test_a_staged_copy_is_pinned() -> None:
    host, disposed = Host(), list[str]()
    chats = Sessions(Chat, max_sessions=1, dispose=lambda session_id, _: disposed.append(session_id))
    ctx = host.activity("a")
    async with chats.open(ctx) as chat:
        chat.turns = 1
    await host.say(chats, ctx=host.activity("b"))
    await chats.sweep()
    assert disposed == ["b"]
    await host.finish(ctx)
    await host.say(chats, ctx=host.activity("c"))
    assert disposed == ["b", "a"]


async def test_an_idle_copy_goes_with_a_sweep() -> None:
    now = 0.0
    host, chats = Host(), Sessions(Chat, idle_timeout=10, timer=lambda: now)
    await host.say(chats)
    now = 10.0
    await chats.sweep()
    assert (chats.stats.size, chats.stats.evictions) == (0, 1)


async def test_dispose_never_overlaps_with_the_next_hydrate() -> None:
    host, log, go = Host(), list[str](), anyio.Event()

    async def dispose(_: str, __: Chat) -> None:
        log.append("disposing")
        await go.wait()
        log.append("disposed")

    chats = Sessions(Chat, dispose=dispose)
    await host.say(chats)

    async def note() -> None:
        log.append("load")

    host.database.before_load = note
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chats.lost, "s")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(host.say, chats)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert log == ["disposing", "disposed", "load"]
