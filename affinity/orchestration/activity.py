"""The context of an activity."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from affinity.errors import ActivityMisuse
from affinity.orchestration.signals import ActivityCancelledSignal
from affinity.records import AnyParticipant, CommitPart, SessionStore, StateWrite, WaitNotes
from affinity.user_code import call_sync

_LOGGER = logging.getLogger("affinity.activity")
_OF_ORCHESTRATIONS: Final = frozenset({"start_detached", "continue_as_new", "new_guid", "gather", "select"})
_LOCK = threading.Lock()  # for the creation of an event, which is rare: one lock serves all contexts

_NO_GUESTS: Final[Mapping[str, object]] = MappingProxyType({})

PartCommit: TypeAlias = Callable[[StateWrite | None, Sequence[CommitPart]], Awaitable[None]]
"""See `ActivityContext._commit_now`."""


class _RunState:
    """The mutable state of a run: its participants, and its cancellation. The event is made when code waits for it."""

    __slots__ = ("_event", "error", "outcome", "participants", "reason")

    def __init__(self) -> None:
        self.participants: tuple[AnyParticipant, ...] | None = ()  # None: the run is over
        self.reason: str | None = None
        self.error: BaseException | None = None
        self.outcome = "completed"
        self._event: threading.Event | None = None

    def set(self, reason: str) -> None:
        with _LOCK:
            if self.reason is None:
                self.reason = reason
            event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout: float | None) -> bool:
        with _LOCK:
            if self.reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityContext:
    """The first argument of every activity. Safe to use from any thread."""

    instance_id: str
    """Id of the instance that scheduled the activity."""

    execution_id: int
    """Execution of that instance: 1, and one more after each ``continue_as_new``."""

    activity_id: int
    """Event id of the scheduling: with instance and execution it names this activity, in all its attempts; with
    ``instance_generation``, never an activity of a later instance of the same id.
    """

    name: str
    """Under which the activity is registered."""

    orchestration_name: str
    """Name of the orchestration that scheduled the activity."""

    orchestration_version: str
    """The version of that orchestration on which the instance runs."""

    instance_generation: str | None = None
    """Generation of the instance: differs from a later instance of the same id. None in a context that a test makes."""

    session_id: str | None = None
    """The session set by ``on_session``; None: it runs on any worker."""

    session_epoch: int | None = None
    """Epoch of the session: greater with every change of its holder, and when its record is written by other code.
    None: no session.
    """

    attempt: int = 1
    """1 for the first attempt. Attempts that a drain interrupted do not count."""

    worker_id: str
    """Stable name of the worker that runs it."""

    session_store: SessionStore | None = None
    """Store of the worker's database: state written there commits with the activity's result."""

    session_listeners: Collection[object] | None = None
    """The worker's session listeners; None in a context that a test makes."""

    _guests: Mapping[str, object] = field(default_factory=lambda: _NO_GUESTS, repr=False, compare=False)

    _waits: WaitNotes | None = field(default=None, repr=False, compare=False)

    _commit_part: PartCommit | None = field(default=None, repr=False, compare=False)

    _run: _RunState = field(default_factory=_RunState, init=False, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"an ActivityContext has no {name!r}"
            if name.startswith("schedule_") or name in _OF_ORCHESTRATIONS:
                raise ActivityMisuse(
                    f"{message}: only orchestrations schedule work. In an activity, or in a handler, call a "
                    "plain function, or start an orchestration with `affinity.Client`"
                )
            raise AttributeError(message, name=name, obj=self)

    @staticmethod
    def _of(
        instance_id: str,
        execution_id: int,
        activity_id: int,
        *,
        name: str,
        orchestration_name: str,
        orchestration_version: str,
        instance_generation: str | None,
        session_id: str | None,
        session_epoch: int | None,
        attempt: int,
        worker_id: str,
        session_store: SessionStore,
        session_listeners: Collection[object],
        guests: Mapping[str, object],
        waits: WaitNotes,
        commit_part: PartCommit,
    ) -> ActivityContext:
        """Does the same as the constructor, in a tenth of the time; called by the worker for each activity."""
        made: Any = _Unfrozen()
        made.instance_id = instance_id
        made.execution_id = execution_id
        made.activity_id = activity_id
        made.name = name
        made.orchestration_name = orchestration_name
        made.orchestration_version = orchestration_version
        made.instance_generation = instance_generation
        made.session_id = session_id
        made.session_epoch = session_epoch
        made.attempt = attempt
        made.worker_id = worker_id
        made.session_store = session_store
        made.session_listeners = session_listeners
        made._guests = guests
        made._waits = waits
        made._commit_part = commit_part
        made._run = _RunState()
        made.__class__ = ActivityContext
        return cast(ActivityContext, made)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``affinity.activity``, with instance, activity, attempt and session in ``extra``."""
        return logging.LoggerAdapter(
            _LOGGER,
            {
                "instance_id": self.instance_id,
                "execution_id": self.execution_id,
                "activity": self.name,
                "activity_id": self.activity_id,
                "attempt": self.attempt,
                "session_id": self.session_id,
                "worker_id": self.worker_id,
            },
        )

    @property
    def cancelled(self) -> bool:
        """Whether this run should stop: its result will not be used, or its time is over."""
        return self._run.reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why it is cancelled; None while it is not."""
        return self._run.reason

    @property
    def error(self) -> BaseException | None:
        """The exception of the run, once it has ended."""
        return self._run.error

    @property
    def ended(self) -> bool:
        """Whether the run has ended. Code that still runs in a thread was abandoned, and its result is not used."""
        return self._run.participants is None

    def raise_if_cancelled(self) -> None:
        """Raise if the activity is cancelled; for loops in synchronous code.

        Raises:
            ActivityCancelledSignal: it is. Not an ``Exception``, so that ``except Exception`` does not catch it.
        """
        reason = self._run.reason
        if reason is not None:
            raise ActivityCancelledSignal(reason)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Block the calling thread until cancellation or for ``timeout`` seconds; return whether it is cancelled.

        For synchronous activities, in place of ``time.sleep``. Asynchronous ones are cancelled at their await.
        """
        return self._run.wait(timeout)

    def _enlist(self, participant: AnyParticipant) -> None:
        """Commit ``participant`` with this activity's result (see `Participant`); call it on the event loop.

        For implementations of session state.

        Raises:
            ActivityCancelledSignal: the run has ended; the caller is code in an abandoned thread.
        """
        self._run.participants = (*self._check_running(), participant)

    async def _commit_now(self, *, state: StateWrite | None = None, part: CommitPart | None = None) -> None:
        """Commit writes now, in one transaction, under the lock of this activity, which goes on.

        For implementations of session state.

        Raises:
            SessionWriteConflict: they were refused, or may have been written or not: the activity is to end, and runs
                again.
            ActivityCancelledSignal: the run has ended.
            ActivityMisuse: a test has made this context.
        """
        self._check_running()
        if self._commit_part is None:
            raise ActivityMisuse("a part of a result is committed by a worker: run the activity on one")
        await self._commit_part(state, [] if part is None else [part])

    def _withdraw(self, error: BaseException, *, retried: bool) -> None:
        """Drop the writes enlisted so far, for an activity whose result says that it failed with this error. The run
        goes on, and its result commits with the writes that are enlisted from now on. Metrics count the run as failed,
        or as ``retried`` if its orchestration tries again.

        Raises:
            ActivityCancelledSignal: the run has ended.
        """
        participants = self._check_running()
        self._run.participants, self._run.error = (), error
        self._run.outcome = "retried" if retried else "failed"
        settle(participants, applied=False)

    def _check_running(self) -> tuple[AnyParticipant, ...]:
        """The participants of a run that has not ended."""
        if self._run.participants is None:
            raise ActivityCancelledSignal(self._run.reason or "the activity has ended")
        return self._run.participants

    def _close(self, error: BaseException | None = None) -> tuple[AnyParticipant, ...]:
        """End the run and return its participants; called by the worker."""
        self._run.error = error
        participants, self._run.participants = self._run.participants, None
        return participants or ()

    @property
    def _outcome(self) -> str:
        """The outcome under which the worker's metrics count a run that has a result."""
        return self._run.outcome

    def _cancel(self, reason: str) -> None:
        """Cancel the run; called by the worker. The first reason stays."""
        self._run.set(reason)


class _Unfrozen:
    """An `ActivityContext` while its fields are set: the constructor of a frozen dataclass sets each of them through
    ``object.__setattr__``.
    """

    __slots__ = ActivityContext.__slots__


def settle(participants: Iterable[AnyParticipant], applied: bool) -> None:
    """Notify participants whether the result was committed. They may be the application's code: what one raises is
    logged, and changes nothing here.
    """
    for each in participants:
        try:
            call_sync(each.settled, applied)
        except Exception:
            _LOGGER.exception("a participant of an activity failed")
