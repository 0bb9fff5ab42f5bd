"""Group commit for clients: calls of one verb that are made at the same time share one call of the provider."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from affinity.audit import ACTING
from affinity.client.calls import FIRST_PAUSE, batches, retry
from affinity.errors import ClientError, LockTimeout, ProviderError
from affinity.tasks import check_loop

Request = TypeVar("Request")
Result = TypeVar("Result")

JOIN_STEPS: Final = 3
"""Steps of the event loop for which a batch waits for requests that others are about to make."""


class _Pending(NamedTuple, Generic[Request, Result]):
    request: Request
    result: asyncio.Future[Result]  # done before there is one: its caller was cancelled


class Batcher(Generic[Request, Result]):
    """Makes calls of a verb that takes many requests: one at a time, with all requests that came during the one before.
    No timer is involved. Errors that are transient are retried, as `calls.retry` does for what may be done twice; a
    request that needs a row which another transaction holds is retried by itself, beside the later calls. For the event
    loop on which it is made.

    Args:
        verb: gives a result for each request, in their order.
        size_of: bytes of a request, where they may be large.
    """

    def __init__(
        self, verb: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]], size_of: Callable[[Request], int]
    ) -> None:
        self._verb = verb
        self._size_of = size_of
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Pending[Request, Result]] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._aside = set[asyncio.Task[None]]()  # calls for one request each, which needs a held row

    def submit(self, request: Request) -> asyncio.Future[Result]:
        """The result, to be awaited. When the caller is cancelled before the request was sent, it is never sent.

        The future raises:
            ProviderError: as the verb, after the retries.
            ClientError: the client was closed.

        Raises:
            WrongEventLoop: the caller does not run on its loop.
        """
        check_loop(self._loop, "client")
        if ACTING.get() and not self._closed:
            return self._loop.create_task(self._call_alone(request))
        result: asyncio.Future[Result] = self._loop.create_future()
        if self._closed:
            result.set_exception(_closed())
        else:
            self._queue.append(_Pending(request, result))
            self._arrived.set()
        return result

    async def _call_alone(self, request: Request) -> Result:
        """In the task of the caller, whose user the audit log names."""
        (result,) = await retry(partial(self._verb, [request]))
        return result

    async def run(self) -> None:
        """Make calls until cancelled."""
        batch: Sequence[_Pending[Request, Result]] = []
        try:
            while True:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                for _ in range(JOIN_STEPS):
                    await asyncio.sleep(0)  # a checkpoint of anyio costs some times as much
                for batch in batches(self._take(), lambda each: self._size_of(each.request)):
                    await self._call(batch)
        finally:
            self._closed = True
            for task in self._aside:
                task.cancel()
            for each in (*batch, *self._queue):
                if not each.result.done():
                    each.result.set_exception(_closed())

    def _take(self) -> Sequence[_Pending[Request, Result]]:
        taken = [each for each in self._queue if not each.result.done()]
        self._queue.clear()
        return taken

    async def _call(
        self, batch: Sequence[_Pending[Request, Result]], unless: tuple[type[Exception], ...] = (LockTimeout,)
    ) -> None:
        try:
            results = await retry(partial(self._verb, [each.request for each in batch]), unless=unless)
        except LockTimeout as error:
            if len(batch) == 1 and unless:
                self._call_aside(batch[0])
            else:
                await self._handle_failure(batch, error)
            return
        except Exception as error:
            await self._handle_failure(batch, error)
            return
        for each, result in zip(batch, results, strict=True):
            if not each.result.done():
                each.result.set_result(result)

    async def _handle_failure(self, batch: Sequence[_Pending[Request, Result]], error: Exception) -> None:
        """Give everyone the error, unless one request may be at fault: then each half is tried by itself."""
        is_held = isinstance(error, LockTimeout)
        if len(batch) > 1 and (is_held or not (isinstance(error, ProviderError) and error.retryable)):
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                await self._call(half)
            return
        for each in batch:
            if not each.result.done():
                each.result.set_exception(error)

    def _call_aside(self, one: _Pending[Request, Result]) -> None:
        task = self._loop.create_task(self._finish(one))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _finish(self, one: _Pending[Request, Result]) -> None:
        await asyncio.sleep(FIRST_PAUSE)
        try:
            await self._call([one], unless=())
        finally:
            if not one.result.done():
                one.result.set_exception(_closed())


def _closed() -> ClientError:
    return ClientError("the client was closed during the call")
