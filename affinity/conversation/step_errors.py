"""The error of a step that is not run again, as the row of the step keeps it."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from pydantic_core import to_json

from affinity.errors import ErrorDetails, StepFailed, decisive_error
from affinity.orchestration.failures import recorded
from affinity.records import parse_stored


def to_row(error: Exception) -> str:
    """The error as JSON text."""
    cause = decisive_error(error)
    name, message, details, stack = recorded(cause)
    where = {"module": type(cause).__module__, "class": type(cause).__qualname__}
    return to_json({"type": name, "message": message, "details": details, "stack": stack, **where}).decode()


def from_row(conversation_id: str, text: str) -> StepFailed:
    """The recorded error; an instance of the exception's class too, where this process has it."""
    row: dict[str, Any] = parse_stored(text)
    category, bases, fields = row["details"] or (None, (), ())
    details = ErrorDetails(category, tuple(bases), tuple((name, value) for name, value in fields))
    report = (conversation_id, row["type"], row["message"], details, row["stack"])
    error = _instance_of(_find_class(row["module"], row["class"]))
    StepFailed.__init__(error, *report)
    for name, value in details.fields:
        with suppress(Exception):  # the class is the application's
            setattr(error, name, value)
    return error


def _find_class(module: str, name: str) -> type[Exception] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _instance_of(cls: type[Exception] | None) -> StepFailed:
    """A `StepFailed` without its fields; of this class too, if one class can be both."""
    if cls is None:
        return StepFailed.__new__(StepFailed)
    try:
        both: type[StepFailed] = type(cls.__name__, (StepFailed, cls), {"__module__": cls.__module__})
        return both.__new__(both)
    except Exception:  # the class is the application's
        return StepFailed.__new__(StepFailed)
