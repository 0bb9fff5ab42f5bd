"""The history of one execution, while it is written and while it is read again.

The same code runs in both cases. Live, a command of the orchestration becomes the next event. In replay, it must match
the next recorded event. ``_IDENTITY`` lists the compared fields: the activity, its session, and whether it is ordered
there; the delay of a timer, the name of an event and the session that its wait holds, the sub-orchestration. A tag is
compared unless it is that of the activity's definition. Events that are sent to other instances are compared by the
receiver, the name, and the order.

Inputs are not compared: code may change how it formats them, and the recorded result is used. Retry policies,
timeouts, limits, priorities and the duration of a hold are not compared either: they change no result. The recorded
ones are used.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

from affinity.errors import ExecutionLimitReached, Nondeterminism
from affinity.limits import MAX_HISTORY_EVENTS, MAX_ID_BYTES, truncate
from affinity.orchestration import events as ev

_DEFAULT_ID: Final = re.compile(r"/\d+:(\d+)$")
"""The end of the default id of a child or of a detached instance. After a reset the execution is another one, and the
child is the same; of a detached instance the first number is random.
"""


def _held(event: ev.EventAwaited) -> str | None:
    """The session that a wait holds."""
    return None if event.hold is None else event.hold.session_id


_IDENTITY: Final[dict[type[ev.Event], Callable[[Any], object]]] = {
    ev.ActivityScheduled: attrgetter("name", "session_id", "ordered"),
    ev.ActivityCancelled: attrgetter("schedule_id"),
    ev.TimerCreated: attrgetter("delay"),
    ev.TimerCancelled: attrgetter("schedule_id"),
    ev.EventAwaited: lambda event: (event.name, _held(event)),
    ev.EventAwaitCancelled: attrgetter("schedule_id"),
    ev.EventRefused: attrgetter("schedule_id"),
    ev.EventAccepted: attrgetter("schedule_id", "number"),
    ev.EventReplied: attrgetter("key"),
    ev.SessionWatched: attrgetter("session_id"),
    ev.SessionReleased: attrgetter("session_id"),
    ev.SubOrchestrationScheduled: lambda event: (event.name, _DEFAULT_ID.sub(r"/:\1", event.instance_id)),
    ev.SubOrchestrationCancelled: attrgetter("schedule_id"),
    ev.DetachedStarted: lambda event: (event.name, _DEFAULT_ID.sub(r"/:\1", event.instance_id)),
    ev.EventSent: attrgetter("instance_id", "name"),
    ev.ValueSet: attrgetter("key"),
    ev.ValueRead: attrgetter("key"),
}
"""The fields that must match, beside the type of a command. Events that are not listed match by type alone."""


class History:
    """Position in the history, and the events that were appended since the last ``take``."""

    __slots__ = (
        "_appended",
        "_last_input",
        "_recorded",
        "_size",
        "children",
        "last_recorded",
        "latest",
        "new_guid",
        "now",
        "position",
    )

    def __init__(self) -> None:
        self.position: int = 0
        """Id of the last event."""
        self.now: Callable[[], float] = float
        self.latest: float = 0.0
        """The latest time in the history, in Unix seconds; the clock of another database server may be behind it."""
        self.new_guid: Callable[[], str] = str
        self.children: dict[int, str] = {}
        """Instance ids of the sub-orchestrations that were ever scheduled, by event id."""
        self.last_recorded: ev.Event | None = None
        """The last event that was read."""
        self._size = (0, 0)  # events counted, and the characters of their payloads
        self._appended: list[tuple[int, ev.Event]] = []
        self._recorded: deque[ev.Event] | None = None  # after the present position, as far as they are read
        self._last_input = 0  # id of the last input that was read

    @property
    def replaying(self) -> bool:
        """Whether events are read rather than written."""
        return self._recorded is not None

    @property
    def next_recorded(self) -> ev.Event | None:
        """In replay, the event after the present position; None at the end."""
        return self._recorded[0] if self._recorded else None

    @property
    def has_whole_step(self) -> bool:
        """Whether the next step is read to its end: another input follows it."""
        return self.position + 1 < self._last_input

    def open(self) -> None:
        """Begin a replay. Recorded values are used instead of the suppliers of values."""
        self._recorded = deque()
        self.now, self.new_guid = float, str

    def read(self, recorded: Iterable[ev.Event]) -> None:
        """Append the next events of the stored history."""
        assert self._recorded is not None
        for event_id, event in enumerate(recorded, self.position + len(self._recorded) + 1):
            self._recorded.append(event)
            self.last_recorded = event
            if type(event) is ev.SubOrchestrationScheduled:
                self.children[event_id] = event.instance_id
            elif type(event) in ev.INPUTS:
                self._last_input = event_id

    def close(self) -> None:
        """End the replay: new events follow the recorded ones."""
        self.position += len(self._recorded or ())
        self._recorded = None

    def take(self) -> list[tuple[int, ev.Event]]:
        """Return the events appended since the last call, each with its id."""
        appended, self._appended = self._appended, []
        self._size = (0, 0)
        return appended

    def appended_size(self) -> int:
        """Characters of the payloads appended since the last `take`."""
        counted, size = self._size
        size += sum([ev.payload_size(event) for _, event in self._appended[counted:]])
        self._size = (len(self._appended), size)
        return size

    def record_input(self, event: ev.Event) -> None:
        """Record an input.

        Raises:
            ExecutionLimitReached: the history is at its limit.
        """
        if self.position >= MAX_HISTORY_EVENTS:
            self._require_room()
        self._append(event)

    def record_command(self, event: ev.Event) -> ev.Event:
        """Record a command and return it; in replay, return the recorded event in its place.

        Raises:
            Nondeterminism: the recorded event is another one.
            ExecutionLimitReached: the history is at its limit.
        """
        if self.position >= MAX_HISTORY_EVENTS:
            self._require_room()
        if self._recorded is not None:
            event = self._match(event)
        self._append(event)
        return event

    def record_final(self, event: ev.Event) -> ev.Event:
        """Record one of the last events of an execution, to which no limit applies.

        Raises:
            Nondeterminism: the recorded event is another one.
        """
        if self._recorded is not None:
            event = self._match(event)
        self._append(event)
        return event

    def mismatch(self, recorded: ev.Event, actual: str) -> Nondeterminism:
        """The error for code that does not produce the next recorded event."""
        event_id = self.position + 1
        return Nondeterminism(f"{describe(recorded)} as event {event_id}", actual, event_id=event_id)

    def _require_room(self) -> None:
        # A recorded history stays valid if the limit is lowered.
        if self._recorded is None:
            raise ExecutionLimitReached(
                f"more than {MAX_HISTORY_EVENTS} events in one execution: "
                "use continue_as_new from time to time, which starts a fresh history"
            )

    def _append(self, event: ev.Event) -> None:
        self.position += 1
        if self._recorded is not None:
            self._recorded.popleft()
        else:
            self._appended.append((self.position, event))
            if type(event) is ev.SubOrchestrationScheduled:
                self.children[self.position] = event.instance_id

    def _match(self, event: ev.Event) -> ev.Event:
        recorded = self.next_recorded
        if recorded is None:
            raise Nondeterminism(f"no event after {self.position}", describe(event), event_id=self.position + 1)
        identity = _IDENTITY.get(type(event))
        if type(recorded) is not type(event) or (identity is not None and identity(recorded) != identity(event)):
            raise self.mismatch(recorded, describe(event))
        if isinstance(event, ev.ActivityScheduled) and not _may_have_tag(recorded, event):
            raise self.mismatch(recorded, describe(event))
        return recorded


def _may_have_tag(recorded: Any, event: ev.ActivityScheduled) -> bool:
    """Whether the code may have scheduled the activity with the recorded tag. One of a definition may change: then the
    recorded tag is used.
    """
    return bool(recorded.tag == event.tag or recorded.default_tag or event.default_tag)


def describe(event: ev.Event) -> str:
    """The type of an event and what identifies it, for a message."""
    match event:
        case ev.ActivityScheduled(name=name, session_id=session_id, ordered=ordered, tag=tag):
            identity = _arguments(name, session_id=session_id, ordered=ordered or None, tag=tag)
        case ev.TimerCreated(delay=delay):
            identity = f"{delay:g} s"
        case ev.EventAwaited(name=name):
            identity = _arguments(name, hold_session=_held(event))
        case ev.EventRaised(name=name) | ev.OrchestrationStarted(name=name):
            identity = _arguments(name)
        case ev.OrchestrationFailed(error_type=error_type, message=message):
            identity = f"{error_type}: {truncate(message, MAX_ID_BYTES)}"
        case ev.EventReplied(key=name) | ev.ValueSet(key=name) | ev.ValueRead(key=name):
            identity = _arguments(name)
        case ev.SessionWatched(session_id=name) | ev.SessionReleased(session_id=name):
            identity = _arguments(name)
        case (
            ev.SubOrchestrationScheduled(name=name, instance_id=instance_id)
            | ev.DetachedStarted(name=name, instance_id=instance_id)
            | ev.EventSent(name=name, instance_id=instance_id)
        ):
            identity = _arguments(name, instance_id=instance_id)
        case _:
            schedule_id = getattr(event, "schedule_id", None)
            identity = "" if schedule_id is None else f"of event {schedule_id}"
    return f"{type(event).__name__}({identity})" if identity else type(event).__name__


def _arguments(name: str, **options: object) -> str:
    given = [f"{option}={value!r}" for option, value in options.items() if value is not None]
    return ", ".join([repr(name), *given])
