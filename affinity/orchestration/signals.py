"""Control flow inside orchestrations and activities.

These are not of class ``Exception``: an application's ``except Exception`` must not catch a cancellation or a restart.
``finally`` blocks run.
"""

from __future__ import annotations

from datetime import timedelta

from affinity.limits import MIN_RETRY_AFTER, seconds_of
from affinity.orchestration.gates import HasLimitUse, check_declared, check_limit


class ControlSignal(BaseException):
    """Base of the signals of this package."""


class OrchestrationCancelledSignal(ControlSignal):
    """Raised at the await of an orchestration whose cancellation was requested.

    It is raised once. Cleanup may await activities. An orchestration that catches the signal and returns is completed.

    Attributes:
        reason: the text of the request.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BranchCancelledSignal(OrchestrationCancelledSignal):
    """Raised at the await of a coroutine that lost a ``select``, or whose ``gather`` failed."""


class ContinueAsNewSignal(ControlSignal):
    """Ends this execution and starts the next one; ``OrchestrationContext.continue_as_new`` raises it.

    Attributes:
        input: of the next execution, as JSON text.
        version: of the next execution, or None for the present one.
    """

    def __init__(self, input: str, version: str | None) -> None:
        super().__init__("continue_as_new")
        self.input = input
        self.version = version


class ExecutionClosedSignal(ControlSignal):
    """Raised by calls of a context whose execution was dropped from memory."""


class ActivityCancelledSignal(ControlSignal):
    """Raised by ``ActivityContext.raise_if_cancelled``.

    Attributes:
        reason: why the activity was cancelled.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(ControlSignal):
    """Raised by an activity that cannot do its work now: it runs again after a time, and this attempt does not count.
    It is no failure, and needs no retry policy.

    ::

        if response.status_code == 429:
            raise affinity.RetryAfter(float(response.headers["retry-after"]), limit=model)

    With a limit, this also closes the limit for that time: no work that waits there begins before, on any worker. So
    other work need not learn by itself that the service has no room.

    An activity may raise it any number of times; ``RetryPolicy(total_timeout=...)`` bounds that.

    Attributes:
        seconds: until it may run again.
        limit: what is closed until then; None: nothing.
    """

    def __init__(self, seconds: float | timedelta, limit: HasLimitUse | None = None) -> None:
        """``seconds``: until it may run again; less than ``limits.MIN_RETRY_AFTER`` counts as that. ``limit``: a limit,
        with all its keys if it has some, or one key of it.

        Raises:
            InvalidOptions: ``seconds`` is no number of seconds, and no timedelta.
            InvalidLimit: it is no limit, or no app declares it.
        """
        self.seconds: float = max(MIN_RETRY_AFTER, seconds_of("seconds of RetryAfter", seconds))
        self.limit: HasLimitUse | None = None if limit is None else check_limit(limit)
        at = ""
        if limit is not None:
            check_declared(limit)
            name, key = limit._place
            at = f", with limit {name!r}{f' of {key!r}' if key else ''} closed"
        super().__init__(f"again in {self.seconds:g} s{at}")
