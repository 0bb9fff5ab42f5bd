"""A worker in ten lines: feeds inputs, keeps the history, and checks after every step that replay gives the same."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any

from affinity import App
from affinity.orchestration import events as ev
from affinity.orchestration.definitions import OrchestrationDefinition, definition_of
from affinity.orchestration.engine import Execution, Step
from affinity.orchestration.waits import moved_event
from affinity.orchestration.wire import ANY_EXECUTION, decode_event, encode_event, encode_message, read_message

Orchestration = Callable[..., Coroutine[Any, Any, Any]]


def define(function: Orchestration, **options: Any) -> OrchestrationDefinition:
    """Register a function in an app of its own, unless it is registered."""
    if definition_of(function) is None:
        App("test").orchestration(**options)(function)
    definition = definition_of(function)
    assert isinstance(definition, OrchestrationDefinition)
    return definition


def moved(session_id: str) -> ev.EventRaised:
    """The event of a session's move as an instance receives it, with what the provider has added to the message."""
    sent = encode_message(ANY_EXECUTION, moved_event(session_id))
    event = read_message(sent[:-1] + ',"move":{"worker_id":"w","epoch":7,"reason":"drained"}}').event
    assert isinstance(event, ev.EventRaised)
    return event


def through_json(history: Sequence[ev.Event]) -> list[ev.Event]:
    """The history as a store gives it back."""
    return [decode_event(encode_event(event)) for event in history]


class Live:
    """One execution that is run, and replayed again and again."""

    def __init__(self, function: Orchestration, *, instance_id: str = "i", execution_id: int = 1) -> None:
        self.definition = define(function)
        self.execution = Execution(self.definition, instance_id, execution_id)
        self.history: list[ev.Event] = []
        self._guids = count(1)
        self._times = count(1_000)

    def start(self, input: str = "null", **fields: Any) -> Step:
        """Feed the first event."""
        return self.feed(ev.OrchestrationStarted(self.definition.name, self.definition.version, input, **fields))

    def feed(self, *inputs: ev.Event) -> Step:
        """Advance by inputs, and check that the history so far replays."""
        before = self.execution.event_count
        step = self.advance(self.execution, *inputs)
        assert [event_id for event_id, _ in step.events] == list(range(before + 1, before + len(step.events) + 1))
        self.history += [event for _, event in step.events]
        assert self.execution.event_count == len(self.history)
        self.check_replay()
        return step

    def advance(self, execution: Execution, *inputs: ev.Event) -> Step:
        """Advance any execution with this one's suppliers."""
        return execution.advance(inputs, now=lambda: float(next(self._times)), new_guid=lambda: f"g{next(self._guids)}")

    def replayed(self, history: Sequence[ev.Event] | None = None, page: int | None = None) -> Execution:
        """A fresh execution, rebuilt from the history as a store gives it back: all of it, or so many events a page."""
        execution = Execution(self.definition, self.execution.instance_id, self.execution.execution_id)
        events = through_json(self.history if history is None else history)
        if page is None:
            execution.replay(events)
            return execution
        execution.begin_replay()
        for start in range(0, len(events), page):
            execution.replay_page(events[start : start + page])
        execution.end_replay()
        return execution

    def check_replay(self) -> None:
        """Replay and compare all that a worker can see."""
        again = self.replayed()
        assert again.event_count == self.execution.event_count
        assert again.outcome == self.execution.outcome
        assert again.pending_activities == self.execution.pending_activities
        assert again.parent == self.execution.parent
        again.close()

    def complete(self, schedule_id: int, result: str = "null") -> Step:
        """Feed the result of an activity."""
        return self.feed(ev.ActivityCompleted(schedule_id, result))

    @property
    def outcome(self) -> ev.Outcome | None:
        """How it ended."""
        return self.execution.outcome


def run(function: Orchestration, *inputs: ev.Event, input: str = "null") -> Live:
    """Start an orchestration and feed it inputs, one by one."""
    live = Live(function)
    live.start(input)
    for event in inputs:
        live.feed(event)
    return live


def new_events(step: Step) -> list[ev.Event]:
    """The events of a step without their ids."""
    return [event for _, event in step.events]
