"""`Sessions` in activities: loading, staging, committing, keeping and dropping states."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from affinity import ActivityContext, OrchestrationContext, Sessions
from affinity.errors import (
    InvalidId,
    InvalidOptions,
    NotSerializable,
    OrchestrationMisuse,
    SessionError,
    SessionLoadFailed,
    SessionStateTampered,
    SessionWriteConflict,
)
from affinity.orchestration.app import SessionListener
from affinity.orchestration.events import OrchestrationCompleted
from affinity.session import CacheStats, SessionMetadata, SessionState, StateWrite
from affinity.session.codec import JsonCodec
from affinity.session.state import CHECKED_OPENINGS
from tests.orchestration.harness import run
from tests.session.activities import Activity, Chat, CountingStore, EndedError, Host, fail

pytestmark = pytest.mark.anyio


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def chats() -> Sessions[Chat]:
    return Sessions(Chat, kind="chat")


# --- load, stage, commit ----------------------------------------------------------------------------------------------


async def test_the_change_goes_with_the_result_and_the_copy_stays(host: Host, chats: Sessions[Chat]) -> None:
    first = await host.say(chats, "one")
    second = await host.say(chats, "two")
    assert (first.is_new, first.version) == (True, 0)
    assert (second.is_new, second.version, second.state.lines) == (False, 1, ["one", "two"])
    record = await host.stored()
    assert json.loads(record.state) == {"lines": ["one", "two"], "turns": 2}
    assert (record.version, record.epoch, record.metadata.kind) == (2, 1, "chat")
    assert host.database.loads == 1
    stats = chats.stats
    assert (stats.hits, stats.misses, stats.hydrations, stats.size) == (1, 1, 1, 1)


async def test_nothing_is_written_before_the_result(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.turns = 1
    assert host.database.saves == 0
    write = await ctx.enlisted[0].prepare()
    assert write is not None
    assert (write.base_version, write.epoch, write.new.session_id) == (0, 1, "s")
    assert host.database.saves == 0
    host.settle(ctx, False)


async def test_unchanged_state_is_not_written_and_still_settled(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats)
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("x")
        chat.lines.pop()
        chat.draft = "scratch does not count"
    assert await ctx.enlisted[0].prepare() is None
    host.settle(ctx, True)
    assert (await host.stored()).version == 1
    assert (await host.read(chats)).draft == "scratch does not count"


async def test_a_new_session_is_created_even_when_unchanged(host: Host, chats: Sessions[Chat]) -> None:
    await host.read(chats)
    assert (await host.stored()).version == 1
    await host.read(chats)
    assert (await host.stored()).version == 1


async def test_a_result_that_is_not_committed_takes_the_change_with_it(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    await host.say(chats, "lost", commit=False)
    assert (await host.read(chats)).lines == ["one"]
    assert host.database.loads == 2
    assert chats.stats.conflicts == 1


async def test_a_write_by_other_code_wins_and_the_next_turn_continues(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    async with Sessions(Chat, kind="chat").open("s", store=host.database) as chat:
        chat.lines.append("script")
    ctx = host.activity()
    await host.say(chats, "refused", ctx=ctx)
    await host.say(chats, "two")
    assert (await host.read(chats)).lines == ["one", "script", "two"]
    assert chats.stats.conflicts == 1


async def test_an_error_in_the_block_discards_the_change(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    ctx = host.activity()
    with pytest.raises(ZeroDivisionError):
        await fail(chats.open(ctx))
    assert await host.finish(ctx)  # the activity catches it, and returns
    assert (await host.read(chats)).lines == ["one"]
    assert (await host.stored()).version == 1


async def test_what_cannot_be_encoded_raises_in_the_block_and_drops_the_copy(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    for wrong in ("twelve", float("nan")):
        ctx = host.activity()
        with pytest.raises(NotSerializable, match="session 's'"):
            async with chats.open(ctx) as chat:
                chat.turns = wrong  # type: ignore[assignment]
        host.settle(ctx, False)
        assert (await host.read(chats)).turns == 1


@pytest.mark.parametrize("saved", [1, 2, CHECKED_OPENINGS])
async def test_a_change_outside_the_block_is_refused_and_discarded(
    host: Host, chats: Sessions[Chat], saved: int
) -> None:
    """Whichever opening comes next finds it; the one after that has the state as it was saved."""
    for _ in range(saved):
        kept = (await host.say(chats, "in")).state
    kept.lines.append("outside")
    with pytest.raises(SessionStateTampered, match="the state of session 's' was changed outside its block"):
        await host.say(chats, "next")
    assert (await host.say(chats, "after")).state.lines == ["in"] * saved + ["after"]


async def test_a_change_outside_the_block_that_cannot_be_encoded_is_discarded_too(
    host: Host, chats: Sessions[Chat]
) -> None:
    wrong: Any = object()
    (await host.say(chats, "in")).state.lines.append(wrong)
    with pytest.raises(SessionStateTampered):
        await host.say(chats, "next")
    assert (await host.say(chats, "after")).state.lines == ["in", "after"]


async def test_a_codec_without_equal_bytes_is_no_change(host: Host) -> None:
    class Counting(JsonCodec[Chat]):
        dumps = 0

        def dump(self, state: Chat, /) -> bytes:
            self.dumps += 1
            return super().dump(state) + b" " * self.dumps

    chats = Sessions(Chat, kind="chat", codec=Counting(Chat))
    for number in range(3):
        assert len((await host.say(chats, "x")).state.lines) == number + 1


def test_an_orchestration_opens_no_state(chats: Sessions[Chat]) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        wrong: Any = ctx
        for opening in (chats.open, chats.open_sync):
            with pytest.raises(OrchestrationMisuse, match="move the block to an activity"):
                opening(wrong)

    assert run(main).outcome == OrchestrationCompleted("null")


async def test_the_wrong_kind_of_block_names_the_other(host: Host, chats: Sessions[Chat]) -> None:
    opening: Any = chats.open(host.activity())
    with pytest.raises(TypeError, match=r"with `async with`, .*; in a sync activity, use open_sync"), opening:
        pass
    with pytest.raises(SessionError, match="use `async with` and open"), chats.open_sync(host.activity()):
        pass


async def test_two_that_create_one_session_conflict(chats: Sessions[Chat]) -> None:
    store = CountingStore()

    async def create_twice() -> None:
        async with chats.open("s", store=store) as chat:
            chat.turns = 1
            async with chats.open("s", store=store) as other:
                other.turns = 2

    with pytest.raises(SessionWriteConflict, match="another writer has created its record meanwhile"):
        await create_twice()


async def test_the_state_may_be_replaced_as_a_whole(host: Host) -> None:
    numbers = Sessions[list[int]](list[int], kind="numbers")
    ctx = host.activity()
    opening = numbers.open(ctx)
    async with opening as state:
        assert state == []
        opening.state = [1, 2]
    await host.finish(ctx)
    assert await host.read(numbers) == [1, 2]


async def test_state_of_another_epoch_is_hydrated_again(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    assert (await host.read(chats, epoch=2)).lines == ["one"]
    assert host.database.loads == 2
    assert chats.stats.losses == 1


async def test_one_opening_serves_one_block(host: Host, chats: Sessions[Chat]) -> None:
    opening = chats.open(host.activity())
    with pytest.raises(SessionError, match="not open yet"):
        _ = opening.state
    async with opening:
        pass
    with pytest.raises(SessionError, match="used before"):
        async with opening:
            pass
    with pytest.raises(SessionError, match="not open any more"):
        await opening.save()
    with pytest.raises(SessionError, match="not open any more"):
        opening.state = Chat()


# --- the same activity, again -----------------------------------------------------------------------------------------


async def test_an_activity_sees_its_own_pending_change(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("one")
        async with chats.open(ctx) as inner:
            assert inner is chat
            inner.lines.append("two")
    async with chats.open(ctx) as chat:
        chat.lines.append("three")
    assert len(ctx.enlisted) == 1
    await host.finish(ctx)
    record = await host.stored()
    assert json.loads(record.state)["lines"] == ["one", "two", "three"]
    assert record.version == 1


async def test_a_change_that_is_taken_back_is_not_written(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("two")
    async with chats.open(ctx) as chat:
        chat.lines.pop()
    await host.finish(ctx)
    assert (await host.stored()).version == 1


async def test_a_block_that_fails_leaves_what_was_staged_before(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("kept")
    with pytest.raises(ZeroDivisionError):
        await fail(chats.open(ctx), "gone")
    async with chats.open(ctx, labels={"a": "b"}) as chat:
        assert chat.lines == ["kept"]
        chat.lines.append("after")
    assert await host.finish(ctx)
    assert (await host.read(chats)).lines == ["kept", "after"]
    assert (await host.stored()).metadata.labels == {"a": "b"}
    assert host.database.loads == 1


async def test_after_an_inner_error_the_outer_block_cannot_save(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()

    async def fail_inside() -> None:
        async with chats.open(ctx):
            raise ZeroDivisionError

    async def outer() -> None:
        async with chats.open(ctx):
            with pytest.raises(ZeroDivisionError):
                await fail_inside()
            with pytest.raises(SessionError, match="leave that one first"):
                async with chats.open(ctx):
                    pass

    with pytest.raises(SessionError, match="half changed"):
        await outer()
    await host.finish(ctx)
    assert host.database.saves == 0
    assert (await host.read(chats)).turns == 0


async def test_a_block_that_fails_takes_back_what_a_block_within_it_has_staged(
    host: Host, chats: Sessions[Chat]
) -> None:
    ctx = host.activity()

    async def outer() -> None:
        async with chats.open(ctx):
            async with chats.open(ctx) as chat:
                chat.lines.append("inner")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await outer()
    assert await host.finish(ctx)
    assert host.database.saves == 0


async def test_save_in_a_block_survives_an_error_after_it(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()

    async def save_and_fail() -> None:
        opening = chats.open(ctx)
        async with opening as chat:
            chat.lines.append("saved")
            await opening.save()
            chat.lines.append("not saved")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await save_and_fail()
    assert host.database.saves == 0
    await host.finish(ctx)
    assert (await host.read(chats)).lines == ["saved"]


# --- auto_save --------------------------------------------------------------------------------------------------------


async def test_without_auto_save_nothing_is_written_and_memory_is_not_ahead(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    for wrong in (["unsaved"], [float("nan")]):
        ctx = host.activity()
        async with chats.open(ctx, auto_save=False) as chat:
            chat.lines.extend(wrong)  # type: ignore[arg-type]
        await host.finish(ctx)
        assert (await host.read(chats)).lines == ["one"]
    assert (await host.stored()).version == 1


async def test_without_auto_save_a_look_keeps_the_copy(host: Host) -> None:
    chats = Sessions(Chat, kind="chat", auto_save=False)
    ctx = host.activity()
    opening = chats.open(ctx)
    async with opening as chat:
        chat.turns = 1
        await opening.save()
    await host.finish(ctx)
    assert (await host.read(chats)).turns == 1
    assert host.database.loads == 1
    assert (await host.stored()).version == 1


async def test_without_auto_save_what_follows_a_save_is_not_kept(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    opening = chats.open(ctx, auto_save=False)
    async with opening as chat:
        chat.turns = 1
        await opening.save()
        chat.turns = 2
    await host.finish(ctx)
    assert (await host.read(chats)).turns == 1


# --- no session, no store ---------------------------------------------------------------------------------------------


async def test_without_a_session_the_state_is_new_and_no_store_is_called() -> None:
    disposed: list[str] = []
    database = CountingStore()
    chats = Sessions(Chat, store=database, dispose=lambda session_id, _: disposed.append(session_id))
    for _ in range(2):
        ctx = Activity(None, None, database)
        with pytest.raises(SessionError, match=r"stamp it with .on_session\(session_id\)"):
            chats.open(ctx)
        opening = chats.open(ctx, allow_transient=True)
        async with opening as chat:
            assert (chat.turns, opening.session_id, opening.is_new) == (0, None, True)
            chat.turns += 1
            await opening.save()
        assert ctx.enlisted == []
    assert (database.loads, database.saves, disposed) == (0, 0, ["", ""])
    assert chats.stats == CacheStats()


async def test_a_session_without_an_epoch_is_refused(chats: Sessions[Chat]) -> None:
    with pytest.raises(SessionError, match="on_session"):
        async with chats.open(Activity("s", None)):
            pass


async def test_without_a_store_the_state_lives_in_memory(host: Host, chats: Sessions[Chat]) -> None:
    for turns in range(3):
        ctx = Activity("s", 1, None)
        opening = chats.open(ctx)
        async with opening as chat:
            assert (chat.turns, opening.session_id, opening.version) == (turns, "s", 0)
            chat.turns += 1
        assert await ctx.enlisted[0].prepare() is None
        host.settle(ctx, True)
    await chats.lost("s")
    async with chats.open(Activity("s", 2, None)) as chat:
        assert chat.turns == 0


# --- stores elsewhere -------------------------------------------------------------------------------------------------


async def test_a_copy_of_one_store_is_not_served_for_another(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "here")
    other = CountingStore()
    ctx = host.activity()
    async with chats.open(ctx, store=other) as chat:
        assert chat.lines == []
    await host.finish(ctx)
    assert (await host.read(chats)).lines == ["here"]


async def test_two_stores_in_one_activity_are_refused(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx):
        with pytest.raises(InvalidOptions, match="another store"):
            async with chats.open(ctx, store=CountingStore()):
                pass


# --- failed loads -----------------------------------------------------------------------------------------------------


async def test_a_store_that_fails_is_a_failed_load_and_the_turn_passes_on(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats)
    await chats.lost("s")
    host.database.failure = OSError("disk on fire")
    ctx = host.activity()
    with pytest.raises(SessionLoadFailed, match="disk on fire") as caught:
        async with chats.open(ctx):
            pytest.fail("code has run")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.session_id == "s"
    assert ctx.enlisted == []
    host.database.failure = None
    assert (await host.read(chats)).turns == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (SessionState(session_id="s", state=b"{}"), "of kind '', not 'chat'"),
        (SessionState(session_id="s", state=b"{"), "kind"),
        (SessionState(session_id="s", state=b"\x00", encoding="zstd"), "packed as 'zstd'"),  # type: ignore[arg-type]
        (SessionState(session_id="s", state=b"no", encoding="zlib"), "damaged"),
        (SessionState(session_id="s", state=b'{"turns": "secret"}'), "turns: Input should be a valid integer"),
    ],
)
async def test_a_record_that_cannot_be_read_is_untouched(
    host: Host, chats: Sessions[Chat], record: SessionState, message: str
) -> None:
    if "kind" not in message:
        record = replace(record, metadata=SessionMetadata(kind="chat"))
    await host.database.save(record)
    before = await host.stored()
    with pytest.raises(SessionLoadFailed, match=message) as caught:
        async with chats.open(host.activity()):
            pytest.fail("code has run")
    assert "secret" not in str(caught.value)
    assert await host.stored() == before


# --- runs that are over -----------------------------------------------------------------------------------------------


async def test_an_activity_that_has_ended_opens_nothing(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    ctx.over = True
    with pytest.raises(EndedError):
        async with chats.open(ctx):
            pytest.fail("code has run")
    assert (await host.read(chats)).turns == 0


async def test_nothing_is_opened_once_the_change_is_on_its_way(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.turns = 1
    write = await ctx.enlisted[0].prepare()
    with pytest.raises(SessionError, match="has ended"):
        async with chats.open(ctx):
            pytest.fail("code has run")
    host.settle(ctx, await host.database.apply(write))
    assert (await host.read(chats)).turns == 1


async def test_a_state_that_is_open_when_the_activity_returns_fails_it(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    ctx = host.activity()
    left_open = chats.open(ctx)
    chat = await left_open.__aenter__()
    chat.lines.append("never")
    with pytest.raises(SessionError, match="was open"):
        await host.finish(ctx)
    with pytest.raises(SessionError, match="has ended"):
        await left_open.__aexit__(None, None, None)
    assert (await host.read(chats)).lines == ["one"]


# --- sync activities --------------------------------------------------------------------------------------------------


async def test_a_sync_activity_opens_the_state_in_its_thread(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()

    def activity() -> int:
        opening = chats.open_sync(ctx, labels={"a": "b"})
        with opening as chat:
            chat.turns += 1
            opening.save()
            assert opening.is_new
            return chat.turns

    assert await anyio.to_thread.run_sync(activity) == 1
    await host.finish(ctx)
    assert (await host.read(chats)).turns == 1


async def test_a_sync_activity_that_raises_discards_its_change(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()

    def activity() -> None:
        with chats.open_sync(ctx) as chat:
            chat.turns += 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await anyio.to_thread.run_sync(activity)
    await host.finish(ctx)
    assert (await host.read(chats)).turns == 0


async def test_a_thread_that_is_left_behind_keeps_its_copy_and_saves_nothing(host: Host) -> None:
    disposed: list[int] = []
    chats = Sessions(Chat, kind="chat", dispose=lambda _, chat: disposed.append(chat.turns))
    ctx, entered, go = host.activity(), anyio.Event(), anyio.Event()

    def activity() -> None:
        with chats.open_sync(ctx) as chat:
            chat.turns = 5
            anyio.from_thread.run_sync(entered.set)
            anyio.from_thread.run(go.wait)

    async def left_behind() -> None:
        with pytest.raises(SessionError, match="has ended"):
            await anyio.to_thread.run_sync(activity)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(left_behind)
        await entered.wait()
        host.settle(ctx, False)  # the worker has given up on it
        await chats.sweep()
        assert disposed == []
        go.set()
    assert disposed == [5]
    assert (await host.read(chats)).turns == 0


def test_open_sync_needs_a_thread_of_anyio(chats: Sessions[Chat]) -> None:
    with pytest.raises(RuntimeError), chats.open_sync(Host().activity()):
        pass


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"max_sessions": 0},
        {"max_bytes": 0},
        {"idle_timeout": 0},
        {"to_record": str},
        {"to_record": str, "from_record": str},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOptions):
        Sessions(Chat, **options)  # type: ignore[arg-type]


def test_ids_are_checked_where_they_are_written(chats: Sessions[Chat]) -> None:
    with pytest.raises(InvalidId, match="session id"):
        chats.open("")
    with pytest.raises(InvalidId, match="kind"):
        Sessions(Chat, kind="a\nb")


async def test_the_context_of_a_real_activity_is_one(host: Host, chats: Sessions[Chat]) -> None:
    ctx = ActivityContext(
        instance_id="i",
        execution_id=2,
        activity_id=3,
        name="reply",
        orchestration_name="chat",
        orchestration_version="1.0.0",
        worker_id="w",
        session_id="s",
        session_epoch=1,
        session_store=host.database,
    )
    async with chats.open(ctx) as chat:
        chat.turns = 1
    (participant,) = ctx._close()
    write = await participant.prepare()
    assert isinstance(write, StateWrite)
    participant.settled(await host.database.apply(write))
    assert (await host.read(chats)).turns == 1


def test_it_is_what_a_worker_listens_with(chats: Sessions[Chat]) -> None:
    listener: SessionListener = chats
    assert listener
