"""The event loop behind sync clients: one thread of the process, which all of them share.

A call runs on the loop, and its thread waits. When the wait is interrupted, as by Ctrl-C, the call is cancelled and its
end is waited for, so that nothing of it goes on. The loop starts with the first call. At the end of the process it
closes what is still open.

A child process has the memory of its parent, and not its threads: after a fork there is another loop. What was open
before is left alone, since its connections belong to the parent. Nor can the child open SQLite files that were open:
SQLite has noted in this memory which locks the process holds, and the child holds none.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal

from affinity.errors import ClientError, ClientForked
from affinity.provider.urls import sqlite_path
from affinity.user_code import refuse_in_orchestration

T = TypeVar("T")

EXIT_SECONDS: Final = 5.0
"""Seconds that the end of the process waits for open clients and stores to close."""


class _Call:
    """A call that a thread waits for."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function, self._args = function, args
        self.outcome: Future[Any] = Future()
        self.ended = threading.Event()
        """Nothing of it runs, nor will."""
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False

    async def run(self) -> None:
        """Call the function, on the loop."""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._is_cancelled:
                    result = self._function(*self._args)
                    is_call = inspect.isawaitable(result) and not isinstance(result, AsyncIterator)
                    self.outcome.set_result(await result if is_call else result)
        except Exception as error:
            self.outcome.set_exception(error)
        finally:
            if not self.outcome.done():
                self.outcome.set_exception(ClientError("the call was cancelled, as its event loop ends"))
            self.ended.set()

    @property
    def is_closing(self) -> bool:
        """Whether it ends an opening."""
        return self._function is _leave

    def cancel(self) -> None:
        """Cancel it, on the loop; shielded scopes within it end first."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._started: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._calls: dict[asyncio.Task[None], _Call] = {}
        self.open: weakref.WeakSet[Opening[Any]] = weakref.WeakSet()
        """Clients and stores that the end of the process has to close."""

    def _start(self) -> tuple[asyncio.AbstractEventLoop, int]:
        with self._lock:
            if self._started is None:
                portal = self._stack.enter_context(start_blocking_portal())
                self._started = portal.call(asyncio.get_running_loop), portal.call(threading.get_ident)
            return self._started

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function, async or not, that is called on the loop.

        Raises:
            ClientError: this is the thread of the loop, which the call would block forever; or the loop ends.
            Exception: what the function raised.
        """
        loop, thread = self._started or self._start()
        if thread == threading.get_ident():
            raise ClientError(
                "a sync client was called in a function that runs on its own event loop, such as a `progress`: call it "
                "in a thread of yours"
            )
        call = _Call(function, args)
        try:
            loop.call_soon_threadsafe(self._begin, call)
        except RuntimeError as error:
            raise ClientError("the process ends, and the event loop of its sync clients has ended") from error
        try:
            return call.outcome.result()
        except BaseException:
            if not call.outcome.done():  # the wait was interrupted
                loop.call_soon_threadsafe(call.cancel)
                call.ended.wait()
            raise

    def _begin(self, call: _Call) -> None:
        task = asyncio.get_running_loop().create_task(call.run())
        self._calls[task] = call
        task.add_done_callback(self._calls.pop)

    def close_soon(self, block: AbstractAsyncContextManager[Any]) -> None:
        """End a block that was left to the garbage collector, which runs in any thread."""
        if self._started is not None and self is current_loop():
            with suppress(RuntimeError):  # the loop has ended, with all that was open
                self._started[0].call_soon_threadsafe(self._begin, _Call(_leave, (block,)))

    def stop(self) -> None:
        """Close all clients and stores, cancel their running calls, and end the thread."""
        if self._started is None:
            return
        for each in list(self.open):
            each.abandon()
        ends = asyncio.run_coroutine_threadsafe(self._end_calls(), self._started[0])
        with suppress(TimeoutError):
            ends.result(EXIT_SECONDS)
        self._stack.close()

    async def _end_calls(self) -> None:
        """Wait for the ends of openings; calls of threads are cancelled."""
        while self._calls:
            for call in self._calls.values():
                if not call.is_closing:
                    call.cancel()
            await asyncio.wait(self._calls)


async def _leave(block: AbstractAsyncContextManager[Any]) -> None:
    await block.__aexit__(None, None, None)


class Opening(Generic[T]):
    """An async context manager that sync code opens, uses and closes, in any threads.

    Args:
        block: what is opened.
        url: of its database.
    """

    def __init__(self, block: AbstractAsyncContextManager[T], url: str) -> None:
        self._block, self._url = block, url
        self.file: Path | None = None
        """File of an SQLite database, once its opening has begun."""
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None  # once its opening has begun
        self._value: list[T] = []
        self._is_closed = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    def open(self) -> T:
        """Open it, unless it is open; returns its value.

        Raises:
            ClientError: it was closed, or this is the thread of the loop.
            ClientForked: it was opened before the fork of this process; or it is of an SQLite file that was.
            Exception: what the opening raised; it may be tried again.
        """
        loop = self._checked()
        path = sqlite_path(self._url)
        self._loop, self.file = loop, path and path.resolve()
        if self.file is not None and any(each.file == self.file for each in _inherited):
            raise _forked("the SQLite file was open before, and must not be opened again: close it before the fork")
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
        refuse_in_orchestration("a sync client")
        loop = current_loop()
        if self._loop is not None and self._loop is not loop:
            raise _forked("the client was open before: close it before the fork, and open another one behind it")
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
        if self._loop is not None:
            self._loop.open.discard(self)
        return finalizer is not None and finalizer.detach() is not None and self._loop is current_loop()


def _forked(problem: str) -> ClientForked:
    return ClientForked(
        f"process {os.getpid()} was forked, and {problem}; a client that was not used before can be used"
    )


_loops: Final = [LoopThread()]
"""The last one is in use. Others are of the processes from which this one was forked: they are never freed, since that
would end what the parent has open.
"""

_inherited: Final = list[Opening[Any]]()
"""Clients and stores that these processes had open when they forked."""


def current_loop() -> LoopThread:
    """The loop of this process."""
    return _loops[-1]


def _begin_child() -> None:
    _inherited.extend(current_loop().open)
    _loops.append(LoopThread())


os.register_at_fork(after_in_child=_begin_child)
atexit.register(lambda: current_loop().stop())
