"""Group commit: what goes together, in what pieces outcomes come back, and what a pause and a flush wait for."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from affinity.errors import (
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    LockTimeout,
    ProviderError,
    StatementTimeout,
)
from affinity.limits import MAX_BATCH, MAX_BATCH_BYTES
from affinity.provider.contract import BRIEFLY
from affinity.worker import committer
from affinity.worker.committer import HAND_OUT, SMALL, GroupCommit
from affinity.worker.retry import DatabaseHealth

pytestmark = pytest.mark.anyio


class NumberDatabase:
    """Writes numbers, when it is let; refuses the batches that hold a number of ``bad``."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.brief: list[bool] = []  # whether each is to wait hardly at all for held rows
        self.asked = anyio.Event()
        self.gate = anyio.Event()
        self.bad: dict[int, Exception] = {}
        self.largest = MAX_BATCH  # more than so many take too long

    async def write(self, batch: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(batch))
        self.brief.append(BRIEFLY.get())
        self.asked.set()
        await self.gate.wait()
        if len(batch) > self.largest:
            raise StatementTimeout("too slow")
        for number in batch:
            if number in self.bad:
                raise self.bad[number]
        return [number * 10 for number in batch]


class Desk:
    """A group commit on a database, and what came back in order."""

    def __init__(self, idempotent: bool) -> None:
        self.database = NumberDatabase()
        self.commits: GroupCommit[int, int] = GroupCommit(self.database.write, DatabaseHealth("tests"), idempotent)
        self.answers: list[tuple[int, int | ProviderError]] = []

    def submit(self, *numbers: int, weight: int = 0) -> None:
        for number in numbers:
            self.commits.submit(number, lambda answer, n=number: self.answers.append((n, answer)), weight)  # type: ignore[misc]


@asynccontextmanager
async def running(*, idempotent: bool = False) -> AsyncIterator[Desk]:
    desk = Desk(idempotent)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.commits.run)
        with anyio.fail_after(60):
            yield desk
        tasks.cancel_scope.cancel()


async def test_what_arrives_during_a_commit_goes_together_in_the_next() -> None:
    async with running() as desk:
        desk.submit(1)
        await desk.database.asked.wait()
        desk.submit(2, 3, 4)
        assert desk.commits.unwritten == [1, 2, 3, 4]
        desk.database.gate.set()
        await desk.commits.flushed()
        assert desk.database.batches == [[1], [2, 3, 4]]
        assert desk.answers == [(n, n * 10) for n in (1, 2, 3, 4)]


async def test_a_flush_waits_for_what_was_submitted_a_moment_ago() -> None:
    """Though the writer has not been notified yet; and it does not keep the writer from being notified."""
    async with running() as desk:
        desk.database.gate.set()
        await desk.commits.flushed()
        desk.submit(1)
        await desk.commits.flushed()
        assert desk.answers == [(1, 10)]


async def test_the_first_outcomes_are_at_work_while_the_rest_is_handed_out() -> None:
    """A caller whose outcome is in the first piece sends its next request before the last caller has its outcome."""
    count = 5 * HAND_OUT
    async with running() as desk:
        desk.database.gate.set()
        heard: list[int] = []

        def done(number: int) -> None:
            heard.append(number)
            if number == 0:
                desk.submit(1000)

        for number in range(count):
            desk.commits.submit(number, lambda _, n=number: done(n))  # type: ignore[misc]
        while len(desk.database.batches) < 2:
            await anyio.lowlevel.checkpoint()
        assert len(heard) < count
        await desk.commits.flushed()
        assert heard == list(range(count))
        assert desk.database.batches == [list(range(count)), [1000]]


