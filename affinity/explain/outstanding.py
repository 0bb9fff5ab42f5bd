"""The waits of an execution, from its history, without its code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from affinity.errors import NotSerializable
from affinity.orchestration import events as ev
from affinity.orchestration.wire import decode_event


@dataclass(slots=True)
class Outstanding:
    """The commands of an execution that have no answer yet, by event id."""

    activities: dict[int, str] = field(default_factory=dict)  # names
    timers: dict[int, float] = field(default_factory=dict)  # delays
    events: dict[int, str] = field(default_factory=dict)  # names
    children: dict[int, str] = field(default_factory=dict)  # instance ids
    unread: Counter[str] = field(default_factory=Counter)  # external events that no wait has taken, by name
    holds: dict[int, str] = field(default_factory=dict)  # sessions that waits for events hold
    refused: dict[int, str] = field(default_factory=dict)  # why the last event did not fit a wait
    count: int = 0

    def read(self, texts: Iterable[str]) -> None:
        """Take the next events of the history. Unreadable events are skipped."""
        for text in texts:
            self.count += 1
            try:
                self._take(self.count, decode_event(text))
            except NotSerializable:
                continue

    def _take(self, event_id: int, event: ev.Event) -> None:
        match event:
            case ev.ActivityScheduled():
                self.activities[event_id] = event.name
            case ev.TimerCreated():
                self.timers[event_id] = event.delay
            case ev.SubOrchestrationScheduled():
                self.children[event_id] = event.instance_id
            case ev.EventAwaited() if self.unread[event.name]:
                self.unread[event.name] -= 1
            case ev.EventAwaited():
                self.events[event_id] = event.name
                if event.hold is not None:
                    self.holds[event_id] = event.hold.session_id
            case ev.EventRaised() if event.name in self.events.values():
                del self.events[min(number for number, name in self.events.items() if name == event.name)]
            case ev.EventRaised():
                self.unread[event.name] += 1
            case ev.EventRefused() if self.unread[event.name]:  # its wait takes the next one
                self.unread[event.name] -= 1
            case ev.EventRefused():  # its wait goes on; the event is kept for a wait of another type
                self.events[event.schedule_id] = event.name
                self.refused[event.schedule_id] = event.message
            case ev.OrchestrationStarted():
                self.unread.update(each.name for each in event.carried)
            case _:
                self._end(getattr(event, "schedule_id", 0))

    def _end(self, schedule_id: int) -> None:
        self.activities.pop(schedule_id, None)
        self.timers.pop(schedule_id, None)
        self.events.pop(schedule_id, None)
        self.children.pop(schedule_id, None)
