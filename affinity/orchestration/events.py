"""The events of an execution's history.

An event's id is its 1-based position in the history of one execution, and is not part of the record. ``schedule_id`` is
the id of the event that scheduled a command. Payloads are JSON text, which is not parsed here.

There are three kinds. *Inputs* come from outside and cause a step. *Commands* are what the code requested in the step.
An *outcome* is the last event of an execution. Inputs are also sent to the instance as messages, in the same form (see
``wire``).
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Final, Literal, NamedTuple, TypeAlias

from affinity.errors import ErrorDetails
from affinity.headers import Headers
from affinity.orchestration.gates import LimitUses
from affinity.orchestration.retry import RetryPolicy
from affinity.records import Labels, frozen

RawJson: TypeAlias = str
"""JSON text."""

LATEST: Final = "latest"
"""In place of a version: the latest one."""

ActivityFailureKind: TypeAlias = Literal[
    "failed", "timeout", "poisoned", "unknown", "cancelled", "tag_mismatch", "no_worker_with_tag", "busy"
]
"""How an activity failed, in this order: it raised; ran too long; was interrupted too often; is registered by no
worker; was cancelled; has another tag than its session; no worker has its tag; was not started in time.
"""

ChildFailureKind: TypeAlias = Literal["failed", "cancelled", "exists"]
"""How a sub-orchestration failed: it raised, was cancelled, or its instance id was taken."""


class ParentRef(NamedTuple):
    """The parent that awaits a sub-orchestration: where its result is sent."""

    instance_id: str
    execution_id: int
    schedule_id: int
    generation: str
    """Generation of that instance."""


class Hold(NamedTuple):
    """A session that stays with its holder while an external event is awaited."""

    session_id: str
    seconds: float
    """The longest time for which it is held."""


class CarriedEvent(NamedTuple):
    """An external event that was unread when the former execution called ``continue_as_new``."""

    name: str
    data: RawJson
    key: str | None = None
    """As of `EventRaised`."""
    headers: Headers | None = None
    """As of `EventRaised`."""


Carried: TypeAlias = tuple[CarriedEvent, ...]


class Ancestor(NamedTuple):
    """An execution whose first events a reset has copied into a later one."""

    execution_id: int
    event_id: int
    """The last event that was copied."""


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
    """Database time, in Unix seconds."""
    custom_status: RawJson | None = None
    """Custom status of the former execution, if there was one."""
    scheduled_for: float | None = None
    """The tick of the schedule that has started the instance, in Unix seconds."""
    labels: Labels | None = None
    """Labels of the instance; None: it has none."""
    continued: bool = False
    """Whether a former execution went on with this one, so that it may have left values."""
    headers: Headers | None = field(default=None, compare=False)
    """With which it was started (`affinity.headers`)."""
    trace: str | None = field(default=None, compare=False)
    """Trace context in which it was started (`affinity.tracing`); no code depends on it."""


@frozen()
class ActivityCompleted:
    """An activity returned."""

    schedule_id: int
    result: RawJson


@frozen()
class ActivityFailed:
    """An activity failed, after all its attempts."""

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
    """An external event was raised."""

    name: str
    data: RawJson
    key: str | None = None
    """With which it was raised, at most once; a reply to it is stored under this key."""
    headers: Headers | None = field(default=None, compare=False)
    """With which it was raised (`affinity.headers`)."""
    trace: str | None = field(default=None, compare=False)
    """Trace context in which it was raised (`affinity.tracing`); no code depends on it."""
    asked: bool = field(default=False, compare=False)
    """It has a trace context, and its sender waits for the reply: what serves it belongs to that trace."""


@frozen()
class SubOrchestrationCompleted:
    """A sub-orchestration returned."""

    schedule_id: int
    result: RawJson


@frozen()
class SubOrchestrationFailed:
    """A sub-orchestration failed, was cancelled, or could not start."""

    schedule_id: int
    kind: ChildFailureKind
    error_type: str
    message: str
    details: ErrorDetails | None = None
    stack: str = field(default="", compare=False)


@frozen()
class CancelRequested:
    """The instance is requested to end."""

    reason: str


@frozen()
class ExecutionReset:
    """An operator has reset the instance: the events before this one are copies from former executions."""

    lineage: Lineage


# --- commands -------------------------------------------------------------------------------------------------------


@frozen()
class ActivityScheduled:
    """An activity is to run; on the holder of its session, if it has one."""

    name: str
    input: RawJson
    session_id: str | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    """Seconds that one attempt may take."""
    ordered: bool = False
    """Whether it runs after all ordered activities of its session that were committed before it."""
    tag: str | None = None
    """Only workers with this tag run it."""
    wait: float | None = None
    """Seconds after which another worker may take its session over, whose holder has no free slot."""
    fail_after: float | None = None
    """Seconds after which it fails when it was not started."""
    parked: bool = False
    """Whether it is parked until a guest queues it."""
    default_tag: bool = False
    """Whether the tag is that of the activity's definition, and not of this call."""
    limits: LimitUses = ()
    """The limits at which it waits."""
    priority: int = 0
    """Work of a greater priority goes first."""


