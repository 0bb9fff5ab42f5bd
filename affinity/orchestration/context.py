"""The context of an orchestration: the authoring API.

All of it is deterministic. A call records nothing: the created futures are scheduled, in order, when the orchestration
next waits.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from affinity.errors import InvalidOptions, OrchestrationMisuse
from affinity.headers import NO_HEADERS
from affinity.limits import (
    MAX_CUSTOM_STATUS_BYTES,
    MAX_HOLD_SECONDS,
    check_code_name,
    check_id,
    check_labels,
    seconds_of,
)
from affinity.orchestration import events as ev
from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.combine import Gather, Select, Selected, WaitAny
from affinity.orchestration.definitions import (
    AS_DEFINED,
    MISSING,
    ActivityDefinition,
    Definition,
    OrchestrationDefinition,
    definition_of,
    one_input,
    options_of,
)
from affinity.orchestration.futures import (
    ActivityFuture,
    ChildFuture,
    DetachedFuture,
    EventFuture,
    GuidFuture,
    MovedFuture,
    TimeFuture,
    TimerFuture,
    TypedEventFuture,
)
from affinity.orchestration.instance_values import InstanceValues
from affinity.orchestration.retry import RetryPolicy
from affinity.orchestration.scheduler import DurableFuture, Scheduler, refuse_awaitable
from affinity.orchestration.signals import ContinueAsNewSignal
from affinity.orchestration.typed import Event, EventValue, ReceivedEvent, encode_raised
from affinity.orchestration.waits import SessionMoved, check_event_name
from affinity.records import Labels

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as TypeVarWithDefault

    N_contra = TypeVarWithDefault("N_contra", default=Any, contravariant=True)
else:
    N_contra = TypeVar("N_contra", contravariant=True)

T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
D = TypeVar("D")
I = TypeVar("I")  # noqa: E741 - the usual letter for an input type
R = TypeVar("R")

AsyncActivity: TypeAlias = Callable[[ActivityContext, I], Coroutine[Any, Any, R]]
AsyncActivityWithoutInput: TypeAlias = Callable[[ActivityContext], Coroutine[Any, Any, R]]


class ActivityOptions(TypedDict, total=False):
    """Options of `OrchestrationContext.schedule_activity`; without one, that of the activity's definition counts."""

    retry: RetryPolicy | None
    timeout: float | timedelta | None


class NewInstanceOptions(TypedDict, total=False):
    """Options of the calls of `OrchestrationContext` that start another instance."""

    instance_id: str | None
    version: str | None
    labels: Labels | None


DEFAULT_HOLD_SECONDS: Final = 3600.0
"""Default of ``hold_for``: longer than a person's pause, shorter than a night."""

_CUSTOM_STATUS: Final = Codec(Any, "custom status", MAX_CUSTOM_STATUS_BYTES)


