"""What an activity is told about its own run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from affinity.orchestration.signals import ActivityCancelledSignal
from affinity.records import Participant, SessionStore

_LOGGER = logging.getLogger("affinity.activity")
_LOCK = threading.Lock()  # guards the creation of a rarely needed Event, so one for all contexts is enough


class _Run:
    """What changes during a run: who is enlisted, and a flag of cancellation that costs nothing until somebody blocks
    on it.
    """

    __slots__ = ("_event", "participants", "reason")

    def __init__(self) -> None:
        self.participants: list[Participant] | None = []  # None: the run is over
        self.reason: str | None = None
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
    """Of the orchestration that scheduled the activity."""

    execution_id: int
    """Of that orchestration: 1, and one more after each ``continue_as_new``."""

    activity_id: int
    """Event id of the scheduling: with instance and execution it names this activity, in all its attempts."""

    name: str
    """Under which the activity is registered."""

    session_id: str | None = None
    """The session that it was stamped with by ``on_session``."""

    session_epoch: int | None = None
    """Grows with every change of the session's holder, and when somebody else writes its record. None: no session."""

    attempt: int = 1
    """1 for the first run. Runs that a drain interrupted do not count."""

    worker_id: str
    """Stable name of the worker that runs it."""

    session_store: SessionStore | None = None
    """Of the database of the worker that runs it: state written there commits with the activity's result."""

    session_listeners: Collection[object] | None = None
    """What the worker tells about the sessions that it loses; None: not known, as in a context that a test makes."""

    _run: _Run = field(default_factory=_Run, init=False, repr=False, compare=False)

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
        """Why, once it is cancelled."""
        return self._run.reason

    @property
    def ended(self) -> bool:
        """Whether the run is over: what still runs of it was left behind, and its result is not used."""
        return self._run.participants is None

    def raise_if_cancelled(self) -> None:
        """Leave the activity if it is cancelled; for loops in synchronous code.

        Raises:
            ActivityCancelledSignal: it is. Not an ``Exception``, so that ``except Exception`` lets it pass.
        """
        reason = self._run.reason
        if reason is not None:
            raise ActivityCancelledSignal(reason)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Block the calling thread until cancellation or for ``timeout`` seconds; return whether it is cancelled.

        For synchronous activities, in place of ``time.sleep``. Asynchronous ones are cancelled at their await.
        """
        return self._run.wait(timeout)

    def enlist(self, participant: Participant) -> None:
        """Keep ``participant`` together with this activity's result (see `Participant`): called from the activity's own
        code, on the event loop.

        For the session layer, and for others who write one.

        Raises:
            ActivityCancelledSignal: the run is over; this is code in a thread that was left behind.
        """
        if self._run.participants is None:
            raise ActivityCancelledSignal(self._run.reason or "the activity has ended")
        self._run.participants.append(participant)

    def _close(self) -> list[Participant]:
        """Called by the worker when the run is over: who was enlisted, and nobody is any more."""
        participants, self._run.participants = self._run.participants, None
        return participants or []

    def _cancel(self, reason: str) -> None:
        """Called by the worker; the first reason stays."""
        self._run.set(reason)
