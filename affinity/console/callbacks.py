"""Calls of the functions that the application gives to the console: ``access`` and ``redact``.

One that fails is an error page and a line of the log; no value is shown in place of what it should have hidden.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cachetools import TTLCache

from affinity.console.requests import Refused
from affinity.errors import problem_of
from affinity.redaction import redacted, redacted_text
from affinity.tasks import call_here
from affinity.user_code import call_sync

logger: logging.Logger = logging.getLogger("affinity.console")

LOG_SECONDS: Final = 60.0
"""Seconds for which an error of a function is not logged again."""

_logged: Final[TTLCache[str, None]] = TTLCache(100, LOG_SECONDS)


def call(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function of the application.

    Raises:
        Refused: it has failed.
    """
    try:
        return call_sync(function, *args)
    except Exception as error:
        raise _failed(name, problem_of(redacted(error))) from None


async def call_async(name: str, function: Callable[..., Awaitable[Any] | Any], *args: Any) -> Any:
    """Return the result of a function of the application that may be async.

    Raises:
        Refused: it has failed.
    """
    try:
        return await call_here(function, *args)
    except Exception as error:
        raise _failed(name, problem_of(redacted(error))) from None


def check_result(name: str, value: object, wanted: type) -> None:
    """Refuse a result of another class.

    Raises:
        Refused: it is of another class.
    """
    if not isinstance(value, wanted):
        raise _failed(name, f"it has returned {redacted_text(repr(value)):.80}, not an {wanted.__name__}")


def _failed(name: str, problem: str) -> Refused:
    line = f"the function {name} of this console has failed: {problem}"
    if line not in _logged:
        _logged[line] = None
        logger.error("%s", line)
    return Refused(500, f"the function {name} of this console has failed: see its log")
