"""The oracle of one instance: the engine alone in memory, which takes the inputs of a history in order."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import TypeAdapter

from affinity.errors import Nondeterminism
from affinity.orchestration import events as ev
from affinity.orchestration.definitions import OrchestrationDefinition
from affinity.orchestration.engine import Execution
from affinity.records import Labels
from tests.programs.bodies import Answer, Block, Child, Detached, Job, Select, Statement, Wait
from tests.programs.histories import Past, Run

_JOB: Final = TypeAdapter(Job)
OWN: Final = "affinity:"
"""Names of events that affinity itself raises begin so."""

_RANDOM_ID: Final = re.compile(r"/\d+(:\d+)$")


def check_runs(past: Past, definition: OrchestrationDefinition) -> None:
    """Each execution is what the engine makes of its inputs, and follows from the one before.

    Raises:
        AssertionError: it is not.
    """
    for run in past.runs:
        if run.is_reset:  # ids of children are of the execution that was reset
            _replay(past, definition, run)
        else:
            _take_again(past, definition, run)
    for former, later in zip(past.runs, past.runs[1:], strict=False):
        check_follows(past.id, former, later)
    for run in past.runs:
        check_carried(past.id, run)
    check_values(past)
    check_labels(past)
    check_end(past)


def _take_again(past: Past, definition: OrchestrationDefinition, run: Run) -> None:
    guids = deque(_guids(run.events))
    times = deque(event.value for event in run.events if isinstance(event, ev.TimeRead))
    execution = Execution(definition, past.id, run.execution_id, past.info.session_id)
    execution.accept_values(_values_left(run))
    inputs = [event for event in run.events if type(event) in ev.INPUTS]
    step = execution.advance(
        inputs,
        now=lambda: times.popleft() if times else 0.0,
        new_guid=lambda: guids.popleft() if guids else "none",
        max_size=1 << 40,
    )
    execution.close()
    expected = [_comparable(event) for _, event in step.events]
    found = [_comparable(event) for event in run.events]
    for number, (wanted, event) in enumerate(zip(expected, found, strict=False), 1):
        assert wanted == event, (
            f"{past.id}/{run.execution_id}: event {number} is {event}, and the engine makes {wanted}"
        )
    assert len(expected) == len(found), (
        f"{past.id}/{run.execution_id}: {len(found)} events, and the engine makes {len(expected)} of the inputs: "
        f"{(found[len(expected) :] or expected[len(found) :])[0]}"
    )


def _values_left(run: Run) -> dict[str, str]:
    """What it has read of the values of former executions."""
    read = [event for event in run.events if isinstance(event, ev.ValueRead)]
    return {event.key: event.value for event in reversed(read) if event.value is not None}


def check_values(past: Past) -> None:
    """Each execution reads the values that the ones before have left, unless a reset has taken some back.

    Raises:
        AssertionError: it has read another value.
    """
    values: dict[str, str | None] = {}
    for run in past.runs:
        if run.is_reset:
            return
        for event in run.events:
            match event:
                case ev.ValueRead():
                    assert event.value == values.get(event.key), (
                        f"{past.id}/{run.execution_id} has read {event}, and {values.get(event.key)} was left"
                    )
                case ev.ValueSet():
                    values[event.key] = event.value
                case ev.ValuesCleared():
                    values.clear()


def _guids(events: Sequence[ev.Event]) -> list[str]:
    """What ``new_guid`` gave: a detached start without an id takes one too, which is not known any more."""
    return [
        event.value if isinstance(event, ev.GuidCreated) else "any"
        for event in events
        if isinstance(event, ev.GuidCreated) or (isinstance(event, ev.DetachedStarted) and _has_random_id(event))
    ]


def _has_random_id(event: ev.DetachedStarted) -> bool:
    return _RANDOM_ID.search(event.instance_id) is not None


def _comparable(event: ev.Event) -> ev.Event:
    if isinstance(event, ev.DetachedStarted) and _has_random_id(event):
        return replace(event, instance_id=_RANDOM_ID.sub(r"/0\1", event.instance_id))
    return event


def _replay(past: Past, definition: OrchestrationDefinition, run: Run) -> None:
    execution = Execution(definition, past.id, run.execution_id, past.info.session_id)
    try:
        execution.replay(run.events)
    except Nondeterminism as error:
        raise AssertionError(f"{past.id}/{run.execution_id} does not replay: {error}") from error
    finally:
        execution.close()


def check_follows(name: str, former: Run, later: Run) -> None:
    """A continued execution is followed by one with its input and its unread events; no other one by itself."""
    ended, start = former.outcome, later.events[0]
    if not isinstance(ended, ev.ContinuedAsNew) or later.is_reset:
        return
    starts = [event for event in later.events if isinstance(event, ev.OrchestrationStarted)]
    if starts:
        start = starts[0]
        assert (start.input, start.carried) == (ended.input, ended.carried), (
            f"{name}/{later.execution_id} started with {start.input} and {start.carried}, not with {ended}"
        )


def check_carried(name: str, run: Run) -> None:
    """Each event that has come was read, by what the code says, or is carried over as the execution continues."""
    ended = run.outcome
    if not isinstance(ended, ev.ContinuedAsNew) or run.is_reset:
        return
    job = _JOB.validate_json(ended.input)
    if not all(map(_says_what_it_reads, job.body)):
        return
    came = [(event.name, event.data) for event in run.events if isinstance(event, ev.EventRaised)]
    for event in run.events:
        came += [each[:2] for each in event.carried] if isinstance(event, ev.OrchestrationStarted) else []
    texts = {json.loads(data) for event_name, data in came if not event_name.startswith(OWN)}
    carried = {json.loads(each.data) for each in ended.carried if not each.name.startswith(OWN)}
    read = texts.intersection(job.heard)
    where = f"{name}/{run.execution_id}"
    assert not read & carried, f"{where} has read {read & carried}, and carries them over"
    assert texts == read | carried, f"{where} has lost the events {texts - read - carried}: {ended}"


def _says_what_it_reads(statement: Statement) -> bool:
    """Whether the values of a statement are all the events that it reads: no branch of it ends before."""
    parts = getattr(statement, "parts", ())
    inner = [*parts, *getattr(statement, "body", ()), *getattr(statement, "cleanup", ())]
    if isinstance(statement, Select):
        return not any(isinstance(part, Block) for part in parts)
    return isinstance(statement, Child | Detached) or not any(map(_waits, inner))


def _waits(statement: Statement) -> bool:
    inner = [*getattr(statement, "parts", ()), *getattr(statement, "body", ())]
    return isinstance(statement, Wait | Answer) or any(map(_waits, inner))


def check_labels(past: Past) -> None:
    """An instance has the labels with which its last execution has begun, or those that its code has set since. What it
    starts has these, or others that are given; an execution that continues one keeps them.
    """
    labels: Labels = {}
    for run in past.runs:
        start = next((event for event in run.events if isinstance(event, ev.OrchestrationStarted)), None)
        begun = labels if start is None else dict(start.labels or {})
        if run is not past.runs[0] and not run.is_reset and _continues(past, run):
            assert begun == labels, f"{past.id}/{run.execution_id} begins with {begun}, and had {labels}"
        labels = begun
        for event in run.events:
            if isinstance(event, ev.LabelsSet):
                assert event.labels != labels, f"{past.id}/{run.execution_id} sets {labels} again"
                labels = dict(event.labels)
    assert dict(past.info.labels) == labels, f"{past.id} has the labels {past.info.labels}, and its history {labels}"


def _continues(past: Past, run: Run) -> bool:
    former = past.runs[past.runs.index(run) - 1]
    return isinstance(former.outcome, ev.ContinuedAsNew)


def check_end(past: Past) -> None:
    """The row says what the last event says."""
    statuses: dict[type, str] = {
        ev.OrchestrationCompleted: "completed",
        ev.OrchestrationFailed: "failed",
        ev.OrchestrationCancelled: "cancelled",
    }
    assert past.runs, f"{past.id} has no history"
    assert past.last.execution_id == past.info.execution_id, f"{past.id}: {past.info}, and execution {past.last}"
    outcome = past.last.outcome
    status = statuses.get(type(outcome), "running")
    assert past.info.status == status, f"{past.id} is {past.info.status}, and its history ends in {outcome}"
    if isinstance(outcome, ev.OrchestrationCompleted):
        assert past.info.output == outcome.result, f"{past.id} has {past.info.output}, and its history {outcome}"
    assert len(past.last.events) == past.info.event_count, f"{past.id}: {past.info}, {len(past.last.events)} events"
