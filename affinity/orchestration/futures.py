"""What an orchestration can await: one future for each command, settled by the input that answers it.

Life of a command's future: *created* by a call on the context; *scheduled* when the orchestration next waits, which
gives it an event id; *settled* by a result, an error, or its cancellation. What is cancelled before it was scheduled
leaves no trace.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from affinity import errors
from affinity.limits import MAX_ID_BYTES, check_id
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.retry import RetryPolicy

if TYPE_CHECKING:
    from affinity.orchestration.scheduler import Scheduler, Task

T = TypeVar("T")

_ACTIVITY_ERRORS: Final[dict[ev.ActivityFailureKind, type[errors.ActivityError]]] = {
    "failed": errors.ActivityFailed,
    "timeout": errors.ActivityTimeout,
    "poisoned": errors.ActivityPoisoned,
    "unknown": errors.UnknownActivity,
    "cancelled": errors.ActivityCancelled,
}


class DurableFuture(Generic[T]):
    """Something to await in an orchestration. It can be awaited several times, and gives the same each time."""

    __slots__ = ("_owner", "_scheduler", "_value", "_waiters", "error", "settled")

    def __init__(self, scheduler: Scheduler) -> None:
        self.settled = False
        """Whether a result or an error is there."""
        self.error: BaseException | None = None
        self._scheduler = scheduler
        self._owner: Task[Any] | None = scheduler.current
        self._value: Any = None
        self._waiters: list[Task[Any] | Combined[Any]] = []

    def __await__(self) -> Generator[DurableFuture[Any], None, T]:
        self._scheduler.touch(self)
        if not self.settled:
            yield self
        return self.result()

    def on_session(self, session_id: str) -> DurableFuture[T]:
        """Only activities run on sessions: see ``ActivityFuture.on_session``.

        Raises:
            OrchestrationMisuse: always.
        """
        raise errors.OrchestrationMisuse(
            f"{self.title} cannot run on a session: call on_session on what schedule_activity returns"
        )

    @property
    def title(self) -> str:
        """How messages call it: "activity 'reply'"."""
        raise NotImplementedError

    def result(self) -> T:
        """Return what it was settled with; for the engine, which knows that it is."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[no-any-return]

    def add_waiter(self, waiter: Task[Any] | Combined[Any]) -> None:
        """Have ``waiter.woken`` called once, when this is settled."""
        self._waiters.append(waiter)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Give it a value or an error, and wake who waits."""
        self.settled = True
        self._value = value
        self.error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.woken(self)

    def cancel(self) -> None:
        """Nobody wants it any more."""
        raise NotImplementedError

    def belongs_to(self, scheduler: Scheduler) -> bool:
        """Whether it is of this execution."""
        return self._scheduler is scheduler

    def owned_by(self, task: Task[Any]) -> bool:
        """Whether this task created it."""
        return self._owner is task

    @property
    def forgotten(self) -> bool:
        """For one that nobody awaited: whether its creator had the chance to."""
        return self._owner is not None and self._owner.went_well

    def __repr__(self) -> str:
        return f"<{self.title}, {'settled' if self.settled else 'pending'}>"


class Combined(DurableFuture[T]):
    """A future over others; passing them in hands them over: they are cancelled with it."""

    __slots__ = ("_children",)

    def __init__(self, scheduler: Scheduler, children: tuple[DurableFuture[Any], ...]) -> None:
        super().__init__(scheduler)
        self._children = children
        scheduler.untouched[self] = None
        for child in children:
            scheduler.touch(child)
        for child in children:
            if child.settled:
                self.woken(child)
            else:
                child.add_waiter(self)

    def woken(self, child: DurableFuture[Any]) -> None:
        """Take note that a child is settled."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel all that is inside."""
        if not self.settled:
            self.settle(error=errors.OrchestrationMisuse(f"{self.title} was cancelled"))
        self._cancel_children()

    def _cancel_children(self, keep: DurableFuture[Any] | None = None) -> None:
        for child in self._children:
            if child is not keep:
                child.cancel()


