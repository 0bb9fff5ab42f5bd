"""A small deterministic scheduler for coroutines, as tasks, and the futures that they await.

Coroutines run first in, first out, one input at a time.

The main coroutine and the branches that it passes to ``select`` and ``gather`` are tasks. A task runs until it awaits a
future that is not settled. The futures created up to then are scheduled at that moment, in the order of creation. When
a branch is cancelled, the futures that it created are cancelled too, and a signal is raised at its await, once, so that
its ``finally`` blocks run; they may await. The execution ends when the main task has ended and the cleanup of every
branch is done.

A command's future is *created* by a call on the context, *scheduled* when the orchestration next waits, which
gives it an event id, and *settled* by a result, an error or its cancellation. A future that is cancelled before it is
scheduled leaves no event. The kinds of commands are in `futures`.

The module uses no clock and no event loop: tasks are driven by ``coro.send``, and may await durable futures only.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from affinity.errors import Nondeterminism, NotSerializable, OrchestrationMisuse
from affinity.headers import Headers
from affinity.operators import (
    ARITHMETIC,
    ASYNC_BLOCK,
    ASYNC_ITEMS,
    BLOCK,
    ITEMS,
    ORDER,
    refuse_equality,
    refuse_operators,
)
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.history import History
from affinity.orchestration.inbox import EventWait, Inbox
from affinity.orchestration.signals import BranchCancelledSignal, ExecutionClosedSignal
from affinity.orchestration.sources import CodeLine, TracedRequests, describe_sources, waiting_source
from affinity.orchestration.values import Values
from affinity.records import Labels
from affinity.redaction import redacted
from affinity.user_code import pass_interrupt

T = TypeVar("T")

_CLOSE_ATTEMPTS: Final = 5
_MAX_REFUSED: Final = 100
"""Refusals in a row: of foreign awaitables, or in the cleanup of a dropped execution. Code may catch them and try
again, without end.
"""

_MAX_REPEATS: Final = 1000
"""Awaits in a row of one future that has failed."""

_HELD_BACK: Final = -1  # event id of a command that is held back until `begin`
_BEGUN: Final = -2  # event id of a command between `begin` and its scheduling
_LOGGER = logging.getLogger("affinity.orchestration")


class Scheduler:
    """The coroutines of one execution and their waits."""

    __slots__ = (
        "asks",
        "closed",
        "current",
        "custom_status",
        "execution_id",
        "failed",
        "headers",
        "held",
        "history",
        "inbox",
        "instance_id",
        "labels",
        "logger",
        "never_awaited",
        "outstanding",
        "pending",
        "ready",
        "refused",
        "scheduled_for",
        "sent_headers",
        "serves",
        "session_id",
        "stamped",
        "start_headers",
        "stopped",
        "tasks",
        "values",
        "watched",
    )

    def __init__(self, instance_id: str, execution_id: int, session_id: str | None = None) -> None:
        self.instance_id: str = instance_id
        self.execution_id: int = execution_id
        self.session_id: str | None = session_id
        self.history: History = History()
        self.inbox: Inbox = Inbox()
        self.ready: deque[Task[Any]] = deque()
        self.tasks: dict[Task[Any], None] = {}
        """Tasks that have not ended, in the order of their start."""
        self.current: Task[Any] | None = None
        """The task that runs now."""
        self.pending: deque[CommandFuture[Any] | ev.Command] = deque()
        """Requests of the code since it last waited, in order."""
        self.outstanding: dict[int, CommandFuture[Any]] = {}
        """Scheduled and not settled, by event id."""
        self.failed: dict[int, str] = {}
        """Names of the activities that have failed, by event id."""
        self.held: dict[int, ev.Hold] = {}
        """Sessions held by waits that are not settled, by the event id of the wait."""
        self.watched: set[str] = set()
        """Sessions whose moves this execution has subscribed to."""
        self.never_awaited: dict[DurableFuture[Any], None] = {}
        """Futures created and not awaited or combined yet. A future that is left at the end is a forgotten await."""
        self.custom_status: str | None = None
        """As JSON text; until this execution sets one, the custom status of the former execution."""
        self.values: Values = Values()
        """The values of the instance."""
        self.labels: Labels | None = None
        """Of the instance, as the code has set them last; None: it has none."""
        self.scheduled_for: float | None = None
        """Tick of the schedule that has started the instance, in Unix seconds."""
        self.start_headers: Headers | None = None
        """Headers with which the instance was started."""
        self.headers: Headers | None = None
        """Headers of the task that runs now, or has run last."""
        self.sent_headers: dict[int, Headers] = {}
        """Headers with which the commands of this step were requested, by event id."""
        self.stamped: dict[object, Headers | None] = {}
        """Requests that are older than the headers which their task has now, with those that it had."""
        self.asks: dict[str, str] = {}
        """Trace contexts of asks without a reply, by key."""
        self.serves: str = ""
        """Key of the ask that the code has received last; empty: none."""
        self.closed: bool = False
        """Whether the execution was dropped from memory."""
        self.refused: int = 0
        """Calls since then."""
        self.stopped: list[Coroutine[Any, Any, Any]] = []
        """Coroutines that would not end. The interpreter closes them once more when they are dropped, after `close`."""
        self.logger: ReplaySafeLogger = ReplaySafeLogger(self)

    def trace(self, wanted: bool) -> None:
        """Note which line of the application makes each request, or do so no more."""
        requests = TracedRequests[Any]() if wanted else deque[Any]()
        requests += self.pending
        self.pending = requests

    def run(self) -> None:
        """Run tasks until every one of them waits."""
        while self.ready or self.pending:
            if self.ready:
                self.ready.popleft().step()
            self.flush()

    def flush(self) -> None:
        """Schedule what was requested. This can settle futures, and thereby resume or cancel tasks."""
        try:
            while self.pending:
                command, before = self.pending.popleft(), self.history.position
                if isinstance(command, CommandFuture):
                    command.schedule()
                else:
                    if type(command) is ev.ValueSet and not self.history.replaying:
                        self.values.check_number()
                    self.history.record_command(command)
                if self.headers is not None or self.stamped:
                    self._note_headers(command, before)
        except Nondeterminism as error:
            traced = self.pending.source if isinstance(self.pending, TracedRequests) else None
            error.source = describe_sources([traced or _owner_source(command)])
            raise

    def receive_headers(self, headers: Headers | None) -> None:
        """Note that the code has received an event with these headers: what its task requests from now on has them. An
        event without headers leaves those of the start.
        """
        new = self.start_headers if headers is None else headers
        if new is self.headers:
            return
        for command in self.pending:
            self.stamped.setdefault(command if isinstance(command, CommandFuture) else id(command), self.headers)
        self.headers = new
        if self.current is not None:
            self.current.headers = new

    def _note_headers(self, command: CommandFuture[Any] | ev.Command, before: int) -> None:
        """Note the headers of a request that may be recorded now, behind this position."""
        stamp = command if isinstance(command, CommandFuture) else id(command)
        headers = self.stamped.pop(stamp, self.headers)
        if headers is not None and self.history.position > before and not self.history.replaying:
            self.sent_headers[self.history.position] = headers

    def watch(self, session_id: str) -> None:
        """Subscribe to the session's moves, once per execution.

        The subscription is an event of its own. A wait that is cancelled before it is scheduled leaves no event, and
        the moves before the next wait would be lost.
        """
        if session_id not in self.watched:
            self.watched.add(session_id)
            self.pending.append(ev.SessionWatched(session_id))

    def mark_awaited(self, future: DurableFuture[Any]) -> None:
        """Record that the code awaits the future, or has combined it.

        Raises:
            OrchestrationMisuse: no code of this execution runs now.
        """
        self.require_running()
        self.never_awaited.pop(future, None)

    def mark_cancelled(self, future: DurableFuture[Any]) -> None:
        """Record that the future is cancelled: if it is by the code, the code need not await it."""
        if self.current is not None:
            self.never_awaited.pop(future, None)

    def require_running(self) -> None:
        """Refuse calls that do not come from the orchestration's own code.

        Raises:
            OrchestrationMisuse: no code of this execution runs now.
            ExecutionClosedSignal: the execution was dropped from memory.
        """
        if self.closed:
            self._refuse_closed()
        elif self.current is None:
            raise OrchestrationMisuse("an orchestration's context and futures can only be used by its own code")

    def _refuse_closed(self) -> None:
        """Refuse a call in the cleanup of an execution that was dropped from memory.

        Code that catches the refusal repeats it, without end. So after `_MAX_REFUSED` of them the calls are accepted,
        without effect, and an await does not return: there the coroutine is closed.
        """
        self.refused += 1
        if self.refused <= _MAX_REFUSED:
            raise ExecutionClosedSignal

    def refuse(self, awaitables: Iterable[object]) -> None:
        """Leave nothing running of the arguments of a call that is refused: see `DurableFuture.refuse`."""
        for awaitable in awaitables:
            if isinstance(awaitable, DurableFuture) and awaitable._belongs_to(self):
                awaitable.refuse()
            elif inspect.iscoroutine(awaitable):
                awaitable.close()  # it has not begun

    def check_awaitable(self, awaitable: object, where: str) -> None:
        """Refuse what ``adopt`` cannot take.

        Raises:
            OrchestrationMisuse: it is neither a durable future of this execution nor a coroutine.
        """
        if isinstance(awaitable, DurableFuture) and awaitable._belongs_to(self):
            return
        if inspect.isfunction(awaitable):
            raise OrchestrationMisuse(f"{where} got the function {awaitable.__name__!r}: call it with its arguments")
        refuse_iterable(awaitable, where)
        if not inspect.iscoroutine(awaitable):
            raise OrchestrationMisuse(
                f"{where} takes durable futures and coroutines, not {describe_foreign(awaitable)}"
            )

    def adopt(self, awaitable: Any, *, begins: bool = True) -> DurableFuture[Any]:
        """Return an argument of select or gather as a future, which begins now or later; a coroutine is a branch."""
        future = awaitable if isinstance(awaitable, DurableFuture) else Task(self, awaitable)
        if begins:
            future.begin()
        return future

    def cancel_owned(self, task: Task[Any]) -> None:
        """Cancel the futures that the task has created, and that are not settled, or whose event was not read."""
        created: list[DurableFuture[Any] | EventWait] = [*self.outstanding.values(), *self.inbox.unread(), *self.tasks]
        created += [command for command in self.pending if isinstance(command, CommandFuture)]
        for future in created:
            if future._owned_by(task):
                future.cancel()

    def drop_unscheduled(self) -> None:
        """Drop futures that were created and not yet scheduled, unless they are scheduled in any case."""
        kept = [each for each in self.pending if not isinstance(each, CommandFuture) or each._is_certain]
        self.pending.clear()
        self.pending += kept

    def cancellations(self) -> list[ev.Event]:
        """The events that cancel all outstanding activities, timers and sub-orchestrations."""
        return [future.cancellation() for future in self.outstanding.values() if future._has_effect]

    def end(self) -> None:
        """Record the `cancellations`, and release all futures and tasks."""
        for cancellation in self.cancellations():
            self.history.record_final(cancellation)
        self.clear()

    def clear(self) -> None:
        """Release all futures and tasks; the history stays."""
        self.ready.clear()
        self.tasks.clear()
        self.pending.clear()
        self.outstanding.clear()
        self.held.clear()
        self.never_awaited.clear()
        self.stamped.clear()
        self.inbox = Inbox()

    def close(self) -> None:
        """Close the coroutines. Calls of the context in their ``finally`` blocks are refused."""
        self.closed = True
        while self.tasks:
            task = next(iter(self.tasks))
            del self.tasks[task]  # before its cleanup, which may add tasks; these have not begun
            source, was_endless = task.source, self._is_endless
            task.close()
            if self._is_endless and not was_endless:
                self._report_endless(source)
        self.clear()
        self.stopped.clear()

    @property
    def _is_endless(self) -> bool:
        """Whether the code goes on though its coroutine was closed."""
        return self.refused > _MAX_REFUSED

    def _report_endless(self, source: CodeLine | None) -> None:
        _LOGGER.warning(
            "instance %s was dropped from memory, and its code tried to go on, at %s: a bare except, or except "
            "BaseException, has caught the GeneratorExit that ends it; catch Exception there",
            self.instance_id,
            source or "an unknown line",
            extra=self.logger.extra,
        )


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
    """A task, or a future over other futures."""

    def on_settled(self, future: DurableFuture[Any]) -> None:
        """Called once, when ``future`` is settled."""


class DurableFuture(Generic[T]):
    """A result to await in an orchestration. It can be awaited several times, with the same outcome each time."""

    __slots__ = ("_owner", "_scheduler", "_value", "_waiters", "error", "settled")

    def __init__(self, scheduler: Scheduler) -> None:
        self.settled: bool = False
        """Whether a result or an error is there."""
        self.error: BaseException | None = None
        self._scheduler = scheduler
        self._owner: Task[Any] | None = scheduler.current
        self._value: Any = None
        self._waiters: list[Waiter] = []

    def __await__(self) -> Generator[DurableFuture[Any], None, T]:
        self._scheduler.mark_awaited(self)
        if not self.settled or self._scheduler.closed or (self.error is not None and self._is_repeated()):
            self.begin()
            yield self
        return self.result()

    def _is_repeated(self) -> bool:
        """Whether the code awaits it again and again, without a wait, though it has failed."""
        task = self._scheduler.current
        return task is not None and task.repeats(self)

    def on_session(self, session_id: str, *, ordered: bool = False) -> DurableFuture[T]:
        """Only activities run on sessions: see ``ActivityFuture.on_session``.

        Raises:
            OrchestrationMisuse: always.
        """
        self.refuse()
        raise OrchestrationMisuse(
            f"{self.description} cannot run on a session: call on_session on what schedule_activity returns"
        )

    def with_tag(self, tag: str) -> DurableFuture[T]:
        """Only activities have tags: see ``ActivityFuture.with_tag``.

        Raises:
            OrchestrationMisuse: always.
        """
        self.refuse()
        raise OrchestrationMisuse(
            f"{self.description} cannot have a tag: call with_tag on what schedule_activity returns"
        )

    def limited(self, *limits: Any) -> DurableFuture[T]:
        """Only activities wait at limits: see ``ActivityFuture.limited``.

        Raises:
            OrchestrationMisuse: always.
        """
        self.refuse()
        raise OrchestrationMisuse(
            f"{self.description} cannot have limits: call limited on what schedule_activity returns"
        )

    def with_priority(self, priority: int) -> DurableFuture[T]:
        """Only activities have a priority: see ``ActivityFuture.with_priority``.

        Raises:
            OrchestrationMisuse: always.
        """
        self.refuse()
        raise OrchestrationMisuse(
            f"{self.description} cannot have a priority: call with_priority on what schedule_activity returns"
        )

    @property
    def description(self) -> str:
        """Its name in messages: "activity 'reply'"."""
        raise NotImplementedError

    def result(self) -> T:
        """Return its value, or raise its error; it must be settled."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[no-any-return]

    def _add_waiter(self, waiter: Waiter) -> None:
        """Have ``waiter.on_settled`` called once, when this is settled."""
        self._waiters.append(waiter)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Give it a value or an error, and notify its waiters."""
        self.settled = True
        self._value = value
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.on_settled(self)

    def cancel(self) -> None:
        """Cancel it; without effect once it is settled. It need not be awaited: that raises an error."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Note that a call with it was refused: it begins if it is awaited nevertheless, and need not be."""
        self._scheduler.never_awaited.pop(self, None)
        self._hold_back()

    def _hold_back(self) -> bool:
        """Have it wait for `begin`, unless it has begun; returns whether it does."""
        return False

    def begin(self) -> None:
        """Begin the futures that were held back."""

    def _belongs_to(self, scheduler: Scheduler) -> bool:
        """Whether it was created in this execution."""
        return self._scheduler is scheduler

    def _owned_by(self, task: object) -> bool:
        """Whether this task created it."""
        return self._owner is task

    @property
    def _is_forgotten(self) -> bool:
        """Whether the creator of a future that was never awaited could have awaited it."""
        return self._owner is not None and self._owner.is_undisturbed

    def __repr__(self) -> str:
        return f"<{self.description}, {'settled' if self.settled else 'pending'}>"

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):  # looked up by the interpreter, by copies, by mocks
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"{self.description} has no attribute {name!r}: await it first")


