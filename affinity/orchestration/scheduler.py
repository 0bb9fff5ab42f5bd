"""A small deterministic scheduler, and what it schedules: coroutines as tasks, and the futures that they await.

Coroutines run first in, first out, one input at a time.

The main coroutine and the branches that it hands to ``select`` and ``gather`` are tasks. A task runs until it awaits
something that is not there. What the tasks created up to then is scheduled at that moment, in the order of creation.
A branch that is cancelled takes with it what it created, and gets a signal at its await, once, so that its
``finally`` blocks run; they may await. The execution ends when the main task has ended and every branch is through
with that.

Life of a command's future: *created* by a call on the context; *scheduled* when the orchestration next waits, which
gives it an event id; *settled* by a result, an error, or its cancellation. What is cancelled before it was scheduled
leaves no trace. The kinds of commands are in `futures`.

Nothing here knows a clock or a loop: tasks move with ``coro.send``, and may await nothing but durable futures.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from affinity.errors import NotSerializable, OrchestrationMisuse
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.history import History
from affinity.orchestration.inbox import EventWait, Inbox
from affinity.orchestration.signals import BranchCancelledSignal, ExecutionClosedSignal

T = TypeVar("T")

_CLOSE_ATTEMPTS: Final = 5
_LOGGER = logging.getLogger("affinity.orchestration")


class Scheduler:
    """The coroutines of one execution and what they wait for."""

    __slots__ = (
        "closed",
        "current",
        "execution_id",
        "held",
        "history",
        "inbox",
        "instance_id",
        "logger",
        "outstanding",
        "pending",
        "ready",
        "session_id",
        "tasks",
        "untouched",
        "watched",
    )

    def __init__(self, instance_id: str, execution_id: int, session_id: str | None = None) -> None:
        self.instance_id = instance_id
        self.execution_id = execution_id
        self.session_id = session_id
        self.history = History()
        self.inbox = Inbox()
        self.ready: deque[Task[Any]] = deque()
        self.tasks: dict[Task[Any], None] = {}
        """Tasks that have not ended, in the order of their start."""
        self.current: Task[Any] | None = None
        """The task that runs now."""
        self.pending: deque[CommandFuture[Any] | ev.Command] = deque()
        """What the code asked for since it last waited, in order."""
        self.outstanding: dict[int, CommandFuture[Any]] = {}
        """Scheduled and not settled, by event id."""
        self.held: dict[int, ev.Hold] = {}
        """Sessions that waits hold which are not settled, by the event id of the wait."""
        self.watched: set[str] = set()
        """Sessions whose moves this execution has asked for."""
        self.untouched: dict[DurableFuture[Any], None] = {}
        """Created, and never awaited or combined: a forgotten await, if it stays so."""
        self.closed = False
        self.logger = ReplaySafeLogger(self)

    def run(self) -> None:
        """Run tasks until every one of them waits."""
        while self.ready or self.pending:
            if self.ready:
                self.ready.popleft().step()
            self.flush()

    def flush(self) -> None:
        """Schedule what was asked for. This can settle futures, and so wake tasks and cancel others."""
        while self.pending:
            command = self.pending.popleft()
            if isinstance(command, CommandFuture):
                command.schedule()
            else:
                self.history.command(command)

    def watch(self, session_id: str) -> None:
        """Ask to be told of the session's moves, once in an execution.

        Recorded on its own, not by the wait: of a wait that is cancelled before it was scheduled nothing is left, and
        the moves up to the next wait would be lost.
        """
        if session_id not in self.watched:
            self.watched.add(session_id)
            self.pending.append(ev.SessionWatched(session_id))

    def touch(self, future: DurableFuture[Any]) -> None:
        """Note that somebody waits for the future.

        Raises:
            OrchestrationMisuse: it belongs to another execution, or nothing of this one runs now.
        """
        self.require_running()
        self.untouched.pop(future, None)

    def require_running(self) -> None:
        """Refuse calls that do not come from the orchestration's own code.

        Raises:
            OrchestrationMisuse: no code of this execution runs now.
            ExecutionClosedSignal: the execution is gone.
        """
        if self.closed:
            raise ExecutionClosedSignal
        if self.current is None:
            raise OrchestrationMisuse("an orchestration's context and futures can only be used by its own code")

    def check_awaitable(self, awaitable: object, where: str) -> None:
        """Refuse what ``adopt`` cannot take.

        Raises:
            OrchestrationMisuse: it is neither a durable future of this execution nor a coroutine.
        """
        if isinstance(awaitable, DurableFuture) and awaitable.belongs_to(self):
            return
        if inspect.isfunction(awaitable):
            raise OrchestrationMisuse(f"{where} got the function {awaitable.__name__!r}: call it with its arguments")
        if not inspect.iscoroutine(awaitable):
            raise OrchestrationMisuse(f"{where} takes durable futures and coroutines, not {foreign(awaitable)}")

    def adopt(self, awaitable: Any) -> DurableFuture[Any]:
        """Return an argument of select or gather as a future; a coroutine starts as a branch."""
        return awaitable if isinstance(awaitable, DurableFuture) else Task(self, awaitable)

    def cancel_owned(self, task: Task[Any]) -> None:
        """Cancel what the task has created and nobody has settled, or read."""
        created: list[DurableFuture[Any] | EventWait] = [*self.outstanding.values(), *self.inbox.unread(), *self.tasks]
        created += [command for command in self.pending if isinstance(command, CommandFuture)]
        for future in created:
            if future.owned_by(task):
                future.cancel()

    def drop_unscheduled(self) -> None:
        """Forget what was created and not yet scheduled."""
        self.pending = deque(command for command in self.pending if not isinstance(command, CommandFuture))

    def cancellations(self) -> list[ev.Event]:
        """What cancels everything that goes on outside."""
        return [future.cancellation() for future in self.outstanding.values() if future.has_effect]

    def end(self) -> None:
        """Cancel everything that goes on outside, and release it."""
        for cancellation in self.cancellations():
            self.history.final(cancellation)
        self.forget()

    def forget(self) -> None:
        """Release everything but the history."""
        self.ready.clear()
        self.tasks.clear()
        self.pending.clear()
        self.outstanding.clear()
        self.held.clear()
        self.untouched.clear()
        self.inbox = Inbox()

    def close(self) -> None:
        """Drop the coroutines; what their ``finally`` blocks ask of the context is refused."""
        self.closed = True
        for task in list(self.tasks):
            task.close()
        self.forget()


class ReplaySafeLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger ``affinity.orchestration``, silent while history is replayed, with the instance in ``extra``."""

    def __init__(self, scheduler: Scheduler) -> None:
        of = {"instance_id": scheduler.instance_id, "execution_id": scheduler.execution_id}
        super().__init__(_LOGGER, {**of, "session_id": scheduler.session_id})
        self._scheduler = scheduler

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """Whether a record of this level is written now."""
        return not (self._scheduler.history.replaying or self._scheduler.closed) and super().isEnabledFor(level)


