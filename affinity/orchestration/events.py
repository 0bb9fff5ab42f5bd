"""What an execution's history is made of.

An event's id is its 1-based position in the history of one execution, so it is not part of the record. ``schedule_id``
points back at the event that scheduled the thing. Payloads are JSON text and stay JSON text: nothing here parses them.

Three kinds: *inputs* come from outside and cause a step, *commands* are what the step asked for, and an *outcome* is
the last event of an execution. Inputs also travel to the instance as messages, in the same form (see ``wire``).
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Final, Literal, NamedTuple, TypeAlias

from affinity.errors import ErrorDetails
from affinity.orchestration.retry import RetryPolicy
from affinity.records import frozen

RawJson: TypeAlias = str
"""JSON text."""

ActivityFailureKind: TypeAlias = Literal["failed", "timeout", "poisoned", "unknown", "cancelled"]
"""How an activity failed: it raised, ran too long, was started too often, is registered nowhere, or was cancelled."""

ChildFailureKind: TypeAlias = Literal["failed", "cancelled", "exists"]
"""How a sub-orchestration failed: it raised, was cancelled, or its instance id was taken."""


class ParentRef(NamedTuple):
    """Who awaits a sub-orchestration: where its result goes."""

    instance_id: str
    execution_id: int
    schedule_id: int
    birth: str | None = None
    """Birth token of that instance; None when a release before birth tokens wrote it."""


class Hold(NamedTuple):
    """A session that stays with its holder while an external event is awaited."""

    session_id: str
    seconds: float
    """At most so long."""


class CarriedEvent(NamedTuple):
    """An external event that nobody had consumed when the former execution did ``continue_as_new``."""

    name: str
    data: RawJson


Carried: TypeAlias = tuple[CarriedEvent, ...]


class Ancestor(NamedTuple):
    """An execution whose first events an execution has taken over."""

    execution_id: int
    event_id: int
    """The last one that counts."""


Lineage: TypeAlias = tuple[Ancestor, ...]


# --- inputs ---------------------------------------------------------------------------------------------------------


@frozen()
class OrchestrationStarted:
    """Starts an execution. Only external events and requests to cancel can come before it."""

    name: str
    version: str
    input: RawJson
    parent: ParentRef | None = None
    carried: Carried = ()
    time: float = 0.0
    """Database time, in unix seconds."""


@frozen()
class ActivityCompleted:
    """An activity returned."""

    schedule_id: int
    result: RawJson


@frozen()
class ActivityFailed:
    """An activity came to another end, after all its attempts."""

    schedule_id: int
    kind: ActivityFailureKind
    error_type: str
    message: str
    details: ErrorDetails | None = None
    stack: str = field(default="", compare=False)


@frozen()
class TimerFired:
    """A timer's delay has passed."""

    schedule_id: int


@frozen()
class EventRaised:
    """An external event came in."""

    name: str
    data: RawJson


@frozen()
class SubOrchestrationCompleted:
    """A sub-orchestration returned."""

    schedule_id: int
    result: RawJson


@frozen()
class SubOrchestrationFailed:
    """A sub-orchestration came to another end."""

    schedule_id: int
    kind: ChildFailureKind
    error_type: str
    message: str
    details: ErrorDetails | None = None
    stack: str = field(default="", compare=False)


@frozen()
class CancelRequested:
    """Somebody wants the instance to end."""

    reason: str


@frozen()
class ExecutionReset:
    """An operator has opened the instance again: the events before this one are those of former executions."""

    lineage: Lineage


# --- commands -------------------------------------------------------------------------------------------------------


@frozen()
class ActivityScheduled:
    """An activity is to run, on the holder of its session where it has one."""

    name: str
    input: RawJson
    session_id: str | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    """Seconds that one attempt may take."""


@frozen()
class ActivityCancelled:
    """Nobody awaits the activity any more."""

    schedule_id: int


