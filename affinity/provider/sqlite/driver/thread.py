"""The thread that a connection lives on, so that no statement and no fsync ever blocks the event loop.

Calls run one after another in the order in which they were made. A caller that is cancelled abandons its answer,
not its transaction. The thread also looks for commits of other processes on its connection, while `watch` says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from affinity.errors import ConnectionLost, ProviderError
from affinity.provider.sqlite.driver.database import Database

P = ParamSpec("P")
T = TypeVar("T")

WATCH_EVERY: Final = (0.010, 0.050)
"""Seconds between two looks for foreign commits: while there are some, and when there have been none for a while."""

WATCH_GROWTH: Final = 1.3


class _ThreadCall(NamedTuple):
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class DatabaseThread:
    """Runs calls on a `Database` that it owns and closes.

    Args:
        database: used by this thread only from now on.
        name: of the thread, for debuggers.
        on_change: called on the event loop after another connection's commit, while `watch` says so.
    """

    def __init__(self, database: Database, name: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._watched = False
        self._closed: asyncio.Future[None] | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, operation: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``operation`` with the database on the thread.

        Raises:
            ConnectionLost: the provider was closed.
        """
        if self._closed is not None:
            raise ConnectionLost("SQLite: the provider is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(_ThreadCall(lambda: operation(self._database, *args, **kwargs), answer))
        return await answer

    def watch(self, wanted: bool) -> None:
        """Start or stop to look for commits of other connections."""
        before, self._watched = self._watched, wanted
        if wanted and not before and self._closed is None:
            self._calls.put(_ThreadCall(lambda: None, self._loop.create_future()))  # out of its untimed wait

    async def aclose(self) -> None:
        """Finish the calls that were made, close the connection and end the thread. Idempotent."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._calls.put(None)
        await asyncio.shield(self._closed)
        self._thread.join()

    def end(self) -> None:
        """End the thread without waiting for it: its provider was dropped open."""
        if self._closed is None:
            self._calls.put(None)

    def _run(self) -> None:
        pause, due = WATCH_EVERY[0], 0.0
        while True:
            try:
                call = self._calls.get(timeout=max(due - time.monotonic(), 0) if self._watched else None)
            except Empty:
                pass
            else:
                if call is None:
                    break
                self._answer(call)
            if self._watched and time.monotonic() >= due:
                pause = self._look(pause)
                due = time.monotonic() + pause
        try:
            self._database.close()
        finally:
            self._post(self._close_answered)

    def _answer(self, call: _ThreadCall) -> None:
        try:
            result = call.work()
        except BaseException as error:  # it belongs to the caller, whatever it is
            self._post(_fail, call.answer, error)
        else:
            self._post(_succeed, call.answer, result)

    def _look(self, pause: float) -> float:
        """Check for another connection's commit; seconds until the next check."""
        try:
            changed = self._database.changed()
        except ProviderError:
            changed = True  # the worker that is notified gets the error in a call of its own
        if not changed:
            return min(pause * WATCH_GROWTH, WATCH_EVERY[1])
        self._post(self._on_change)
        return WATCH_EVERY[0]

    def _post(self, callback: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it everyone who waited
            self._loop.call_soon_threadsafe(callback, *args)

    def _close_answered(self) -> None:
        if self._closed is not None:
            _succeed(self._closed, None)


def _succeed(answer: asyncio.Future[Any], result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
