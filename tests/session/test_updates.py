"""`Sessions.update`: open, change, save; again when other code has written the record meanwhile."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from affinity import MemorySessionStore, Sessions, open_store
from affinity.errors import InvalidOptions, SessionSaveFailed, SessionWriteConflict
from tests.session.activities import Chat, CountingStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def chats() -> Sessions[Chat]:
    return Sessions(Chat, kind="chat", store=MemorySessionStore(), auto_save=False)


async def write(chats: Sessions[Chat], text: str) -> None:
    async with chats.open("s", auto_save=True) as chat:
        chat.lines.append(text)


async def lines(chats: Sessions[Chat]) -> list[str]:
    async with chats.open("s") as chat:
        return chat.lines


async def test_it_saves_what_a_function_of_either_kind_changes_and_returns_its_result(chats: Sessions[Chat]) -> None:
    """Also where blocks do not save by themselves."""

    def add(chat: Chat) -> int:
        chat.lines.append("one")
        return len(chat.lines)

    async def add_later(chat: Chat) -> str:
        await anyio.sleep(0)
        return f"{add(chat)} lines"

    assert await chats.update("s", add) == 1
    assert await chats.update("s", add_later) == "2 lines"
    assert await lines(chats) == ["one", "one"]


async def test_a_conflict_repeats_it_with_the_state_that_the_other_code_has_written(chats: Sessions[Chat]) -> None:
    calls = 0

    async def add(chat: Chat) -> None:
        nonlocal calls
        calls += 1
        chat.lines.append(f"{calls} behind {len(chat.lines)}")
        if calls < 3:
            await write(chats, "other")

    await chats.update("s", add)
    assert await lines(chats) == ["other", "other", "3 behind 2"]


async def test_the_last_attempt_raises_the_conflict(chats: Sessions[Chat]) -> None:
    calls: list[int] = []

    async def add(chat: Chat) -> None:
        calls.append(len(chat.lines))
        chat.lines.append("mine")
        await write(chats, "other")

    with pytest.raises(SessionWriteConflict):
        await chats.update("s", add, attempts=2)
    assert calls == [0, 1]
    assert await lines(chats) == ["other", "other"]


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5])
async def test_a_number_of_attempts_that_is_none_is_refused(chats: Sessions[Chat], attempts: int) -> None:
    with pytest.raises(InvalidOptions, match="attempts"):
        await chats.update("s", lambda chat: None, attempts=attempts)


async def test_other_errors_are_raised_by_the_first_attempt(chats: Sessions[Chat]) -> None:
    calls: list[None] = []

    def divide(chat: Chat) -> None:
        calls.append(None)
        chat.lines.append("lost")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await chats.update("s", divide)
    store = CountingStore()

    def use_up(chat: Chat) -> None:
        calls.append(None)
        store.failure = OSError("no room")

    with pytest.raises(SessionSaveFailed):
        await chats.update("s", use_up, store=store)
    assert len(calls) == 2
    assert await lines(chats) == []


async def test_the_sync_form_repeats_it_in_the_callers_thread(chats: Sessions[Chat]) -> None:
    calls = 0

    def add(chat: Chat) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            anyio.from_thread.run(write, chats, "other")
        chat.lines.append("mine")
        return len(chat.lines)

    assert await anyio.to_thread.run_sync(chats.update_sync, "s", add) == 2
    assert await lines(chats) == ["other", "mine"]


async def test_none_of_the_changes_of_several_writers_is_lost(any_url: str) -> None:
    chats = Sessions(Chat, kind="chat")

    async def writer(name: int) -> None:
        async with open_store(any_url) as store:
            for _ in range(4):
                await chats.update("s", lambda chat: chat.lines.append(str(name)), store=store, attempts=100)

    async with anyio.create_task_group() as tasks:
        for name in range(3):
            tasks.start_soon(writer, name)
    async with open_store(any_url) as store, chats.open("s", store=store) as chat:
        assert sorted(chat.lines) == [str(name) for name in range(3) for _ in range(4)]
