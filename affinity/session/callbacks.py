"""Calls of the application's callbacks: async or sync, bounded in time, from a thread."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
from pydantic import ValidationError

T = TypeVar("T")


DISPOSE_SECONDS: Final = 30.0
"""A ``dispose`` or ``close`` that takes longer is cancelled and logged: it must not keep a worker from stopping."""

_PROBLEMS_SHOWN: Final = 3

logger = logging.getLogger("affinity.session")


async def result_of(value: Awaitable[T] | T) -> T:
    """The result of a callback, awaited if it is async."""
    return await value if inspect.isawaitable(value) else value


async def run_bounded(what: str, callback: Callable[[], Awaitable[None] | None], seconds: float) -> None:
    """Call a callback that frees something. It raises nothing: no caller could handle the error, so it is logged."""
    try:
        with anyio.fail_after(seconds):
            await result_of(callback())
    except Exception:
        logger.exception("%s failed", what)


async def shielded(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Call ``function`` for a thread, shielded from cancellation.

    For the thread of an activity that is cancelled already, anyio's checkpoints would spin on its scope for ever.
    """
    with anyio.CancelScope(shield=True):
        result = await function(*args)
    return result


def problem_of(error: Exception) -> str:
    """The error in a message of another one: its class and text, without the values of a state, which may be secret."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in details[:_PROBLEMS_SHOWN]]
    more = [f"and {len(details) - _PROBLEMS_SHOWN} more"] if len(details) > _PROBLEMS_SHOWN else []
    return "; ".join(shown + more)
