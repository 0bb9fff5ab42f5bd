"""Deliveries that run alone: when they begin, and what they keep out meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from affinity.composed.options import RuntimeOptions
from affinity.provider.contract import Token, WorkItem, WorkKey, WorkLock
from affinity.worker import isolation
from affinity.worker.isolation import Isolation, is_isolated, not_begun, pause_alone

pytestmark = pytest.mark.anyio


def item(n: int = 1, attempts: int = 3, failures: int = 0) -> WorkItem:
    return WorkItem(
        lock=WorkLock(WorkKey("i", 1, n), Token(f"t{n}")),
        name="a",
        payload="{}",
        session_id=None,
        session_epoch=None,
        attempts=attempts,
        failures=failures,
        unknown_for=None,
    )


@dataclass
class Bench:
    """A worker whose other activities, and whose database, the test plays."""

    others: int = 0
    overs: int = 0
    counting: list[tuple[WorkItem, Callable[[bool | None], None]]] = field(default_factory=list)
    ran: list[tuple[int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.isolation = Isolation(lambda: self.others > 0, lambda *asked: self.counting.append(asked), self._over)

    def _over(self) -> None:
        self.overs += 1

    def add(self, n: int = 1) -> bool:
        return self.isolation.add(item(n), lambda counted: self.ran.append((n, counted)))

    def keeps_others_out(self) -> bool:
        return self.isolation.keeps_others_out

    def answer(self, counted: bool | None) -> None:
        _, then = self.counting.pop()
        then(counted)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_it_waits_for_what_runs_is_counted_and_then_runs(bench: Bench) -> None:
    bench.others = 2
    assert bench.add()
    bench.isolation.proceed()
    assert bench.keeps_others_out()
    assert not bench.counting
    bench.others = 0
    bench.isolation.proceed()
    assert not bench.ran
    bench.answer(True)
    assert bench.ran == [(1, True)]
    assert bench.keeps_others_out()
    assert bench.isolation.waiting is None
    assert bench.isolation.end(item(1).lock)
    assert not bench.keeps_others_out()
    assert bench.overs == 1


async def test_it_waits_again_when_something_has_begun_meanwhile(bench: Bench) -> None:
    bench.add()
    bench.others = 1
    bench.answer(None)
    assert not bench.ran
    assert not bench.counting
    bench.others = 0
    bench.isolation.proceed()
    bench.answer(True)
    assert bench.ran == [(1, True)]


async def test_there_is_one_at_a_time(bench: Bench) -> None:
    assert bench.add(1)
    assert not bench.add(2)
    bench.answer(True)
    assert not bench.add(2)
    assert not bench.isolation.end(item(2).lock)
    bench.isolation.end(item(1).lock)
    assert bench.add(2)


async def test_one_whose_lock_is_lost_does_not_run_and_keeps_nothing_out(bench: Bench) -> None:
    bench.add()
    bench.answer(False)
    assert bench.ran == [(1, False)]
    assert not bench.keeps_others_out()


async def test_what_was_given_up_while_it_was_counted_does_not_run(bench: Bench) -> None:
    bench.add()
    bench.isolation.clear()
    bench.answer(True)
    assert not bench.ran


async def test_nothing_is_kept_out_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that waits for other work must not wait forever."""
    bench.others = 1
    bench.add()
    assert not bench.counting
    monkeypatch.setattr(isolation, "ISOLATION_TIMEOUT", 0.0)
    bench.isolation.proceed()
    bench.answer(True)
    assert bench.ran == [(1, True)]
    assert not bench.keeps_others_out()
    assert not bench.add(2)


@pytest.mark.parametrize(("max_attempts", "after"), [(1, 1), (2, 1), (3, 2), (10, 5)])
def test_half_of_the_attempts(max_attempts: int, after: int) -> None:
    assert RuntimeOptions.make(max_attempts=max_attempts).isolate_after == after
    assert not is_isolated(item(attempts=after), after)
    assert is_isolated(item(attempts=after + 1), after)
    assert not is_isolated(item(attempts=after + 1, failures=1), after)


def test_a_delivery_that_is_not_counted_is_not_taken_back() -> None:
    assert not not_begun(item(attempts=2), 2).count_attempt
    assert not_begun(item(attempts=3), 2).count_attempt


def test_one_that_ends_its_worker_alone_waits_longer_each_time() -> None:
    """From 5 s to 10 s after the first time, up to a minute; failures of its code do not count."""
    first, second, last = (
        [pause_alone(item(attempts=attempts, failures=1), 2) for _ in range(100)] for attempts in (4, 5, 60)
    )
    assert min(first) >= 5
    assert max(first) <= 10
    assert min(second) >= 20
    assert max(last) <= isolation.LONGEST_PAUSE
