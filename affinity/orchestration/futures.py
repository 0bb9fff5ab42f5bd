"""The futures of the commands: activities, timers, external events, sub-orchestrations, and recorded values."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeVar
from zlib import crc32

from affinity import errors
from affinity.limits import MAX_ID_BYTES, MAX_TIMER_SECONDS, check_id, check_tag, is_number, truncate
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.definitions import ActivityDefaults
from affinity.orchestration.gates import (
    DEFAULT_PRIORITY,
    HasLimitUse,
    LimitUses,
    add_uses,
    check_declared,
    check_priority,
    check_uses,
)
from affinity.orchestration.inbox import Arrival
from affinity.orchestration.scheduler import CommandFuture, Scheduler
from affinity.orchestration.typed import Event, ReceivedEvent
from affinity.orchestration.waits import MOVED, SessionMoved, moved_name
from affinity.records import Labels
from affinity.redaction import redacted_text

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")

_REPLAYED: Final = object()
"""In place of the type that has refused an event: it is not recorded."""

_ACTIVITY_ERRORS: Final[dict[ev.ActivityFailureKind, type[errors.ActivityError]]] = {
    "failed": errors.ActivityFailed,
    "timeout": errors.ActivityTimeout,
    "poisoned": errors.ActivityPoisoned,
    "unknown": errors.UnknownActivity,
    "cancelled": errors.ActivityCancelled,
    "tag_mismatch": errors.SessionTagMismatch,
    "no_worker_with_tag": errors.NoWorkerWithTag,
    "busy": errors.SessionBusy,
}


class ActivityFuture(CommandFuture[T]):
    """The future of an activity."""

    __slots__ = (
        "_codec",
        "_fail_after",
        "_input",
        "_limits",
        "_name",
        "_options",
        "_ordered",
        "_parked",
        "_priority",
        "_session_id",
        "_tag",
        "_wait",
        "scheduled",
    )

    def __init__(
        self, scheduler: Scheduler, reference: tuple[str, str, Codec | None], options: ActivityDefaults
    ) -> None:
        """``reference``: its name, its input as JSON text, and the codec of its result. ``options``: those of the call
        in place of those of its definition.
        """
        CommandFuture.__init__(self, scheduler)  # not `super()`, which costs as much as the rest
        self._name, self._input, self._codec = reference
        self._options = options
        self._session_id: str | None = None
        self._ordered = False
        self._tag: str | None = None
        self._limits: LimitUses | None = None
        self._priority: int | None = None
        self._wait: float | None = None
        self._fail_after: float | None = None
        self._parked = False
        self.scheduled: ev.ActivityScheduled | None = None
        """The recorded command."""

    @property
    def description(self) -> str:
        """Its name in messages."""
        return f"activity {self._name!r}"

    def on_session(
        self, session_id: str, *, ordered: bool = False, wait: float | None = None, fail_after: float | None = None
    ) -> ActivityFuture[T]:
        """Run the activity on the worker that holds this session; call it before the next await.

        Args:
            session_id: a non-empty string of at most 256 bytes, without control characters.
            ordered: begin it when all ordered activities of this session that were scheduled before it have ended, of
                all orchestrations. They run one after the other, in the order in which their turns were committed;
                within a turn, in the order of the calls. A retry keeps its place. Other activities run beside them.
            wait: seconds to wait for a free slot of the session's holder. Then another worker with room takes the
                session over, if nothing of the session runs. None: the session stays with its holder.
            fail_after: seconds to wait for a start; then the activity fails with `SessionBusy`. None: forever. Both
                times begin when the activity is scheduled, and again with each retry.

        Raises:
            InvalidId: the id is anything else.
            OrchestrationMisuse: the activity is scheduled already, or has a session; ``ordered`` is not a bool;
                ``wait`` or ``fail_after`` is not a positive number of seconds; or ``wait`` is not below ``fail_after``.
        """
        try:
            self._check_unscheduled()
            if self._session_id is not None:
                raise errors.OrchestrationMisuse(f"{self.description} is on session {self._session_id!r} already")
            if not isinstance(ordered, bool):
                raise errors.OrchestrationMisuse(f"ordered is True or False, not {ordered!r:.80}")
            check_id(session_id, "session id")
            if wait is not None or fail_after is not None:
                self._wait, self._fail_after = _check_waits(wait, fail_after)
        except errors.AffinityError:
            self.refuse()
            raise
        self._session_id, self._ordered = session_id, ordered
        return self

    def with_tag(self, tag: str) -> ActivityFuture[T]:
        """Run the activity on a worker with this tag (`RuntimeOptions.tags`), in place of that of its definition; call
        it before the next await.

        With a session: the session takes the tag of its first work and keeps it. Work with another tag then fails with
        `SessionTagMismatch`; work without a tag runs where the session is.

        Args:
            tag: a non-empty string of at most 64 bytes, without control characters, spaces, ``#``, ``:`` and ``,``.

        Raises:
            InvalidId: it is anything else.
            OrchestrationMisuse: the activity is scheduled already, or has a tag.
        """
        try:
            self._check_unscheduled()
            if self._tag is not None:
                raise errors.OrchestrationMisuse(f"{self.description} has the tag {self._tag!r} already")
            self._tag = check_tag(tag)
        except errors.AffinityError:
            self.refuse()
            raise
        return self

    def limited(self, *limits: HasLimitUse) -> ActivityFuture[T]:
        """Let the activity wait until all of these limits have room for it, and those of its definition; call it before
        the next await. Of a limit that the definition names too, the place named here counts. With no arguments, the
        activity has no limits.

        It waits before a worker can fetch it, and takes its slots in one transaction, all or none. In a retry's pause
        it has none, and then waits again.

        Args:
            limits: `affinity.Limit` objects without keys, or keys as of ``limit.key("acme")``; at most
                ``limits.MAX_GATE_LIMITS``, with those of the definition.

        Raises:
            InvalidLimit: one is something else, has keys and none is named, comes twice, or no app declares it; or
                there are too many.
            OrchestrationMisuse: the activity is scheduled already, or has limits of this call.
        """
        try:
            self._check_unscheduled()
            if self._limits is not None:
                raise errors.OrchestrationMisuse(f"{self.description} has limits already: name all of them in one call")
            uses = add_uses(self._options.limits, check_uses(limits))
            for limit in limits:
                check_declared(limit)
        except errors.AffinityError:
            self.refuse()
            raise
        self._limits = uses
        return self

    def with_priority(self, priority: int) -> ActivityFuture[T]:
        """Let the activity go before work of a lower priority, at its limits and among work that a worker may take;
        call it before the next await. Work that waits rises in time, so that none waits for ever.

        Args:
            priority: an integer from 0, the default, to ``limits.MAX_PRIORITY``; the greatest goes first.

        Raises:
            InvalidInput: it is something else.
            OrchestrationMisuse: the activity is scheduled already, or has a priority.
        """
        try:
            self._check_unscheduled()
            if self._priority is not None:
                raise errors.OrchestrationMisuse(f"{self.description} has the priority {self._priority} already")
            self._priority = check_priority(priority)
        except errors.AffinityError:
            self.refuse()
            raise
        return self

    def _park(self) -> ActivityFuture[T]:
        """Let the activity wait outside the queue until a guest has work for it; call it after `on_session`, before the
        next await. The guest queues it in the transaction that adds the work, and in place of a message: so the work
        costs the instance no turn. If there is such work already, the activity is queued as any other.

        An instance has one parked activity at a time. It ends with the execution.

        Raises:
            OrchestrationMisuse: the activity is scheduled already; or it has no session, a tag, or an option of
                `on_session`.
        """
        try:
            self._check_unscheduled()
            if self._session_id is None or self._ordered or self._tag or self._wait or self._fail_after:
                raise errors.OrchestrationMisuse(
                    f"{self.description} cannot be parked: it must be on a session, without a tag and without options"
                )
        except errors.AffinityError:
            self.refuse()
            raise
        self._parked = True
        return self

    def _check_unscheduled(self) -> None:
        if self._parked:
            raise errors.OrchestrationMisuse(f"{self.description} is parked already: call park last")
        if self.schedule_id > 0 or self.settled:
            raise errors.OrchestrationMisuse(
                f"{self.description} is scheduled already: "
                "call on_session, with_tag, limited and with_priority before the next await, also before an await of "
                "its id"
            )

    def deliver(self, event: ev.ActivityCompleted | ev.ActivityFailed) -> None:
        """Settle with the result or the failure."""
        if isinstance(event, ev.ActivityCompleted):
            self._settle_decoded(self._codec, event.result)
        else:
            error_class = _ACTIVITY_ERRORS.get(event.kind, errors.ActivityFailed)
            self._scheduler.failed[event.schedule_id] = self._name
            self.settle(error=error_class(self._name, event.error_type, event.message, event.details, event.stack))

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        return ev.ActivityCancelled(self.schedule_id)

    def _command(self) -> ev.ActivityScheduled:
        retry, timeout, tag, limits = self._options
        return ev.ActivityScheduled(
            self._name,
            self._input,
            self._session_id,
            retry,
            timeout,
            self._ordered,
            self._tag or tag,
            self._wait,
            self._fail_after,
            self._parked,
            self._tag is None and tag is not None,
            limits if self._limits is None else self._limits,
            self._priority or DEFAULT_PRIORITY,
        )

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.ActivityScheduled)  # the history has matched the type
        self.scheduled = recorded
        CommandFuture._scheduled(self, recorded)

    def _cancelled_error(self) -> Exception:
        return errors.ActivityCancelled(self._name, "ActivityCancelled", "cancelled by its orchestration")


def _check_seconds(name: str, value: object) -> float:
    if not is_number(value) or not 0 < value <= MAX_TIMER_SECONDS:
        raise errors.OrchestrationMisuse(
            f"{name} is a number of seconds, more than 0 and at most {MAX_TIMER_SECONDS:g}, not {value!r:.80}: "
            f"leave it out to wait without a limit"
        )
    return float(value)


def _check_waits(wait: object, fail_after: object) -> tuple[float | None, float | None]:
    checked = None if wait is None else _check_seconds("wait", wait)
    limit = None if fail_after is None else _check_seconds("fail_after", fail_after)
    if checked is not None and limit is not None and checked >= limit:
        raise errors.OrchestrationMisuse(
            f"wait={checked:g} is not below fail_after={limit:g}: the activity would fail before another "
            "worker may take the session; make fail_after longer, or leave one of the two out"
        )
    return checked, limit


class TimerFuture(CommandFuture[None]):
    """The future of a timer."""

    __slots__ = ("_delay",)

    def __init__(self, scheduler: Scheduler, delay: float) -> None:
        super().__init__(scheduler)
        self._delay = delay

    @property
    def description(self) -> str:
        return f"timer of {self._delay:g} s"

    def deliver(self, event: ev.TimerFired) -> None:
        """Settle: the delay has passed."""
        self.settle()

    def cancellation(self) -> ev.Command:
        return ev.TimerCancelled(self.schedule_id)

    def _command(self) -> ev.Command:
        return ev.TimerCreated(self._delay)


class EventFuture(CommandFuture[T]):
    """The future of an external event."""

    __slots__ = ("_accepted", "_codec", "_hold", "name")

    _has_effect = False

    _is_internal: ClassVar[bool] = False
    """Whether no sender has caused the event: the code goes on with the headers that it has."""

    def __init__(self, scheduler: Scheduler, name: str, codec: Codec | None, hold: ev.Hold | None = None) -> None:
        super().__init__(scheduler)
        # A wait that is never awaited is no mistake: its event stays in the inbox.
        scheduler.mark_awaited(self)
        self.name: str = name
        self._codec = codec
        self._hold = hold
        self._accepted: tuple[T] | None = None  # the decoded event, between `accepts` and `receive`

    @property
    def description(self) -> str:
        return f"event {self.name!r}"

    def result(self) -> T:
        """Return the event's data, and mark the event as read."""
        arrival = self._scheduler.inbox.read(self)
        if arrival is not None and not self._is_internal:
            self._scheduler.receive_headers(arrival.headers)
        return super().result()

    def accepts(self, arrival: Arrival) -> bool:
        """Whether an event of this name fits the type of the wait. In replay the recorded decision is used, whatever
        the type is now. Recorded are the first refusal of an event, and that a wait accepts an event behind it.
        """
        return self._accepts_refused(arrival) if arrival.refusals else self._accepts_first(arrival)

    def _accepts_first(self, arrival: Arrival) -> bool:
        history = self._scheduler.history
        error = self._recorded_mismatch() if history.replaying else self._mismatch(arrival.data)
        if error is None:
            return True
        history.record_command(ev.EventRefused(self.schedule_id, self.name, error))
        arrival.refusals.append(_REPLAYED if history.replaying else self._declared)
        self._scheduler.logger.warning(
            "event %r does not fit the type of the wait and stays unread: %s", self.name, redacted_text(error)
        )
        return False

    def _accepts_refused(self, arrival: Arrival) -> bool:
        history = self._scheduler.history
        accepted = ev.EventAccepted(self.schedule_id, self.name, arrival.order)
        if history.replaying:
            if history.next_recorded != accepted:
                return False
        elif self._declared in arrival.refusals:
            return False
        elif self._mismatch(arrival.data) is not None:
            arrival.refusals.append(self._declared)
            return False
        history.record_command(accepted)
        return True

    @property
    def _declared(self) -> object:
        """The type of the wait."""
        return Any if self._codec is None else self._codec.declared

    def _recorded_mismatch(self) -> str | None:
        recorded = self._scheduler.history.next_recorded
        if isinstance(recorded, ev.EventRefused) and recorded.schedule_id == self.schedule_id:
            return recorded.message
        return None

    def _mismatch(self, data: str) -> str | None:
        """Why the data does not fit the type; None if it does."""
        try:
            self._accepted = (read_json(data) if self._codec is None else self._codec.decode(data),)
        except errors.NotSerializable as error:
            return truncate(str(error))
        return None

    def receive(self, data: str, key: str | None) -> None:
        """Settle with an event of this name that it accepts."""
        del self._scheduler.outstanding[self.schedule_id]
        self._scheduler.held.pop(self.schedule_id, None)
        if self._accepted is None:
            self._settle_decoded(self._codec, data)
        else:
            self.settle(self._accepted[0])

    def cancel(self) -> None:
        """Leave the inbox; an event that was received and not read returns to it."""
        inbox = self._scheduler.inbox
        if self.settled:
            inbox.give_back(self)
        else:
            inbox.leave(self)
            self._scheduler.held.pop(self.schedule_id, None)
            super().cancel()

    def cancellation(self) -> ev.Command:
        return ev.EventAwaitCancelled(self.schedule_id)

    def _command(self) -> ev.Command:
        return ev.EventAwaited(self.name, self._hold)

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.EventAwaited)  # the history has matched the type
        super()._scheduled(recorded)
        if recorded.hold is not None:
            self._scheduler.held[self.schedule_id] = recorded.hold
        self._scheduler.inbox.wait(self)


