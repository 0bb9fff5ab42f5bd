"""Resets: the part of a history with which the next execution begins, and the work that is scheduled again.

An input and the commands that follow it are one step, and code that runs again must find a step whole or not at all. So
the step that holds the last event to keep is kept when it ends there. Otherwise it is taken again: its input becomes a
message.

Behind that point nothing has happened, but for facts from outside:

- External events that came later come again, in their order, as does the start, if it came later.
- A timer that has fired fires immediately.
- A child that was scheduled before that point is the same child. If it has ended, its answer is sent again; else it
  answers when it ends. Children that were scheduled later are asked to cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from affinity.client.views import error_of
from affinity.errors import InvalidInput, NotSerializable
from affinity.orchestration import events as ev
from affinity.orchestration.gates import gate_of
from affinity.orchestration.waits import moved_event
from affinity.orchestration.wire import (
    ANY_EXECUTION,
    activity_task,
    decode_event,
    encode_event,
    encode_message,
    encode_task,
)
from affinity.provider.contract import (
    FINISHED,
    InstanceInfo,
    NewMessage,
    NewWorkItem,
    Reset,
    SessionWatch,
    ValueWrite,
    WorkKey,
)
from affinity.records import Labels, frozen, raise_unreadable

_FROM_OUTSIDE: Final = (ev.OrchestrationStarted, ev.EventRaised, ev.CancelRequested)
_SCHEDULED: Final = (ev.ActivityScheduled, ev.TimerCreated, ev.SubOrchestrationScheduled)


@frozen()
class Cut:
    """A history, cut where the next execution begins."""

    kept: Sequence[ev.Event]
    again: ev.Event | None
    """The input of the step that is taken again."""
    rest: Sequence[ev.Event]
    """The later events, as far as they can be read."""
    lineage: ev.Lineage

    @property
    def outstanding(self) -> Mapping[int, ev.Event]:
        """Work that was scheduled up to the cut, and has neither an answer nor a cancellation by then."""
        found = {n: event for n, event in enumerate(self.kept, 1) if isinstance(event, _SCHEDULED)}
        for event in (*self.kept, self.again):
            found.pop(getattr(event, "schedule_id", 0), None)
        return found

    @property
    def children(self) -> list[str]:
        """Ids of the children that the reset concerns, scheduled before the cut or after."""
        scheduled = [*self.outstanding.values(), *self.rest]
        return [event.instance_id for event in scheduled if isinstance(event, ev.SubOrchestrationScheduled)]


def cut_history(texts: Sequence[str], to_event: int, execution_id: int) -> Cut:
    """Cut the history of an execution after the event ``to_event``, or before the step that continues there.

    Raises:
        InvalidInput: there is no such event.
        NotSerializable: an event before the cut cannot be read.
    """
    if not 1 <= to_event <= len(texts):
        raise InvalidInput(f"to_event = {to_event!r}: the execution has the events 1 to {len(texts)}")
    readable = [_readable(text) for text in texts]
    keep = to_event if _ends_step(readable, to_event) else _step_before(readable, to_event)
    again = None if keep == to_event else readable[keep]
    kept = [decode_event(text) for text in texts[:keep]]
    rest = [event for event in readable[keep:] if event is not None and event is not again]
    if isinstance(again, ev.ExecutionReset):  # ours takes its place
        again = None
    former = [a for event in readable if isinstance(event, ev.ExecutionReset) for a in event.lineage]
    clipped = {a.execution_id: ev.Ancestor(a.execution_id, min(a.event_id, keep)) for a in former}
    return Cut(kept, again, rest, (*clipped.values(), ev.Ancestor(execution_id, keep)))


@frozen(kw_only=True)
class ResetPreview:
    """What a reset would do: see `Client.preview_reset`."""

    execution_id: int  # of the new execution
    event_count: int  # events of the present one
    kept: int  # of these, the first ones, with which the new one begins
    activities: Sequence[str]  # names of the ones that run again immediately
    repeated: Sequence[str]  # names of the ones that run again when the code schedules them again
    events: Sequence[str]  # names of external events that come again
    children: Sequence[str]  # ids of the ones that are cancelled


def preview_of(reset: Reset, cut: Cut) -> ResetPreview:
    """What a reset does, for people."""
    later = [cut.again, *cut.rest]
    return ResetPreview(
        execution_id=reset.execution_id + 1,
        event_count=reset.event_count,
        kept=reset.keep,
        activities=[item.name for item in reset.work_items],
        repeated=[event.name for event in later if isinstance(event, ev.ActivityScheduled)],
        events=[event.name for event in later if isinstance(event, ev.EventRaised)],
        children=[event.instance_id for event in cut.rest if isinstance(event, ev.SubOrchestrationScheduled)],
    )


def build_reset(info: InstanceInfo, cut: Cut, children: Mapping[str, InstanceInfo | None]) -> Reset:
    """The reset to write. ``info``: the instance when its history was read; ``children``: the children of `Cut`."""
    me, run = info.instance_id, info.execution_id + 1
    outstanding = cut.outstanding
    inputs = [] if cut.again is None else [_message(me, run, cut.again)]
    inputs += [
        _message(me, run, answer)
        for n, event in outstanding.items()
        if isinstance(event, ev.SubOrchestrationScheduled)
        and (answer := _answer(me, n, event.instance_id, cut, children)) is not None
    ]
    inputs += [
        _message(me, run, event) for event in cut.rest if isinstance(event, (ev.EventRaised, ev.OrchestrationStarted))
    ]
    fired = {event.schedule_id for event in cut.rest if isinstance(event, ev.TimerFired)}
    timers = [
        NewMessage(
            instance_id=me,
            payload=encode_message(run, ev.TimerFired(n)),
            delay=0.0 if n in fired else event.delay,
            timer=(run, n),
        )
        for n, event in outstanding.items()
        if isinstance(event, ev.TimerCreated)
    ]
    labels = _labels_at(cut, info)
    started = [event for event in (*cut.kept, cut.again, *cut.rest) if isinstance(event, ev.OrchestrationStarted)]
    statuses = [event.value for event in cut.kept if isinstance(event, ev.CustomStatusSet)]
    carried = [event.custom_status for event in started]
    return Reset(
        instance_id=me,
        generation=info.generation,
        execution_id=info.execution_id,
        event_count=info.event_count,
        keep=len(cut.kept),
        history=[encode_event(ev.ExecutionReset(cut.lineage))],
        messages=[*inputs, *timers, *_cancellations(me, cut, children)],
        work_items=[
            _work_item(WorkKey(me, run, n), event, info, labels)
            for n, event in outstanding.items()
            if isinstance(event, ev.ActivityScheduled)
        ],
        watches=[
            SessionWatch(event.session_id, encode_message(ANY_EXECUTION, moved_event(event.session_id)))
            for event in cut.kept
            if isinstance(event, ev.SessionWatched)
        ],
        # Without its start, no code has run since the reset before, which has set the status.
        custom_status=(carried + statuses)[-1] if carried else info.custom_status,
        labels=labels,
        values=_values_at(cut, is_first=not any(event.continued for event in started)),
    )


def _values_at(cut: Cut, *, is_first: bool) -> list[ValueWrite]:
    """The values of the instance at the cut, as changes of those that it has now.

    A value that only the later events have set is removed if the execution is the first since the start or restart of
    the instance, or a reset of it. Otherwise a former execution may have left another one, which nothing has recorded,
    and it stays.
    """
    known: dict[str, str | None] = {}
    was_cleared = False
    for event in cut.kept:
        match event:
            case ev.ValueSet() | ev.ValueRead():
                known[event.key] = event.value
            case ev.ValuesCleared():
                known, was_cleared = {}, True
    for event in cut.rest:
        if isinstance(event, ev.ValueRead):
            known.setdefault(event.key, event.value)
        elif isinstance(event, ev.ValueSet) and is_first:
            known.setdefault(event.key, None)
    cleared = [ValueWrite(None)] if was_cleared or (is_first and any(map(_sets_values, cut.rest))) else []
    return [*cleared, *(ValueWrite(key, value) for key, value in known.items())]


def _sets_values(event: ev.Event) -> bool:
    return isinstance(event, ev.ValueSet | ev.ValuesCleared)


def _labels_at(cut: Cut, info: InstanceInfo) -> Labels | None:
    """The labels of the instance at the cut. Without its start, no code has run since the reset before, which has set
    them.
    """
    whole = (*cut.kept, cut.again, *cut.rest)
    started = [event.labels for event in whole if isinstance(event, ev.OrchestrationStarted)]
    later = [event.labels for event in cut.kept if isinstance(event, ev.LabelsSet)]
    return [*started, *later][-1] if started else info.labels


def _message(me: str, run: int, event: ev.Event) -> NewMessage:
    """An input that comes again. A further reset, before it is read, leaves an input from outside in the queue, and has
    a timer that has fired fire immediately.
    """
    execution = ANY_EXECUTION if isinstance(event, _FROM_OUTSIDE) else run
    timer = (run, event.schedule_id) if isinstance(event, ev.TimerFired) else None
    return NewMessage(instance_id=me, payload=encode_message(execution, event), timer=timer)


def _readable(text: str) -> ev.Event | None:
    try:
        return decode_event(text)
    except NotSerializable:
        return None


def _ends_step(events: Sequence[ev.Event | None], number: int) -> bool:
    """Whether a step ends with this event: the next one is an input, or the instance waits for one."""
    if number == len(events):
        return type(events[-1]) not in ev.OUTCOMES
    return type(events[number]) in ev.INPUTS


def _step_before(events: Sequence[ev.Event | None], number: int) -> int:
    """How many events there are before the step that holds this one."""
    return max((n for n, event in enumerate(events[:number]) if type(event) in ev.INPUTS), default=0)


def _work_item(
    key: WorkKey, event: ev.ActivityScheduled, info: InstanceInfo, labels: Labels | None = None
) -> NewWorkItem:
    assert info.version is not None  # pinned by the turn that has scheduled the activity
    payload = encode_task(
        activity_task(event, info.session_id, info.name, info.version, info.generation, labels=labels)
    )
    return NewWorkItem(
        key=key,
        name=event.name,
        payload=payload,
        session_id=event.session_id,
        ordered=event.ordered,
        tag=event.tag,
        takeover_after=event.wait,
        fail_after=event.fail_after,
        gate=gate_of(event.limits, event.priority),
    )


def _answer(
    me: str, schedule_id: int, child_id: str, cut: Cut, children: Mapping[str, InstanceInfo | None]
) -> ev.Event | None:
    """The end of a child, from its own row; from the history if that is deleted or another's. None: it is running."""
    child = children.get(child_id)
    if child is None or child.parent_id != me:
        return _recorded_answer(schedule_id, child_id, cut)
    return _outcome(schedule_id, child) if child.status in FINISHED else None


