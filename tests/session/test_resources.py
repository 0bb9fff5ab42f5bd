"""Resources: opened lazily, shared by key, closed exactly once."""

from __future__ import annotations

import logging
import random
from collections import Counter
from contextlib import suppress

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from affinity import Resource, Sessions
from affinity.errors import InvalidOptions, ResourceClosed, SessionError, SessionLoadFailed
from affinity.session.resources import HeldResources
from tests.session.activities import Chat, CountingStore, Host

pytestmark = pytest.mark.anyio


class Models:
    """Opens and closes, and writes it down."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate: anyio.Event | None = None
        self.failure: Exception | None = None

    async def open(self, key: str) -> str:
        self.log.append(f"open {key}")
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return f"model {key}"

    async def close(self, key: str, model: str) -> None:
        assert model == f"model {key}"
        await anyio.lowlevel.checkpoint()
        self.log.append(f"close {key}")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def one(models: Models) -> Resource[str]:
    """One model for all sessions."""
    return Resource(open=models.open, close=models.close, key=lambda _: "m", name="model")


async def turn(host: Host, chats: Sessions[Chat], resource: Resource[str], session_id: str = "s") -> str:
    ctx = host.activity(session_id)
    opening = chats.open(ctx)
    async with opening:
        model = await opening.resource(resource)
        assert await opening.resource(resource) == model
    await host.finish(ctx)
    return model


# --- beside a session -------------------------------------------------------------------------------------------------


async def test_sessions_share_it_until_the_last_copy_goes(host: Host, models: Models, one: Resource[str]) -> None:
    chats = Sessions(Chat)
    assert await turn(host, chats, one, "a") == "model m"
    await turn(host, chats, one, "a")
    await turn(host, chats, one, "b")
    await chats.lost("a")
    assert models.log == ["open m"]
    await chats.lost("b")
    assert models.log == ["open m", "close m"]
    await turn(host, chats, one, "b")
    await chats.aclose()
    assert models.log == ["open m", "close m"] * 2
    assert len(one) == 0


async def test_by_default_each_session_has_its_own(host: Host, models: Models) -> None:
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat, max_sessions=1)
    await turn(host, chats, own, "a")
    await turn(host, chats, own, "b")  # evicts a
    assert models.log == ["open a", "close a", "open b"]


async def test_it_is_closed_after_the_state_is_disposed(host: Host, models: Models, one: Resource[str]) -> None:
    async def dispose(_: str, __: Chat) -> None:
        models.log.append("dispose")
        raise OSError("cannot")

    chats = Sessions(Chat, dispose=dispose)
    ctx = host.activity()

    async def use_and_fail() -> None:
        opening = chats.open(ctx)
        async with opening:
            await opening.resource(one)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use_and_fail()
    host.settle(ctx, False)
    await chats.sweep()
    assert models.log == ["open m", "dispose"]
    await chats.aclose()
    assert models.log == ["open m", "dispose", "close m"]


# --- failures ---------------------------------------------------------------------------------------------------------


class Broken(Exception):
    """An error that says that what the session uses is of no use any more."""

    disposes_resources = True


async def fail_with(host: Host, chats: Sessions[Chat], used: Resource[str], error: Exception, *, late: bool) -> None:
    """An activity that changes the state and raises: in its block, or behind it."""
    ctx = host.activity()

    async def block() -> None:
        opening = chats.open(ctx)
        async with opening as chat:
            await opening.resource(used)
            chat.lines.append("half")
            if not late:
                raise error

    with suppress(Exception):
        await block()
    ctx.error = error
    host.settle(ctx, False)
    await chats.sweep()


@pytest.mark.parametrize("late", [False, True])
async def test_a_failed_activity_keeps_it_and_hydrates_again(host: Host, models: Models, late: bool) -> None:
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat)
    await host.say(chats, "kept")
    await fail_with(host, chats, own, ZeroDivisionError(), late=late)
    assert models.log == ["open s"]
    assert (await host.read(chats)).lines == ["kept"]
    assert host.database.loads == 2
    await turn(host, chats, own)
    assert models.log == ["open s"]
    await chats.lost("s", 1)
    assert models.log == ["open s", "close s"]


@pytest.mark.parametrize("late", [False, True])
async def test_the_error_may_say_that_it_is_lost(host: Host, models: Models, late: bool) -> None:
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat)
    await fail_with(host, chats, own, Broken(), late=late)
    assert models.log == ["open s", "close s"]
    await turn(host, chats, own)
    assert models.log == ["open s", "close s", "open s"]


@pytest.mark.parametrize("late", [False, True])
async def test_an_option_closes_it_at_each_error(host: Host, models: Models, late: bool) -> None:
    own, chats = Resource(open=models.open, close=models.close, on_error="dispose"), Sessions(Chat)
    await fail_with(host, chats, own, ZeroDivisionError(), late=late)
    assert models.log == ["open s", "close s"]
    with pytest.raises(InvalidOptions, match="on_error"):
        Resource(open=models.open, on_error="drop")  # type: ignore[call-overload]


async def test_what_a_failure_leaves_is_closed_when_it_is_idle_or_evicted(host: Host, models: Models) -> None:
    now = 0.0
    own = Resource(open=models.open, close=models.close)
    chats = Sessions(Chat, max_sessions=1, idle_timeout=60, timer=lambda: now)
    await fail_with(host, chats, own, ZeroDivisionError(), late=False)
    now = 61.0
    await chats.sweep()
    assert models.log == ["open s", "close s"]
    await fail_with(host, chats, own, ZeroDivisionError(), late=False)
    await turn(host, chats, own, "other")
    assert models.log == ["open s", "close s", "open s", "close s", "open other"]


@pytest.mark.parametrize("all_of_them", [False, True])
async def test_a_lease_that_ends_during_the_failure_closes_it(host: Host, models: Models, all_of_them: bool) -> None:
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat)
    opening = chats.open(ctx := host.activity())
    with suppress(SessionError):
        async with opening:
            await opening.resource(own)
            async with chats.open(ctx):
                with suppress(ZeroDivisionError):
                    async with chats.open(ctx):
                        raise ZeroDivisionError
                await (chats._lost_all() if all_of_them else chats.lost("s", 1))
    host.settle(ctx, False)
    await chats.sweep()
    assert models.log == ["open s", "close s"]


async def test_a_failed_load_keeps_it(host: Host, models: Models) -> None:
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat)
    await fail_with(host, chats, own, ZeroDivisionError(), late=False)
    host.database.failure = OSError("away")
    with pytest.raises(SessionLoadFailed):
        await host.read(chats)
    host.database.failure = None
    await turn(host, chats, own)
    assert models.log == ["open s"]


async def test_a_load_that_is_cancelled_keeps_it(host: Host, models: Models) -> None:
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat)
    await fail_with(host, chats, own, ZeroDivisionError(), late=False)
    host.database.before_load = anyio.sleep_forever
    with anyio.move_on_after(0.01):
        await host.read(chats)
    host.database.before_load = None
    await turn(host, chats, own)
    assert models.log == ["open s"]


async def test_closed_means_closed(host: Host, models: Models) -> None:
    """Also in the next process, with a state that is as it was."""
    own, chats = Resource(open=models.open, close=models.close, name="model"), Sessions(Chat)
    opening = chats.open(ctx := host.activity())
    async with opening:
        await opening.resource(own)
        await opening.close_resource(own)
        await opening.close_resource(own)
        assert models.log == ["open s", "close s"]
        with pytest.raises(ResourceClosed, match="'s' has closed"):
            await opening.resource(own)
    await host.finish(ctx)
    await fail_with(host, chats, Resource(open=str.upper), ZeroDivisionError(), late=False)
    for sessions in (chats, Sessions(Chat)):
        with pytest.raises(ResourceClosed):
            await turn(host, sessions, own)
    assert models.log == ["open s", "close s"]


async def test_one_without_a_name_is_not_closed_for_good(host: Host, models: Models) -> None:
    """The next process could not know that it was."""
    own, chats = Resource(open=models.open, close=models.close), Sessions(Chat)
    opening = chats.open(ctx := host.activity())
    async with opening:
        await opening.resource(own)
        with pytest.raises(InvalidOptions, match="give it name="):
            await opening.close_resource(own)
        assert await opening.resource(own) == "model s"
    await host.finish(ctx)
    assert models.log == ["open s"]


async def test_a_sync_activity_closes_it(host: Host, models: Models, one: Resource[str]) -> None:
    chats, ctx = Sessions(Chat), host.activity()

    def work() -> None:
        opening = chats.open_sync(ctx)
        with opening:
            opening.resource(one)
            opening.close_resource(one)

    await anyio.to_thread.run_sync(work)
    await host.finish(ctx)
    assert models.log == ["open m", "close m"]


async def test_it_is_opened_only_within_the_block(host: Host, one: Resource[str]) -> None:
    opening = Sessions(Chat).open(host.activity())
    with pytest.raises(SessionError, match="not open yet"):
        await opening.resource(one)
    async with opening:
        pass
    with pytest.raises(SessionError, match="not open any more"):
        await opening.resource(one)


async def test_without_a_session_there_is_none(one: Resource[str]) -> None:
    opening = Sessions(Chat).open(None, allow_transient=True)
    async with opening:
        with pytest.raises(SessionError, match="belongs to a session"):
            await opening.resource(one)


async def test_a_script_has_it_for_its_block(models: Models, one: Resource[str]) -> None:
    opening = Sessions(Chat, store=CountingStore()).open("s")
    async with opening:
        await opening.resource(one)
        assert models.log == ["open m"]
    assert models.log == ["open m", "close m"]


async def test_a_sync_activity_uses_it(host: Host, one: Resource[str]) -> None:
    ctx, chats = host.activity(), Sessions(Chat)

    def activity() -> str:
        opening = chats.open_sync(ctx)
        with opening:
            return opening.resource(one)

    assert await anyio.to_thread.run_sync(activity) == "model m"
    await host.finish(ctx)


# --- on its own -------------------------------------------------------------------------------------------------------


async def test_concurrent_openings_share_one(models: Models, one: Resource[str]) -> None:
    models.gate = anyio.Event()
    got: list[str] = []

    async def ask(holder: str) -> None:
        got.append(await one.acquire("m", holder))

    async with anyio.create_task_group() as tasks:
        for holder in "abc":
            tasks.start_soon(ask, holder)
        await anyio.wait_all_tasks_blocked()
        models.gate.set()
    assert got == ["model m"] * 3
    for holder in "abc":
        assert models.log == ["open m"]
        await one.release("m", holder)
    await one.release("m", "c")
    await one.release("unknown", "c")
    assert models.log == ["open m", "close m"]


async def test_a_failed_opening_reaches_all_and_is_not_kept(models: Models, one: Resource[str]) -> None:
    models.gate, models.failure = anyio.Event(), OSError("no memory")
    errors: list[Exception] = []

    async def ask(holder: str) -> None:
        try:
            await one.acquire("m", holder)
        except OSError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for holder in "abc":
            tasks.start_soon(ask, holder)
        await anyio.wait_all_tasks_blocked()
        models.gate.set()
    assert len(errors) == 3
    assert len(one) == 0
    models.failure = None
    assert await one.acquire("m", "a") == "model m"
    assert models.log == ["open m", "open m"]


@pytest.mark.parametrize("first", [True, False])
async def test_one_of_two_that_ask_is_cancelled(models: Models, one: Resource[str], first: bool) -> None:
    models.gate = anyio.Event()
    scope = anyio.CancelScope()

    async def cancelled() -> None:
        with scope:
            await one.acquire("m", "cancelled")

    async def patient() -> None:
        await one.acquire("m", "patient")

    async with anyio.create_task_group() as tasks:
        for task in (cancelled, patient) if first else (patient, cancelled):
            tasks.start_soon(task)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        models.gate.set()
    await one.release("m", "patient")
    assert models.log == ["open m"] * (2 if first else 1) + ["close m"]


async def test_a_caller_during_the_close_gets_a_new_one(models: Models, one: Resource[str]) -> None:
    await one.acquire("m", "a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.release, "m", "a")
        tasks.start_soon(one.acquire, "m", "b")
    assert models.log == ["open m", "close m", "open m"]


async def test_a_close_that_hangs_or_fails_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: str, __: str) -> None:
        await anyio.sleep_forever()

    def fail(_: str, __: str) -> None:
        raise OSError("already closed")

    monkeypatch.setattr("affinity.session.resources.DISPOSE_SECONDS", 0.0)
    for close in (hang, fail):
        resource = Resource(open=str.upper, close=close)
        assert await resource.acquire("k", 1) == "K"
        with caplog.at_level(logging.ERROR):
            await resource.release("k", 1)
        assert len(resource) == 0
    assert "TimeoutError" in caplog.text
    assert "already closed" in caplog.text
    assert "resource 'k'" in caplog.text


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_each_opening_is_closed_once(seed: int) -> None:
    chance, is_open, opened = random.Random(seed), Counter[str](), 0

    async def give_way() -> None:
        for _ in range(chance.randrange(4)):
            await anyio.lowlevel.checkpoint()

    async def open_it(key: str) -> str:
        nonlocal opened
        await give_way()
        if chance.random() < 0.2:
            raise OSError("no memory")
        opened += 1
        is_open[key] += 1
        assert is_open[key] == 1, "two of one key"
        return key

    async def close_it(key: str, _: str) -> None:
        await give_way()
        is_open[key] -= 1
        assert is_open[key] == 0

    resource = Resource(open=open_it, close=close_it)

    async def hold(key: str) -> None:
        holder = object()
        with suppress(OSError), anyio.CancelScope() as scope:
            if chance.random() < 0.2:
                scope.cancel()
            assert await resource.acquire(key, holder) == key
            assert is_open[key] == 1
            await give_way()
        await resource.release(key, holder)

    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(hold, chance.choice("ab"))
            await give_way()
    assert opened > 5
    assert not +is_open
    assert len(resource) == 0


async def test_one_that_is_closed_while_it_opens_is_closed() -> None:
    gate = anyio.Event()
    log: list[str] = []

    async def open_slowly(key: str) -> str:
        await gate.wait()
        return key

    resource: Resource[str] = Resource(open=open_slowly, close=lambda key, _: log.append(key))
    held = HeldResources("")

    async def use() -> None:
        with pytest.raises(ResourceClosed):
            await held.get(resource, "s")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await anyio.wait_all_tasks_blocked()
        await held.close(resource)
        gate.set()
    assert (log, len(resource)) == (["s"], 0)
