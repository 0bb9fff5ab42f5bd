"""Waiting for several futures: ``select`` and ``gather``."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, Self, TypeVar

from affinity.errors import OrchestrationMisuse
from affinity.orchestration.scheduler import DurableFuture, Scheduler, refuse_iterable

N = TypeVar("N", bound=int)
T = TypeVar("T")


class Selected(tuple[N, T], Generic[N, T]):
    """The result of ``select``: a pair, ``index, value``. A type checker knows the type of the value once the index was
    compared with a number.

    Attributes:
        future: the winner itself, to compare with the arguments; for a coroutine, the branch that ran it.
    """

    __match_args__ = ("index", "value", "future")
    future: DurableFuture[T]

    def __new__(cls, index: N, value: T, future: DurableFuture[T]) -> Self:
        """The result of this future, which is the argument at this position."""
        made = super().__new__(cls, (index, value))
        made.future = future
        return made

    @property
    def index(self) -> N:  # type: ignore[override]  # no one searches a pair
        """Position of the winner among the arguments."""
        return self[0]

    @property
    def value(self) -> T:
        """Its result."""
        return self[1]


class Combined(DurableFuture[T]):
    """A future over others, which are cancelled with it (but not by `WaitAny`)."""

    __slots__ = ("_children",)

    def __init__(self, scheduler: Scheduler, children: tuple[DurableFuture[Any], ...]) -> None:
        super().__init__(scheduler)
        self._children = children
        scheduler.never_awaited[self] = None
        for child in children:
            scheduler.mark_awaited(child)
        for child in children:
            if child.settled:
                self.on_settled(child)
            else:
                child._add_waiter(self)

    def on_settled(self, child: DurableFuture[Any]) -> None:
        """Called when a child is settled."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel all children."""
        self._scheduler.mark_cancelled(self)
        if not self.settled:
            self.settle(error=OrchestrationMisuse(f"{self.description} was cancelled"))
        self._cancel_children()

    def _cancel_children(self, keep: DurableFuture[Any] | None = None) -> None:
        for child in self._children:
            if child is not keep:
                child.cancel()


class Select(Combined[Selected[int, T]]):
    """Settled by the first of its children; the others are cancelled."""

    __slots__ = ()

    def __init__(self, scheduler: Scheduler, awaitables: tuple[object, ...]) -> None:
        super().__init__(scheduler, _adopt(scheduler, awaitables, "select"))

    @property
    def description(self) -> str:
        return "select(...)"

    def on_settled(self, child: DurableFuture[Any]) -> None:
        """The first settled child wins; of several that are settled from the start, the first argument."""
        if self.settled:
            return
        try:
            self.settle(Selected(self._children.index(child), child.result(), child))
        except BaseException as error:  # what the branch raised is raised where the select is awaited
            self.settle(error=error)
        self._cancel_children(keep=child)


class WaitAny(Combined[None]):
    """Settled by the first of its children; the others go on."""

    __slots__ = ()

    def __init__(self, scheduler: Scheduler, futures: tuple[DurableFuture[Any], ...]) -> None:
        super().__init__(scheduler, _adopt(scheduler, futures, "wait_any"))

    @property
    def description(self) -> str:
        return "wait_any(...)"

    def on_settled(self, child: DurableFuture[Any]) -> None:
        """One of them is settled: well, or with an error."""
        if not self.settled:
            self.settle()

    def cancel(self) -> None:
        """Stop waiting; the children go on."""
        self._scheduler.mark_cancelled(self)
        if not self.settled:
            self.settle(error=OrchestrationMisuse(f"{self.description} was cancelled"))


class Gather(Combined[list[T]]):
    """Settled when all of its children are, or one has failed; then the others are cancelled. With a limit, children
    that have not begun wait until fewer than so many run.
    """

    __slots__ = ("_limit", "_missing", "_return_exceptions", "_running", "_waiting")

    def __init__(
        self, scheduler: Scheduler, awaitables: tuple[object, ...], return_exceptions: bool, limit: int | None
    ) -> None:
        self._return_exceptions = return_exceptions
        self._limit = limit
        self._missing = len(awaitables)
        children = _adopt(scheduler, awaitables, "gather", limit)
        once = dict.fromkeys(children if limit is not None else ())
        self._waiting = deque(child for child in once if child._hold_back())
        self._running = {child for child in once if not child.settled}.difference(self._waiting)
        super().__init__(scheduler, children)
        self._begin_more()
        if not awaitables:
            self.settle([])

    @property
    def description(self) -> str:
        return "gather(...)"

    def on_settled(self, child: DurableFuture[Any]) -> None:
        """Count down; a failed child settles it immediately."""
        if self.settled:
            return
        self._running.discard(child)
        self._begin_more()
        error = child.error
        if error is not None and not (self._return_exceptions and isinstance(error, Exception)):
            self.settle(error=error)
            self._cancel_children()
            return
        self._missing -= 1
        if self._missing == 0:
            self.settle([child.result() if child.error is None else child.error for child in self._children])

    def _begin_more(self) -> None:
        while self._limit is not None and self._waiting and len(self._running) < self._limit:
            child = self._waiting.popleft()
            if not child.settled:
                self._running.add(child)
                child.begin()


def _adopt(
    scheduler: Scheduler, awaitables: tuple[object, ...], where: str, limit: int | None = None
) -> tuple[DurableFuture[Any], ...]:
    """Adopt all arguments or none: a wrong argument must not leave some of the branches running."""
    try:
        _check(scheduler, awaitables, where, limit)
    except OrchestrationMisuse:
        scheduler.refuse(awaitables)
        raise
    return tuple(scheduler.adopt(awaitable, begins=limit is None) for awaitable in awaitables)


def _check(scheduler: Scheduler, awaitables: tuple[object, ...], where: str, limit: int | None) -> None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise OrchestrationMisuse(f"gather: limit is a number from 1, not {limit!r:.80}")
    if where == "wait_any":
        for each in awaitables:
            refuse_iterable(each, where)
        if not awaitables or not all(
            isinstance(each, DurableFuture) and each._belongs_to(scheduler) for each in awaitables
        ):
            raise OrchestrationMisuse("wait_any takes durable futures of this orchestration, one at least")
    elif where == "select" and not awaitables:
        raise OrchestrationMisuse("select needs something to wait for")
    else:
        for awaitable in awaitables:
            scheduler.check_awaitable(awaitable, where)
