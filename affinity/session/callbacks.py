"""Calls of the application's callbacks: async or sync, bounded in time, from a thread."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

T = TypeVar("T")


DISPOSE_SECONDS: Final = 30.0
"""A ``dispose`` or ``close`` that takes longer is cancelled and logged, so that a worker can stop."""

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


class SharedCall:
    """A call that concurrent callers share: one makes it, and the others wait; if it is cancelled, another one does."""

    def __init__(self) -> None:
        self.is_done = False  # it has succeeded
        self._failure: Exception | None = None
        self._ended: anyio.Event | None = None  # while the call runs

    async def run(self, call: Callable[[], Awaitable[None]]) -> None:
        """Return once the call has succeeded.

        Raises:
            Exception: what the call raised, in every caller.
        """
        while not self.is_done:
            if self._failure is not None:
                raise self._failure
            if self._ended is None:
                await self._make(call)
            else:
                await self._ended.wait()

    async def _make(self, call: Callable[[], Awaitable[None]]) -> None:
        self._ended = ended = anyio.Event()
        try:
            await call()
            self.is_done = True
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._ended = None
            ended.set()


async def shielded(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Call ``function`` for a thread, shielded from cancellation.

    For the thread of an activity that is cancelled already, anyio's checkpoints would spin on its scope for ever.
    """
    with anyio.CancelScope(shield=True):
        result = await function(*args)
    return result
