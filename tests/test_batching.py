"""Calls that are made at the same time share one, and so do waits for changes of journals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TypeVar

import anyio
import pytest

from affinity.batching import Batcher
from affinity.client import changes as changes_module
from affinity.client.calls import client_batcher
from affinity.client.changes import SAFETY_SECONDS, Changes
from affinity.errors import ClientError, ConnectionLost, DataRefused, LockTimeout
from affinity.limits import MAX_BATCH

T = TypeVar("T")


class Verb:
    """Doubles numbers; a test holds it up and breaks it."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.failures: list[Exception] = []
        self.refused: int | None = None
        self.refusal: Exception = DataRefused("no")
        self.gate: anyio.Event | None = None

    async def double(self, numbers: Sequence[int]) -> Sequence[int]:
        self.calls.append(list(numbers))
        if self.gate is not None:
            await self.gate.wait()
        if self.refused in numbers:
            raise self.refusal
        if self.failures:
            raise self.failures.pop(0)
        return [2 * number for number in numbers]


@asynccontextmanager
async def running(verb: Verb) -> AsyncIterator[Batcher[int, int]]:
    async with client_batcher(verb.double) as batcher:
        yield batcher


async def test_calls_during_a_call_go_together_with_the_next() -> None:
    verb = Verb()
    async with running(verb) as batcher:
        verb.gate = anyio.Event()
        first = batcher.submit(1)
        await anyio.sleep(0.01)
        others = [batcher.submit(number) for number in range(2, 100)]
        verb.gate.set()
        assert [await each for each in (first, *others)] == [2 * number for number in range(1, 100)]
    assert [len(call) for call in verb.calls] == [1, 98]


async def test_a_verb_with_a_result_too_few_or_a_size_that_fails_leaves_nobody_waiting() -> None:
    async def lose_one(numbers: Sequence[int]) -> Sequence[int]:
        return numbers[1:]

    async with client_batcher(lose_one) as batcher:
        for lost in [batcher.submit(number) for number in (1, 2)]:
            with anyio.fail_after(5), pytest.raises(ValueError, match="zip"):
                await lost

    def size_of(number: int) -> int:
        return 1 // number

    async with client_batcher(Verb().double, size_of=size_of) as batcher:
        with anyio.fail_after(5), pytest.raises(ZeroDivisionError):
            await batcher.submit(0)
        assert await batcher.submit(1) == 2


async def test_a_call_that_was_cancelled_before_it_was_sent_is_not_sent() -> None:
    verb = Verb()
    async with running(verb) as batcher:
        verb.gate = anyio.Event()
        first = batcher.submit(1)
        await anyio.sleep(0.01)
        batcher.submit(2).cancel()
        third = batcher.submit(3)
        verb.gate.set()
        assert (await first, await third) == (2, 6)
    assert verb.calls == [[1], [3]]


@pytest.mark.parametrize("refusal", [DataRefused("no"), OverflowError("too large")])
async def test_a_lost_reply_is_requested_again_and_a_refusal_concerns_its_request_only(refusal: Exception) -> None:
    verb = Verb()
    verb.refusal = refusal
    async with running(verb) as batcher:
        verb.failures = [ConnectionLost("gone")]
        verb.refused = 3
        results = [batcher.submit(number) for number in (1, 2, 3, 4)]
        assert [await results[n] for n in (0, 1, 3)] == [2, 4, 8]
        with pytest.raises(type(refusal)):
            await results[2]


async def test_a_request_that_needs_a_held_row_is_tried_beside_the_others() -> None:
    """The others of its call are done at once, as are later calls; it is done when the row is free."""
    verb = Verb()
    verb.refused, verb.refusal = 3, LockTimeout("somebody holds its row")
    async with running(verb) as batcher:
        held, *others = [batcher.submit(number) for number in (3, 1, 2, 4, 5)]
        assert [await each for each in others] == [2, 4, 8, 10]
        assert await batcher.submit(6) == 12
        assert not held.done()
        verb.refused = None
        assert await held == 6


async def test_a_held_request_of_a_client_that_is_closed_raises() -> None:
    verb = Verb()
    verb.refused, verb.refusal = 3, LockTimeout("somebody holds its row")
    async with running(verb) as batcher:
        held = batcher.submit(3)
        assert await batcher.submit(1) == 2
    with pytest.raises(ClientError, match="closed"):
        await held


async def test_calls_of_a_client_that_is_closed_raise() -> None:
    verb = Verb()
    async with running(verb) as batcher:
        verb.gate = anyio.Event()
        sent = batcher.submit(1)
        await anyio.sleep(0.01)
        waiting = batcher.submit(2)
    late = batcher.submit(3)
    for each in (sent, waiting, late):
        with pytest.raises(ClientError, match="closed"):
            await each


async def test_the_requests_of_a_worker_that_has_ended_are_cancelled() -> None:
    verb = Verb()
    verb.gate = anyio.Event()

    async def call(work: Callable[[], Awaitable[T]], *, unless: object) -> T:
        return await work()

    batcher = Batcher(verb.double, call, owner="worker")
    sent = batcher.submit(1)
    await anyio.wait_all_tasks_blocked()
    waiting = batcher.submit(2)
    await batcher.aclose()
    assert [each.cancelled() for each in (sent, waiting, batcher.submit(3))] == [True] * 3
    assert verb.calls == [[1]]


