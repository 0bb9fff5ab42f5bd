"""Tasks and event loops: a task that any task may end, calls of functions of any kind, and the check of the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from affinity.errors import WrongEventLoop


class BackgroundTask:
    """Runs a coroutine in a task of its own. A task group must be left by the task that has entered it; this may be
    joined by any task of the loop, as when one cell of a notebook opens a client and another one closes it.
    """

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._run(run))

    async def _run(self, run: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            await run()

    def cancel(self) -> None:
        """Cancel it; shielded scopes within it end first."""
        self._scope.cancel()

    async def join(self) -> None:
        """Wait for its end, and raise its error. When the wait is cancelled, so is the task; its end is waited for."""
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])
            raise
        self._task.result()


def ignore_error(future: asyncio.Future[Any]) -> None:
    """A callback of a future that nothing may await any more: its error is no lost error."""
    if not future.cancelled():
        future.exception()


async def call_any(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """The result of a function of the application: an async one runs here, and any other one in a thread."""
    call = partial(function, *args, **named)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 -- of an object whose call is a coroutine function
    ):
        return await call()
    return await anyio.to_thread.run_sync(call)


def check_loop(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Raise unless the caller runs on this event loop.

    Args:
        loop: where ``what`` was opened.
        what: names it in the message.

    Raises:
        WrongEventLoop: the caller runs on another one, or on none.
    """
    try:
        found = asyncio.get_running_loop()
    except RuntimeError:
        raise WrongEventLoop(_message(what, "from a thread that runs no event loop")) from None
    if found is not loop:
        raise WrongEventLoop(_message(what, "on another event loop"))


def _message(what: str, where: str) -> str:
    return (
        f"this {what} was called {where}: call it on the loop that has opened it (from a thread: "
        f"anyio.from_thread.run, or asyncio.run_coroutine_threadsafe), or open another {what} here"
    )
