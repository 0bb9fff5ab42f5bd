"""Tasks and event loops: a task that any task may end, calls of code of the application, and the check of the loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from affinity.errors import OrchestrationMisuse, WrongEventLoop
from affinity.user_code import as_error, call_sync, leads_to_code, own_context

__all__ = [
    "BackgroundTask",
    "call_any",
    "call_here",
    "ignore_error",
]

P = ParamSpec("P")
T = TypeVar("T")

CLEANUP_SECONDS: Final = 0.5
"""Time that cancelled code has for its end, before it is left behind."""

on_left_behind: Final[ContextVar[Callable[[asyncio.Task[Any]], None] | None]] = ContextVar(
    "affinity.left_behind", default=None
)
"""Notified of the tasks of code that goes on after its end, such as by the worker whose activity has called it."""

logger: logging.Logger = logging.getLogger("affinity")


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


def start_in(tasks: TaskGroup, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
    """Start a task in the group; also from a callback of the event loop.

    anyio asks sniffio, where that is installed, which library runs, and sniffio knows that only of tasks.
    """
    if asyncio.current_task() is None and (sniffio := sys.modules.get("sniffio")) is not None:
        sniffio.current_async_library_cvar.set("asyncio")  # of the callback, and of the task
    tasks.start_soon(work, *args)


def close_dropped(
    owner: object, what: str, loop: asyncio.AbstractEventLoop, close: Callable[[], Awaitable[None]]
) -> None:
    """Warn that an object was dropped open, and close it on its event loop, if that still runs."""
    warnings.warn(f"a {what} was dropped open: use it in an `async with`", ResourceWarning, stacklevel=3, source=owner)
    with suppress(RuntimeError):  # the loop is closed, and with it the connections
        loop.call_soon_threadsafe(_close_soon, close)


def _close_soon(close: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.ensure_future(close())
    task.add_done_callback(ignore_error)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


_closing: Final[set[asyncio.Future[None]]] = set()
"""The tasks of `close_dropped`: the event loop itself keeps no task alive."""


def ignore_error(future: asyncio.Future[Any]) -> None:
    """A callback of a future that nothing may await any more: its error is no lost error."""
    if not future.cancelled():
        future.exception()


async def call_any(function: Callable[..., Any], /, *args: Any, limit: float | None = None, **named: Any) -> Any:
    """Return the result of a function of the application: an async one runs here, and any other one in a thread.

    Raises:
        TimeoutError, Exception: as `run_code`.
    """
    return await run_code(partial(_in_thread_or_here, function, *args, **named), limit)


async def call_here(function: Callable[..., Any], /, *args: Any, limit: float | None = None) -> Any:
    """Return the result of a function of the application that may be async; a sync one must not block the loop.

    Raises:
        TimeoutError, Exception: as `run_code`.
    """
    result = call_sync(function, *args)
    return await run_code(partial(_awaited, result), limit) if inspect.isawaitable(result) else result


async def call_inline(function: Callable[..., Any], /, *args: Any) -> Any:
    """Return the result of a function of the application that may be async, within `run_code`."""
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


async def run_code(function: Callable[[], Coroutine[Any, Any, T]], limit: float | None = None) -> T:
    """Return the result of async code of the application, in a task of its own, with an `own_context`. So a
    ``CancelledError`` that reaches the caller is a cancellation of the caller, and any other one is an error of the
    code.

    When the caller is cancelled, or after ``limit`` seconds, the code is cancelled too, and has `CLEANUP_SECONDS` for
    its end. Code that ignores that is left behind: it goes on, and its end is dropped.

    Raises:
        TimeoutError: the code has not ended within the limit, whatever it has returned later.
        Exception: as `affinity.user_code.as_error`.
    """
    task = asyncio.create_task(_run(function), context=own_context())
    try:
        await _wait_for_end(task, limit)
        if not task.done():
            await _stop(task)
            raise TimeoutError(f"it ran longer than its limit of {limit:g} s") from _error_of(task)
    except asyncio.CancelledError as cancelled:
        await _stop(task)
        cancelled.__cause__ = _error_of(task)
        raise
    return _result_of(task)


async def _wait_for_end(task: asyncio.Task[Any], limit: float | None) -> None:
    """Wait until the task has ended, so many seconds at most; without a limit in half the time of `asyncio.wait`."""
    if limit is not None:
        await asyncio.wait([task], timeout=limit)
        return
    ended = asyncio.get_running_loop().create_future()
    note = partial(_settle, ended)
    task.add_done_callback(note)
    try:
        await ended
    finally:
        task.remove_done_callback(note)


def _settle(ended: asyncio.Future[None], _: asyncio.Task[Any]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _run(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return await function()
    except BaseException as error:
        if (converted := as_error(error)) is error:
            raise
        raise converted from error


async def finish(function: Callable[[], Coroutine[Any, Any, None]], variables: Context | None = None) -> None:
    """Run a function to its end: when the caller is cancelled, it goes on. It is bounded in time by itself.

    Args:
        function: to run, in a task of its own.
        variables: context variables that it has a copy of; None: the caller's.
    """
    task = asyncio.create_task(function(), context=None if variables is None else variables.copy())
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)
    with anyio.CancelScope(shield=True):
        await asyncio.wait([task])
    task.result()


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel the code, and wait for its end, but not for long."""
    task.cancel()
    task.add_done_callback(ignore_error)
    with anyio.CancelScope(shield=True):
        await asyncio.wait([task], timeout=CLEANUP_SECONDS)
    if not task.done():
        leave_behind(task, on_left_behind.get())