def _recorded_answer(schedule_id: int, child_id: str, cut: Cut) -> ev.Event:
    answers = (ev.SubOrchestrationCompleted, ev.SubOrchestrationFailed)
    found = [event for event in cut.rest if isinstance(event, answers) and event.schedule_id == schedule_id]
    gone = f"the instance {child_id!r} was deleted before it had ended"
    return found[0] if found else ev.SubOrchestrationFailed(schedule_id, "failed", "InstanceDeleted", gone)


def _outcome(schedule_id: int, child: InstanceInfo) -> ev.Event:
    if child.status == "completed":
        raise_unreadable(child.output)
        return ev.SubOrchestrationCompleted(schedule_id, child.output or "null")
    kind: ev.ChildFailureKind = "cancelled" if child.status == "cancelled" else "failed"
    return ev.SubOrchestrationFailed(schedule_id, kind, *error_of(child))


def _cancellations(me: str, cut: Cut, children: Mapping[str, InstanceInfo | None]) -> list[NewMessage]:
    """Requests to cancel, to the running children that were scheduled after the cut."""
    stop = encode_message(ANY_EXECUTION, ev.CancelRequested(f"its parent {me!r} was reset"))
    scheduled = [event.instance_id for event in cut.rest if isinstance(event, ev.SubOrchestrationScheduled)]
    found = [child for name in scheduled if (child := children.get(name)) is not None and child.parent_id == me]
    return [NewMessage(instance_id=child.instance_id, payload=stop, generation=child.generation) for child in found]
