"""Requests of a client, validated and encoded: starts, external events, requests to cancel."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from affinity.errors import InvalidApp, InvalidOptions
from affinity.headers import sent_headers
from affinity.limits import (
    MAX_ERROR_BYTES,
    MAX_TIMER_SECONDS,
    MAX_UNREAD_EVENTS,
    check_choice,
    check_code_name,
    check_id,
    check_labels,
    seconds_of,
    truncate,
)
from affinity.orchestration.codec import Codec
from affinity.orchestration.context import OrchestrationFunction, OrchestrationWithoutInput
from affinity.orchestration.definitions import MISSING, OrchestrationDefinition, definition_of
from affinity.orchestration.events import CancelRequested, EventRaised, OrchestrationStarted
from affinity.orchestration.gates import DEFAULT_PRIORITY, HasLimitUse, check_priority, check_uses, gate_of
from affinity.orchestration.overlap import IfRunning
from affinity.orchestration.typed import ExternalEvent, encode_raised
from affinity.orchestration.wire import ANY_EXECUTION, encode_message
from affinity.provider.contract import NewInstance, NewMessage
from affinity.records import Labels
from affinity.tracing import current_context

I = TypeVar("I")  # noqa: E741 - the usual letter for an input type

Orchestration: TypeAlias = str | OrchestrationFunction[Any, Any] | OrchestrationWithoutInput[Any]
"""The name of an orchestration, or the function that an `App` registered."""

IfEnded: TypeAlias = Literal["return", "restart", "fail"]
"""What a start does when the instance of its id has ended: nothing; restart it; raise `InstanceFinished`."""

StartOutcome: TypeAlias = Literal["created", "running", "ended", "restarted", "replaced", "queued"]
"""The outcome of a start: the id was free; its instance has not ended; it has ended; it was restarted; it waited to
begin, and its input was replaced (``debounce``); this start begins when it has ended (``if_running``).
"""

_ANY_INPUT: Final = Codec(Any, "input of the orchestration")


class StartTiming(TypedDict, total=False):
    """Options of a start that are given by name: when it begins, and how it is found. See `Client.start`."""

    delay: float | timedelta
    at: datetime | None
    priority: int
    limits: Sequence[HasLimitUse]
    debounce: float | timedelta | None
    max_wait: float | timedelta | None
    if_running: IfRunning | None
    labels: Labels | None


@dataclass(frozen=True, slots=True)
class Start:
    """An instance to start, for `Client.start_many`."""

    orchestration: Orchestration
    input: Any = MISSING
    instance_id: str | None = None  # None: a random one
    version: str | None = None  # None: the latest that the first worker registers
    for_session: str | None = None  # id of the session that it works for, as logs and lists show it; nothing runs there
    if_ended: IfEnded | None = None  # what `Client.start` does if the instance of this id has ended
    _: KW_ONLY
    delay: float | timedelta = 0.0  # seconds until it begins
    at: datetime | None = None  # when it begins, with a time zone; a time that is over counts as now
    priority: int = DEFAULT_PRIORITY  # begins before others that could begin: greater ones first
    limits: Sequence[HasLimitUse] = ()  # where it waits for room before it begins; it keeps its places until it ends
    debounce: float | timedelta | None = None  # seconds without another start of this id, after which it begins
    max_wait: float | timedelta | None = None  # seconds since the first of these starts, after which it begins anyway
    if_running: IfRunning | None = None  # what `Client.start` does if the instance of this id has not ended
    labels: Labels | None = None  # texts by key, by which listings find it

    @property
    def after_end(self) -> IfEnded:
        """What it does if the instance has ended: run again, if starts of this id follow each other."""
        follows = self.debounce is not None or self.while_running in {"queue_one", "cancel"}
        return self.if_ended or ("restart" if follows else "return")

    @property
    def while_running(self) -> IfRunning:
        """What it does if the instance runs: with ``debounce``, its input has come too late for that one."""
        return self.if_running or ("join" if self.debounce is None else "queue_one")

    if TYPE_CHECKING:  # the generated constructor, with the input that the orchestration takes

        @overload
        def __init__(
            self,
            orchestration: OrchestrationFunction[I, Any],
            input: I,
            instance_id: str | None = ...,
            version: str | None = ...,
            for_session: str | None = ...,
            if_ended: IfEnded | None = ...,
            **timing: Unpack[StartTiming],
        ) -> None: ...
        @overload
        def __init__(
            self,
            orchestration: OrchestrationWithoutInput[Any],
            *,
            instance_id: str | None = ...,
            version: str | None = ...,
            for_session: str | None = ...,
            if_ended: IfEnded | None = ...,
            **timing: Unpack[StartTiming],
        ) -> None: ...
        @overload
        def __init__(
            self,
            orchestration: str,
            input: Any = ...,
            instance_id: str | None = ...,
            version: str | None = ...,
            for_session: str | None = ...,
            if_ended: IfEnded | None = ...,
            **timing: Unpack[StartTiming],
        ) -> None: ...
        def __init__(self, orchestration: Any, input: Any = ..., *args: Any, **options: Any) -> None: ...


Started: TypeAlias = (
    Start | tuple[OrchestrationFunction[I, Any], I] | tuple[str, Any] | OrchestrationWithoutInput[Any] | str
)
"""An orchestration to start: see `Client.ask`."""


def new_instance(start: Start) -> NewInstance:
    """The row and start message of an instance.

    Raises:
        InvalidId: instance id, name, version, session id, or a label.
        InvalidApp: a function that is no registered orchestration.
        InvalidOptions: there are too many labels; ``if_ended`` or ``if_running`` is no choice; options that contradict
            each other; a time.
        InvalidInput: the priority.
        InvalidLimit: a limit.
        NotSerializable, PayloadTooLarge, OrchestrationMisuse: the input does not fit the orchestration.
    """
    name, encoded = _name_and_input(start)
    if start.if_ended is not None:
        check_choice("if_ended", start.if_ended, IfEnded, InvalidOptions)
    if start.if_running is not None:
        check_choice("if_running", start.if_running, IfRunning, InvalidOptions)
    if start.instance_id is None and (start.debounce is not None or start.while_running != "join"):
        raise InvalidOptions("debounce and if_running are about starts of one id: give an instance_id")
    if start.version is not None:
        check_code_name(start.version, "orchestration version")
    # The worker that first runs it fills in the database's time, and the version where none was asked for.
    labels = None if start.labels is None else check_labels(start.labels) or None
    event = OrchestrationStarted(
        name, start.version or "", encoded, labels=labels, headers=sent_headers(), trace=current_context()
    )
    delay, not_before = _start_time(start)
    return NewInstance(
        instance_id=str(uuid.uuid4()) if start.instance_id is None else check_id(start.instance_id, "instance id"),
        name=name,
        version=start.version,
        start=encode_message(ANY_EXECUTION, event),
        session_id=None if start.for_session is None else check_id(start.for_session, "session id"),
        labels=labels,
        delay=delay,
        not_before=not_before,
        gate=gate_of(check_uses(start.limits), check_priority(start.priority)),
    )


def _start_time(start: Start) -> tuple[float, float]:
    """Return the seconds until a start begins, and the Unix time before which it does not."""
    delay = seconds_of("delay", start.delay)
    if start.debounce is not None or start.max_wait is not None:
        return _debounced(start), 0.0
    if start.at is None:
        return delay, 0.0
    if delay:
        raise InvalidOptions(f"delay={start.delay!r} and at={start.at!r} contradict each other: give one of them")
    if not isinstance(start.at, datetime) or start.at.tzinfo is None:
        raise InvalidOptions(f"at must be a datetime with a time zone, as datetime.now(UTC), not {start.at!r:.80}")
    at = start.at.timestamp()
    if at - time.time() > MAX_TIMER_SECONDS:
        raise InvalidOptions(f"at={start.at.isoformat()} is over the limit of {MAX_TIMER_SECONDS:g} s from now")
    return 0.0, at


def _debounced(start: Start) -> float:
    """Return the seconds after which a start begins if no other one of its id comes."""
    if start.debounce is None:
        raise InvalidOptions("max_wait bounds debounce: give both")
    if start.delay or start.at is not None:
        raise InvalidOptions("debounce says when the start begins: it contradicts delay and at")
    debounce = seconds_of("debounce", start.debounce)
    if not debounce:
        raise InvalidOptions(f"debounce={start.debounce!r} must be more than 0 s")
    if start.max_wait is not None and (most := seconds_of("max_wait", start.max_wait)) < debounce:
        raise InvalidOptions(f"max_wait={most:g} s is less than debounce={debounce:g} s: the first start waits as long")
    return debounce


def new_event(event: ExternalEvent, *, asked: bool = False) -> NewMessage:
    """The message that carries an event; ``asked``: its sender waits for the reply.

    Raises:
        InvalidId: instance id, name of the event, or idempotency key.
        InvalidOptions: data is given for an event that has some.
        NotSerializable, PayloadTooLarge: its data.
    """
    key = None if event.idempotency_key is None else check_id(event.idempotency_key, "idempotency key")
    name, data = encode_raised(event.name, event.data)
    trace = current_context()
    raised = EventRaised(name, data, key, sent_headers(), trace, asked=asked and trace is not None)
    return NewMessage(
        instance_id=check_id(event.instance_id, "instance id"),
        payload=encode_message(ANY_EXECUTION, raised),
        unread_limit=MAX_UNREAD_EVENTS,
        key=key,
    )


def new_cancellation(instance_id: str, reason: str) -> NewMessage:
    """The message that asks an instance to end.

    Raises:
        InvalidId: the instance id.
    """
    request = CancelRequested(reason=truncate(reason, MAX_ERROR_BYTES))
    payload = encode_message(ANY_EXECUTION, request)
    return NewMessage(instance_id=check_id(instance_id, "instance id"), payload=payload, ends_wait=True)


def next_cancellation(instance_id: str) -> NewMessage:
    """The message that asks an instance to end, since another start of its id replaces it."""
    return new_cancellation(instance_id, "another start of its id replaces it")


def start_of(start: Started[Any], instance_id: str) -> Start:
    """The start of the instance of this id: of an orchestration, of one with its input, or as given.

    Raises:
        InvalidOptions: it has another id.
    """
    if isinstance(start, tuple):
        return Start(*start, instance_id=instance_id)
    if not isinstance(start, Start):
        return Start(start, instance_id=instance_id)
    if start.instance_id not in {None, instance_id}:
        raise InvalidOptions(f"instance {start.instance_id!r} is to be started, and the event is for {instance_id!r}")
    return replace(start, instance_id=instance_id)


def result_codec(orchestration: Orchestration) -> Codec | None:
    """The codec of the result; None for a name, which has no annotations."""
    return None if isinstance(orchestration, str) else _definition(orchestration).result_codec


def name_of(orchestration: Orchestration) -> str:
    """The name of an orchestration; empty for a function that is none."""
    return orchestration if isinstance(orchestration, str) else getattr(definition_of(orchestration), "name", "")


def encoded_input(start: Start) -> str:
    """The input of a start by name, as JSON: null for none.

    Raises:
        NotSerializable, PayloadTooLarge: it is refused.
    """
    return _ANY_INPUT.encode(None if start.input is MISSING else start.input)


def _name_and_input(start: Start) -> tuple[str, str]:
    if isinstance(start.orchestration, str):
        return check_code_name(start.orchestration, "orchestration name"), encoded_input(start)
    definition = _definition(start.orchestration)
    return definition.name, definition.encode_input(start.input)


def _definition(function: object) -> OrchestrationDefinition:
    found = definition_of(function)
    if isinstance(found, OrchestrationDefinition):
        return found
    raise InvalidApp(f"{function!r} is not registered as an orchestration: pass a name, or decorate it")