@frozen()
class TimerCreated:
    """A timer is to fire after ``delay`` seconds."""

    delay: float


@frozen()
class TimerCancelled:
    """Nobody awaits the timer any more."""

    schedule_id: int


@frozen()
class EventAwaited:
    """The next external event of this name, buffered or to come, goes here."""

    name: str
    hold: Hold | None = None


@frozen()
class EventAwaitCancelled:
    """Nobody awaits the external event here any more."""

    schedule_id: int


@frozen()
class EventRefused:
    """An external event does not fit the type of this wait, which goes on waiting. The event is kept."""

    schedule_id: int
    name: str
    message: str


@frozen()
class SessionWatched:
    """From now on the instance is to hear of each change of the session's holder."""

    session_id: str


@frozen()
class SessionReleased:
    """Nothing keeps the session where it is any more, as far as the instance is concerned."""

    session_id: str


@frozen()
class SubOrchestrationScheduled:
    """Another instance is to start; version None is the latest that is registered."""

    name: str
    version: str | None
    instance_id: str
    input: RawJson


@frozen()
class SubOrchestrationCancelled:
    """Nobody awaits the sub-orchestration any more: it is to be cancelled."""

    schedule_id: int


@frozen()
class GuidCreated:
    """The value that ``ctx.new_guid()`` gave."""

    value: str


@frozen()
class TimeRead:
    """The unix seconds that ``ctx.utc_now()`` gave."""

    value: float


@frozen()
class CustomStatusSet:
    """What the orchestration says about itself."""

    value: RawJson


# --- outcomes -------------------------------------------------------------------------------------------------------


@frozen()
class OrchestrationCompleted:
    """The orchestration returned."""

    result: RawJson


@frozen()
class OrchestrationFailed:
    """The orchestration raised, or broke a rule."""

    error_type: str
    message: str
    details: ErrorDetails | None = None
    stack: str = field(default="", compare=False)


@frozen()
class OrchestrationCancelled:
    """The orchestration ended because of a ``CancelRequested``."""

    reason: str


@frozen()
class ContinuedAsNew:
    """The execution ended and the next one is to start; version None is that of the one that ended."""

    input: RawJson
    version: str | None = None
    carried: Carried = ()


Input: TypeAlias = (
    OrchestrationStarted
    | ActivityCompleted
    | ActivityFailed
    | TimerFired
    | EventRaised
    | SubOrchestrationCompleted
    | SubOrchestrationFailed
    | CancelRequested
    | ExecutionReset
)
Outcome: TypeAlias = OrchestrationCompleted | OrchestrationFailed | OrchestrationCancelled | ContinuedAsNew
Command: TypeAlias = (
    ActivityScheduled
    | ActivityCancelled
    | TimerCreated
    | TimerCancelled
    | EventAwaited
    | EventAwaitCancelled
    | EventRefused
    | SessionWatched
    | SessionReleased
    | SubOrchestrationScheduled
    | SubOrchestrationCancelled
    | GuidCreated
    | TimeRead
    | CustomStatusSet
)
Event: TypeAlias = Input | Command | Outcome

INPUTS: Final = frozenset(Input.__args__)
"""The classes that cause a step, and that travel as messages."""

OUTCOMES: Final = frozenset(Outcome.__args__)
"""The classes that end an execution."""

EVENTS: Final[tuple[type[Event], ...]] = Event.__args__
"""Every class of event."""


_PAYLOADS: Final[dict[type[Event], tuple[str, ...]]] = {
    cls: tuple(field.name for field in fields(cls) if field.type == "RawJson" or field.name in {"message", "stack"})
    for cls in EVENTS
}
"""The fields of an event that may be large."""


def payload_size(event: Event) -> int:
    """About how many characters the event takes as text."""
    carried: Carried = getattr(event, "carried", ())
    return sum([len(getattr(event, name)) for name in _PAYLOADS[type(event)]]) + sum([len(e.data) for e in carried])
