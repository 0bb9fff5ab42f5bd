"""What an orchestration can await: a future, settled by the input that answers it.

Life of a command's future: *created* by a call on the context; *scheduled* when the orchestration next waits, which
gives it an event id; *settled* by a result, an error, or its cancellation. What is cancelled before it was scheduled
leaves no trace.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from affinity import errors
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec, read_json

if TYPE_CHECKING:
    from affinity.orchestration.scheduler import Scheduler, Task

T = TypeVar("T")


class Waiter(Protocol):
    """A task, or a future over others."""

    def woken(self, future: DurableFuture[Any]) -> None:
        """Called once, when ``future`` is settled."""


class DurableFuture(Generic[T]):
    """Something to await in an orchestration. It can be awaited several times, and gives the same each time."""

    __slots__ = ("_owner", "_scheduler", "_value", "_waiters", "error", "settled")

    def __init__(self, scheduler: Scheduler) -> None:
        self.settled = False
        """Whether a result or an error is there."""
        self.error: BaseException | None = None
        self._scheduler = scheduler
        self._owner: Task[Any] | None = scheduler.current
        self._value: Any = None
        self._waiters: list[Waiter] = []

    def __await__(self) -> Generator[DurableFuture[Any], None, T]:
        self._scheduler.touch(self)
        if not self.settled:
            yield self
        return self.result()

    def on_session(self, session_id: str) -> DurableFuture[T]:
        """Only activities run on sessions: see ``ActivityFuture.on_session``.

        Raises:
            OrchestrationMisuse: always.
        """
        raise errors.OrchestrationMisuse(
            f"{self.title} cannot run on a session: call on_session on what schedule_activity returns"
        )

    @property
    def title(self) -> str:
        """How messages call it: "activity 'reply'"."""
        raise NotImplementedError

    def result(self) -> T:
        """Return what it was settled with; for the engine, which knows that it is."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[no-any-return]

    def add_waiter(self, waiter: Waiter) -> None:
        """Have ``waiter.woken`` called once, when this is settled."""
        self._waiters.append(waiter)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Give it a value or an error, and wake who waits."""
        self.settled = True
        self._value = value
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.woken(self)

    def cancel(self) -> None:
        """Nobody wants it any more."""
        raise NotImplementedError

    def belongs_to(self, scheduler: Scheduler) -> bool:
        """Whether it is of this execution."""
        return self._scheduler is scheduler

    def owned_by(self, task: Task[Any]) -> bool:
        """Whether this task created it."""
        return self._owner is task

    @property
    def forgotten(self) -> bool:
        """For one that nobody awaited: whether its creator had the chance to."""
        return self._owner is not None and self._owner.went_well

    def __repr__(self) -> str:
        return f"<{self.title}, {'settled' if self.settled else 'pending'}>"


class CommandFuture(DurableFuture[T]):
    """A future that stands for one command in the history."""

    __slots__ = ("schedule_id",)

    has_effect: ClassVar[bool] = True
    """Whether something outside goes on until it is cancelled."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.schedule_id = 0
        """Event id of the command; 0 until it is scheduled."""
        scheduler.pending.append(self)
        scheduler.untouched[self] = None

    def schedule(self) -> None:
        """Record the command, unless it was cancelled before."""
        if not self.settled:
            recorded = self._scheduler.journal.command(self._command())
            self.schedule_id = self._scheduler.journal.position
            self._scheduled(recorded)

    def cancel(self) -> None:
        """Record that nobody wants the result any more, unless it is there."""
        if self.settled:
            return
        if self.schedule_id:
            del self._scheduler.outstanding[self.schedule_id]
            self._scheduler.pending.append(self.cancellation())
        self.settle(error=self._cancelled_error())

    def deliver(self, event: Any) -> None:
        """Settle with the input event that answers the command."""
        raise NotImplementedError

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        raise NotImplementedError

    def _command(self) -> ev.Command:
        raise NotImplementedError

    def _scheduled(self, recorded: ev.Event) -> None:
        self._scheduler.outstanding[self.schedule_id] = self

    def _cancelled_error(self) -> Exception:
        return errors.OrchestrationMisuse(f"{self.title} was cancelled, and is awaited again")

    def _settle_decoded(self, codec: Codec | None, text: str) -> None:
        try:
            value = read_json(text) if codec is None else codec.decode(text)
        except errors.NotSerializable as error:
            self.settle(error=error)
        else:
            self.settle(value)
