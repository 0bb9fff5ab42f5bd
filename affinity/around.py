"""Functions of the application that go around calls: middleware, of workers and of clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

import anyio
import anyio.to_thread

from affinity.tasks import ignore_error
from affinity.user_code import call_sync

Around: TypeAlias = Callable[[Any, Any], Any]
"""A middleware: it gets the call, and a function that makes it."""


def is_async(function: object) -> bool:
    """Whether a call of the function returns an awaitable."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def before_each(begin: Callable[[], None], function: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function, with ``begin`` called before each call of it; it is async as the function is."""

    def call() -> Any:
        begin()
        return function()

    async def call_async() -> Any:
        begin()
        return await function()

    return call_async if is_async(function) else call


def around(
    middleware: Sequence[Around],
    call: object,
    function: Callable[[], Any],
    thread: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> Callable[[], Awaitable[Any]]:
    """Return an async function that calls a function with middleware around it, the first one outside.

    Args:
        middleware: async functions, and others. The others next to a function that is not async run in its thread; any
            further one has a thread of its own, which waits for what is inside.
        call: given to each.
        function: async, or another one.
        thread: runs a function that is not async.
    """
    layers = list(middleware)
    body: Callable[[], Any] = function
    if not is_async(function):
        while layers and not is_async(layers[-1]):
            body = partial(layers.pop(), call, _as_next(body))
        body = partial(thread, body)
    for layer in reversed(layers):
        body = partial(layer, call, _as_next(body)) if is_async(layer) else partial(_wait_outside, layer, call, body)
    return body


def _as_next(body: Callable[[], Any]) -> Callable[..., Any]:
    """Return what a middleware is given to call, which other libraries give the call to."""

    def call_body(*given: object, **named: object) -> Any:
        if given or named:
            raise TypeError("next() takes no arguments: it makes the call as it is")
        return body()

    return call_body


async def _wait_outside(middleware: Around, call: object, body: Callable[[], Awaitable[Any]]) -> Any:
    """Run middleware that is not async around an async call: in a thread, which waits for the call on this loop. A
    cancellation cancels the call, and is raised when the thread has ended.
    """
    loop = asyncio.get_running_loop()
    calls: list[asyncio.Task[None]] = []

    async def run(outcome: Future[Any]) -> None:
        try:
            result = await body()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    def begin(outcome: Future[Any]) -> None:
        if is_cancelled:
            outcome.set_exception(asyncio.CancelledError())
        else:
            calls.append(loop.create_task(run(outcome)))

    def call_next() -> Any:
        outcome: Future[Any] = Future()
        loop.call_soon_threadsafe(begin, outcome)  # with the context variables of the middleware
        return outcome.result()

    is_cancelled = False
    limiter = anyio.CapacityLimiter(1)  # it waits for code that may need a thread: it must take none from that
    function = partial(call_sync, middleware, call, _as_next(call_next))
    thread = asyncio.create_task(anyio.to_thread.run_sync(function, limiter=limiter))
    cancelled: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError as error:
            cancelled, is_cancelled = error, True
            for each in calls:
                each.cancel()
    if cancelled is not None:
        ignore_error(thread)
        raise cancelled
    return thread.result()
