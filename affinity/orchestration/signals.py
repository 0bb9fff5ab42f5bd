"""Control flow inside orchestrations and activities.

These are not of class ``Exception``: an application's ``except Exception`` must not catch a cancellation or a restart.
``finally`` blocks run.
"""

from __future__ import annotations


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