@frozen()
class ActivityCancelled:
    """The activity is cancelled."""

    schedule_id: int


@frozen()
class TimerCreated:
    """A timer is to fire after ``delay`` seconds."""

    delay: float


@frozen()
class TimerCancelled:
    """The timer is cancelled."""

    schedule_id: int


@frozen()
class EventAwaited:
    """A wait for the next external event of this name, which may be buffered already."""

    name: str
    hold: Hold | None = None


@frozen()
class EventAwaitCancelled:
    """The wait for the external event is cancelled."""

    schedule_id: int


@frozen()
class EventRefused:
    """An external event does not fit the type of this wait, the first that it was offered to. The wait continues, and
    the event is kept unread.
    """

    schedule_id: int
    name: str
    message: str


@frozen()
class EventAccepted:
    """This wait receives an external event that was refused before."""

    schedule_id: int
    name: str
    number: int
    """Of the event, among those that the execution has received; 0 or less: among those that were carried over."""


@frozen()
class EventReplied:
    """The reply to the external event of this key."""

    key: str
    data: RawJson


@frozen()
class SessionWatched:
    """From now on the instance receives an event at each change of the session's holder."""

    session_id: str


@frozen()
class SessionReleased:
    """The session is to be released by its holder, unless other work or another instance holds it."""

    session_id: str


@frozen()
class SubOrchestrationScheduled:
    """Another instance is to start; version None is the latest that is registered."""

    name: str
    version: str | None
    instance_id: str
    input: RawJson
    labels: Labels | None = None


@frozen()
class SubOrchestrationCancelled:
    """The sub-orchestration is to be cancelled."""

    schedule_id: int


@frozen()
class DetachedStarted:
    """Another instance is to start, which is no child; version None is the latest that is registered."""

    name: str
    version: str | None
    instance_id: str
    input: RawJson
    labels: Labels | None = None


@frozen()
class EventSent:
    """An external event is raised for another instance."""

    instance_id: str
    name: str
    data: RawJson


@frozen()
class GuidCreated:
    """The value that ``ctx.new_guid()`` returned."""

    value: str


@frozen()
class TimeRead:
    """The time that ``ctx.utc_now()`` returned, in Unix seconds."""

    value: float


@frozen()
class CustomStatusSet:
    """The custom status that the orchestration has set."""

    value: RawJson


@frozen()
class ValueSet:
    """A value of the instance that the orchestration has set; None: it has cleared it."""

    key: str
    value: RawJson | None = None


@frozen()
class ValuesCleared:
    """The orchestration has cleared all values of the instance."""


@frozen()
class ValueRead:
    """What ``ctx.values.get()`` found of a former execution; None: nothing."""

    key: str
    value: RawJson | None = None


@frozen()
class LabelsSet:
    """The labels that the orchestration has set, in place of those before."""

    labels: Labels


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
    """The execution ended and the next one is to start. Version None: the same version; `LATEST`: the latest that its
    worker registers.
    """

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
    | EventAccepted
    | EventReplied
    | SessionWatched
    | SessionReleased
    | SubOrchestrationScheduled
    | SubOrchestrationCancelled
    | DetachedStarted
    | EventSent
    | GuidCreated
    | TimeRead
    | CustomStatusSet
    | ValueSet
    | ValuesCleared
    | ValueRead
    | LabelsSet
)
Event: TypeAlias = Input | Command | Outcome

INPUTS: Final = frozenset(Input.__args__)
"""The classes that cause a step, and that are sent as messages."""

OUTCOMES: Final = frozenset(Outcome.__args__)
"""The classes that end an execution."""

EVENTS: Final[tuple[type[Event], ...]] = Event.__args__
"""Every class of event."""

_PAYLOADS: Final[dict[type[Event], tuple[str, ...]]] = {
    cls: tuple(field.name for field in fields(cls) if field.type == "RawJson" or field.name in {"message", "stack"})
    for cls in EVENTS
}
"""The fields of an event that may be large."""

_OF_VALUES: Final = (ValueSet, ValueRead)

_CARRYING: Final = (OrchestrationStarted, ContinuedAsNew)
"""The classes that have unread external events too."""


def payload_size(event: Event) -> int:
    """The approximate number of characters of the event as text."""
    if type(event) is ActivityCompleted:  # nearly always
        return len(event.result)
    if isinstance(event, _OF_VALUES):
        return len(event.value or "")
    size = 0
    for name in _PAYLOADS[type(event)]:
        size += len(getattr(event, name))
    if isinstance(event, _CARRYING):
        size += sum([len(each.data) for each in event.carried])
    return size