class Waiter(Protocol):
    """A task, or a future over others."""

    def on_settled(self, future: DurableFuture[Any]) -> None:
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
        raise OrchestrationMisuse(
            f"{self.description} cannot run on a session: call on_session on what schedule_activity returns"
        )

    @property
    def description(self) -> str:
        """How messages call it: "activity 'reply'"."""
        raise NotImplementedError

    def result(self) -> T:
        """Return what it was settled with; for the engine, which knows that it is."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[no-any-return]

    def add_waiter(self, waiter: Waiter) -> None:
        """Have ``waiter.on_settled`` called once, when this is settled."""
        self._waiters.append(waiter)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Give it a value or an error, and wake who waits."""
        self.settled = True
        self._value = value
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.on_settled(self)

    def cancel(self) -> None:
        """Nobody wants it any more."""
        raise NotImplementedError

    def belongs_to(self, scheduler: Scheduler) -> bool:
        """Whether it is of this execution."""
        return self._scheduler is scheduler

    def owned_by(self, task: object) -> bool:
        """Whether this task created it."""
        return self._owner is task

    @property
    def forgotten(self) -> bool:
        """For one that nobody awaited: whether its creator had the chance to."""
        return self._owner is not None and self._owner.went_well

    def __repr__(self) -> str:
        return f"<{self.description}, {'settled' if self.settled else 'pending'}>"


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
            recorded = self._scheduler.history.command(self._command())
            self.schedule_id = self._scheduler.history.position
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
        return OrchestrationMisuse(f"{self.description} was cancelled, and is awaited again")

    def _settle_decoded(self, codec: Codec | None, text: str) -> None:
        try:
            value = read_json(text) if codec is None else codec.decode(text)
        except NotSerializable as error:
            self.settle(error=error)
        else:
            self.settle(value)