async def test_a_call_has_no_context_of_a_caller() -> None:
    """It works for others too."""
    seen: list[str | None] = []
    caller = ContextVar[str | None]("caller", default=None)

    async def note(numbers: Sequence[int]) -> Sequence[int]:
        seen.append(caller.get())
        return numbers

    caller.set("ann")
    async with client_batcher(note) as batcher:
        assert await batcher.submit(1) == 1
    assert seen == [None]


class Watch:
    """A subscription whose hints a test gives; it breaks when the test says so."""

    def __init__(self) -> None:
        self.opened = 0
        self.hints: list[Mapping[str, bool] | Exception] = []
        self._came = anyio.Event()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Watch]:
        self.opened += 1
        yield self

    def hint(self, hint: Mapping[str, bool] | Exception) -> None:
        self.hints.append(hint)
        self._came.set()

    async def wait(self, timeout: float) -> Mapping[str, bool] | None:
        with anyio.move_on_after(timeout):
            await self._came.wait()
        self._came = anyio.Event()
        if not self.hints:
            return None
        hint = self.hints.pop(0)
        if isinstance(hint, Exception):
            raise hint
        return hint


@asynccontextmanager
async def watching(watch: Watch) -> AsyncIterator[Changes]:
    changes = Changes(watch)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.run)
        yield changes
        tasks.cancel_scope.cancel()


async def test_a_hint_ends_the_waits_for_its_journal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "SAFETY_SECONDS", 100.0)
    watch = Watch()
    async with (
        watching(watch) as changes,
        changes.of("a") as first,
        changes.of("a") as second,
        changes.of("b") as other,
    ):
        for each in (first, second, other):
            with anyio.move_on_after(0.05):
                await each.wait()  # what came before the subscription was open
        watch.hint({"a": True, "z": True})
        with anyio.fail_after(10):
            await first.wait()
            await second.wait()
        with anyio.move_on_after(0.05) as scope:
            await other.wait()
        assert scope.cancelled_caught
        watch.hint({})
        with anyio.fail_after(10):
            await other.wait()
    assert watch.opened == 1


async def test_a_hint_that_comes_before_the_wait_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "SAFETY_SECONDS", 100.0)
    async with watching(Watch()) as changes, changes.of("a") as change:
        with anyio.fail_after(10):
            await change.wait()
        changes.notify({"a": True})
        with anyio.fail_after(10):
            await change.wait()


async def test_inputs_end_no_wait_for_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "SAFETY_SECONDS", 100.0)
    async with watching(Watch()) as changes, changes.of("a") as reader, changes.of("a", only_major=True) as ask:
        changes.notify({"a": True})
        for each in (reader, ask):
            with anyio.fail_after(10):
                await each.wait()
        changes.notify({"a": False})
        with anyio.fail_after(10):
            await reader.wait()
        with anyio.move_on_after(0.05) as scope:
            await ask.wait()
        assert scope.cancelled_caught
        changes.notify({"a": True})
        with anyio.fail_after(10):
            await ask.wait()


async def test_without_hints_the_longest_waits_look_once_a_second() -> None:
    """At most a batch of them, so that it is one statement."""
    waiting = MAX_BATCH + 200
    looks: list[tuple[float, int]] = []

    async def wait(changes: Changes, number: int) -> None:
        async with changes.of(f"s{number}") as change:
            await change.wait()  # notified when the subscription is open
            while True:
                await change.wait()
                looks.append((change.notified_at, number))

    async with watching(Watch()) as changes, anyio.create_task_group() as tasks:
        for number in range(waiting):
            tasks.start_soon(wait, changes, number)
        with anyio.fail_after(30):
            while len({number for _, number in looks}) < waiting or len(looks) < 2 * waiting:
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    rounds: dict[float, list[int]] = {}
    for at, number in looks:
        rounds.setdefault(at, []).append(number)
    assert all(len(each) <= MAX_BATCH for each in rounds.values())
    assert all(len(set(each)) == len(each) for each in rounds.values())
    assert all(later - at >= SAFETY_SECONDS for at, later in pairwise(sorted(rounds)))


async def test_a_subscription_that_breaks_is_opened_again_and_all_look(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    async with watching(watch) as changes, changes.of("a") as change:
        await change.wait()
        watch.hint(ConnectionLost("gone"))
        with anyio.fail_after(10):
            while watch.opened < 2:
                await change.wait()


async def test_a_database_that_gives_no_hints_is_looked_at_all_the_same() -> None:
    class Broken(Watch):
        @asynccontextmanager
        async def __call__(self) -> AsyncIterator[Watch]:
            if self.opened == 0:
                raise ConnectionLost("gone")
            yield self

    changes = Changes(Broken())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.run)
        async with changes.of("a") as change:
            with anyio.fail_after(10):
                await change.wait()
        tasks.cancel_scope.cancel()
