"""`OpenSession.checkpoint`: a fenced save in the middle of an activity, from which a retry starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest

from affinity import OpenSession, Sessions, SessionStore
from affinity.errors import (
    ConnectionLost,
    SessionError,
    SessionSaveFailed,
    SessionSelfConflict,
    SessionWriteConflict,
)
from affinity.session.stores import RetryingStore
from affinity.session.writer import enter_activity
from tests.session.activities import Activity, Chat, CountingStore, Host

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture(params=["the worker's database", "a store elsewhere"])
def chats(request: pytest.FixtureRequest, host: Host) -> Sessions[Chat]:
    """`saved_in` says where its records are."""
    return Sessions(Chat, kind="chat", store=None if request.param == "the worker's database" else CountingStore())


def saved_in(host: Host, chats: Sessions[Chat]) -> CountingStore:
    store = chats._store or host.database
    assert isinstance(store, CountingStore)
    return store


async def lines(host: Host, chats: Sessions[Chat]) -> list[str]:
    """As the store has them."""
    async with chats.open("s", store=saved_in(host, chats)) as chat:
        return chat.lines


async def say_and_checkpoint(opening: OpenSession[Chat], *said: str) -> None:
    """A block with a checkpoint after all lines but the last."""
    async with opening as chat:
        for line in said[:-1]:
            chat.lines.append(line)
            await opening.checkpoint()
        chat.lines.append(said[-1])


async def raising(opening: OpenSession[Chat], body: Callable[[Chat], Awaitable[None]]) -> None:
    """A block that ends in an error, its own if ``body`` raises none."""
    async with opening as chat:
        await body(chat)
        raise ZeroDivisionError


# --- writes -----------------------------------------------------------------------------------------------------------


async def test_it_is_written_before_the_result_and_the_rest_with_it(host: Host, chats: Sessions[Chat]) -> None:
    store, ctx = saved_in(host, chats), host.activity(epoch=7)
    opening = chats.open(ctx)
    async with opening as chat:
        chat.lines.append("one")
        await opening.checkpoint()
        assert await lines(host, chats) == ["one"]
        record = await store.load("s")
        assert record is not None
        assert (record.version, record.epoch, opening.version, opening.is_new) == (1, 7, 1, True)
        chat.lines.append("two")
    assert await lines(host, chats) == ["one"]
    await host.finish(ctx)
    assert await lines(host, chats) == ["one", "two"]
    assert store.saves == 2
    assert (await host.read(chats, epoch=7)).lines == ["one", "two"]


async def test_what_it_has_written_does_not_go_with_the_result_again(host: Host, chats: Sessions[Chat]) -> None:
    """And the copy stays in memory."""
    ctx = host.activity()
    opening = chats.open(ctx)
    async with opening as chat:
        chat.lines.append("one")
        await opening.save()
        await opening.checkpoint()
    await host.finish(ctx)
    store = saved_in(host, chats)
    loads = store.loads
    assert (store.saves, (await host.read(chats)).lines, store.loads) == (1, ["one"], loads)


async def test_unchanged_state_is_not_written(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    ctx = host.activity()
    opening = chats.open(ctx)
    async with opening:
        await opening.checkpoint()
        await opening.checkpoint()
    await host.finish(ctx)
    assert saved_in(host, chats).saves == 1


async def test_many_of_one_activity_and_of_the_next(host: Host, chats: Sessions[Chat]) -> None:
    """Each builds on the one before."""
    for _ in range(2):
        ctx = host.activity()
        await say_and_checkpoint(chats.open(ctx), "a", "b", "c")
        await host.finish(ctx)
    assert await lines(host, chats) == ["a", "b", "c"] * 2
    assert saved_in(host, chats).saves == 6


async def test_of_a_state_that_was_known_to_be_new_is_read(host: Host) -> None:
    """By the next block of the activity, when one has failed: before, there was nothing to read."""
    chats, ctx = Sessions(Chat, kind="chat"), host.activity()
    opening = chats._open_in_activity(ctx, None, is_new=True)

    async def say(chat: Chat) -> None:
        chat.lines.append("one")
        await opening.checkpoint()

    with pytest.raises(ZeroDivisionError):
        await raising(opening, say)
    assert saved_in(host, chats).loads == 0
    async with chats.open(ctx) as chat:
        assert chat.lines == ["one"]
    assert saved_in(host, chats).loads == 1


# --- failures, and what a retry starts from ---------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["the block fails", "the activity fails", "the worker dies"])
async def test_a_retry_starts_from_it(host: Host, chats: Sessions[Chat], end: str) -> None:
    """Without what came after it."""
    await host.say(chats, "zero")
    ctx = host.activity(activity_id=900)
    first = chats.open(ctx)

    async def body(chat: Chat) -> None:
        chat.lines.append("one")
        await first.checkpoint()
        chat.lines.append("lost")

    if end == "the block fails":
        with pytest.raises(ZeroDivisionError):
            await raising(first, body)
    else:
        async with first as chat:
            await body(chat)
    if end == "the worker dies":
        chats = Sessions(Chat, kind="chat", store=chats._store)  # with empty memory
    else:
        host.settle(ctx, False)
    again = host.activity(activity_id=900)
    opening = chats.open(again)
    async with opening as chat:
        assert (chat.lines, opening.already_applied, opening.is_new) == (["zero", "one"], False, False)
        chat.lines.append("two")
        await opening.checkpoint()
        chat.lines.append("three")
    await host.finish(again)
    assert await lines(host, chats) == ["zero", "one", "two", "three"]


async def test_an_error_in_a_block_around_it_does_not_take_it_back(host: Host, chats: Sessions[Chat]) -> None:
    """Nor does what was staged before it come back."""
    ctx = host.activity()
    await say_and_checkpoint(chats.open(ctx), "staged")

    async def around(_: Chat) -> None:
        inner = chats.open(ctx)
        async with inner as chat:
            chat.lines.append("one")
            await inner.checkpoint()

    with pytest.raises(ZeroDivisionError):
        await raising(chats.open(ctx), around)
    async with chats.open(ctx) as chat:
        assert chat.lines == ["staged", "one"]
        chat.lines.append("two")
    await host.finish(ctx)
    assert await lines(host, chats) == ["staged", "one", "two"]


async def test_a_block_that_fails_during_a_checkpoint_does_not_take_it_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that was staged before builds on the former record: it is refused, and the activity runs again."""
    saving, failed = anyio.Event(), anyio.Event()
    save = host.database.save

    async def slow(*args: Any, **kwargs: Any) -> int:
        saving.set()
        await failed.wait()
        return await save(*args, **kwargs)

    chats, ctx = Sessions(Chat, kind="chat"), host.activity()
    await say_and_checkpoint(chats.open(ctx), "staged")
    inner = chats.open(ctx)

    async def around(chat: Chat) -> None:
        monkeypatch.setattr(host.database, "save", slow)
        tasks.start_soon(checkpoint)
        await saving.wait()

    async def checkpoint() -> None:
        with pytest.raises(SessionError, match="half changed"):
            await say_and_checkpoint(inner, "one", "lost")

    async with anyio.create_task_group() as tasks:
        with pytest.raises(ZeroDivisionError):
            await raising(chats.open(ctx), around)
        failed.set()
    monkeypatch.undo()
    assert not await host.finish(ctx)
    assert (await host.read(chats)).lines == ["staged", "one"]


