"""External events with a type, and their replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from affinity.errors import InvalidOptions, OrchestrationMisuse
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec
from affinity.orchestration.scheduler import Scheduler, refuse_awaitable
from affinity.orchestration.waits import check_event_name

if TYPE_CHECKING:
    from typing_extensions import TypeForm

D = TypeVar("D")
R = TypeVar("R")


class Event(Generic[D, R]):
    """An external event: its name, the type of its data, and the type of the reply to it.

    ::

        Message = affinity.Event("message", UserMessage, reply=Reply)

        message = await ctx.schedule_wait(Message)        # in an orchestration
        message.reply(Reply(text="hello"))

        reply = await client.ask("chat-17", Message(UserMessage(text="hi")))

    Attributes:
        name: under which it is raised and waited for.
    """

    @overload
    def __init__(self, name: str, type: TypeForm[D], *, reply: TypeForm[R]) -> None: ...
    @overload
    def __init__(self: Event[D, Any], name: str, type: TypeForm[D]) -> None: ...
    @overload
    def __init__(self: Event[Any, R], name: str, *, reply: TypeForm[R]) -> None: ...
    @overload
    def __init__(self: Event[Any, Any], name: str) -> None: ...
    def __init__(self, name: str, type: Any = Any, *, reply: Any = Any) -> None:
        """An event; a type is anything that pydantic knows.

        Raises:
            InvalidId: the name is not allowed.
            InvalidApp: a type has no JSON form.
        """
        self.name: str = check_event_name(name)
        self.data_codec: Codec = Codec(type, f"data of event {name!r}")
        self.reply_codec: Codec = Codec(reply, f"reply to event {name!r}")

    def __call__(self, data: D) -> EventValue[R]:
        """The event with its data, for `raise_event` or `ask`.

        Raises:
            NotSerializable, PayloadTooLarge: the data does not fit.
        """
        return EventValue(event=self, data=data, text=self.data_codec.encode(data))

    def __repr__(self) -> str:
        return f"<event {self.name!r}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventValue(Generic[R]):
    """An event with its data: see `Event`."""

    event: Event[Any, R]
    data: Any
    text: str = field(repr=False)
    """The data as JSON."""


@dataclass(frozen=True, slots=True)
class ExternalEvent:
    """An event to raise, for `Client.raise_events`; or for a schedule, without a key."""

    instance_id: str
    name: str | EventValue[Any]  # the latter has data of its own
    data: Any = None
    idempotency_key: str | None = None  # of the events with one key the instance gets one

    if TYPE_CHECKING:  # the generated constructor: an event that is given with its data has no other

        @overload
        def __init__(self, instance_id: str, name: EventValue[Any], *, idempotency_key: str | None = ...) -> None: ...
        @overload
        def __init__(self, instance_id: str, name: str, data: Any = ..., idempotency_key: str | None = ...) -> None: ...
        def __init__(self, instance_id: str, name: Any, data: Any = ..., idempotency_key: str | None = ...) -> None: ...


def event_name(name: str | EventValue[Any]) -> str:
    """The name of an event that is given by name, or with its data."""
    return name.event.name if isinstance(name, EventValue) else name


_ANY_DATA: Final = Codec(Any, "data of the event")


def encode_raised(name: str | EventValue[Any], data: Any) -> tuple[str, str]:
    """The name and the data, as JSON, of an event that is given by name and data, or with its data.

    Raises:
        InvalidId: the name is not allowed.
        InvalidOptions: the event has data of its own.
        NotSerializable, PayloadTooLarge: the data is refused.
    """
    if not isinstance(name, EventValue):
        return check_event_name(name), _ANY_DATA.encode(data)
    if data is not None:
        raise InvalidOptions(f"{name.event!r} is given with its data: leave out the other")
    return name.event.name, name.text


class ReceivedEvent(Generic[D, R]):
    """An event that an orchestration has received.

    Attributes:
        data: of the event.
        key: the idempotency key with which it was raised; None: without one, and no client can ask for a reply.
    """

    __slots__ = ("_event", "_is_answered", "_scheduler", "data", "key")

    def __init__(self, event: Event[D, R], data: D, key: str | None, scheduler: Scheduler) -> None:
        self.data: D = data
        self.key: str | None = key
        self._event = event
        self._scheduler = scheduler
        self._is_answered = False
        if key is not None and key in scheduler.asks:
            scheduler.serves = key

    @property
    def name(self) -> str:
        """Name of the event."""
        return self._event.name

    def reply(self, value: R) -> None:
        """Reply to the event. The reply commits with this step, and clients that ask under its key receive it.

        Raises:
            NotSerializable, PayloadTooLarge: the value does not fit the type of the reply.
            OrchestrationMisuse: the event is answered already, or the value is an awaitable.
        """
        self._scheduler.require_running()
        refuse_awaitable(value, "reply was passed")
        if self._is_answered:
            raise OrchestrationMisuse(f"event {self.name!r} has a reply already: an event has one")
        text = self._event.reply_codec.encode(value)
        self._is_answered = True
        if self.key is not None:
            self._scheduler.asks.pop(self.key, None)
            self._scheduler.pending.append(ev.EventReplied(self.key, text))

    def __repr__(self) -> str:
        return f"<received event {self.name!r}, {'answered' if self._is_answered else 'not answered'}>"
