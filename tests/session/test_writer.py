"""Turns of writers: order, cancellation, leases that end, settling, and everything together."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from affinity import Sessions
from affinity.errors import SessionWriteConflict
from tests.session.activities import Activity, Chat, CountingStore, Host

pytestmark = pytest.mark.anyio


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def chats() -> Sessions[Chat]:
    return Sessions(Chat, kind="chat")


async def settle_later(host: Host, chats: Sessions[Chat], line: str) -> Activity:
    """An activity whose result is on its way."""
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append(line)
    return ctx


# --- order ------------------------------------------------------------------------------------------------------------


async def test_the_next_writer_waits_until_the_first_is_settled(host: Host, chats: Sessions[Chat]) -> None:
    first = await settle_later(host, chats, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.say, chats, "two")
        await anyio.wait_all_tasks_blocked()
        assert chats.stats.hits == 0
        await host.finish(first)
    assert (await host.read(chats)).lines == ["one", "two"]
    assert host.database.loads == 1


async def test_writers_come_in_the_order_of_their_opening(host: Host, chats: Sessions[Chat]) -> None:
    first = await settle_later(host, chats, "0")
    async with anyio.create_task_group() as tasks:
        for number in range(1, 6):
            tasks.start_soon(host.say, chats, str(number))
            await anyio.wait_all_tasks_blocked()
        await host.finish(first)
    assert (await host.read(chats)).lines == [str(number) for number in range(6)]
    assert (await host.stored()).version == 6


async def test_other_sessions_run_meanwhile(host: Host, chats: Sessions[Chat]) -> None:
    first = await settle_later(host, chats, "one")
    await host.say(chats, "elsewhere", ctx=host.activity("t"))
    assert (await host.stored("t")).version == 1
    await host.finish(first)


async def test_an_activity_with_two_concurrent_openings_does_not_wait_for_itself(
    host: Host, chats: Sessions[Chat]
) -> None:
    before = await settle_later(host, chats, "one")
    ctx = host.activity()

    async def part(line: str) -> None:
        async with chats.open(ctx) as chat:
            await anyio.lowlevel.checkpoint()
            chat.lines.append(line)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(part, "a")
        tasks.start_soon(part, "b")
        await anyio.wait_all_tasks_blocked()
        await host.finish(before)
    await host.finish(ctx)
    assert (await host.read(chats)).lines == ["one", "a", "b"]
    assert (await host.stored()).version == 2


async def test_a_writer_that_is_cancelled_while_it_waits_leaves_the_line(host: Host, chats: Sessions[Chat]) -> None:
    first, ctx = await settle_later(host, chats, "one"), host.activity()
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def impatient() -> None:
            with scope:
                async with chats.open(ctx):
                    pytest.fail("code has run")

        tasks.start_soon(impatient)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(host.say, chats, "three")
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert ctx.enlisted == []
        await host.finish(first)
    assert (await host.read(chats)).lines == ["one", "three"]


async def test_a_writer_that_is_cancelled_as_its_turn_comes_passes_it_on(host: Host, chats: Sessions[Chat]) -> None:
    first = await settle_later(host, chats, "one")
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def impatient() -> None:
            with scope:
                await host.say(chats, "never")

        tasks.start_soon(impatient)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(host.say, chats, "three")
        await anyio.wait_all_tasks_blocked()
        host.settle(first, False)
        scope.cancel()
    assert (await host.read(chats)).lines == ["three"]


async def test_a_writer_that_is_cancelled_while_it_hydrates_passes_its_turn_on(
    host: Host, chats: Sessions[Chat]
) -> None:
    async def hang() -> None:
        host.database.before_load = None
        scope.cancel()
        await anyio.sleep_forever()

    host.database.before_load = hang
    with anyio.CancelScope() as scope:
        await host.say(chats, "never")
    assert chats.stats.size == 0
    await host.say(chats, "one")
    assert (await host.read(chats)).lines == ["one"]


async def test_a_block_that_is_cancelled_discards_its_change(host: Host) -> None:
    disposed: list[list[str]] = []
    chats = Sessions(Chat, kind="chat", dispose=lambda _, chat: disposed.append(chat.lines))
    await host.say(chats, "one")
    ctx = host.activity()
    with anyio.CancelScope() as scope:
        async with chats.open(ctx) as chat:
            chat.lines.append("half")
            scope.cancel()
            await anyio.sleep_forever()
    host.settle(ctx, False)
    assert (await host.read(chats)).lines == ["one"]
    assert disposed == [["one", "half"]]


# --- settling ---------------------------------------------------------------------------------------------------------


async def test_a_dropped_copy_is_disposed_by_the_next_sweep(host: Host) -> None:
    disposed: list[str] = []
    chats = Sessions(Chat, kind="chat", dispose=lambda session_id, _: disposed.append(session_id))
    await host.say(chats, commit=False)
    assert disposed == []
    assert chats.stats.size == 1
    await chats.sweep()
    assert disposed == ["s"]
    assert chats.stats.size == 0


async def test_the_next_writer_disposes_a_dropped_copy_before_it_hydrates(host: Host) -> None:
    log: list[str] = []
    chats = Sessions(Chat, kind="chat", dispose=lambda _, chat: log.append(f"dispose {chat.lines}"))
    first = await settle_later(host, chats, "one")

    async def note() -> None:
        log.append("load")

    host.database.before_load = note
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.say, chats, "two")
        await anyio.wait_all_tasks_blocked()
        host.settle(first, False)
    assert log == ["dispose ['one']", "load"]
    assert (await host.read(chats)).lines == ["two"]


async def test_a_newer_lease_waits_for_what_the_older_one_has_staged(host: Host, chats: Sessions[Chat]) -> None:
    first = await settle_later(host, chats, "one")
    seen: list[list[str]] = []

    async def newer() -> None:
        seen.append((await host.read(chats, epoch=2)).lines)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(newer)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        await host.finish(first)
    assert seen == [["one"]]


# --- leases -----------------------------------------------------------------------------------------------------------


async def test_a_lease_lost_while_open_drops_the_copy_and_the_store_decides(host: Host, chats: Sessions[Chat]) -> None:
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append("one")
        await chats.lost("s", 1)
    assert chats.stats.size == 1
    assert await host.finish(ctx)  # there was no other write
    await chats.sweep()
    assert chats.stats.size == 0
    assert (await host.read(chats)).lines == ["one"]
    assert host.database.loads == 2


async def test_a_paused_former_holder_is_refused(host: Host, chats: Sessions[Chat]) -> None:
    await host.say(chats, "one")
    paused, other = await settle_later(host, chats, "late"), Sessions(Chat, kind="chat")
    await host.say(other, "two", ctx=host.activity(epoch=2))
    assert not await host.finish(paused)
    assert chats.stats.conflicts == 1
    assert (await host.read(chats, epoch=3)).lines == ["one", "two"]


async def test_an_older_lease_than_the_cached_one_opens_nothing(host: Host, chats: Sessions[Chat]) -> None:
    await host.read(chats, epoch=2)
    ctx = host.activity(epoch=1)
    with pytest.raises(SessionWriteConflict, match="moved on"):
        async with chats.open(ctx):
            pytest.fail("code has run")
    assert chats.stats.conflicts == 1
    assert (await host.read(chats, epoch=2)).turns == 0
    assert host.database.loads == 1


async def test_all_leases_lost_together(host: Host, chats: Sessions[Chat]) -> None:
    for session_id in "abc":
        await host.say(chats, ctx=host.activity(session_id))
    await chats._lost_all()
    assert (chats.stats.size, chats.stats.losses) == (0, 3)


# --- everything together ----------------------------------------------------------------------------------------------


class RandomActivities:
    """Random activities on few sessions, with random outcomes, moves, losses, cancellations and scripts. What should be
    in the store is kept beside, line by line.
    """

    def __init__(self, seed: int, *, elsewhere: bool) -> None:
        self.chance = random.Random(seed)
        self.host = Host()
        self.store = CountingStore() if elsewhere else self.host.database
        self.now = 0.0
        self.alive = Counter[str]()
        self.chats = Sessions(
            Chat,
            kind="chat",
            store=self.store if elsewhere else None,
            max_sessions=2,
            idle_timeout=20,
            timer=lambda: self.now,
            dispose=self.dispose,
        )
        self.epochs = dict.fromkeys("abc", 1)
        self.expected: dict[str, list[str]] = {session_id: [] for session_id in "abc"}
        self.inside = Counter[str]()
        self.numbers = iter(range(1_000_000))
        self.disposed = Counter[int]()
        self.kept: list[Chat] = []  # so that ids stay apart

    def dispose(self, _: str, chat: Chat) -> None:
        self.kept.append(chat)
        self.disposed[id(chat)] += 1

    async def give_way(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await anyio.lowlevel.checkpoint()

    async def activity(self, session_id: str) -> None:
        ctx = self.host.activity(session_id, self.epochs[session_id])
        lines: list[str] = []
        try:
            for _ in range(self.chance.choice([1, 1, 2])):
                with suppress(OSError):
                    await self.block(ctx, session_id, lines)
            await self.finish(ctx, session_id, lines)
        except SessionWriteConflict:
            assert self.epochs[session_id] > (ctx.session_epoch or 0)
        finally:
            self.host.settle(ctx, False)

    async def block(self, ctx: Activity, session_id: str, lines: list[str]) -> None:
        line = str(next(self.numbers))
        async with self.chats.open(ctx) as chat:
            if ctx.session_epoch == self.epochs[session_id]:  # or a script may have written since
                assert chat.lines == self.expected[session_id] + lines
            self.inside[session_id] += 1
            try:
                await self.give_way()
                chat.lines.append(line)
                assert self.inside[session_id] == 1
                if self.chance.random() < 0.2:
                    raise OSError("model is down")
            finally:
                self.inside[session_id] -= 1
        lines.append(line)

    async def finish(self, ctx: Activity, session_id: str, lines: list[str]) -> None:
        ctx.over = True
        await self.give_way()
        writes = [await each.prepare() for each in ctx.enlisted]
        if self.store is self.host.database and self.chance.random() < 0.2:
            return  # the result is never sent
        applied = all([await self.host.database.apply(write) for write in writes])
        if applied:
            self.expected[session_id] += lines
        self.host.settle(ctx, applied and self.chance.random() < 0.8)  # or the answer is lost

    async def script(self, session_id: str) -> None:
        line = str(next(self.numbers))
        with suppress(SessionWriteConflict):
            async with self.chats.open(session_id, store=self.store) as chat:
                await self.give_way()
                chat.lines.append(line)
            self.expected[session_id].append(line)
            self.epochs[session_id] += 1  # as a provider's store does

    async def cancelled_activity(self, session_id: str) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.activity, session_id)
            await self.give_way()
            tasks.cancel_scope.cancel()

    async def something(self) -> None:
        session_id = self.chance.choice("abc")
        self.now += 1
        match self.chance.randrange(12):
            case 0:
                await self.cancelled_activity(session_id)
            case 1:
                await self.chats.lost(session_id, self.epochs[session_id])
            case 2:
                self.epochs[session_id] += 1
            case 3:
                await self.chats.sweep()
            case 4:
                await self.script(session_id)
            case _:
                await self.activity(session_id)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("seed", range(10))
async def test_the_state_is_the_sum_of_what_was_applied(seed: int, elsewhere: bool) -> None:
    chaos = RandomActivities(seed, elsewhere=elsewhere)
    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(chaos.something)
            await chaos.give_way()
    for session_id, lines in chaos.expected.items():
        assert lines
        opening = chaos.chats.open(session_id, store=chaos.store, auto_save=False)
        async with opening as chat:
            assert chat.lines == lines
    assert chaos.chats.stats.size <= 2 + 3
    await chaos.chats.aclose()
    assert chaos.chats.stats.size == 0
    assert chaos.chats.stats.bytes == 0
    assert set(chaos.disposed.values()) == {1}


async def test_an_older_state_is_never_staged_after_a_newer_one(host: Host, chats: Sessions[Chat]) -> None:
    """The first block's state is large, and is packed in a thread while the second block ends."""
    ctx = host.activity()
    first, second = chats.open(ctx), chats.open(ctx)
    changed = anyio.Event()

    async def later() -> None:
        async with second as chat:
            await changed.wait()
            chat.lines = ["new"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later)
        await anyio.wait_all_tasks_blocked()
        async with first as chat:
            chat.lines = ["old" * 1_000_000]
            changed.set()
    await host.finish(ctx)
    assert b'["new"]' in (await host.stored()).state