async def test_an_error_later_in_the_block_goes_back_to_what_was_saved_after_it(
    host: Host, chats: Sessions[Chat]
) -> None:
    ctx = host.activity()
    opening = chats.open(ctx)

    async def body(chat: Chat) -> None:
        chat.lines.append("one")
        await opening.checkpoint()
        chat.lines.append("two")
        await opening.save()
        chat.lines.append("lost")

    with pytest.raises(ZeroDivisionError):
        await raising(opening, body)
    await host.finish(ctx)
    assert await lines(host, chats) == ["one", "two"]


# --- the fence --------------------------------------------------------------------------------------------------------


async def save_by_hand(host: Host, chats: Sessions[Chat]) -> None:
    async with chats.open("s", store=saved_in(host, chats)) as other:
        other.lines.append("by hand")


async def take_over(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity(epoch=9)
    ours: Sessions[Chat] = Sessions(Chat, kind="chat", store=chats._store)
    async with ours.open(ctx) as other:
        other.lines.append("of the next holder")
    await host.finish(ctx)


@pytest.mark.parametrize("overtake", [save_by_hand, take_over])
async def test_who_was_overtaken_writes_nothing(
    host: Host, chats: Sessions[Chat], overtake: Callable[[Host, Sessions[Chat]], Awaitable[None]]
) -> None:
    """The store wins, and the copy is dropped."""
    await host.say(chats, "zero")
    ctx = host.activity()
    opening = chats.open(ctx)
    before = list[str]()

    async def body(chat: Chat) -> None:
        await overtake(host, chats)
        before.extend(await lines(host, chats))
        chat.lines.append("late")
        await opening.checkpoint()

    with pytest.raises(SessionWriteConflict):
        await raising(opening, body)
    await host.finish(ctx)
    assert await lines(host, chats) == before != ["zero"]
    assert (chats.stats.conflicts, chats.stats.size) == (1, 0)


async def test_a_lost_answer_is_no_conflict(host: Host) -> None:
    """The database has written it, and the worker asks again: the key shows that it has."""
    answers = [ConnectionLost("in the middle of the reply")]

    async def call(verb: Callable[[], Awaitable[T]]) -> T:
        result = await verb()
        if answers and isinstance(result, int):
            raise answers.pop()
        return result

    async def retry(verb: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call(verb)
            except ConnectionLost:
                continue

    ctx = host.activity()
    ctx.session_store = RetryingStore(host.database, reading=retry, writing=call)
    await say_and_checkpoint(Sessions(Chat, kind="chat").open(ctx), "one", "two")
    assert not answers
    await host.finish(ctx)
    assert (await host.stored()).version == 2


async def test_a_store_that_fails_gives_the_state_back(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    opening = chats.open(ctx)

    async def body(chat: Chat) -> None:
        chat.lines.append("precious")
        saved_in(host, chats).failure = OSError("disk full")
        await opening.checkpoint()

    with pytest.raises(SessionSaveFailed, match="disk full") as caught:
        await raising(opening, body)
    assert caught.value.state == Chat(lines=["precious"])
    host.settle(ctx, False)
    assert chats.stats.size == 0


async def test_it_belongs_to_an_open_block(host: Host, chats: Sessions[Chat]) -> None:
    opening = chats.open(host.activity())
    with pytest.raises(SessionError, match="not open yet"):
        await opening.checkpoint()
    await say_and_checkpoint(opening, "one")
    with pytest.raises(SessionError, match="not open any more"):
        await opening.checkpoint()


async def test_an_activity_that_has_ended_has_none(host: Host, chats: Sessions[Chat]) -> None:
    """As of code in a thread that was left behind."""
    ctx = host.activity()
    opening = chats.open(ctx)

    async def body(chat: Chat) -> None:
        host.settle(ctx, False)
        chat.lines.append("late")
        await opening.checkpoint()

    with pytest.raises(SessionError, match="has ended"):
        await raising(opening, body)
    assert saved_in(host, chats).saves == 0


async def test_two_concurrent_ones_are_written_one_after_the_other(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    opening = chats.open(ctx)

    async def part(chat: Chat, line: str) -> None:
        chat.lines.append(line)
        await opening.checkpoint()

    async with opening as chat, anyio.create_task_group() as tasks:
        tasks.start_soon(part, chat, "a")
        tasks.start_soon(part, chat, "b")
    await host.finish(ctx)
    assert await lines(host, chats) == ["a", "b"]


# --- elsewhere --------------------------------------------------------------------------------------------------------


async def test_a_sync_activity_has_it_too(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()

    def work() -> None:
        opening = chats.open_sync(ctx)
        with opening as chat:
            chat.lines.append("one")
            opening.checkpoint()
            assert opening.version == 1
            chat.lines.append("two")

    await anyio.to_thread.run_sync(work)
    assert await lines(host, chats) == ["one"]
    await host.finish(ctx)
    assert await lines(host, chats) == ["one", "two"]


async def test_in_a_script_it_is_a_save(host: Host) -> None:
    chats = Sessions(Chat, kind="chat", store=host.database)
    opening = chats.open("s")

    async def body(chat: Chat) -> None:
        chat.lines.append("one")
        await opening.checkpoint()
        assert opening.version == 1
        chat.lines.append("lost")

    with pytest.raises(ZeroDivisionError):
        await raising(opening, body)
    assert (await host.read(chats)).lines == ["one"]


async def test_without_a_store_nothing_is_written(host: Host) -> None:
    chats = Sessions(Chat, kind="chat")
    ctx = Activity()
    await say_and_checkpoint(chats.open(ctx), "one", "two")
    await host.finish(ctx)
    async with chats.open(Activity()) as chat:
        assert chat.lines == ["one", "two"]


# --- an activity that writes its own session by id --------------------------------------------------------------------


async def write_by_id(chats: Sessions[Chat], store: SessionStore, session_id: str = "s") -> None:
    async with chats.open(session_id, store=store) as chat:
        chat.lines.append("by id")


async def test_an_activity_that_writes_its_session_by_id_gets_an_error_that_names_checkpoint(
    host: Host, chats: Sessions[Chat]
) -> None:
    """While it has the state open, and in its worker's database before that, too."""
    ctx, store = host.activity(), saved_in(host, chats)
    enter_activity(ctx)
    if store is host.database:
        with pytest.raises(SessionSelfConflict, match=r"'s'.*checkpoint\(\)"):
            await write_by_id(chats, store)
    async with chats.open(ctx) as chat:
        chat.lines.append("one")
        with pytest.raises(SessionSelfConflict) as caught:
            await write_by_id(chats, store)
    assert caught.value.session_id == "s"
    assert store.saves == 0
    await host.finish(ctx)
    assert await lines(host, chats) == ["one"]


async def test_what_is_no_conflict_with_itself_is_written(host: Host) -> None:
    """Another session, another store, nothing that has changed, and when the activity is over."""
    chats, elsewhere = Sessions(Chat, kind="chat"), CountingStore()
    await host.say(chats, "zero")
    ctx = host.activity()
    enter_activity(ctx)
    async with chats.open(ctx) as chat:
        await write_by_id(chats, host.database, "other")
        await write_by_id(chats, elsewhere)
        async with chats.open("s", store=host.database) as seen:
            assert seen.lines == ["zero"]
        chat.lines.append("one")
    await host.finish(ctx)
    await write_by_id(chats, host.database)
    assert ((await host.stored("other")).version, elsewhere.saves) == (1, 1)
    assert await lines(host, chats) == ["zero", "one", "by id"]


async def test_another_task_may_write_meanwhile(host: Host) -> None:
    """It is somebody else's write, as ever: the activity runs again."""
    chats, ctx = Sessions(Chat, kind="chat"), host.activity()
    async with anyio.create_task_group() as tasks:
        entered, written = anyio.Event(), anyio.Event()

        async def activity() -> None:
            enter_activity(ctx)
            async with chats.open(ctx) as chat:
                entered.set()
                await written.wait()
                chat.lines.append("late")

        tasks.start_soon(activity)
        await entered.wait()
        await write_by_id(chats, host.database)
        written.set()
    assert not await host.finish(ctx)