class TypedEventFuture(EventFuture[ReceivedEvent[D, R]]):
    """The future of an external event with a type for its reply."""

    __slots__ = ("_event", "_key")

    def __init__(self, scheduler: Scheduler, event: Event[D, R], hold: ev.Hold | None) -> None:
        super().__init__(scheduler, event.name, event.data_codec, hold)
        self._event = event
        self._key: str | None = None

    def receive(self, data: str, key: str | None) -> None:
        """Settle with an event of this name that it accepts."""
        self._key = key
        super().receive(data, key)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Give it the data of the event, or an error."""
        received = ReceivedEvent(self._event, value, self._key, self._scheduler) if error is None else None
        super().settle(received, error)


class MovedFuture(EventFuture[SessionMoved]):
    """The future of a session's next move."""

    __slots__ = ("_session_id",)

    _is_internal = True

    def __init__(self, scheduler: Scheduler, session_id: str) -> None:
        scheduler.watch(session_id)
        super().__init__(scheduler, moved_name(session_id), MOVED)
        self._session_id = session_id

    @property
    def description(self) -> str:
        return f"move of session {self._session_id!r}"


class NewInstanceFuture(CommandFuture[T]):
    """The future of an instance to start."""

    __slots__ = ("_codec", "_input", "_instance_id", "_labels", "_name", "_version")

    def __init__(
        self,
        scheduler: Scheduler,
        reference: tuple[str, str, Codec | None],
        instance_id: str | None,
        version: str | None,
        labels: Labels | None,
    ) -> None:
        """``reference``: its orchestration, its input as JSON text, and the codec of its result."""
        super().__init__(scheduler)
        self._name, self._input, self._codec = reference
        self._instance_id = instance_id
        self._version = version
        self._labels = labels