class CommandFuture(DurableFuture[T]):
    """A future that stands for one command in the history."""

    __slots__ = ("schedule_id",)

    has_effect: ClassVar[bool] = True
    """Whether something outside goes on until it is cancelled."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.schedule_id = 0
        """Event id of the command; 0 until it is scheduled."""
        scheduler.pending.append(self)
        scheduler.untouched[self] = None

    def schedule(self) -> None:
        """Record the command, unless it was cancelled before."""
        if not self.settled:
            recorded = self._scheduler.journal.command(self._command())
            self.schedule_id = self._scheduler.journal.position
            self._scheduled(recorded)

    def cancel(self) -> None:
        """Record that nobody wants the result any more, unless it is there."""
        if self.settled:
            return
        if self.schedule_id:
            del self._scheduler.outstanding[self.schedule_id]
            self._scheduler.pending.append(self.cancellation())
        self.settle(error=self._cancelled_error())

    def deliver(self, event: Any) -> None:
        """Settle with the input event that answers the command."""
        raise NotImplementedError

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        raise NotImplementedError

    def _command(self) -> ev.Command:
        raise NotImplementedError

    def _scheduled(self, recorded: ev.Event) -> None:
        self._scheduler.outstanding[self.schedule_id] = self

    def _cancelled_error(self) -> Exception:
        return errors.OrchestrationMisuse(f"{self.title} was cancelled, and is awaited again")

    def _settle_decoded(self, codec: Codec | None, text: str) -> None:
        try:
            value = read_json(text) if codec is None else codec.decode(text)
        except errors.NotSerializable as error:
            self.settle(error=error)
        else:
            self.settle(value)


class ActivityFuture(CommandFuture[T]):
    """The future of an activity."""

    __slots__ = ("_codec", "_input", "_name", "_retry", "_session_id", "_timeout", "scheduled")

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        name: str,
        input: str,
        codec: Codec | None,
        retry: RetryPolicy | None,
        timeout: float | None,
    ) -> None:
        super().__init__(scheduler)
        self._name = name
        self._input = input
        self._codec = codec
        self._retry = retry
        self._timeout = timeout
        self._session_id: str | None = None
        self.scheduled: ev.ActivityScheduled | None = None
        """The recorded command."""

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"activity {self._name!r}"

    def on_session(self, session_id: str) -> ActivityFuture[T]:
        """Run the activity on the worker that holds this session; call it before the next await.

        Args:
            session_id: a non-empty string of at most 256 bytes, without control characters.

        Raises:
            InvalidId: it is anything else.
            OrchestrationMisuse: the activity is scheduled already, or has a session.
        """
        if self.schedule_id or self.settled:
            raise errors.OrchestrationMisuse(
                f"{self.title} is scheduled already: call on_session before the next await, one in its argument included"
            )
        if self._session_id is not None:
            raise errors.OrchestrationMisuse(f"{self.title} is on session {self._session_id!r} already")
        self._session_id = check_id(session_id, "session id")
        return self

    def deliver(self, event: ev.ActivityCompleted | ev.ActivityFailed) -> None:
        """Settle with what the worker reports."""
        if isinstance(event, ev.ActivityCompleted):
            self._settle_decoded(self._codec, event.result)
        else:
            error_class = _ACTIVITY_ERRORS.get(event.kind, errors.ActivityFailed)
            self.settle(error=error_class(self._name, event.error_type, event.message))

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        return ev.ActivityCancelled(self.schedule_id)

    def _command(self) -> ev.ActivityScheduled:
        return ev.ActivityScheduled(self._name, self._input, self._session_id, self._retry, self._timeout)

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.ActivityScheduled)  # the journal has matched the type
        self.scheduled = recorded
        super()._scheduled(recorded)

    def _cancelled_error(self) -> Exception:
        return errors.ActivityCancelled(self._name, "ActivityCancelled", "cancelled by its orchestration")


class TimerFuture(CommandFuture[None]):
    """The future of a timer."""

    __slots__ = ("_delay",)

    def __init__(self, scheduler: Scheduler, delay: float) -> None:
        super().__init__(scheduler)
        self._delay = delay

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"timer of {self._delay:g} s"

    def deliver(self, event: ev.TimerFired) -> None:
        """Settle: the delay has passed."""
        self.settle()

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        return ev.TimerCancelled(self.schedule_id)

    def _command(self) -> ev.Command:
        return ev.TimerCreated(self._delay)


class EventFuture(CommandFuture[T]):
    """The future of an external event."""

    __slots__ = ("_codec", "name")

    has_effect = False

    def __init__(self, scheduler: Scheduler, name: str, codec: Codec | None) -> None:
        super().__init__(scheduler)
        # A wait that nobody awaits loses nothing: its event is carried over like any other.
        scheduler.touch(self)
        self.name = name
        self._codec = codec

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"event {self.name!r}"

    def result(self) -> T:
        """Return the event's data, which from now on counts as read."""
        self._scheduler.inbox.read(self)
        return super().result()

    def receive(self, data: str) -> None:
        """Settle with an event of this name."""
        del self._scheduler.outstanding[self.schedule_id]
        self._settle_decoded(self._codec, data)

    def cancel(self) -> None:
        """Leave the inbox; an event that came and was not read goes back into it."""
        inbox = self._scheduler.inbox
        if self.settled:
            inbox.give_back(self)
        else:
            inbox.leave(self)
            super().cancel()

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        return ev.EventAwaitCancelled(self.schedule_id)

    def _command(self) -> ev.Command:
        return ev.EventAwaited(self.name)

    def _scheduled(self, recorded: ev.Event) -> None:
        super()._scheduled(recorded)
        self._scheduler.inbox.wait(self)