def not_awaited(future: DurableFuture[Any]) -> OrchestrationMisuse:
    """The error of code that uses a future in place of its value."""
    return OrchestrationMisuse(f"{future.description} has no value before it is awaited: await it first")


def _no_truth(future: DurableFuture[Any]) -> OrchestrationMisuse:
    return OrchestrationMisuse(
        f"{future.description} is neither true nor false before it is awaited: await it first, or compare it with None"
    )


refuse_operators(DurableFuture, ("__bool__",), _no_truth)
refuse_operators(DurableFuture, (*ARITHMETIC, *ORDER, *ITEMS, *ASYNC_ITEMS, *BLOCK, *ASYNC_BLOCK), not_awaited)
refuse_equality(DurableFuture, not_awaited)


class CommandFuture(DurableFuture[T]):
    """The future of one command in the history."""

    __slots__ = ("schedule_id",)

    _has_effect: ClassVar[bool] = True
    """Whether the command starts something that continues until it is cancelled."""

    _is_certain: ClassVar[bool] = False
    """Whether it is scheduled also when its task ends before, or is cancelled."""

    def __init__(self, scheduler: Scheduler) -> None:
        DurableFuture.__init__(self, scheduler)  # not `super()`, which costs as much as the rest
        self.schedule_id: int = 0
        """Event id of the command; 0 or less until it is scheduled."""
        scheduler.pending.append(self)
        scheduler.never_awaited[self] = None

    def schedule(self) -> None:
        """Record the command, unless it is cancelled already, or held back."""
        if not (self.settled or self.schedule_id > 0 or self.schedule_id == _HELD_BACK):
            history = self._scheduler.history
            recorded = history.record_command(self._command())
            self.schedule_id = history.position
            self._scheduled(recorded)

    def _hold_back(self) -> bool:
        """Hold the command back until `begin`; returns False if it is scheduled already, or has to be."""
        if self.settled or self.schedule_id or self._is_certain:
            return False
        self.schedule_id = _HELD_BACK
        return True

    def begin(self) -> None:
        """Schedule it after earlier requests."""
        if self.schedule_id == _HELD_BACK:
            self.schedule_id = _BEGUN
            self._scheduler.pending.append(self)

    def cancel(self) -> None:
        """Cancel the command, and record that if it is scheduled."""
        self._scheduler.mark_cancelled(self)
        if self.settled:
            return
        if self.schedule_id > 0:
            self._scheduler.outstanding.pop(self.schedule_id, None)  # None: the execution is dropped from memory
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
        return OrchestrationMisuse(f"{self.description} was cancelled, and is awaited afterwards: do not await it")

    def _settle_decoded(self, codec: Codec | None, text: str) -> None:
        try:
            value = read_json(text) if codec is None else codec.decode(text)
        except NotSerializable as error:
            self.settle(error=error)
        else:
            self.settle(value)