class ChildFuture(NewInstanceFuture[T]):
    """The future of a sub-orchestration."""

    __slots__ = ()

    @property
    def description(self) -> str:
        return f"sub-orchestration {self._name!r}"

    def deliver(self, event: ev.SubOrchestrationCompleted | ev.SubOrchestrationFailed) -> None:
        """Settle with the outcome of the child."""
        if isinstance(event, ev.SubOrchestrationCompleted):
            self._settle_decoded(self._codec, event.result)
        elif event.kind == "exists":
            self.settle(error=errors.InstanceExists(event.message))
        elif event.kind == "cancelled":
            self.settle(error=errors.OrchestrationCancelled(event.message))
        else:
            error = errors.OrchestrationFailed(event.error_type, event.message, event.details, event.stack)
            self.settle(error=error)

    def cancellation(self) -> ev.Command:
        return ev.SubOrchestrationCancelled(self.schedule_id)

    def _command(self) -> ev.Command:
        # The position of an event is the same in replay, and so is the id.
        instance_id = self._instance_id or _default_id(self._scheduler, self._scheduler.execution_id)
        return ev.SubOrchestrationScheduled(self._name, self._version, instance_id, self._input, self._labels)

    def _cancelled_error(self) -> Exception:
        return errors.OrchestrationCancelled("cancelled by its parent")


