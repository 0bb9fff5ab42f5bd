"""The event loop behind sync clients: one thread of the process, which all of them share.

A call runs on the loop, and its thread waits. When the wait is interrupted, as by Ctrl-C, the call is cancelled and its
end is waited for, so that nothing of it goes on. The loop starts with the first call. At the end of the process it
closes what is still open.

A child process has the memory of its parent, and not its threads: after a fork there is another loop, and what was open
before is left alone, since its connections belong to the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from affinity.errors import ClientError, ClientForked

T = TypeVar("T")

EXIT_SECONDS: Final = 5.0
"""How long the end of the process waits until what is open is closed."""


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._started: tuple[BlockingPortal, asyncio.AbstractEventLoop, int] | None = None
        self._closing = set[asyncio.Task[None]]()
        self.open: weakref.WeakSet[Opening[Any]] = weakref.WeakSet()
        """What the end of the process has to close."""

    def _start(self) -> tuple[BlockingPortal, asyncio.AbstractEventLoop, int]:
        with self._lock:
            if self._started is None:
                portal = self._stack.enter_context(start_blocking_portal())
                self._started = portal, portal.call(asyncio.get_running_loop), portal.call(threading.get_ident)
            return self._started

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function, async or not, that is called on the loop.

        Raises:
            ClientError: this is the thread of the loop, which the call would block forever.
            Exception: what the function raised.
        """
        portal, _, thread = self._started or self._start()
        if thread == threading.get_ident():
            raise ClientError(
                "a sync client was called in a function that runs on its own event loop, such as a `progress`: call it "
                "in a thread of yours"
            )
        ended = threading.Event()

        async def call() -> Any:
            try:
                result = function(*args)
                return await result if inspect.isawaitable(result) else result
            finally:
                ended.set()

        future: Future[Any] = portal.start_task_soon(call)
        try:
            return future.result()
        except CancelledError:
            raise ClientError("the process ends, and with it the event loop of its sync clients") from None
        except BaseException:
            if not future.done():  # the wait was interrupted
                future.cancel()
                ended.wait()
            raise

    def close_soon(self, block: AbstractAsyncContextManager[Any]) -> None:
        """End a block that was left to the garbage collector, which runs in any thread."""
        if self._started is None or self is not current_loop():
            return
        loop = self._started[1]
        with suppress(RuntimeError):  # the loop has ended, with all that was open
            loop.call_soon_threadsafe(self._close, block)

    def _close(self, block: AbstractAsyncContextManager[Any]) -> None:
        task = asyncio.get_running_loop().create_task(_leave(block))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def stop(self) -> None:
        """Close what is open, and end the thread."""
        if self._started is None:
            return
        portal = self._started[0]
        for each in list(self.open):
            each.abandon()
        for last in (self._closed, partial(portal.stop, cancel_remaining=True)):
            with suppress(TimeoutError):
                portal.start_task_soon(last).result(EXIT_SECONDS)
        self._stack.close()

    async def _closed(self) -> None:
        while self._closing:
            await asyncio.wait(self._closing)


async def _leave(block: AbstractAsyncContextManager[Any]) -> None:
    await block.__aexit__(None, None, None)


class Opening(Generic[T]):
    """An async context manager that sync code opens, uses and closes, in any threads."""

    def __init__(self, block: AbstractAsyncContextManager[T]) -> None:
        self._block = block
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None  # once its opening has begun
        self._value: list[T] = []
        self._is_closed = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    def open(self) -> T:
        """Open it, unless it is open; returns its value.

        Raises:
            ClientError: it was closed, or this is the thread of the loop.
            ClientForked: it was opened before the fork of this process.
            Exception: what the opening raised; it may be tried again.
        """
        loop = self._checked()
        self._loop = loop
        with self._lock:
            if not self._value:
                self._checked()
                self._value.append(loop.run(self._block.__aenter__))
                self._finalizer = weakref.finalize(self, loop.close_soon, self._block)
                self._finalizer.atexit = False
                loop.open.add(self)
            return self._value[0]

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`LoopThread.run`, while it is open.

        Raises:
            ClientError, ClientForked: as for `open`.
        """
        return self._checked().run(function, *args)

    def _checked(self) -> LoopThread:
        loop = current_loop()
        if self._loop is not None and self._loop is not loop:
            raise ClientForked(
                f"process {os.getpid()} was forked after this client was opened, and cannot use its connection: close "
                "it before the fork, or open another one behind it (one that was not used before opens by itself)"
            )
        if self._is_closed:
            raise ClientError("this sync client is closed: open another one")
        return loop

    def close(self) -> None:
        """Close it. A second time, and in a forked process, nothing happens."""
        self._is_closed = True
        if self._forget():
            assert self._loop is not None
            self._loop.run(_leave, self._block)

    def abandon(self) -> None:
        """Close it without waiting for the end."""
        if self._forget():
            assert self._loop is not None
            self._loop.close_soon(self._block)

    def _forget(self) -> bool:
        """Whether it is still open, and this call has to close it."""
        finalizer, self._finalizer = self._finalizer, None
        return finalizer is not None and finalizer.detach() is not None and self._loop is current_loop()


_loops: Final = [LoopThread()]
"""The last one is in use. Others are of the processes from which this one was forked: they are never freed, since that
would end what the parent has open.
"""


def current_loop() -> LoopThread:
    """The loop of this process."""
    return _loops[-1]


os.register_at_fork(after_in_child=lambda: _loops.append(LoopThread()))
atexit.register(lambda: current_loop().stop())