class Task(DurableFuture[T]):
    """A coroutine that runs, and a future of its result. It has a copy of its creator's context variables, as a task of
    an event loop has.
    """

    __slots__ = (
        "_awaited",
        "_coroutine",
        "_failed",
        "_queued",
        "_refused",
        "_repeats",
        "_signal",
        "_started",
        "_throw",
        "_variables",
        "headers",
    )

    def __init__(self, scheduler: Scheduler, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(scheduler)
        self.headers: Headers | None = scheduler.headers
        """The headers of the event that its code has received last, or those of its creator, or of the start."""
        self._coroutine = coroutine
        self._awaited: DurableFuture[Any] | None = None
        self._throw: BaseException | None = None
        self._signal: BaseException | None = None
        self._started = False
        self._queued = False
        self._refused = 0  # foreign awaitables, in a row
        self._failed: DurableFuture[Any] | None = None  # awaited last, since it waited
        self._repeats = 0
        self._variables: Context = copy_context()
        scheduler.tasks[self] = None

    @property
    def description(self) -> str:
        return f"coroutine {getattr(self._coroutine, '__name__', '?')!r}"

    @property
    def source(self) -> CodeLine | None:
        """The line of the application at which it waits."""
        return waiting_source(self._coroutine)

    @property
    def is_undisturbed(self) -> bool:
        """Whether it has neither failed nor been interrupted."""
        return self.error is None and self._signal is None

    def step(self) -> None:
        """Run until it awaits a future that is not settled, or ends."""
        throw, self._throw = self._throw, None
        self._queued, self._awaited, self._started = False, None, True
        if self.settled:
            return
        scheduler = self._scheduler
        scheduler.current = self
        scheduler.headers = self.headers
        run, coroutine = self._variables.run, self._coroutine
        try:
            awaited = run(coroutine.send, None) if throw is None else run(coroutine.throw, throw)
        except StopIteration as stop:
            self._end(stop.value)
        except BaseException as error:
            pass_interrupt(error)
            self._end(error=error)
        else:
            self._wait_for(awaited)
        finally:
            scheduler.current = None

    def repeats(self, failed: DurableFuture[Any]) -> bool:
        """Note that its code awaits a future that has failed; returns whether it does so without end."""
        self._repeats = self._repeats + 1 if failed is self._failed else 1
        self._failed = failed
        return self._repeats > _MAX_REPEATS

    def _hold_back(self) -> bool:
        """Whether it has not begun."""
        return not (self.settled or self._queued or self._started)

    def begin(self) -> None:
        """Run it, after the tasks that are ready."""
        if self._hold_back():
            self._enqueue()

    def on_settled(self, future: DurableFuture[Any]) -> None:
        """Resume it: the awaited future is settled."""
        if self._awaited is future and not self._queued:
            self._enqueue()

    def interrupt(self, signal: BaseException) -> None:
        """Raise the signal at its await, once in its life, and cancel its futures."""
        if self.settled or self._signal is not None:
            return
        self._signal = signal
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited._owned_by(self):
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
        """Interrupt it, as a branch whose result is not needed."""
        self.interrupt(BranchCancelledSignal("the branch was cancelled"))

    def close(self) -> None:
        """Close the coroutine; errors of its cleanup are ignored."""
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                self._variables.run(self._coroutine.close)
            except RuntimeError:  # it awaited in its cleanup: close it again, else the interpreter warns at its exit
                continue
            except BaseException as error:  # no caller is left to receive it
                pass_interrupt(error)
            return

    def _enqueue(self) -> None:
        self._queued = True
        self._scheduler.ready.append(self)

    def _wait_for(self, awaited: object) -> None:
        if not (isinstance(awaited, DurableFuture) and awaited._belongs_to(self._scheduler)):
            self._refuse(OrchestrationMisuse(f"an orchestration cannot await {describe_foreign(awaited)}"))
        elif awaited.settled:
            text = f"{awaited.description} has failed, and is awaited again and again: make a new one for each attempt"
            self._stop(OrchestrationMisuse(text))
        else:
            self._awaited = awaited
            self._refused, self._failed = 0, None
            awaited._add_waiter(self)

    def _refuse(self, error: OrchestrationMisuse) -> None:
        """Raise the error at the await; end the coroutine if it catches the error again and again."""
        self._refused += 1
        if self._refused < _MAX_REFUSED:
            self._throw = error
            self._enqueue()
        else:
            self._stop(error)

    def _stop(self, error: OrchestrationMisuse) -> None:
        """End the coroutine, which would go on without end, and never wait."""
        self.close()
        self._scheduler.stopped.append(self._coroutine)
        self._end(error=error)

    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        self._scheduler.tasks.pop(self, None)
        if self._owner is None:  # the main task: what it created and never awaited is dropped
            self._scheduler.drop_unscheduled()
        if self._signal is not None and error is not None and error is not self._signal and self._owner is not None:
            self._scheduler.logger.warning(
                "%s failed in its cleanup after cancellation", self.description, exc_info=redacted(error)
            )
        self.settle(value, error)


def _owner_source(command: object) -> CodeLine | None:
    """The line at which the task waits that has created a command."""
    owner = command._owner if isinstance(command, CommandFuture) else None
    return None if owner is None else owner.source


def refuse_awaitable(value: object, what: str) -> None:
    """Refuse a value that was not awaited; ``what`` begins the message.

    Raises:
        OrchestrationMisuse: it is a durable future or a coroutine.
    """
    if isinstance(value, DurableFuture):
        raise OrchestrationMisuse(f"{what} {value.description} itself: await it first")
    if isinstance(value, CoroutineType):
        value.close()
        raise OrchestrationMisuse(f"{what} the coroutine {value.__name__!r}: await it first")


def refuse_iterable(value: object, where: str) -> None:
    """Refuse a collection where its items are expected as arguments of their own.

    Raises:
        OrchestrationMisuse: it is one.
    """
    if isinstance(value, (list, tuple, set, frozenset, dict, GeneratorType)):
        raise OrchestrationMisuse(f"{where} got one {type(value).__name__}: unpack it, as in ctx.{where}(*futures)")


def describe_foreign(awaitable: object) -> str:
    """Describe a foreign awaitable, and say what to use instead; for an error message."""
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