class ChildFuture(CommandFuture[T]):
    """The future of a sub-orchestration."""

    __slots__ = ("_codec", "_input", "_instance_id", "_name", "_version")

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        name: str,
        version: str | None,
        instance_id: str | None,
        input: str,
        codec: Codec | None,
    ) -> None:
        super().__init__(scheduler)
        self._name = name
        self._version = version
        self._instance_id = instance_id
        self._input = input
        self._codec = codec

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"sub-orchestration {self._name!r}"

    def deliver(self, event: ev.SubOrchestrationCompleted | ev.SubOrchestrationFailed) -> None:
        """Settle with how the child ended."""
        if isinstance(event, ev.SubOrchestrationCompleted):
            self._settle_decoded(self._codec, event.result)
        elif event.kind == "exists":
            self.settle(error=errors.InstanceExists(event.message))
        elif event.kind == "cancelled":
            self.settle(error=errors.OrchestrationCancelled(event.message))
        else:
            self.settle(error=errors.OrchestrationFailed(event.error_type, event.message))

    def cancellation(self) -> ev.Command:
        """The event that records the cancelling."""
        return ev.SubOrchestrationCancelled(self.schedule_id)

    def _command(self) -> ev.Command:
        # Positions of events are the same in replay, so the id is too.
        instance_id = self._instance_id or self._default_id(self._scheduler.journal.position + 1)
        return ev.SubOrchestrationScheduled(self._name, self._version, instance_id, self._input)

    def _default_id(self, event_id: int) -> str:
        suffix = f"/{self._scheduler.execution_id}:{event_id}"
        parent = self._scheduler.instance_id
        if len((parent + suffix).encode()) > MAX_ID_BYTES:
            parent = sha256(parent.encode()).hexdigest()
        return parent + suffix

    def _cancelled_error(self) -> Exception:
        return errors.OrchestrationCancelled("cancelled by its parent")


class _ValueFuture(CommandFuture[T]):
    """A value that is made once and recorded; settled as soon as it is scheduled."""

    __slots__ = ()

    _title: ClassVar[str]

    @property
    def title(self) -> str:
        """How messages call it."""
        return self._title


class GuidFuture(_ValueFuture[str]):
    """The future of ``new_guid``."""

    __slots__ = ()

    _title = "new_guid()"

    def _command(self) -> ev.Command:
        return ev.GuidCreated(self._scheduler.journal.new_guid())

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.GuidCreated)  # the journal has matched the type
        self.settle(recorded.value)


class TimeFuture(_ValueFuture[datetime]):
    """The future of ``utc_now``."""

    __slots__ = ()

    _title = "utc_now()"

    def _command(self) -> ev.Command:
        return ev.TimeRead(self._scheduler.journal.now())

    def _scheduled(self, recorded: ev.Event) -> None:
        assert isinstance(recorded, ev.TimeRead)  # the journal has matched the type
        self.settle(datetime.fromtimestamp(recorded.value, UTC))