class Task(DurableFuture[T]):
    """A coroutine that runs; itself a future of what it returns."""

    __slots__ = ("_awaited", "_coroutine", "_queued", "_signal", "_started", "_throw")

    def __init__(self, scheduler: Scheduler, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(scheduler)
        self._coroutine = coroutine
        self._awaited: DurableFuture[Any] | None = None
        self._throw: BaseException | None = None
        self._signal: BaseException | None = None
        self._started = False
        self._queued = False
        scheduler.tasks[self] = None
        self._enqueue()

    @property
    def description(self) -> str:
        """How messages call it."""
        return f"coroutine {getattr(self._coroutine, '__name__', '?')!r}"

    @property
    def went_well(self) -> bool:
        """Whether it neither failed nor was interrupted, so far."""
        return self.error is None and self._signal is None

    def step(self) -> None:
        """Run until it awaits something that is not there, or ends."""
        throw, self._throw = self._throw, None
        self._queued, self._awaited, self._started = False, None, True
        if self.settled:
            return
        scheduler = self._scheduler
        scheduler.current = self
        try:
            awaited = self._coroutine.send(None) if throw is None else self._coroutine.throw(throw)
        except StopIteration as stop:
            self._end(stop.value)
        except KeyboardInterrupt:  # not the orchestration's: somebody stops this process
            raise
        except BaseException as error:
            self._end(error=error)
        else:
            self._wait_for(awaited)
        finally:
            scheduler.current = None

    def on_settled(self, future: DurableFuture[Any]) -> None:
        """Go on: what it awaits is there."""
        if self._awaited is future and not self._queued:
            self._enqueue()

    def interrupt(self, signal: BaseException) -> None:
        """Raise the signal at its await, once in its life, and cancel what it created."""
        if self.settled or self._signal is not None:
            return
        self._signal = signal
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited.owned_by(self):
            awaited.cancel()
        self._scheduler.cancel_owned(self)
        if not self._started:
            self.close()
            self._end(error=signal)
            return
        self._throw = signal
        if not self._queued:
            self._enqueue()

    def cancel(self) -> None:
        """Interrupt it as a branch that nobody wants any more."""
        self.interrupt(BranchCancelledSignal("the branch was cancelled"))

    def close(self) -> None:
        """Drop the coroutine, whatever it says."""
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                self._coroutine.close()
            except RuntimeError:  # it awaited in its cleanup; once more, or the interpreter complains at its end
                continue
            except BaseException:  # noqa: S110 - it failed in its cleanup, and has nobody to tell
                pass
            return

    def _enqueue(self) -> None:
        self._queued = True
        self._scheduler.ready.append(self)

    def _wait_for(self, awaited: object) -> None:
        if isinstance(awaited, DurableFuture) and awaited.belongs_to(self._scheduler):
            self._awaited = awaited
            awaited.add_waiter(self)
        else:
            self._throw = OrchestrationMisuse(f"an orchestration cannot await {foreign(awaited)}")
            self._enqueue()

    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        self._scheduler.tasks.pop(self, None)
        if self._owner is None:  # the main task: nobody is left to await what it has only created
            self._scheduler.drop_unscheduled()
        if self._signal is not None and error is not None and error is not self._signal and self._owner is not None:
            self._scheduler.logger.warning(
                "%s failed in its cleanup after cancellation", self.description, exc_info=error
            )
        self.settle(value, error)


def foreign(awaitable: object) -> str:
    """Describe what somebody awaited in place of a durable future, and say what to do instead."""
    kind = type(awaitable)
    root = kind.__module__.partition(".")[0]
    if awaitable is None:
        return "asyncio.sleep(0) or a bare yield: there is no need to yield here"
    if root in ("asyncio", "_asyncio", "anyio", "trio", "concurrent", "uvloop"):
        return (
            f"a {kind.__name__} of {root.lstrip('_')}: its result would not be recorded. "
            "Move the I/O to an activity, and use ctx.schedule_timer, ctx.gather and ctx.select here"
        )
    if isinstance(awaitable, DurableFuture):
        return f"{awaitable.description} of another orchestration"
    return f"a {kind.__qualname__} of {kind.__module__}: only what its context gives it; move other work to an activity"
