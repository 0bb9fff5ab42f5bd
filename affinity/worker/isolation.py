"""Deliveries that run alone, so that an activity does not fail because another one killed the process.

A process that dies interrupts all its activities, and it is unknown which of them killed it. Therefore an item that was
interrupted often (half of ``max_attempts``) is delivered alone: from then on only its own code can interrupt it.

States of the one item that a worker isolates::

    waiting ──nothing else runs──► counting ──the database has counted it──► running ──► over
       ▲───────something else has begun────┘   └──the lock is lost──► over

Invariants
    * A worker isolates one item at a time. Others are given back immediately: other workers may run them.
    * While it waits, its delivery is not counted (`affinity.provider.contract.FetchOptions.uncounted_after`): if the
      process ends then, it is no attempt of this item. It is counted just before its code begins, when the results of
      all activities that ran before are written.
    * An item that ends the process although it ran alone comes again behind all others (`pause_alone`).
    * While it waits or runs, the worker takes no other work, but for `ISOLATION_TIMEOUT` seconds at most each: code
      that waits for other work to end must not wait without end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from affinity.provider.contract import WorkAbandon, WorkItem, WorkLock

ISOLATION_TIMEOUT: Final = 120.0
"""Seconds for which one item keeps others from starting: while it waits for running items, and again while it runs."""


FIRST_PAUSE: Final = 10.0
"""Longest pause of an item that has ended a process alone, once; each time is four times as long."""

LONGEST_PAUSE: Final = 60.0


def is_isolated(item: WorkItem, isolate_after: int) -> bool:
    """Whether this delivery must run alone: the item was interrupted ``isolate_after`` times, or more often."""
    return item.attempts - item.failures > isolate_after


def not_begun(item: WorkItem, isolate_after: int) -> WorkAbandon:
    """Give-back of an item that was never handed to code: its delivery is no attempt. The delivery of one that is to
    run alone is not counted yet.
    """
    return WorkAbandon(lock=item.lock, count_attempt=is_isolated(item, isolate_after))


def pause_alone(item: WorkItem, isolate_after: int) -> float:
    """Seconds until the item comes again if it ends this process, although it runs alone: each time longer, so that
    all others go first. At random, so that several such items do not come together.
    """
    times = item.attempts - item.failures - isolate_after - 1  # alone
    return random.uniform(0.5, 1.0) * min(FIRST_PAUSE * 4.0 ** min(times, 10), LONGEST_PAUSE)  # noqa: S311


@dataclass(slots=True, eq=False)
class _IsolatedItem:
    item: WorkItem
    run: Callable[[bool], None]
    stage: Literal["waiting", "counting", "running"] = "waiting"
    since: float = 0.0  # monotonic start of the stage


class Isolation:
    """Runs one item of a worker alone.

    Args:
        others_run: whether anything else runs.
        count: has the database count the item; calls back with whether its lock is live, or None if something else has
            begun meanwhile.
        over: called when others may start again.
    """

    def __init__(
        self,
        others_run: Callable[[], bool],
        count: Callable[[WorkItem, Callable[[bool | None], None]], None],
        over: Callable[[], None],
    ) -> None:
        self._others_run = others_run
        self._count = count
        self._over = over
        self._isolated: _IsolatedItem | None = None
        self.is_on: bool = False
        """Whether there is an isolated item: read for each activity, so it is no property."""

    @property
    def keeps_others_out(self) -> bool:
        """Whether nothing else may start now."""
        return self._isolated is not None and not (self._isolated.stage == "running" and self._is_late())

    @property
    def is_alone(self) -> bool:
        """Whether nothing else runs, or the item has waited for `ISOLATION_TIMEOUT`."""
        return not self._others_run() or self._is_late()

    @property
    def waiting(self) -> WorkItem | None:
        """The item, while it has not been handed to code."""
        one = self._isolated
        return one.item if one is not None and one.stage != "running" else None

    def add(self, item: WorkItem, run: Callable[[bool], None]) -> bool:
        """Have ``run`` called with True when the item can run alone, or with False when its lock is lost. Returns
        False, and does nothing, when another item is isolated.
        """
        if self._isolated is not None:
            return False
        self._isolated, self.is_on = _IsolatedItem(item, run, since=time.monotonic()), True
        asyncio.get_running_loop().call_later(ISOLATION_TIMEOUT, self.proceed)
        self.proceed()
        return True

    def proceed(self) -> None:
        """Have the waiting item counted, if nothing else runs any more."""
        one = self._isolated
        if one is not None and one.stage == "waiting" and self.is_alone:
            one.stage = "counting"
            self._count(one.item, lambda counted: self._handle_count(one, counted))

    def end(self, lock: WorkLock) -> bool:
        """Note that the item under this lock has ended, or was taken away; returns whether it was the isolated one."""
        if self._isolated is None or self._isolated.item.lock != lock:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Isolate the item no more."""
        if self._isolated is not None:
            self._isolated = None
            self.is_on = False
            self._over()

    def _handle_count(self, one: _IsolatedItem, counted: bool | None) -> None:
        if self._isolated is not one:
            return
        if counted is None:
            one.stage = "waiting"
            self.proceed()
            return
        if counted:
            one.stage, one.since = "running", time.monotonic()
            asyncio.get_running_loop().call_later(ISOLATION_TIMEOUT, self._over)
        else:
            self.clear()
        one.run(counted)

    def _is_late(self) -> bool:
        return self._isolated is not None and time.monotonic() - self._isolated.since >= ISOLATION_TIMEOUT