def _default_id(scheduler: Scheduler, number: int) -> str:
    """The id of the instance that the next event starts, for which the code gives none."""
    suffix = f"/{number}:{scheduler.history.position + 1}"
    starter = scheduler.instance_id
    if len((starter + suffix).encode()) > MAX_ID_BYTES:
        starter = sha256(starter.encode()).hexdigest()
    return starter + suffix


class DetachedFuture(NewInstanceFuture[str]):
    """The future of the id of an instance that is no child. It starts whether or not this is awaited."""

    __slots__ = ()

    _is_certain = True

    def __init__(self, scheduler: Scheduler, *new: Any) -> None:
        super().__init__(scheduler, *new)
        scheduler.mark_awaited(self)

    @property
    def description(self) -> str:
        return f"start_detached({self._name!r})"

    def cancel(self) -> None:
        """Nothing: the instance starts."""

    def _command(self) -> ev.Command:
        instance_id = self._instance_id
        if instance_id is None:
            # Random, and not compared in replay. It outlives this instance, which may be deleted and created again.
            number = crc32(self._scheduler.history.new_guid().encode())
            instance_id = _default_id(self._scheduler, number)
        return ev.DetachedStarted(self._name, self._version, instance_id, self._input, self._labels)

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.DetachedStarted)  # the history has matched the type
        self.settle(recorded.instance_id)


