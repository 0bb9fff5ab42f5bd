"""The record of an exception: its class, its text, the fields that its class declares, and a bounded stack."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

from affinity.errors import ErrorDetails, ErrorField, ReportedError, decisive_error
from affinity.limits import MAX_ERROR_NAMES, MAX_ID_BYTES, MAX_STACK_BYTES, MAX_STACK_FRAMES, truncate
from affinity.user_code import describe_error, leads_to_code

_LOGGER = logging.getLogger("affinity.orchestration")
_BIGINT: Final = 2**63
_EVERY_ERROR: Final = frozenset({Exception, BaseException, object, ReportedError})
_LINE_BYTES: Final = 1024  # of one frame, or of the text of one exception: the whole text of the error is its message
_MAX_CAUSES: Final = 16
_RAISED_AGAIN: Final = "\nThe exception above was recorded, and is raised again where the result is awaited:\n\n"


class RecordedError(NamedTuple):
    """An exception as events record it. The fields are in the same order as in the events."""

    error_type: str
    message: str
    details: ErrorDetails | None = None
    stack: str = ""


def recorded(error: BaseException) -> RecordedError:
    """All that events record of an exception. A group of one error is that error."""
    error = decisive_error(error)
    return RecordedError(*describe_error(error), details_of(error), stack_of(error))


def details_of(error: BaseException) -> ErrorDetails | None:
    """Category, bases and fields of an exception; None when it has none of them."""
    reported = error.details if isinstance(error, ReportedError) else ErrorDetails()
    bases = [each.__name__ for each in type(error).__mro__[1:] if each not in _EVERY_ERROR]
    if isinstance(error, ReportedError):
        bases += [error.error_type, *reported.bases]
    category = reported.category or _attribute(error, "category")
    details = ErrorDetails(
        truncate(category, MAX_ID_BYTES) if isinstance(category, str) else None,
        tuple(truncate(base, MAX_ID_BYTES) for base in islice(dict.fromkeys(bases), MAX_ERROR_NAMES)),
        tuple({**_fields(error), **dict(reported.fields)}.items()),
    )
    return details if any(details) else None


def stack_of(error: BaseException) -> str:
    """The traceback of an exception and of its causes as text, of at most `limits.MAX_STACK_BYTES`; empty for one that
    was never raised.

    The frames between the worker and the application's function are left out. If the error reports an error of an
    activity or a sub-orchestration, the stack of the reported error comes first. No values of variables are in it.
    """
    if error.__traceback__ is None:
        return ""
    try:
        return _truncate_middle("".join([*_reported_stacks(error), *_lines(error)]))
    except BaseException:  # the classes are the application's
        return "(its stack could not be read)"


def _reported_stacks(error: BaseException) -> Iterator[str]:
    for each in islice(_causes(error), _MAX_CAUSES):
        if isinstance(each, ReportedError) and each.stack:
            yield each.stack + _RAISED_AGAIN


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, its cause, the cause of that, and so on."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _lines(error: BaseException) -> Iterator[str]:
    whole = traceback.TracebackException.from_exception(error, limit=-MAX_STACK_FRAMES)
    nodes = [whole]
    for node in nodes:
        _drop_leading_frames(node.stack)
        nodes += [each for each in (node.__cause__, node.__context__, *(node.exceptions or ())) if each is not None]
    for line in whole.format():
        yield truncate(line.rstrip("\n"), _LINE_BYTES) + "\n"


def _drop_leading_frames(frames: traceback.StackSummary) -> None:
    """Drop what leads to the application's code; an error that never got there keeps all of its frames."""
    first = next((n for n, frame in enumerate(frames) if not leads_to_code(frame.filename)), 0)
    del frames[:first]


def _truncate_middle(text: str) -> str:
    """Keep the beginning, which has the first cause, and the end, which has the error itself."""
    raw = text.encode()
    if len(raw) <= MAX_STACK_BYTES:
        return text
    mark = "\n… [truncated] …\n"
    half = (MAX_STACK_BYTES - len(mark.encode())) // 2
    return raw[:half].decode("utf-8", "ignore") + mark + raw[-half:].decode("utf-8", "ignore")


def _fields(error: BaseException) -> dict[str, ErrorField]:
    names, of = _attribute(error, "recorded_fields"), type(error).__qualname__
    if names is None:
        return {}
    if not isinstance(names, (tuple, list)):
        _warn(of, "recorded_fields", f"is a {type(names).__name__}, not a tuple of names")
        return {}
    found: dict[str, ErrorField] = {}
    for position, name in enumerate(names):
        if not isinstance(name, str) or position >= MAX_ERROR_NAMES:
            _warn(of, str(name), f"is not one of {MAX_ERROR_NAMES} names")
            continue
        try:
            found[name] = _plain(_attribute(error, name))
        except ValueError as unfit:
            _warn(of, name, str(unfit))
    return found


def _attribute(error: BaseException, name: str) -> Any:
    """An attribute of an application's error. It may be computed, and fail."""
    try:
        return getattr(error, name, None)
    except BaseException:
        return None


def _plain(value: object) -> ErrorField:
    """A field in the form in which it is recorded.

    Raises:
        ValueError: it has none.
    """
    kind = type(value).__name__
    if hasattr(value, "get_secret_value"):  # pydantic's: its JSON form is a row of asterisks
        raise ValueError(f"is a {kind}, which is secret")
    try:
        found = to_jsonable_python(value)
    except BaseException as error:  # it may be code of the application
        raise ValueError(f"is a {kind}, which has no JSON form") from error
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    if isinstance(found, int) and abs(found) >= _BIGINT:
        return str(found)
    if isinstance(found, str):
        return truncate(found, MAX_ID_BYTES)
    if found is None or isinstance(found, (bool, int, float)):
        return found
    raise ValueError(f"is a {kind}: a field is a string, a number or None")


@lru_cache(maxsize=256)  # once for each
def _warn(of: str, name: str, unfit: str) -> None:
    _LOGGER.warning("%s of %s is not recorded: it %s", name, of, unfit)
