"""A store that is not the worker's database: written before the result, with a key that makes a retry safe."""

from __future__ import annotations

import pytest

from affinity import Sessions
from affinity.errors import SessionSaveFailed, SessionWriteConflict
from tests.session.activities import Chat, CountingStore, Host, fail

pytestmark = pytest.mark.anyio


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def chats(store: CountingStore) -> Sessions[Chat]:
    return Sessions(Chat, kind="chat", store=store)


async def test_it_is_saved_before_the_result_with_key_and_epoch(
    host: Host, store: CountingStore, chats: Sessions[Chat]
) -> None:
    ctx = host.activity(epoch=7, activity_id=3)
    async with chats.open(ctx) as chat:
        chat.turns = 1
    assert store.saves == 0
    assert await ctx.enlisted[0].prepare() is None
    record = await store.load("s")
    assert record is not None
    assert (record.version, record.epoch, record.idempotency_key) == (1, 7, "i/1/3")
    host.settle(ctx, True)
    assert (await host.read(chats, epoch=7)).turns == 1
    assert (store.loads, store.saves, host.database.saves) == (2, 1, 0)


async def test_a_second_turn_builds_on_the_version_of_the_first(host: Host, store: CountingStore) -> None:
    chats = Sessions(Chat, kind="chat", store=store)
    await host.say(chats, "one")
    await host.say(chats, "two")
    record = await store.load("s")
    assert record is not None
    assert record.version == 2


async def test_a_record_that_was_recreated_is_not_overwritten(host: Host, store: CountingStore) -> None:
    """The copy in memory has its version, and an epoch that nothing has ended there: the generations differ."""
    chats = Sessions(Chat, kind="chat", store=store)
    await host.say(chats, "former")
    await store.delete(["s"])
    async with chats.open("s") as chat:
        chat.lines.append("anew")
    with pytest.raises(SessionWriteConflict, match="another one was created"):
        await host.say(chats, "late")
    await host.say(chats, "again")
    assert (await host.read(chats)).lines == ["anew", "again"]


async def test_the_database_given_explicitly_is_not_elsewhere(host: Host) -> None:
    chats = Sessions(Chat, kind="chat", store=host.database)
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.turns = 1
    assert await ctx.enlisted[0].prepare() is not None
    host.settle(ctx, False)


async def test_a_retried_activity_does_not_apply_its_change_twice(
    host: Host, store: CountingStore, chats: Sessions[Chat]
) -> None:
    await host.say(chats, "one")
    first = host.activity(activity_id=900)
    await host.say(chats, "two", ctx=first, commit=False)  # saved, and then the result was lost
    again = host.activity(activity_id=900)
    opening = chats.open(again, overrides={"turns": 50})
    async with opening as chat:
        assert opening.already_applied
        assert (chat.lines, chat.turns) == (["one", "two"], 2)
        chat.lines.append("two")
        await opening.save()
    async with chats.open(again) as chat:
        chat.lines.append("two")
    await host.finish(again)
    assert store.saves == 2
    assert (await host.read(chats)).lines == ["one", "two"]
    opening = chats.open(host.activity())
    async with opening:
        assert not opening.already_applied


async def test_a_retry_is_known_also_by_a_copy_in_memory(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one", ctx=host.activity(activity_id=900), commit=False)
    await host.read(chats)
    opening = chats.open(host.activity(activity_id=900))
    async with opening:
        assert opening.already_applied


async def test_a_conflict_fails_the_activity_and_the_store_wins(
    host: Host, store: CountingStore, chats: Sessions[Chat]
) -> None:
    await host.say(chats, "one")
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("refused")
    async with chats.open("s") as other:
        other.lines.append("script")
    with pytest.raises(SessionWriteConflict):
        await host.finish(ctx)
    assert chats.stats.conflicts == 1
    assert (await host.read(chats)).lines == ["one", "script"]


async def test_a_store_that_fails_gives_the_state_back(host: Host, store: CountingStore, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("one")
    with pytest.raises(ZeroDivisionError):
        await fail(chats.open(ctx))
    store.failure = OSError("no route")
    with pytest.raises(SessionSaveFailed, match="no route") as caught:
        await host.finish(ctx)
    assert caught.value.state == Chat(lines=["one"])
    assert isinstance(caught.value.__cause__, OSError)
    store.failure = None
    assert (await host.read(chats)).lines == []
