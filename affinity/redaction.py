"""Errors of the application in log lines and spans: with a codec, their texts stay out of both.

The text of an error, and the texts of its causes, may have payloads. While a provider with a codec is open in this
process, each place that logs an error, or records it in a span, writes its class and a hint in place of the text. The
database has the text, encoded: `affinity show` reads it with the key. Without a codec nothing is changed.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

from affinity import errors

__all__ = ["redacted", "redacted_text"]

E = TypeVar("E", bound=BaseException)

HINT: Final = "its text is encrypted"

_OWN: Final = (
    errors.ActivityPoisoned,
    errors.ActivityTimeout,
    errors.DatabaseChanged,
    errors.ExecutionLimitReached,
    errors.LateAttempt,
    errors.NoWorkerWithTag,
    errors.OrchestrationPoisoned,
    errors.PayloadUnreadable,
    errors.ProviderError,
    errors.SessionBusy,
    errors.SessionTagMismatch,
    errors.SessionWriteConflict,
    errors.UnknownActivity,
    errors.UnknownInstance,
    errors.UnknownOrchestration,
    errors.UnknownWorker,
    errors.WorkerStalled,
)
"""Errors whose texts have ids, names and numbers, and no payload. The texts of a codec's own errors are among them."""

_MOST_ERRORS: Final = 32
"""Causes, and members of groups, of one error."""

_codecs: Final[WeakSet[Any]] = WeakSet()
"""Open providers with a codec."""


def begin(provider: object) -> None:
    """Keep texts of errors out of logs and spans, until `end` is called for this provider, or it is dropped."""
    _codecs.add(provider)


def end(provider: object) -> None:
    """Note that a provider with a codec is closed."""
    _codecs.discard(provider)


def is_on() -> bool:
    """Return whether texts of errors are kept out of logs and spans."""
    return bool(_codecs)


def redacted(error: E) -> E:
    """Return what a log line, or a span, may have of an error: a stand-in with its class name, its traceback, and a
    hint for its text; its causes are redacted too. Without a codec, the error itself.
    """
    return cast("E", _stand_in(error, [_MOST_ERRORS])) if is_on() else error


def redacted_text(text: str, of: BaseException | None = None) -> str:
    """Return what a log line, or a span, may have of a text that the application has made: a hint. Without a codec, the
    text itself; also if it is the text ``of`` an error whose texts have no payload.
    """
    return HINT if is_on() and not (of is not None and _is_own(of)) else text


def _stand_in(error: BaseException, left: list[int]) -> BaseException:
    left[0] -= 1
    cls = type(error)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    text = errors.text_of_error(error) if _is_own(error) else HINT
    if isinstance(error, BaseExceptionGroup) and left[0] > 0:
        members = [_stand_in(member, left) for member in error.exceptions[: left[0]]]
        made: BaseException = type(cls.__name__, (_Group,), names)(text, members)
    else:
        made = type(cls.__name__, (_Error,), names)(text)
    made.__traceback__ = error.__traceback__
    if left[0] > 0 and error.__cause__ is not None:
        made.__cause__ = _stand_in(error.__cause__, left)
    elif left[0] > 0 and error.__context__ is not None and not error.__suppress_context__:
        made.__context__ = _stand_in(error.__context__, left)
    made.__suppress_context__ = error.__suppress_context__
    return made


class _Error(Exception):
    """In place of an error."""


class _Group(BaseExceptionGroup[BaseException]):
    """In place of a group."""


def _is_own(error: BaseException) -> bool:
    return isinstance(error, _OWN) and type(error).__module__ == errors.__name__
