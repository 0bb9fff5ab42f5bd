"""What a middleware of an application, and an observer of its orchestrations, are given."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from affinity.errors import InvalidApp
from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.definitions import is_async
from affinity.records import frozen
from affinity.user_code import check_function

CallKind: TypeAlias = Literal["activity", "wake", "step", "tool"]
"""What a middleware goes around: an activity; a wake of a handler; a step of a wake; a tool of an agent."""


class Next(Protocol):
    """The second argument of an async middleware: makes the call, and returns its result."""

    async def __call__(self) -> Any:
        """Make the call.

        Raises:
            Exception: what the code inside has raised.
        """
        ...


class SyncNext(Protocol):
    """The second argument of a middleware that is not async: makes the call, and returns its result."""

    def __call__(self) -> Any:
        """Make the call.

        Raises:
            Exception: what the code inside has raised.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MiddlewareCall:
    """A call of code of the application, for the middleware around it, which cannot change it."""

    kind: CallKind
    name: str  # of the activity, the kind of handler, the step, or the tool
    input: Any  # of an activity: decoded, None for none; of a tool: its arguments; of a wake: its events; else None
    attempt: int  # from 1; of a step or tool: of its wake
    headers: Mapping[str, str]  # that the call was caused with
    labels: Mapping[str, str]  # of the instance, as of the scheduling of the activity
    context: ActivityContext  # of the activity, or of the one that runs the wake

    @property
    def instance_id(self) -> str:
        """Id of the instance that has scheduled the activity; of a wake: of what it is a wake of."""
        return self.context.instance_id

    @property
    def session_id(self) -> str | None:
        """The session on whose holder it runs; None: none."""
        return self.context.session_id


MiddlewareForm = TypeVar(
    "MiddlewareForm", bound=Callable[[MiddlewareCall, Next], Awaitable[Any]] | Callable[[MiddlewareCall, SyncNext], Any]
)


@frozen(kw_only=True)
class ObservedTurn:
    """A turn of an orchestration that is committed, for an observer."""

    instance_id: str
    execution_id: int  # 1, and one more after each ``continue_as_new``
    orchestration: str
    version: str  # of the orchestration
    session_id: str | None  # that the instance was started for
    worker_id: str
    headers: Mapping[str, str]  # with which the instance was started
    events: Sequence[tuple[int, str]]  # that the turn has added to the history: id and type, as "activity_scheduled"
    outcome: Literal["completed", "failed", "cancelled", "continued"] | None  # None: the execution goes on
    error: tuple[str, str] | None  # type and message with which it has failed


Observer: TypeAlias = Callable[[ObservedTurn], None]
ObserverForm = TypeVar("ObserverForm", bound=Observer)


def check_middleware(function: object) -> None:
    """Refuse what is no middleware.

    Raises:
        InvalidApp: it is not a function of two arguments, or is a generator.
    """
    what = getattr(function, "__qualname__", repr(function))
    if not callable(function) or inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidApp(f"{what} is no middleware: write a function (call, next), which returns the result of next()")
    check_function(function, f"middleware {what}", "call", "next", error=InvalidApp)


def check_observer(function: object) -> None:
    """Refuse what observes no turns.

    Raises:
        InvalidApp: it is not a function of one argument, or is async or a generator.
    """
    what = getattr(function, "__qualname__", repr(function))
    if not callable(function) or is_async(function) or inspect.isgeneratorfunction(function):
        raise InvalidApp(f"{what} observes no turns: write a plain function (turn), which does not wait")
    check_function(function, f"observer {what}", "turn", error=InvalidApp)