_finishing: Final[set[asyncio.Task[None]]] = set()
"""The tasks of `finish`: the event loop itself keeps no task alive."""


def leave_behind(task: asyncio.Task[Any], note: Callable[[asyncio.Task[Any]], None] | None) -> None:
    """Note that the code of a task goes on although it has ended for its caller. It may keep a thread, whose place
    other code gets.
    """
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens += 1
    task.add_done_callback(lambda _: setattr(limiter, "total_tokens", limiter.total_tokens - 1))
    logger.warning("code of the application ignores its cancellation, and is left behind%s", place_of(task))
    if note is not None:
        note(task)


def place_of(task: asyncio.Task[Any]) -> str:
    """Where the code of a task waits, for a message: the innermost line of the application, if there is one."""
    frames = [*_frames_of(task.get_coro())]
    own = [frame for frame in frames if not leads_to_code(frame.f_code.co_filename)]
    for frame in (own or frames)[-1:]:
        return f": it is at {frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def _frames_of(waiting: object) -> Iterator[FrameType]:
    """The frames of coroutines and generators that wait for each other, the innermost one last."""
    while waiting is not None:
        for kind, awaited in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if hasattr(waiting, awaited):
                if (frame := getattr(waiting, f"{kind}_frame")) is not None:
                    yield frame
                waiting = getattr(waiting, awaited)
                break
        else:
            return


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error of a task that may not have ended; its traceback says where it was."""
    return task.exception() if task.done() and not task.cancelled() else None


def _result_of(task: asyncio.Task[T]) -> T:
    try:
        return task.result()
    except asyncio.CancelledError as error:  # before its first step
        raise as_error(error) from error


async def _awaited(value: Awaitable[T]) -> T:
    return await value


async def _in_thread_or_here(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    call = partial(function, *args, **named)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 -- of an object whose call is a coroutine function
    ):
        return await call()
    return await run_in_thread(call)


async def run_in_thread(function: Callable[[], Any]) -> Any:
    """Return the result of a function of the application that is not async, within `run_code`."""
    return await _in_thread(partial(call_sync, function))


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread. A cancellation ends no thread: it is raised when the call has ended."""
    thread = asyncio.create_task(anyio.to_thread.run_sync(call))
    cancelled: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        ignore_error(thread)
        raise cancelled
    return thread.result()


class _NoTask:
    """In place of the task whose step runs the code of an orchestration, which is driven by no event loop: a timeout or
    a cancel scope that it enters would be one of the worker.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_scopes()

    def __hash__(self) -> int:
        raise _no_scopes()

    def get_name(self) -> str:
        """Its name, which `logging` notes."""
        return "orchestration"


def _no_scopes() -> OrchestrationMisuse:
    return OrchestrationMisuse(
        "an orchestration has no timeouts, cancel scopes and task groups of asyncio or anyio: use "
        "ctx.select(..., ctx.schedule_timer(seconds)) and ctx.gather, or move the code to an activity"
    )


_NO_TASK: Final[Any] = _NoTask()


def call_without_task(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Call a function that runs the code of orchestrations, with no task of the event loop for it to change."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        asyncio._leave_task(loop, task)
    asyncio._enter_task(loop, _NO_TASK)
    try:
        return function(*args, **named)
    finally:
        asyncio._leave_task(loop, _NO_TASK)
        if task is not None:
            asyncio._enter_task(loop, task)


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