class OrchestrationContext(Generic[N_contra]):
    """The first argument of every orchestration, and the only source of futures that it may await.

    With the type of the input, as in ``ctx: OrchestrationContext[Opening]``, a type checker knows what
    `continue_as_new` takes.

    Attributes:
        instance_id: of this instance.
        execution_id: 1, and one more after each ``continue_as_new``.
        name: under which the orchestration is registered.
        version: on which this instance runs.
        session_id: for which the instance, or its parent, was started (``for_session`` of `Client.start`), or None. It
            is in the logs and spans of the orchestration, and of its activities without a session. No activity runs on
            that session unless it is stamped with ``on_session``.
    """

    __slots__ = ("_definition", "_scheduler", "_status", "execution_id", "instance_id", "name", "session_id", "version")

    def __init__(self, definition: OrchestrationDefinition, scheduler: Scheduler) -> None:
        self._definition = definition
        self._scheduler = scheduler
        self._status: str | None = None
        self.instance_id: str = scheduler.instance_id
        self.execution_id: int = scheduler.execution_id
        self.session_id: str | None = scheduler.session_id
        self.name: str = definition.name
        self.version: str = definition.version

    @property
    def is_replaying(self) -> bool:
        """Whether history is replayed now. For logs and metrics; a decision that depends on it breaks replay."""
        return self._scheduler.history.replaying

    @property
    def scheduled_for(self) -> datetime | None:
        """The due time of the schedule that has started this instance, as UTC; None: no schedule has. The instance may
        begin later: after an outage, a backfill or a jitter.
        """
        seconds = self._scheduler.scheduled_for
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the event that this branch of the code has received last, or those of the start, if the event
        has none; see `affinity.use_headers`. What the branch schedules, starts and sends next has the same ones.
        """
        return self._scheduler.headers or NO_HEADERS

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``affinity.orchestration``, silent in replay; ``extra`` has instance, execution and session."""
        return self._scheduler.logger

    @overload
    def schedule_activity(
        self, activity: AsyncActivity[I, R], input: I, **options: Unpack[ActivityOptions]
    ) -> ActivityFuture[R]: ...
    @overload
    def schedule_activity(
        self, activity: AsyncActivityWithoutInput[R], **options: Unpack[ActivityOptions]
    ) -> ActivityFuture[R]: ...
    @overload
    def schedule_activity(
        self, activity: Callable[[ActivityContext, I], R], input: I, **options: Unpack[ActivityOptions]
    ) -> ActivityFuture[R]: ...
    @overload
    def schedule_activity(
        self, activity: Callable[[ActivityContext], R], **options: Unpack[ActivityOptions]
    ) -> ActivityFuture[R]: ...
    @overload
    def schedule_activity(
        self, activity: str, input: Any = ..., **options: Unpack[ActivityOptions]
    ) -> ActivityFuture[Any]: ...
    @one_input
    def schedule_activity(
        self,
        activity: Callable[..., Any] | str,
        input: Any = MISSING,
        *,
        retry: RetryPolicy | None = AS_DEFINED,
        timeout: float | timedelta | None = AS_DEFINED,
    ) -> ActivityFuture[Any]:
        """Schedule an activity: it runs at least once, on any worker, and its result is recorded exactly once.

        Options that are left out are those of `App.activity`. An activity that is given by name has none of these.

        Args:
            activity: a registered function, or the name of one that another application registers.
            input: its input, if it takes one.
            retry: the retry policy; None: one attempt.
            timeout: seconds, or a timedelta, that one attempt may take; None: any time.

        Raises:
            InvalidInput: the input does not fit its annotation, or an option is out of range.
            OrchestrationMisuse: the function is not a registered activity, or its input is missing or an awaitable, or
                it was given several.
            ActivityError: at the await, if the activity failed; a subclass names the kind.
        """
        self._scheduler.require_running()
        reference = target_reference(activity, input, ActivityDefinition, "schedule_activity")
        return ActivityFuture(self._scheduler, reference, options_of(activity, retry, timeout))

    def schedule_timer(self, delay: float | timedelta) -> DurableFuture[None]:
        """Schedule a timer: ``delay`` seconds, or a timedelta, by the database's clock. A negative delay counts as 0.

        Raises:
            InvalidOptions: it is not a number, or longer than ``MAX_TIMER_SECONDS``.
        """
        self._scheduler.require_running()
        return TimerFuture(self._scheduler, seconds_of("timer delay", delay))

    @overload
    def schedule_wait(
        self, name: Event[D, R], *, hold_session: str | None = None, hold_for: float | timedelta | None = None
    ) -> DurableFuture[ReceivedEvent[D, R]]: ...
    @overload
    def schedule_wait(
        self, name: str, *, hold_session: str | None = None, hold_for: float | timedelta | None = None
    ) -> DurableFuture[Any]: ...
    @overload
    def schedule_wait(
        self,
        name: str,
        type: TypeForm[T],
        *,
        hold_session: str | None = None,
        hold_for: float | timedelta | None = None,
    ) -> DurableFuture[T]: ...
    def schedule_wait(
        self,
        name: str | Event[Any, Any],
        type: Any = Any,
        *,
        hold_session: str | None = None,
        hold_for: float | timedelta | None = None,
    ) -> DurableFuture[Any]:
        """Schedule a wait for the next external event of this name. Earlier events are buffered, and received in order.

        Args:
            name: of the event, as clients raise it; or an `Event`, whose wait gives a `ReceivedEvent`, with ``reply``.
            type: of its data; an event that does not fit is kept unread, for another wait.
            hold_session: a session that stays with its holder until the wait ends; it uses no slot meanwhile. A holder
                that dies or drains loses it all the same.
            hold_for: the longest time of the hold in seconds, or a timedelta, from the recording of the wait; by
                default ``DEFAULT_HOLD_SECONDS``.

        Raises:
            InvalidId: the name or the session id is not allowed.
            InvalidOptions: ``hold_for`` is out of range (``MAX_HOLD_SECONDS``), or given without a session; or an
                `Event` is given with a type.
        """
        self._scheduler.require_running()
        if isinstance(name, Event):
            if type is not Any:
                raise InvalidOptions(f"{name!r} has a type of its own: leave out {type!r}")
            return TypedEventFuture(self._scheduler, name, _hold(hold_session, hold_for))
        check_event_name(name)
        codec = None if type is Any else Codec(type, f"data of event {name!r}")
        return EventFuture(self._scheduler, name, codec, _hold(hold_session, hold_for))

    def schedule_session_moved(self, session_id: str) -> DurableFuture[SessionMoved]:
        """Schedule a wait for the next change of the session's holder: another worker, or a new start of the same one.

        From the first call on, the instance receives exactly one such event per change, until it ends. The events are
        buffered and carried over like external events. The first claim of a session is no change.

        Raises:
            InvalidId: the session id is not allowed.
        """
        self._scheduler.require_running()
        return MovedFuture(self._scheduler, check_id(session_id, "session id"))

    def release_session(self, session_id: str | None = None) -> None:
        """Release a session before it expires: any worker may claim it then, and its holder has room for another one.

        The release is recorded, and takes effect with the commit of this step, after all its other effects. A session
        with running work is not released, nor a session on which this step schedules more work. Its saved state stays.
        Later work claims it again.

        Args:
            session_id: by default `session_id`, the instance's own.

        Raises:
            InvalidId: the session id is not allowed.
            OrchestrationMisuse: none is given, and the instance has none.
        """
        self._scheduler.require_running()
        released = self.session_id if session_id is None else session_id
        if released is None:
            raise OrchestrationMisuse("release_session: the instance was started for no session: name the session")
        self._scheduler.pending.append(ev.SessionReleased(check_id(released, "session id")))

    @overload
    def schedule_sub_orchestration(
        self, orchestration: OrchestrationFunction[I, R], input: I, **options: Unpack[NewInstanceOptions]
    ) -> DurableFuture[R]: ...
    @overload
    def schedule_sub_orchestration(
        self, orchestration: OrchestrationWithoutInput[R], **options: Unpack[NewInstanceOptions]
    ) -> DurableFuture[R]: ...
    @overload
    def schedule_sub_orchestration(
        self, orchestration: str, input: Any = ..., **options: Unpack[NewInstanceOptions]
    ) -> DurableFuture[Any]: ...
    @one_input
    def schedule_sub_orchestration(
        self,
        orchestration: Callable[..., Any] | str,
        input: Any = MISSING,
        *,
        instance_id: str | None = None,
        version: str | None = None,
        labels: Labels | None = None,
    ) -> DurableFuture[Any]:
        """Schedule a sub-orchestration: another instance, whose result is awaited.

        Args:
            orchestration: a registered function, or the name of one.
            input: its input, if it takes one.
            instance_id: of the child; by default derived from this instance's id and the id of the event.
            version: to start; by default the latest version on the worker where the child first runs.
            labels: of the child, as of `Client.start`; by default those of this instance.

        Raises:
            InvalidInput: the input does not fit its annotation, or the id or a label is not allowed.
            OrchestrationMisuse: the function is not a registered orchestration, or its input is missing or not awaited,
                or it was given several.
            OrchestrationFailed: at the await, if the child raised.
            OrchestrationCancelled: at the await, if the child was cancelled.
            InstanceExists: at the await, if the id was taken.
        """
        self._scheduler.require_running()
        reference = target_reference(orchestration, input, OrchestrationDefinition, "schedule_sub_orchestration")
        new = self._new_instance(reference, instance_id, version, labels)
        return ChildFuture(self._scheduler, *new)

    @overload
    def start_detached(
        self, orchestration: OrchestrationFunction[I, Any], input: I, **options: Unpack[NewInstanceOptions]
    ) -> DurableFuture[str]: ...
    @overload
    def start_detached(
        self, orchestration: OrchestrationWithoutInput[Any], **options: Unpack[NewInstanceOptions]
    ) -> DurableFuture[str]: ...
    @overload
    def start_detached(
        self, orchestration: str, input: Any = ..., **options: Unpack[NewInstanceOptions]
    ) -> DurableFuture[str]: ...
    @one_input
    def start_detached(
        self,
        orchestration: Callable[..., Any] | str,
        input: Any = MISSING,
        *,
        instance_id: str | None = None,
        version: str | None = None,
        labels: Labels | None = None,
    ) -> DurableFuture[str]:
        """Start another instance, which is no child: it is not awaited, nor cancelled or deleted with this one.

        It starts with the commit of this step, whether or not the future is awaited, which gives its id. If the id is
        taken, nothing is started: the instance that has it goes on, or stays ended. To restart one that has ended, call
        `Client.start` with ``if_ended="restart"`` in an activity.

        Args:
            orchestration: a registered function, or the name of one.
            input: its input, if it takes one.
            instance_id: by default the id of this instance with a random number, so that it is free.
            version: to start; by default the latest version on the worker where it first runs.
            labels: as of `Client.start`; by default those of this instance.

        Raises:
            InvalidInput: the input does not fit its annotation, or the id or a label is not allowed.
            OrchestrationMisuse: the function is not a registered orchestration, or its input is missing or not awaited,
                or it was given several.
        """
        self._scheduler.require_running()
        reference = target_reference(orchestration, input, OrchestrationDefinition, "start_detached")
        new = self._new_instance(reference, instance_id, version, labels)
        return DetachedFuture(self._scheduler, *new)

    def _new_instance(
        self,
        reference: tuple[str, str, Codec | None],
        instance_id: str | None,
        version: str | None,
        labels: Labels | None,
    ) -> tuple[tuple[str, str, Codec | None], str | None, str | None, Labels | None]:
        """The arguments of a `NewInstanceFuture`."""
        if instance_id is not None:
            check_id(instance_id, "instance id")
        if version is not None:
            check_code_name(version, "orchestration version")
        return (
            reference,
            instance_id,
            version,
            self._scheduler.labels if labels is None else check_labels(labels) or None,
        )

    @overload
    def raise_event(self, instance_id: str, name: EventValue[Any]) -> None: ...
    @overload
    def raise_event(self, instance_id: str, name: str, data: Any = ...) -> None: ...
    def raise_event(self, instance_id: str, name: str | EventValue[Any], data: Any = None) -> None:
        """Raise an external event for another instance, as `Client.raise_event`. It is sent with the commit of this
        step, once.

        An instance that does not exist, or has ended, does not receive it; that is no error. If it does not exist, the
        worker logs a warning, once for each instance and name. An instance that this step starts receives it. An
        instance with too many unread events is suspended.

        Args:
            instance_id: the receiver.
            name: of the event; or an event with its data, ``Message(...)``.
            data: anything that JSON can represent.

        Raises:
            InvalidId: the id or the name is not allowed.
            NotSerializable, PayloadTooLarge: the data is refused.
            OrchestrationMisuse: the data is an awaitable.
        """
        self._scheduler.require_running()
        refuse_awaitable(data, "raise_event was passed")
        event, text = encode_raised(name, data)
        self._scheduler.pending.append(ev.EventSent(check_id(instance_id, "instance id"), event, text))

    @overload
    def continue_as_new(self, input: N_contra = ..., *, version: None = ...) -> NoReturn: ...
    @overload
    def continue_as_new(self, input: Any = ..., *, version: str) -> NoReturn: ...
    @one_input
    def continue_as_new(self, input: Any = MISSING, *, version: str | None = None) -> NoReturn:
        """End this execution and start the next one of the same instance, with a fresh history.

        Unread external events and the custom status are carried over. All else that is outstanding is cancelled.

        Args:
            input: of the next execution.
            version: of the next execution; by default the present one. ``"latest"``: the latest that is registered on
                the worker which runs this step.

        Raises:
            ContinueAsNewSignal: always; not an ``Exception``. Do not catch it.
            InvalidInput: the input does not fit its annotation.
        """
        self._scheduler.require_running()
        refuse_awaitable(input, "continue_as_new was passed")
        if version is None or version == self.version:
            raise ContinueAsNewSignal(self._definition.encode_input(input), version)
        check_code_name(version, "orchestration version")
        # Another version may take another type of input, which this one need not know.
        raise ContinueAsNewSignal(_encode_untyped(input, "input of continue_as_new"), version)

    @overload
    def select(self, one: Awaitable[T], /) -> DurableFuture[Selected[Literal[0], T]]: ...
    @overload
    def select(
        self, one: Awaitable[T], two: Awaitable[T2], /
    ) -> DurableFuture[Selected[Literal[0], T] | Selected[Literal[1], T2]]: ...
    @overload
    def select(
        self, one: Awaitable[T], two: Awaitable[T2], three: Awaitable[T3], /
    ) -> DurableFuture[Selected[Literal[0], T] | Selected[Literal[1], T2] | Selected[Literal[2], T3]]: ...
    @overload
    def select(
        self, one: Awaitable[T], two: Awaitable[T2], three: Awaitable[T3], four: Awaitable[T4], /
    ) -> DurableFuture[
        Selected[Literal[0], T] | Selected[Literal[1], T2] | Selected[Literal[2], T3] | Selected[Literal[3], T4]
    ]: ...
    @overload
    def select(self, *awaitables: Awaitable[T]) -> DurableFuture[Selected[int, T]]: ...
    def select(self, *awaitables: Awaitable[Any]) -> DurableFuture[Any]:
        """Wait for the first of several durable futures and coroutines; the others are cancelled.

        The result is a pair, ``index, value``. If the first one failed, its error is raised. With up to four
        arguments, a type checker knows the value's type once the pair is looked at as a whole: behind
        ``if won.index == 0``, and in a ``match`` (see `Selected`).

        Raises:
            OrchestrationMisuse: an argument is something else, or there is none.
        """
        self._scheduler.require_running()
        return Select(self._scheduler, awaitables)

    def wait_any(self, *futures: DurableFuture[Any]) -> DurableFuture[None]:
        """Wait until one of several durable futures is settled, well or not; the others go on, and can be waited for
        again. Look at `DurableFuture.settled`, and await the settled ones for their results.

        Raises:
            OrchestrationMisuse: an argument is no durable future of this orchestration, or there is none.
        """
        self._scheduler.require_running()
        return WaitAny(self._scheduler, futures)

    @overload
    def gather(  # type: ignore[overload-overlap]  # as `asyncio.gather`
        self,
        one: Awaitable[T],
        two: Awaitable[T2],
        /,
        *,
        return_exceptions: Literal[False] = False,
        limit: int | None = None,
    ) -> DurableFuture[tuple[T, T2]]: ...
    @overload
    def gather(
        self, one: Awaitable[T], two: Awaitable[T2], /, *, return_exceptions: bool, limit: int | None = None
    ) -> DurableFuture[tuple[T | Exception, T2 | Exception]]: ...
    @overload
    def gather(  # type: ignore[overload-overlap]  # as `asyncio.gather`
        self,
        one: Awaitable[T],
        two: Awaitable[T2],
        three: Awaitable[T3],
        /,
        *,
        return_exceptions: Literal[False] = False,
        limit: int | None = None,
    ) -> DurableFuture[tuple[T, T2, T3]]: ...
    @overload
    def gather(
        self,
        one: Awaitable[T],
        two: Awaitable[T2],
        three: Awaitable[T3],
        /,
        *,
        return_exceptions: bool,
        limit: int | None = None,
    ) -> DurableFuture[tuple[T | Exception, T2 | Exception, T3 | Exception]]: ...
    @overload
    def gather(  # type: ignore[overload-overlap]  # as `asyncio.gather`
        self,
        one: Awaitable[T],
        two: Awaitable[T2],
        three: Awaitable[T3],
        four: Awaitable[T4],
        /,
        *,
        return_exceptions: Literal[False] = False,
        limit: int | None = None,
    ) -> DurableFuture[tuple[T, T2, T3, T4]]: ...
    @overload
    def gather(
        self,
        one: Awaitable[T],
        two: Awaitable[T2],
        three: Awaitable[T3],
        four: Awaitable[T4],
        /,
        *,
        return_exceptions: bool,
        limit: int | None = None,
    ) -> DurableFuture[tuple[T | Exception, T2 | Exception, T3 | Exception, T4 | Exception]]: ...
    @overload
    def gather(
        self, *awaitables: Awaitable[T], return_exceptions: Literal[False] = False, limit: int | None = None
    ) -> DurableFuture[list[T]]: ...
    @overload
    def gather(
        self, *awaitables: Awaitable[T], return_exceptions: bool, limit: int | None = None
    ) -> DurableFuture[list[T | Exception]]: ...
    def gather(
        self, *awaitables: Awaitable[Any], return_exceptions: bool = False, limit: int | None = None
    ) -> DurableFuture[Any]:
        """Wait for all of several durable futures and coroutines; the result is a list of theirs, in order.

        If one fails the others are cancelled, and its error is raised; with ``return_exceptions`` errors are results.
        For a type checker, two to four arguments give a tuple, as for `asyncio.gather`.

        Args:
            awaitables: the futures and coroutines.
            return_exceptions: whether errors are results.
            limit: how many of them run at the same time; the others begin in order, as soon as one has ended. Futures
                that are scheduled already are counted. One that a branch, or other code, awaits by itself begins then,
                whatever the limit. The call must be in the same step as the futures: before the next await. None: all.

        Raises:
            OrchestrationMisuse: an argument is something else.
        """
        self._scheduler.require_running()
        return Gather(self._scheduler, awaitables, return_exceptions, limit)

    def new_guid(self) -> DurableFuture[str]:
        """A new random id (UUID), the same in every replay."""
        self._scheduler.require_running()
        return GuidFuture(self._scheduler)

    def utc_now(self) -> DurableFuture[datetime]:
        """The present time of the database, aware and in UTC, the same in every replay. Within an execution it never
        decreases, even if the database's clock does.
        """
        self._scheduler.require_running()
        return TimeFuture(self._scheduler)

    @property
    def values(self) -> InstanceValues:
        """The values of the instance, by key: set here, read by clients."""
        return InstanceValues(self._scheduler)

    @property
    def labels(self) -> Labels:
        """The labels of this instance, by which listings find it. `continue_as_new` keeps them."""
        return dict(self._scheduler.labels or {})

    def set_labels(self, labels: Labels) -> None:
        """Replace the labels of this instance, as in ``ctx.set_labels({**ctx.labels, "tier": "gold"})``. The change is
        recorded in the history, and listings show it with the commit of this step. Equal labels record nothing.

        Raises:
            InvalidOptions: they are no mapping, or more than `limits.MAX_LABELS`.
            InvalidId: a key or a value is not allowed.
        """
        self._scheduler.require_running()
        wanted = check_labels(labels)
        if wanted != (self._scheduler.labels or {}):
            self._scheduler.labels = wanted or None
            self._scheduler.pending.append(ev.LabelsSet(wanted))

    @property
    def custom_status(self) -> Any:
        """The custom status, as plain JSON values; None while there is none. `continue_as_new` keeps it."""
        text = self._scheduler.custom_status
        return None if text is None else read_json(text)

    def set_custom_status(self, value: Any) -> None:
        """Set the custom status, which the status of the instance shows. Setting an equal value again in one execution
        records nothing.

        Raises:
            NotSerializable: JSON cannot represent it.
            PayloadTooLarge: it is over ``MAX_CUSTOM_STATUS_BYTES``.
        """
        self._scheduler.require_running()
        refuse_awaitable(value, "set_custom_status was passed")
        text = _CUSTOM_STATUS.encode(value)
        if text != self._status:
            # Apart from `custom_status`: recorded events do not depend on the former execution.
            self._status = self._scheduler.custom_status = text
            self._scheduler.pending.append(ev.CustomStatusSet(text))


