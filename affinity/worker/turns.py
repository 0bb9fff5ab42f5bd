"""Builds the turn to commit from a step of an orchestration: a pure translation of events into rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pydantic_core import to_json

from affinity.errors import ErrorDetails, details_document
from affinity.headers import Headers
from affinity.limits import MAX_NOTED_ERROR_BYTES, truncate
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution, Step
from affinity.orchestration.gates import gate_of
from affinity.orchestration.waits import moved_event
from affinity.orchestration.wire import (
    ANY_EXECUTION,
    ActivityTask,
    activity_task,
    encode_event,
    encode_message,
    encode_task,
)
from affinity.provider.contract import (
    NO_TAGS,
    Generation,
    InstanceUpdate,
    MessageReply,
    NewFailure,
    NewInstance,
    NewMessage,
    NewWorkItem,
    SessionHold,
    SessionWatch,
    Turn,
    ValueWrite,
    WorkerTags,
    WorkKey,
    WorkLock,
)
from affinity.records import ActivityRun, CommitPart, Labels, StateWrite, constructor, frozen
from affinity.worker.tracing import NO_CONTEXTS, TurnContexts

NO_RUNS: Final[Mapping[int, ActivityRun]] = {}

_turn: Final = constructor(Turn)
_work_item: Final = constructor(NewWorkItem)


@dataclass(slots=True)
class TurnPlacement:
    """The selection of new work that a worker may run itself.

    Attributes:
        tags: of the worker.
        session_tag: the tag of a session that this worker holds, as far as it knows; None: it has none, or is unknown.
    """

    tags: WorkerTags = NO_TAGS
    session_tag: Callable[[str], str | None] = lambda _: None

    def may_run(self, event: ev.ActivityScheduled) -> bool:
        """Return whether new work may be locked to this worker. Other work goes to the queue."""
        if event.session_id is None:
            return self.takes(event)
        return event.tag is None or self.session_tag(event.session_id) == event.tag

    def takes(self, event: ev.ActivityScheduled) -> bool:
        """Return whether a fetch of this worker would take it if it had no session, or a new session."""
        return self.tags.takes(event.tag)


ANY_WORK: Final = TurnPlacement()

_WITHOUT_ROWS: Final = (
    (ev.INPUTS - {ev.ActivityFailed})
    | ev.OUTCOMES
    | {ev.EventAwaited, ev.EventAwaitCancelled, ev.EventRefused, ev.EventAccepted}
    | {ev.GuidCreated, ev.TimeRead, ev.ValueRead}
)
"""Events that a turn writes into the history only."""


@dataclass
class _OtherRows:
    """The rows of one turn beside its work items, while they are collected: fields of `Turn`."""

    messages: list[NewMessage] = field(default_factory=list)
    instances: list[NewInstance] = field(default_factory=list)
    cancel_activities: list[int] = field(default_factory=list)
    cancel_timers: list[int] = field(default_factory=list)
    watches: list[SessionWatch] = field(default_factory=list)
    release_sessions: list[str] = field(default_factory=list)
    replies: list[MessageReply] = field(default_factory=list)
    values: list[ValueWrite] = field(default_factory=list)
    labels: Labels | None = None
    failures: list[NewFailure] = field(default_factory=list)


@frozen()
class BuiltTurn:
    """A turn, and data for the worker that commits it."""

    turn: Turn
    tasks: Sequence[ActivityTask]  # of its work items, so that items which stay here need no decoding
    size: int  # characters of its history
    does_more: bool  # whether it has more rows than events and work items
    ends: bool  # whether the execution ends with it
    sent: Sequence[ev.EventSent]  # events for other instances


def build_turn(
    execution: Execution,
    step: Step,
    *,
    generation: Generation,
    first_version: str | None,
    consumed: Sequence[int],
    acks: Sequence[WorkLock],
    states: Sequence[StateWrite] = (),
    parts: Sequence[CommitPart] = (),
    runs: Mapping[int, ActivityRun] = NO_RUNS,
    lock_here: int,
    plain_here: int | None = None,
    try_reserve_session: Callable[[str], bool] = lambda _: False,
    placement: TurnPlacement = ANY_WORK,
    latest_version: Callable[[str], str | None] = lambda _: None,
    contexts: TurnContexts = NO_CONTEXTS,
) -> BuiltTurn:
    """Translate ``step`` of ``execution`` into the turn to commit.

    Args:
        execution: after the step; its events before the step are the fence.
        step: what `Execution.advance` gave.
        generation: of the instance.
        first_version: the version to pin, when this is the first turn of an execution.
        consumed: ids of the messages that the step consumed.
        acks: locks of the work items whose results it consumed.
        states: session state that is written with these results.
        parts: of guests that are written with these results.
        runs: of activities whose results are among the events of the step, by event id: `Turn.runs`.
        lock_here: at most this many new work items ask to be run by this worker immediately.
        plain_here: and at most so many session-free ones; the rest of a fan-out is for all workers. None: as many.
        try_reserve_session: reserves room for a session on this worker; returns whether there was any. Called when
            it is the only one of the step; the sessions of a fan-out are for all workers.
        placement: which new work this worker may run, by tags.
        latest_version: returns the latest version of an orchestration that this worker registers, for a
            `continue_as_new` that asks for it.
        contexts: trace contexts for the activities, instances and messages that it creates.
    """
    history: list[str] = []
    scheduled: list[tuple[int, ev.ActivityScheduled]] = []
    others: list[tuple[int, ev.Event]] = []
    for event_id, event in step.events:
        history.append(encode_event(event))
        if type(event) is ev.ActivityScheduled:
            scheduled.append((event_id, event))
        elif type(event) not in _WITHOUT_ROWS:
            others.append((event_id, event))
    session_id = _only_session(scheduled) if lock_here else None
    work_items, tasks = _new_work(
        execution,
        generation,
        scheduled,
        lock_here=lock_here,
        plain_here=lock_here if plain_here is None else plain_here,
        claim_here=session_id is not None and try_reserve_session(session_id),
        placement=placement,
        trace=contexts.work,
        headers=step.headers,
    )
    outcome = step.outcome
    if isinstance(outcome, ev.ContinuedAsNew) and outcome.version == ev.LATEST:
        outcome = replace(outcome, version=latest_version(execution.name))
    turn = _turn(
        instance_id=execution.instance_id,
        generation=generation,
        execution_id=execution.execution_id,
        event_count=execution.event_count - len(history),
        history=history,
        consumed=consumed,
        acks=acks,
        work_items=work_items,
        update=None if outcome is None and first_version is None else _update(outcome, first_version),
        custom_status=step.custom_status,
        unread=step.unread,
        states=states,
        parts=parts,
        runs=runs,
    )
    does_more = bool(outcome is not None or others or step.holds or step.ended_holds)
    if does_more:
        rows = _other_rows(execution, generation, others, outcome, contexts, headers=step.headers, runs=runs)
        holds = [SessionHold(hold.session_id, event_id, hold.seconds) for event_id, hold in step.holds.items()]
        turn = replace(turn, holds=holds, ended_holds=step.ended_holds, **vars(rows))
    sent = [event for _, event in others if type(event) is ev.EventSent]
    return BuiltTurn(turn, tasks, sum(map(len, history)), does_more, outcome is not None, sent)


def _only_session(scheduled: Sequence[tuple[int, ev.ActivityScheduled]]) -> str | None:
    """Return the session of all new work that has one and does not wait, if it is the same."""
    found = None
    for _, event in scheduled:
        if event.session_id is not None and not event.parked and not event.limits:
            if found is not None and found != event.session_id:
                return None
            found = event.session_id
    return found


def _new_work(
    execution: Execution,
    generation: Generation,
    scheduled: Sequence[tuple[int, ev.ActivityScheduled]],
    *,
    lock_here: int,
    plain_here: int,
    claim_here: bool,
    placement: TurnPlacement,
    trace: str | None,
    headers: Mapping[int, Headers],
) -> tuple[list[NewWorkItem], list[ActivityTask]]:
    items: list[NewWorkItem] = []
    tasks: list[ActivityTask] = []
    definition = execution.definition
    for event_id, event in scheduled:
        here = offered = len(items) < lock_here and not event.parked
        if event.tag is not None or placement.tags.only:
            here, offered = here and placement.may_run(event), here and placement.takes(event)
        if event.session_id is None:
            here = here and plain_here > 0
            plain_here -= here
        task = activity_task(
            event,
            execution.session_id,
            definition.name,
            definition.version,
            generation,
            trace=trace,
            headers=headers.get(event_id) if headers else None,
            labels=execution.labels,
        )
        tasks.append(task)
        items.append(
            _work_item(
                key=WorkKey(execution.instance_id, execution.execution_id, event_id),
                name=event.name,
                payload=encode_task(task),
                session_id=event.session_id,
                lock_here=here,
                claim_here=offered and claim_here,
                ordered=event.ordered,
                tag=event.tag,
                takeover_after=event.wait,
                fail_after=event.fail_after,
                parked=event.parked,
                gate=gate_of(event.limits, event.priority) if event.limits or event.priority else None,
            )
        )
    return items, tasks


def _other_rows(
    execution: Execution,
    generation: Generation,
    events: Sequence[tuple[int, ev.Event]],
    outcome: ev.Outcome | None,
    contexts: TurnContexts,
    *,
    headers: Mapping[int, Headers],
    runs: Mapping[int, ActivityRun],
) -> _OtherRows:
    rows = _OtherRows()
    for event_id, event in events:
        if isinstance(event, ev.ActivityFailed):
            run = runs.get(event_id)
            rows.failures.append(
                _failure(event, execution.failed_name(event.schedule_id), event.schedule_id, run.attempt if run else 1)
            )
            continue
        _add_rows(rows, execution, generation, event_id, event, sent=_Sent(contexts.work, headers.get(event_id)))
    if outcome is not None:
        _add_outcome(rows, execution, outcome, contexts.execution)
    return rows


class _Sent(NamedTuple):
    """What goes with a start or an event that an instance sends."""

    trace: str | None
    headers: Headers | None


def _add_rows(
    rows: _OtherRows, execution: Execution, generation: Generation, event_id: int, event: ev.Event, *, sent: _Sent
) -> None:
    me, run = execution.instance_id, execution.execution_id
    match event:
        case ev.TimerCreated():
            fired = encode_message(run, ev.TimerFired(schedule_id=event_id))
            rows.messages.append(NewMessage(instance_id=me, payload=fired, delay=event.delay, timer=(run, event_id)))
        case ev.SubOrchestrationScheduled():
            rows.instances.append(_child(execution, generation, event_id, event, sent))
        case ev.ActivityCancelled():
            rows.cancel_activities.append(event.schedule_id)
        case ev.TimerCancelled():
            rows.cancel_timers.append(event.schedule_id)
        case ev.SessionWatched():
            # For the current execution: a watch outlives the execution that asked for it.
            moved = encode_message(ANY_EXECUTION, moved_event(event.session_id))
            rows.watches.append(SessionWatch(event.session_id, moved))
        case ev.ValueSet():
            rows.values.append(ValueWrite(event.key, event.value))
        case ev.ValuesCleared():
            rows.values.append(ValueWrite(None))
        case ev.LabelsSet():
            rows.labels = event.labels
        case ev.SessionReleased():
            rows.release_sessions.append(event.session_id)
        case ev.SubOrchestrationCancelled():
            stop = encode_message(ANY_EXECUTION, ev.CancelRequested(reason=f"cancelled by its parent {me!r}"))
            rows.messages.append(NewMessage(instance_id=execution.child_id(event.schedule_id), payload=stop))
        case _:
            _add_sent(rows, event, sent)


def _add_sent(rows: _OtherRows, event: ev.Event, sent: _Sent) -> None:
    """Add the row for an event that is for others than this instance and its children."""
    match event:
        case ev.EventReplied():
            rows.replies.append(MessageReply(event.key, event.data))
        case ev.DetachedStarted():
            rows.instances.append(_detached(event, sent))
        case ev.EventSent():
            raised = ev.EventRaised(event.name, event.data, headers=sent.headers, trace=sent.trace)
            message = encode_message(ANY_EXECUTION, raised)
            rows.messages.append(NewMessage(instance_id=event.instance_id, payload=message))


def _child(
    execution: Execution, generation: Generation, event_id: int, event: ev.SubOrchestrationScheduled, sent: _Sent
) -> NewInstance:
    me = ev.ParentRef(execution.instance_id, execution.execution_id, event_id, generation)
    start = _start(event, parent=me, sent=sent)
    text = f"an instance with the id {event.instance_id!r} exists already"
    taken = ev.SubOrchestrationFailed(event_id, "exists", "InstanceExists", text)
    text = f"the instance {event.instance_id!r} was deleted before it had ended"
    deleted = ev.SubOrchestrationFailed(event_id, "failed", "InstanceDeleted", text)
    return NewInstance(
        instance_id=event.instance_id,
        name=event.name,
        version=event.version,
        start=encode_message(ANY_EXECUTION, start),
        parent_id=execution.instance_id,
        on_exists=encode_message(execution.execution_id, taken),
        parent_generation=generation,
        session_id=execution.session_id,
        labels=event.labels,
        on_deleted=encode_message(execution.execution_id, deleted),
    )


def _start(
    event: ev.SubOrchestrationScheduled | ev.DetachedStarted, parent: ev.ParentRef | None, sent: _Sent
) -> ev.OrchestrationStarted:
    return ev.OrchestrationStarted(
        event.name,
        event.version or "",
        event.input,
        parent=parent,
        labels=event.labels,
        headers=sent.headers,
        trace=sent.trace,
    )


def _detached(event: ev.DetachedStarted, sent: _Sent) -> NewInstance:
    start = _start(event, parent=None, sent=sent)
    return NewInstance(
        instance_id=event.instance_id,
        name=event.name,
        version=event.version,
        start=encode_message(ANY_EXECUTION, start),
        labels=event.labels,
    )


def _failure(
    event: ev.ActivityFailed | ev.OrchestrationFailed, name: str, activity_id: int = 0, attempt: int = 0
) -> NewFailure:
    text = truncate(f"{event.error_type}: {event.message}", MAX_NOTED_ERROR_BYTES)
    return NewFailure(activity_id, name, event.error_type, text, attempt)


def _add_outcome(rows: _OtherRows, execution: Execution, outcome: ev.Outcome, trace: str | None) -> None:
    if isinstance(outcome, ev.ContinuedAsNew):
        again = ev.OrchestrationStarted(
            name=execution.definition.name,
            version=outcome.version or execution.definition.version,
            input=outcome.input,
            parent=execution.parent,
            carried=outcome.carried,
            custom_status=execution.custom_status,
            scheduled_for=execution.scheduled_for,
            labels=execution.labels,
            continued=True,
            headers=execution.headers,
            trace=trace,
        )
        message = encode_message(execution.execution_id + 1, again)
        rows.messages.append(NewMessage(instance_id=execution.instance_id, payload=message))
        return
    rows.watches.clear()  # the instance ends
    if isinstance(outcome, ev.OrchestrationFailed):
        rows.failures.append(_failure(outcome, execution.name))
    if (parent := execution.parent) is not None:
        rows.messages.append(_to_parent(parent, _answer(parent.schedule_id, outcome)))


def _to_parent(parent: ev.ParentRef, answer: ev.Event) -> NewMessage:
    """Return a message for this generation of the parent: another instance may have its id by now."""
    return NewMessage(
        instance_id=parent.instance_id,
        payload=encode_message(parent.execution_id, answer),
        generation=Generation(parent.generation),
    )


def _answer(schedule_id: int, outcome: ev.Outcome) -> ev.SubOrchestrationCompleted | ev.SubOrchestrationFailed:
    match outcome:
        case ev.OrchestrationCompleted():
            return ev.SubOrchestrationCompleted(schedule_id=schedule_id, result=outcome.result)
        case ev.OrchestrationFailed():
            return ev.SubOrchestrationFailed(
                schedule_id=schedule_id,
                kind="failed",
                error_type=outcome.error_type,
                message=outcome.message,
                details=outcome.details,
                stack=outcome.stack,
            )
        case ev.OrchestrationCancelled():
            return ev.SubOrchestrationFailed(
                schedule_id=schedule_id, kind="cancelled", error_type="OrchestrationCancelled", message=outcome.reason
            )
    raise AssertionError(f"not the end of an orchestration: {outcome!r}")


def _update(outcome: ev.Outcome | None, first_version: str | None) -> InstanceUpdate:
    match outcome:
        case ev.OrchestrationCompleted() as done:
            return InstanceUpdate(status="completed", version=first_version, output=done.result)
        case ev.OrchestrationFailed() as failed:
            error = _error_json(failed.error_type, failed.message, failed.details, failed.stack)
            return InstanceUpdate(status="failed", version=first_version, error=error)
        case ev.OrchestrationCancelled() as cancelled:
            error = _error_json("OrchestrationCancelled", cancelled.reason)
            return InstanceUpdate(status="cancelled", version=first_version, error=error)
        case ev.ContinuedAsNew() as again:
            return InstanceUpdate(status="running", version=again.version or first_version, continued=True)
        case None:
            return InstanceUpdate(status="running", version=first_version)
    raise AssertionError(f"not an outcome: {outcome!r}")


def _error_json(error_type: str, message: str, details: ErrorDetails | None = None, stack: str = "") -> str:
    more = {} if details is None else details_document(details)
    where = {"stack": stack} if stack else {}
    return to_json({"type": error_type, "message": message, **more, **where}).decode()