@pytest.mark.parametrize(("others", "batches"), [(SMALL - 1, 2), (SMALL, 3)])
async def test_a_small_batch_waits_for_what_the_last_one_has_set_going(others: int, batches: int) -> None:
    """An activity that ends immediately is in the very next batch, unless that is large enough by itself."""
    async with running() as desk:
        submit = partial(desk.submit, 1000)

        async def activity() -> None:
            return None

        def done(_: object) -> None:
            asyncio.get_running_loop().create_task(activity()).add_done_callback(lambda _: submit())

        desk.commits.submit(0, done)
        await desk.database.asked.wait()
        desk.submit(*range(1, others + 1))
        desk.database.gate.set()
        while 1000 not in [number for number, _ in desk.answers]:
            await anyio.lowlevel.checkpoint()
        assert len(desk.database.batches) == batches
        assert desk.database.batches[-1][-1] == 1000
        assert sum(map(len, desk.database.batches)) == others + 2


async def test_a_pause_waits_for_every_outcome_and_holds_the_next_batch() -> None:
    count = 3 * HAND_OUT
    async with running() as desk:
        desk.submit(*range(count))
        await desk.database.asked.wait()
        desk.database.gate.set()
        async with desk.commits.paused():
            assert len(desk.answers) == count
            desk.submit(7)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert len(desk.database.batches) == 1
            assert desk.commits.unwritten == [7]
        await desk.commits.flushed()
        assert desk.database.batches[1:] == [[7]]


