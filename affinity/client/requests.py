"""Requests of a client, validated and encoded: starts, external events, requests to cancel."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, overload

from affinity.errors import InvalidApp, InvalidOptions
from affinity.limits import MAX_ERROR_BYTES, MAX_UNREAD_EVENTS, check_choice, check_code_name, check_id, truncate
from affinity.orchestration.codec import Codec
from affinity.orchestration.context import OrchestrationFunction, OrchestrationWithoutInput
from affinity.orchestration.definitions import MISSING, OrchestrationDefinition, definition_of
from affinity.orchestration.events import CancelRequested, EventRaised, OrchestrationStarted
from affinity.orchestration.typed import ExternalEvent, encode_raised
from affinity.orchestration.wire import ANY_EXECUTION, encode_message
from affinity.provider.contract import NewInstance, NewMessage
from affinity.tracing import current_context

I = TypeVar("I")  # noqa: E741 - the usual letter for an input type

Orchestration: TypeAlias = str | OrchestrationFunction[Any, Any] | OrchestrationWithoutInput[Any]
"""The name of an orchestration, or the function that an `App` registered."""

IfEnded: TypeAlias = Literal["return", "restart", "fail"]
"""What a start does when the instance of its id has ended: nothing; restart it; raise `InstanceFinished`."""

StartOutcome: TypeAlias = Literal["created", "running", "ended", "restarted"]
"""The outcome of a start: the id was free; its instance has not ended; it has ended; it was restarted."""

_ANY_INPUT: Final = Codec(Any, "input of the orchestration")


@dataclass(frozen=True, slots=True)
class Start:
    """An instance to start, for `Client.start_many`."""

    orchestration: Orchestration
    input: Any = MISSING
    instance_id: str | None = None  # None: a random one
    version: str | None = None  # None: the latest that the first worker registers
    session_id: str | None = None  # that it and its sub-orchestrations work for, as logs and listings show it
    if_ended: IfEnded = "return"  # what `Client.start` does if the instance of this id has ended

    if TYPE_CHECKING:  # the generated constructor, with the input that the orchestration takes

        @overload
        def __init__(
            self,
            orchestration: OrchestrationFunction[I, Any],
            input: I,
            instance_id: str | None = ...,
            version: str | None = ...,
            session_id: str | None = ...,
            if_ended: IfEnded = ...,
        ) -> None: ...
        @overload
        def __init__(
            self,
            orchestration: OrchestrationWithoutInput[Any],
            *,
            instance_id: str | None = ...,
            version: str | None = ...,
            session_id: str | None = ...,
            if_ended: IfEnded = ...,
        ) -> None: ...
        @overload
        def __init__(
            self,
            orchestration: str,
            input: Any = ...,
            instance_id: str | None = ...,
            version: str | None = ...,
            session_id: str | None = ...,
            if_ended: IfEnded = ...,
        ) -> None: ...
        def __init__(self, orchestration: Any, input: Any = ..., *args: Any, **options: Any) -> None: ...


Started: TypeAlias = (
    Start | tuple[OrchestrationFunction[I, Any], I] | tuple[str, Any] | OrchestrationWithoutInput[Any] | str
)
"""An orchestration to start: see `Client.ask`."""


def new_instance(start: Start) -> NewInstance:
    """The row and start message of an instance.

    Raises:
        InvalidId: instance id, name, version or session id.
        InvalidApp: a function that is no registered orchestration.
        InvalidOptions: ``if_ended`` is none of `IfEnded`.
        NotSerializable, PayloadTooLarge, OrchestrationMisuse: the input does not fit the orchestration.
    """
    name, encoded = _name_and_input(start)
    check_choice("if_ended", start.if_ended, IfEnded, InvalidOptions)
    if start.version is not None:
        check_code_name(start.version, "orchestration version")
    # The worker that first runs it fills in the database's time, and the version where none was asked for.
    event = OrchestrationStarted(name, start.version or "", encoded, trace=current_context())
    return NewInstance(
        instance_id=str(uuid.uuid4()) if start.instance_id is None else check_id(start.instance_id, "instance id"),
        name=name,
        version=start.version,
        start=encode_message(ANY_EXECUTION, event),
        session_id=None if start.session_id is None else check_id(start.session_id, "session id"),
    )


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
    raised = EventRaised(name, data, key, trace=trace, asked=asked and trace is not None)
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
    return NewMessage(instance_id=check_id(instance_id, "instance id"), payload=encode_message(ANY_EXECUTION, request))


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