OrchestrationFunction: TypeAlias = Callable[[OrchestrationContext, I], Coroutine[Any, Any, R]]
OrchestrationWithoutInput: TypeAlias = Callable[[OrchestrationContext], Coroutine[Any, Any, R]]


def target_reference(target: object, input: Any, kind: type[Definition], where: str) -> tuple[str, str, Codec | None]:
    """Return the name, the encoded input, and the codec of the result; None if only the name is known.

    Raises:
        InvalidInput: the input does not fit its annotation.
        OrchestrationMisuse: the function is not registered, or its input is missing or an awaitable. ``where``: the
            call, for the message.
    """
    refuse_awaitable(input, f"{where} was passed")
    if isinstance(target, str):
        name = check_code_name(target, f"{kind.kind} name")
        return name, _encode_untyped(input, f"input of {kind.kind} {name!r}"), None
    definition = definition_of(target)
    if not isinstance(definition, kind):
        raise OrchestrationMisuse(_not_registered(target, definition, kind, where))
    return definition.name, definition.encode_input(input), definition.result_codec


def _not_registered(target: object, definition: Definition | None, kind: type[Definition], where: str) -> str:
    if inspect.iscoroutine(target):
        target.close()
        return f"{where} takes the function and its input apart: pass {target.__name__}, without calling it"
    if definition is not None:
        return f"{where} takes an {kind.kind}, and {definition.description} is none"
    name = getattr(target, "__qualname__", None) or repr(target)
    return f"{where} takes a registered {kind.kind}, or the name of one: register {name} with @app.{kind.kind}"


def _encode_untyped(value: Any, what: str) -> str:
    return "null" if value is MISSING else Codec(Any, what).encode(value)


def _hold(session_id: str | None, duration: float | timedelta | None) -> ev.Hold | None:
    if session_id is None:
        if duration is not None:
            raise InvalidOptions(f"hold_for={duration!r} without hold_session: say which session is to be held")
        return None
    seconds = DEFAULT_HOLD_SECONDS if duration is None else seconds_of("hold_for", duration)
    if not 0 < seconds <= MAX_HOLD_SECONDS:
        raise InvalidOptions(f"hold_for must be above 0 and at most {MAX_HOLD_SECONDS:g} s, not {duration!r}")
    return ev.Hold(check_id(session_id, "session id"), seconds)