async def test_a_batch_is_bounded_by_its_weight() -> None:
    async with running() as desk:
        desk.submit(0)
        await desk.database.asked.wait()
        desk.submit(1, 2, 3, weight=MAX_BATCH_BYTES // 2)
        desk.submit(4, weight=2 * MAX_BATCH_BYTES)
        desk.submit(5, 6)
        desk.database.gate.set()
        await desk.commits.flushed()
        assert desk.database.batches == [[0], [1, 2], [3], [4], [5, 6]]


async def test_of_a_refused_batch_only_the_request_at_fault_fails() -> None:
    async with running() as desk:
        refusal = desk.database.bad[2] = DataRefused("no")
        desk.submit(0)
        await desk.database.asked.wait()
        desk.submit(1, 2, 3)
        desk.database.gate.set()
        await desk.commits.flushed()
        assert desk.answers == [(0, 0), (1, 10), (2, refusal), (3, 30)]


@pytest.mark.parametrize(
    "error", [struct.error("'i' format"), UnicodeEncodeError("utf-8", "x", 0, 1, "no"), KeyError()]
)
async def test_whatever_a_request_raises_is_its_own(error: Exception) -> None:
    """Not only errors of the database: a value that cannot be packed, or any other error."""
    async with running() as desk:
        desk.database.bad[700] = error
        desk.submit(0)
        await desk.database.asked.wait()
        desk.submit(*range(1, 1001))
        desk.database.gate.set()
        await desk.commits.flushed()
        answers = dict(desk.answers)
        refused = answers.pop(700)
        assert isinstance(refused, DataRefused)
        assert refused.__cause__ is error
        assert answers == {n: n * 10 for n in range(1001) if n != 700}
        assert len(desk.database.batches) < 40  # halved ten times; each that is taken doubles the next again


async def test_a_receiver_that_fails_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as desk:
        desk.database.gate.set()
        desk.commits.submit(1, lambda _: deque().popleft())
        desk.submit(2)
        await desk.commits.flushed()
        desk.submit(3)
        await desk.commits.flushed()
        assert desk.answers == [(2, 20), (3, 30)]
    assert "could not be handed out" in caplog.text


async def test_the_outcome_of_a_batch_whose_reply_was_lost_is_unknown() -> None:
    async with running() as desk:
        lost = desk.database.bad[2] = ConnectionLost("gone")
        desk.submit(0)
        await desk.database.asked.wait()
        desk.submit(1, 2, 3)
        desk.database.gate.set()
        await desk.commits.flushed()
        assert desk.answers == [(0, 0), (1, lost), (2, lost), (3, lost)]
        assert len(desk.database.batches) == 2


async def test_a_batch_that_takes_too_long_is_written_in_halves() -> None:
    """And no caller is notified of it; the order stays."""
    async with running() as desk:
        desk.database.largest = 3
        desk.submit(0)
        await desk.database.asked.wait()
        desk.submit(*range(1, 21))
        desk.database.gate.set()
        await desk.commits.flushed()
        assert desk.answers == [(n, n * 10) for n in range(21)]
        assert [len(batch) for batch in desk.database.batches][:4] == [1, 20, 10, 5]
        assert desk.commits.unwritten == []


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_failure_that_changed_nothing_is_waited_for(idempotent: bool) -> None:
    """However often it fails: no request gets an error."""
    async with running(idempotent=idempotent) as desk:
        for number in (1, 2, 3):
            desk.database.bad[number] = DatabaseFailure("the disk is full")
        desk.submit(1, 2, 3)
        desk.database.gate.set()
        while len(desk.database.batches) < 5:
            await anyio.sleep(0.001)
        assert desk.answers == []
        assert sorted(desk.commits.unwritten) == [1, 2, 3]
        desk.database.bad.clear()
        await desk.commits.flushed()
        assert sorted(desk.answers) == [(1, 10), (2, 20), (3, 30)]


async def test_one_that_fails_alone_waits_aside() -> None:
    """All others are written meanwhile, in batches; it is tried again by itself, and a flush waits for it."""
    async with running() as desk:
        desk.database.bad[7] = DatabaseFailure("its page is damaged")
        desk.submit(0)
        await desk.database.asked.wait()
        desk.submit(*range(1, 21))
        desk.database.gate.set()
        while len(desk.answers) < 20:
            await anyio.sleep(0.001)
        assert [n for n, _ in desk.answers] == [n for n in range(21) if n != 7]
        assert desk.commits.unwritten == [7]
        desk.database.batches.clear()
        desk.submit(*range(100, 200))
        while len(desk.answers) < 120:
            await anyio.sleep(0.001)
        assert all(batch == [7] for batch in desk.database.batches if 7 in batch)
        assert len(desk.database.batches) < 20
        desk.database.bad.clear()
        await desk.commits.flushed()
        assert desk.answers[-1] == (7, 70)


@pytest.mark.parametrize("held", [{7}, {0, 1, 19}, set(range(20))])
async def test_of_a_batch_with_held_rows_all_else_is_written_at_once(held: set[int]) -> None:
    """Only the first attempt waits for them. Each of them is tried again by itself, behind what comes later."""
    async with running() as desk:
        desk.submit(-1)
        await desk.database.asked.wait()
        desk.database.bad = dict.fromkeys(held, LockTimeout("somebody holds its row"))
        desk.submit(*range(20))
        desk.database.gate.set()
        while len(desk.answers) < 21 - len(held):
            await anyio.sleep(0.001)
        assert {n for n, _ in desk.answers} == {*range(-1, 20)} - held
        assert desk.database.brief[:3] == [False, False, True]
        assert all(desk.database.brief[2:])
        while not all([n] in desk.database.batches for n in held):
            await anyio.sleep(0.001)
        desk.database.batches.clear()
        desk.submit(*range(100, 120))
        while len(desk.answers) < 41 - len(held):
            await anyio.sleep(0.001)
        assert all(len(batch) == 1 for batch in desk.database.batches if held & {*batch})
        desk.database.bad.clear()
        await desk.commits.flushed()
        assert {n for n, answer in desk.answers if answer == n * 10} == {*range(-1, 20), *range(100, 120)}


async def test_contention_is_tried_again_immediately_and_then_with_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "MAX_CONTENTIONS", 3)
    async with running() as desk:
        desk.database.bad[1] = Contention("deadlock")
        desk.submit(1)
        desk.database.gate.set()
        while len(desk.database.batches) < 9:
            await anyio.sleep(0.001)
        assert desk.answers == []
        desk.database.bad.clear()
        await desk.commits.flushed()
        assert desk.answers == [(1, 10)]


async def test_what_may_be_done_twice_is_done_again_after_a_lost_reply() -> None:
    async with running(idempotent=True) as desk:
        desk.database.bad[2] = ConnectionLost("gone")
        desk.submit(1, 2, 3)
        desk.database.gate.set()
        while len(desk.database.batches) < 3:
            await anyio.sleep(0.001)
        desk.database.bad.clear()
        await desk.commits.flushed()
        assert desk.answers == [(1, 10), (2, 20), (3, 30)]
