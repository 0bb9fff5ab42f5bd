"""Calls of the application's callbacks: async or sync, bounded in time, from a thread."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

T = TypeVar("T")


DISPOSE_SECONDS: Final = 30.0
"""A ``dispose`` or ``close`` that takes longer is cancelled and logged: it must not keep a worker from stopping."""

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
