"""What an activity is told about its own run."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from affinity.orchestration.signals import ActivityCancelledSignal

_LOGGER = logging.getLogger("affinity.activity")
_LOCK = threading.Lock()  # guards the creation of a rarely needed Event, so one for all contexts is enough


class _Cancellation:
    """A flag that costs nothing until somebody blocks on it."""

    __slots__ = ("_event", "reason")

    def __init__(self) -> None:
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
    """Grows with every change of the session's holder; None without a session."""

    attempt: int = 1
    """1 for the first run. Runs that a drain interrupted do not count."""

    worker_id: str
    """Stable name of the worker that runs it."""

    _cancellation: _Cancellation = field(default_factory=_Cancellation, init=False, repr=False, compare=False)

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
        return self._cancellation.reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why, once it is cancelled."""
        return self._cancellation.reason

    def raise_if_cancelled(self) -> None:
        """Leave the activity if it is cancelled; for loops in synchronous code.

        Raises:
            ActivityCancelledSignal: it is. Not an ``Exception``, so that ``except Exception`` lets it pass.
        """
        reason = self._cancellation.reason
        if reason is not None:
            raise ActivityCancelledSignal(reason)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Block the calling thread until cancellation or for ``timeout`` seconds; return whether it is cancelled.

        For synchronous activities, in place of ``time.sleep``. Asynchronous ones are cancelled at their await.
        """
        return self._cancellation.wait(timeout)

    def _cancel(self, reason: str) -> None:
        """Called by the worker; the first reason stays."""
        self._cancellation.set(reason)