class _ValueFuture(CommandFuture[T]):
    """The future of a recorded value; it is settled when it is scheduled."""

    __slots__ = ()

    _description: ClassVar[str]

    @property
    def description(self) -> str:
        return self._description


class GuidFuture(_ValueFuture[str]):
    """The future of ``new_guid``."""

    __slots__ = ()

    _description = "new_guid()"

    def _command(self) -> ev.Command:
        return ev.GuidCreated(self._scheduler.history.new_guid())

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.GuidCreated)  # the history has matched the type
        self.settle(recorded.value)


class InstanceValueFuture(_ValueFuture[Any]):
    """The future of ``values.get``: the value is that of the call, not of the await. It records nothing if this
    execution knows the value at the call.
    """

    __slots__ = ("_clearings", "_codec", "_found", "_key")

    _description = "values.get()"

    def __init__(self, scheduler: Scheduler, key: str, codec: Codec | None) -> None:
        super().__init__(scheduler)
        values = scheduler.values
        self._key = key
        self._codec = codec
        self._found = values.get(key)
        self._clearings = values.clearings
        if values.knows(key):
            self._settle_with(self._found)

    def _hold_back(self) -> bool:
        """A read that began later would find later values."""
        return False

    def _settle_with(self, text: str | None) -> None:
        if text is None:
            self.settle(None)
        else:
            self._settle_decoded(self._codec, text)

    def _command(self) -> ev.Command:
        return ev.ValueRead(self._key, self._found)

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.ValueRead)  # the history has matched the type
        self._scheduler.values.note_read(self._key, recorded.value, self._clearings)
        self._settle_with(recorded.value)


class TimeFuture(_ValueFuture[datetime]):
    """The future of ``utc_now``."""

    __slots__ = ()

    _description = "utc_now()"

    def _command(self) -> ev.Command:
        history = self._scheduler.history
        return ev.TimeRead(max(history.latest, history.now()))

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.TimeRead)  # the history has matched the type
        self._scheduler.history.latest = recorded.value
        self.settle(datetime.fromtimestamp(recorded.value, UTC))
