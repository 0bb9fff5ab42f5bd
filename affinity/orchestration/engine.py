"""The replay engine: history and new events in, new events out.

``Execution`` is a pure function of the orchestration's code, its history and the inputs: it uses no store, no clock and
no event loop. Each input is one step: it is recorded, the future that it answers is settled, and the coroutines run
until all of them wait. The commands that they requested are recorded directly after the input. A history is therefore
the exact interleaving, and a replay is the same run with the commands compared instead of written.

An execution stays in memory between steps, with its coroutine where it waits, so that the cost of a step does not grow
with the history. It can be dropped at any time, and rebuilt by ``replay``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any, Final, ParamSpec, TypeVar, cast

from affinity.errors import (
    AffinityError,
    ExecutionLimitReached,
    Nondeterminism,
    OrchestrationMisuse,
    decisive_error,
    text_of_error,
)
from affinity.headers import Headers
from affinity.limits import MAX_BATCH_BYTES, MAX_BUFFERED_EVENTS, UNREAD_EXACT
from affinity.orchestration import events as ev
from affinity.orchestration.context import OrchestrationContext
from affinity.orchestration.definitions import OrchestrationDefinition
from affinity.orchestration.failures import recorded
from affinity.orchestration.futures import ActivityFuture, ChildFuture, TimerFuture
from affinity.orchestration.history import describe
from affinity.orchestration.scheduler import (
    CommandFuture,
    DurableFuture,
    Scheduler,
    Task,
    not_awaited,
    refuse_awaitable,
)
from affinity.orchestration.signals import ContinueAsNewSignal, OrchestrationCancelledSignal
from affinity.orchestration.sources import describe_sources, first_source, raising_source
from affinity.records import Labels, constructor, frozen
from affinity.telemetry import enter_instance, enter_labelled, enter_session
from affinity.tracing import MAX_LINKS
from affinity.user_code import orchestration_code

P = ParamSpec("P")
T = TypeVar("T")

_ANSWERS: Final[dict[type[ev.Event], type[CommandFuture[Any]]]] = {
    ev.ActivityCompleted: ActivityFuture,
    ev.ActivityFailed: ActivityFuture,
    ev.TimerFired: TimerFuture,
    ev.SubOrchestrationCompleted: ChildFuture,
    ev.SubOrchestrationFailed: ChildFuture,
}
"""Inputs that answer a command, and the kind of future that they settle."""

_NOTHING: Final[Mapping[int, ev.Hold]] = {}
_NO_SENT: Final[Mapping[int, Headers]] = {}


@frozen(kw_only=True)
class Step:
    """The events that one call of ``advance`` added to the history."""

    events: list[tuple[int, ev.Event]]
    """Each new event with its id, in order: each input is followed by the commands that it caused."""

    custom_status: str | None
    """The last custom status that was set in this step, as JSON text; None if none was."""

    outcome: ev.Outcome | None
    """How the execution ended, and then the last of ``events``; None while it continues."""

    consumed: int
    """How many of the inputs, from the first on, were taken. The rest is for the next turn, or, if the execution has
    ended, for the next execution.
    """

    holds: Mapping[int, ev.Hold]
    """Sessions to hold from now on, by the event id of their wait; without waits that ended within the step."""

    ended_holds: Sequence[int]
    """Waits that held a session before the step and are over."""

    headers: Mapping[int, Headers]
    """The headers with which commands were requested, by event id; without those that were requested with none."""

    unread: int | None
    """External events that the code has not read, rounded down from `limits.UNREAD_EXACT` on; None: unchanged."""


_new_step: Final = constructor(Step)


class Execution:
    """One live execution of an instance. Not safe for use from two threads at a time.

    Args:
        definition: the orchestration, in the version that the instance started with.
        instance_id: of the instance.
        execution_id: 1, and one more after each ``continue_as_new``.
        session_id: for which the instance was started; shown by logs, traces and the context.
        traced: a replay notes the line of each request, for its errors. That costs nearly as much as the replay.
    """

    __slots__ = (
        "_cancellation",
        "_context",
        "_held",
        "_last_wait",
        "_lineage",
        "_main",
        "_scheduler",
        "_traced",
        "_unread",
        "_variables",
        "began",
        "definition",
        "error",
        "execution_id",
        "has_keys",
        "instance_id",
        "outcome",
        "parent",
        "senders",
        "session_id",
        "started_in",
    )

    def __init__(
        self,
        definition: OrchestrationDefinition,
        instance_id: str,
        execution_id: int,
        session_id: str | None = None,
        *,
        traced: bool = False,
    ) -> None:
        self.definition: OrchestrationDefinition = definition
        self.instance_id: str = instance_id
        self.execution_id: int = execution_id
        self.session_id: str | None = session_id
        self.outcome: ev.Outcome | None = None
        """How it ended; None while it runs."""
        self.has_keys: bool = False
        """Whether an event has a key, so that a client may wait for a reply."""
        self.error: BaseException | None = None
        """The orchestration's exception in this process, with its traceback, for the log; None after a replay."""
        self.parent: ev.ParentRef | None = None
        """Where the outcome is sent; set by the start of the execution."""
        self.began: float = 0.0
        """Unix seconds of the database; set by the start of the execution."""
        self.started_in: str | None = None
        """Trace context of its start."""
        self.senders: Sequence[str] = ()
        """Trace contexts of the events that it has received, as many as its span has links."""
        self._scheduler = Scheduler(instance_id, execution_id, session_id)
        self._context = OrchestrationContext(definition, self._scheduler)
        # Empty, but for what is set here: the code begins with the same values on each worker, and in each replay.
        self._variables = Context()
        self._variables.run(enter_instance, instance_id)
        self._variables.run(enter_labelled, self._scheduler)
        self._variables.run(enter_session, session_id)
        self._variables.run(orchestration_code.set, definition.description)
        self._lineage: ev.Lineage = ()
        self._main: Task[Any] | None = None
        self._traced = traced
        self._last_wait = first_source(definition.function) if traced else None  # where the code was before this step
        self._cancellation: OrchestrationCancelledSignal | None = None
        self._held: dict[int, ev.Hold] = {}  # as of the last step
        self._unread: int | None = 0 if execution_id == 1 else None  # as reported; None: not known

    @property
    def name(self) -> str:
        """Name of the orchestration."""
        return self.definition.name

    @property
    def version(self) -> str:
        """Version of the orchestration."""
        return self.definition.version

    @property
    def event_count(self) -> int:
        """Events in the history so far: their ids are 1 to this."""
        return self._scheduler.history.position

    @property
    def scheduled_for(self) -> float | None:
        """The tick of the schedule that has started the instance, in Unix seconds."""
        return self._scheduler.scheduled_for

    @property
    def headers(self) -> Headers | None:
        """The headers with which it was started."""
        return self._scheduler.start_headers

    @property
    def custom_status(self) -> str | None:
        """The last custom status, of this execution or of a former one, as JSON text; None: there is none."""
        return self._scheduler.custom_status

    @property
    def labels(self) -> Labels | None:
        """Labels of the instance; None: it has none."""
        return self._scheduler.labels

    @property
    def asked_in(self) -> str | None:
        """Trace context of the ask that the code serves; None: none."""
        return self._scheduler.asks.get(self._scheduler.serves)

    @property
    def failure(self) -> tuple[str, str] | None:
        """Type and message of the error with which it has ended; None: it has not failed."""
        outcome = self.outcome
        return (outcome.error_type, outcome.message) if isinstance(outcome, ev.OrchestrationFailed) else None

    @property
    def unread_size(self) -> int:
        """Characters of the external events that the code has not read."""
        return self._scheduler.inbox.buffered_size

    @property
    def finished(self) -> bool:
        """Whether the last event is an outcome."""
        return self.outcome is not None

    @property
    def pending_activities(self) -> Mapping[int, ev.ActivityScheduled]:
        """Activities that are scheduled and have no result, by event id."""
        outstanding = self._scheduler.outstanding.items()
        return {i: f.scheduled for i, f in outstanding if isinstance(f, ActivityFuture) and f.scheduled}

    def failed_name(self, schedule_id: int) -> str:
        """Return the name of an activity that has failed.

        Raises:
            KeyError: the event scheduled none that has.
        """
        return self._scheduler.failed[schedule_id]

    def child_id(self, schedule_id: int) -> str:
        """Return the instance id of a sub-orchestration that this execution has scheduled, ended or not.

        Raises:
            KeyError: the event scheduled none.
        """
        return self._scheduler.history.children[schedule_id]

    def expects(self, execution_id: int, event: ev.Event) -> bool:
        """Whether a message to another execution of the instance is for this one. The result of a child is addressed to
        the execution that scheduled it, whose first events a reset may have copied into this one.
        """
        if not isinstance(event, (ev.SubOrchestrationCompleted, ev.SubOrchestrationFailed)):
            return False
        return any(execution_id == one.execution_id and event.schedule_id <= one.event_id for one in self._lineage)

    def accept_values(self, former: Mapping[str, str]) -> None:
        """Take the values of the instance, as JSON texts by key: before the first step, or after a replay. Those that
        this execution has set are among them, and do not matter.
        """
        self._scheduler.values.former = former

    def replay(self, history: Iterable[ev.Event]) -> None:
        """Rebuild the state from the whole history of this execution; only a fresh object can do so.

        An error of the application's code is an outcome.

        Raises:
            Nondeterminism: as for `end_replay`.
        """
        self.begin_replay()
        self.replay_page(history)
        self.end_replay()

    def begin_replay(self) -> None:
        """Begin to rebuild the state from a history that is read page by page; only a fresh object can do so."""
        if self.event_count:
            raise RuntimeError("replay needs a fresh Execution")
        self._scheduler.history.open()
        self._scheduler.trace(self._traced)

    def replay_page(self, events: Iterable[ev.Event]) -> None:
        """Read the next events of the history, and replay the steps that are complete.

        Raises:
            Nondeterminism: code and history disagree. The coroutine is lost.
        """
        self._scheduler.history.read(events)
        self._replay(to_end=False)

    def end_replay(self) -> None:
        """Replay the last step, and end the replay. If it ended in ``OrchestrationFailed``, it stays as it is, whatever
        the code does there now: the error may have been corrected.

        Raises:
            Nondeterminism: code and history disagree. The coroutine is lost.
        """
        try:
            self._replay(to_end=True)
        except Nondeterminism:
            last = self._scheduler.history.last_recorded
            if not isinstance(last, ev.OrchestrationFailed):
                raise
            self.outcome = last
        else:
            self._leave_replay()

    def advance(
        self,
        inputs: Sequence[ev.Event],
        *,
        now: Callable[[], float],
        new_guid: Callable[[], str],
        max_size: int = MAX_BATCH_BYTES,
    ) -> Step:
        """Take a step for each input, as far as ``max_size`` goes.

        An input without effect is left out: the result of a command that is cancelled or settled, a second request to
        cancel, or any input to an execution that has ended.

        Args:
            inputs: events of the classes in ``events.INPUTS``, in the order in which they came. External events and
                requests to cancel may come before the ``OrchestrationStarted``: they wait for it.
            now: returns the database's time in Unix seconds.
            new_guid: returns a new random id.
            max_size: characters of payloads in the new events, from which no further input is taken.

        Raises:
            ExecutionLimitReached: the execution is lost, as after ``close``; nothing of this step has happened.
        """
        history = self._scheduler.history
        history.now, history.new_guid = now, new_guid
        try:
            consumed = self._run(self._accept_all, inputs, max_size)
        except ExecutionLimitReached:
            self.close()
            raise
        return self._step(consumed)

    def close(self) -> None:
        """Drop the coroutines from memory. Their ``finally`` blocks run; calls of the context in them are refused. Code
        that goes on all the same is logged, and ended by the interpreter at its next await.
        """
        self._run(self._scheduler.close)

    def _run(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """Call a function that runs code of the application: with the variables of this execution, and with async
        generators that no event loop of this thread adopts.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            return self._variables.run(function, *args, **named)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def _accept_all(self, inputs: Sequence[ev.Event], max_size: int) -> int:
        """Take a step for each input, until they are large enough together; return how many were taken."""
        consumed = 0
        for event in inputs:
            if isinstance(self.outcome, ev.ContinuedAsNew):
                break
            if consumed and self._scheduler.history.appended_size() >= max_size:
                break
            self._accept(event)
            consumed += 1
        return consumed

    def _step(self, consumed: int) -> Step:
        events = self._scheduler.history.take()
        status = None
        for _, event in events:
            if type(event) is ev.CustomStatusSet:
                status = event.value
        before, after = self._held, self._scheduler.held
        begun: Mapping[int, ev.Hold] = _NOTHING
        over: Sequence[int] = []
        if before or after:  # few orchestrations hold sessions
            begun = {event_id: hold for event_id, hold in after.items() if event_id not in before}
            over = [event_id for event_id in before if event_id not in after]
            self._held = dict(after)
        return _new_step(
            events=events,
            custom_status=status,
            outcome=self.outcome if events else None,
            consumed=consumed,
            holds=begun,
            ended_holds=over,
            headers=self._take_headers() if self._scheduler.sent_headers else _NO_SENT,
            unread=self._report_unread() if self._unread != 0 or self._scheduler.inbox.buffered else None,
        )

    def _take_headers(self) -> Mapping[int, Headers]:
        sent, self._scheduler.sent_headers = self._scheduler.sent_headers, {}
        return sent

    def _report_unread(self) -> int | None:
        before, self._unread = self._unread, self._rounded_unread()
        return None if self._unread == before else self._unread

    def _rounded_unread(self) -> int:
        buffered, step = self._scheduler.inbox.buffered, 1
        while buffered >= step * UNREAD_EXACT:
            step *= 10
        return buffered - buffered % step

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _accept(self, event: ev.Event) -> bool:
        """Take the step that an input causes; return whether the input had an effect."""
        if self.outcome is not None or not self._deliver(event):
            return False
        self._scheduler.run()
        if self._main is not None and self._main.settled:
            self._finish(self._main)
        return True

    def _deliver(self, event: ev.Event) -> bool:
        answered = _ANSWERS.get(type(event))
        if answered is not None:
            return self._answer(answered, event)
        match event:
            case ev.OrchestrationStarted():
                return self._start(event)
            case ev.EventRaised():
                return self._raise_event(event)
            case ev.CancelRequested(reason):
                return self._cancel(event, reason)
            case ev.ExecutionReset(lineage):
                self._scheduler.history.record_input(event)
                self._lineage = lineage
                return True
        raise TypeError(f"{describe(event)} is no input")

    def _answer(self, answered: type[CommandFuture[Any]], event: Any) -> bool:
        outstanding = self._scheduler.outstanding
        future = outstanding.get(event.schedule_id)
        if type(future) is not answered:
            return False
        self._scheduler.history.record_input(event)
        del outstanding[event.schedule_id]
        future.deliver(event)
        return True

    def _start(self, event: ev.OrchestrationStarted) -> bool:
        if self._main is not None:
            return False
        self._scheduler.history.record_input(event)
        self._scheduler.history.latest = event.time
        self._scheduler.inbox.carry(event.carried)
        self._scheduler.custom_status = event.custom_status
        self._scheduler.scheduled_for = event.scheduled_for
        self._scheduler.start_headers = self._scheduler.headers = event.headers
        self._scheduler.labels = event.labels
        self.has_keys = self.has_keys or any(carried.key is not None for carried in event.carried)
        self.parent, self.started_in, self.began = event.parent, event.trace, event.time
        self._main = Task(self._scheduler, _body(self.definition, self._context, event.input))
        self._main.begin()
        if self._cancellation is not None:
            self._main.interrupt(self._cancellation)
        return True

    def _raise_event(self, event: ev.EventRaised) -> bool:
        scheduler = self._scheduler
        scheduler.history.record_input(event)
        if event.trace is not None:
            self._note_sender(event, event.trace)
        scheduler.inbox.arrive(event.name, event.data, event.key, event.headers)
        self.has_keys = self.has_keys or event.key is not None
        if scheduler.inbox.buffered > MAX_BUFFERED_EVENTS and not scheduler.history.replaying:
            raise ExecutionLimitReached(f"more than {MAX_BUFFERED_EVENTS} unread external events")
        return True

    def _note_sender(self, event: ev.EventRaised, trace: str) -> None:
        if len(self.senders) < MAX_LINKS:
            self.senders = (*self.senders, trace)
        if event.asked and event.key is not None:
            self._scheduler.asks[event.key] = trace

    def _cancel(self, event: ev.Event, reason: str) -> bool:
        main = self._main
        if self._cancellation is not None or (main is not None and main.settled):
            return False
        self._scheduler.history.record_input(event)
        self._cancellation = OrchestrationCancelledSignal(reason)
        if main is not None:
            main.interrupt(self._cancellation)
        return True

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, main: Task[Any]) -> None:
        """End the execution, once the cleanup of the branches that still run is done."""
        scheduler = self._scheduler
        scheduler.cancel_owned(main)
        scheduler.run()
        if not scheduler.tasks:
            outcome = self._outcome_of(main)
            scheduler.end()
            self._record_outcome(outcome)

    def _record_outcome(self, outcome: ev.Outcome) -> None:
        recorded = self._scheduler.history.record_final(outcome)
        self.outcome = cast(ev.Outcome, recorded)

    def _outcome_of(self, main: Task[Any]) -> ev.Outcome:
        match None if main.error is None else decisive_error(main.error):
            case None:
                return self._completed(main)
            case ContinueAsNewSignal() as signal:
                return ev.ContinuedAsNew(signal.input, signal.version, self._scheduler.inbox.leftovers())
            case OrchestrationCancelledSignal() as signal:
                return ev.OrchestrationCancelled(signal.reason)
            case error:
                return self._failed(error)

    def _completed(self, main: Task[Any]) -> ev.Outcome:
        try:
            value = main.result()
            refuse_awaitable(value, f"{self.definition.description} returned")
            _refuse_never_awaited(self._scheduler.never_awaited)
            return ev.OrchestrationCompleted(self.definition.encode_result(value))
        except AffinityError as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> ev.OrchestrationFailed:
        self.error = error = _about_future(error, self._scheduler.never_awaited)
        return ev.OrchestrationFailed(*recorded(error))

    # --- replay -----------------------------------------------------------------------------------------------------

    def _replay(self, *, to_end: bool) -> None:
        """Replay the recorded steps; the last one only when no event follows it."""
        try:
            self._run(self._replay_steps, to_end=to_end)
        except BaseException as error:
            if isinstance(error, Nondeterminism):
                error.execution_id = self.execution_id
                error.source = error.source or self._find_source()
                self.close()
            self._leave_replay()
            raise

    def _replay_steps(self, *, to_end: bool) -> None:
        history = self._scheduler.history
        while (event := history.next_recorded) is not None and (to_end or history.has_whole_step):
            if self._traced and self._main is not None:
                self._last_wait = self._main.source or self._last_wait
            if type(event) not in ev.INPUTS or not self._accept(event):
                raise history.mismatch(event, self._describe_position())

    def _leave_replay(self) -> None:
        history = self._scheduler.history
        history.close()
        self._scheduler.trace(False)
        self.error = None
        self._held = dict(self._scheduler.held)  # the store has them since they were new
        was_reset = type(history.last_recorded) is ev.ExecutionReset  # which counts no unread events
        self._unread = None if was_reset else self._rounded_unread()

    def _describe_position(self) -> str:
        """The code's action in place of the next recorded event, for a message."""
        if self.outcome is not None:
            return f"end: {describe(self.outcome)}"
        if self._main is None:
            return "not start"
        waiting = ", ".join(sorted({future.description for future in self._scheduler.outstanding.values()}))
        return f"nothing but wait for {waiting or 'nothing'}"

    def _find_source(self) -> str | None:
        """The line of the code that was expected to cause the next recorded event, and has requested nothing."""
        raised = None if self.error is None else raising_source(self.error.__traceback__)
        waiting = [raised] if raised is not None else [task.source for task in self._scheduler.tasks]
        return describe_sources(waiting) or describe_sources([self._last_wait])


async def _body(definition: OrchestrationDefinition, context: OrchestrationContext, text: str) -> Any:
    """The main coroutine; an input that does not fit fails it, as any other error does."""
    return await definition.function(context, *definition.arguments(text))


def _about_future(error: BaseException, never_awaited: Iterable[DurableFuture[Any]]) -> BaseException:
    """Return the error, or one that names the remedy: a ``TypeError`` about a future that was passed in place of its
    value, such as by `json.dumps`.
    """
    if isinstance(error, TypeError):
        text = text_of_error(error)
        if (future := next((one for one in never_awaited if type(one).__name__ in text), None)) is not None:
            found = not_awaited(future).with_traceback(error.__traceback__)
            found.__cause__ = error
            return found
    return error


def _refuse_never_awaited(never_awaited: Iterable[DurableFuture[Any]]) -> None:
    forgotten = next((future for future in never_awaited if future._is_forgotten), None)
    if forgotten is not None:
        raise OrchestrationMisuse(
            f"{forgotten.description} was scheduled and never awaited; "
            "write await, pass it to ctx.gather or ctx.select, or cancel it"
        )
