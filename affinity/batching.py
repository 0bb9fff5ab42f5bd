"""Batches: calls of one verb that are made at the same time share one call of the provider."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import anyio

from affinity.actions import ACTORS, Actor, stated_together
from affinity.errors import LockTimeout, ProviderError
from affinity.limits import MAX_BATCH, MAX_BATCH_BYTES
from affinity.tasks import check_loop

T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result")

ASIDE_SECONDS: Final = 0.02
"""Pause before the next attempt of a request that needs a held row."""


class Retry(Protocol):
    """Repeats a call while the database fails."""

    def __call__(self, verb: Callable[[], Awaitable[T]], /, *, unless: tuple[type[Exception], ...]) -> Awaitable[T]:
        """Await ``verb()`` until it succeeds, or raises an error that no repetition helps, or one of ``unless``."""
        ...


class _Pending(NamedTuple, Generic[Request, Result]):
    request: Request
    result: asyncio.Future[Result]  # done before there is one: its caller was cancelled
    actors: Sequence[Actor]  # that its caller has stated


class Batcher(Generic[Request, Result]):
    """Makes calls of a verb that takes many requests: one at a time, with all requests that came during the one before.
    No timer is involved. A request that needs a row which another transaction holds is repeated by itself, beside the
    later calls. For the event loop on which it is made.

    Requests of several actors share a call too (`affinity.actions.stated_together`).

    Args:
        verb: returns a result for each request, in their order; it may be done twice.
        retry: repeats it while the database fails.
        size_of: bytes of a request, where they may be large.
        join_steps: steps of the event loop for which a batch waits for requests that others are about to make.
        owner: what has opened it, for errors.
        closed: makes the error of requests that have no result when it is closed; None: they are cancelled.
    """

    def __init__(
        self,
        verb: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]],
        retry: Retry,
        *,
        owner: str,
        size_of: Callable[[Request], int] | None = None,
        join_steps: int = 0,
        closed: Callable[[], Exception] | None = None,
    ) -> None:
        self._verb, self._retry, self._size_of = verb, retry, size_of
        self._owner, self._join_steps, self._closed_error = owner, join_steps, closed
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Pending[Request, Result]] = deque()
        self._task: asyncio.Task[None] | None = None  # while there are requests
        self._closed = False
        self._aside = set[asyncio.Task[None]]()  # calls for one request each, which needs a held row

    def submit(self, request: Request) -> asyncio.Future[Result]:
        """Return the result, to be awaited. If the caller is cancelled before the request is sent, it is never sent.

        The future raises:
            ProviderError: as the verb, after the retries.
            Exception: as ``closed`` makes it.

        Raises:
            WrongEventLoop: the caller does not run on its loop.
        """
        check_loop(self._loop, self._owner)
        pending: _Pending[Request, Result] = _Pending(request, self._loop.create_future(), ACTORS.get())
        if self._closed:
            self._give_up(pending)
            return pending.result
        self._queue.append(pending)
        if self._task is None:
            self._task = self._start(self._run())
        return pending.result

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task without the context of the caller: it works for others too."""
        return self._loop.create_task(work, context=Context())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    async def aclose(self) -> None:
        """End the calls. Requests that have no result get none, and neither do later ones."""
        self._closed = True
        while self._queue:
            self._give_up(self._queue.popleft())
        running = [*self._aside] if self._task is None else [*self._aside, self._task]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _give_up(self, pending: _Pending[Request, Result]) -> None:
        if pending.result.done():
            return
        if self._closed_error is None:
            pending.result.cancel()
        else:
            pending.result.set_exception(self._closed_error())

    async def _run(self) -> None:
        """Make calls while there are requests."""
        left: Sequence[_Pending[Request, Result]] = []
        try:
            while self._queue:
                for _ in range(self._join_steps):
                    await asyncio.sleep(0)  # a checkpoint of anyio costs some times as much
                left = self._take()
                try:
                    for batch in self._batches(left):
                        await self._call(batch)
                except Exception as error:  # of ``size_of``: nobody waits for ever
                    _fail(left, error)
        except asyncio.CancelledError:
            for pending in (*left, *self._take()):
                self._give_up(pending)
            raise
        finally:
            self._task = None

    def _batches(self, taken: Sequence[_Pending[Request, Result]]) -> Iterable[Sequence[_Pending[Request, Result]]]:
        size_of = self._size_of
        return batches(taken) if size_of is None else batches(taken, lambda pending: size_of(pending.request))

    def _take(self) -> Sequence[_Pending[Request, Result]]:
        taken = [pending for pending in self._queue if not pending.result.done()]
        self._queue.clear()
        return taken

    async def _call(
        self, batch: Sequence[_Pending[Request, Result]], unless: tuple[type[Exception], ...] = (LockTimeout,)
    ) -> None:
        actors = [pending.actors for pending in batch]
        call = partial(self._verb, [pending.request for pending in batch])
        try:
            if any(actors):
                with stated_together(actors):
                    results = await self._retry(call, unless=unless)
            else:
                results = await self._retry(call, unless=unless)
            answered = [*zip(batch, results, strict=True)]
        except LockTimeout as error:
            if len(batch) == 1 and unless:
                self._call_aside(batch[0])
            else:
                await self._handle_failure(batch, error)
            return
        except Exception as error:
            await self._handle_failure(batch, error)
            return
        for pending, result in answered:
            if not pending.result.done():
                pending.result.set_result(result)

    async def _handle_failure(self, batch: Sequence[_Pending[Request, Result]], error: Exception) -> None:
        """Give everyone the error, unless one request may be at fault: then each half is tried by itself."""
        is_held = isinstance(error, LockTimeout)
        if len(batch) > 1 and (is_held or not (isinstance(error, ProviderError) and error.retryable)):
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                await self._call(half)
            return
        _fail(batch, error)

    def _call_aside(self, pending: _Pending[Request, Result]) -> None:
        task = self._start(self._finish(pending))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _finish(self, pending: _Pending[Request, Result]) -> None:
        try:
            await asyncio.sleep(ASIDE_SECONDS)
            await self._call([pending], unless=())
        except asyncio.CancelledError:
            self._give_up(pending)
            raise


def _fail(failed: Sequence[_Pending[Any, Any]], error: Exception) -> None:
    for pending in failed:
        if not pending.result.done():
            pending.result.set_exception(error)


def batches(items: Sequence[T], size_of: Callable[[T], int] | None = None) -> Iterable[Sequence[T]]:
    """Return the items in pieces of at most `MAX_BATCH`, and `MAX_BATCH_BYTES` by ``size_of`` if there are several."""
    if size_of is not None:
        return _batches(items, size_of)
    return [items[first : first + MAX_BATCH] for first in range(0, len(items), MAX_BATCH)]


def _batches(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    batch: list[T] = []
    size = 0
    for item in items:
        size += size_of(item)
        if batch and (len(batch) == MAX_BATCH or size > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], size_of(item)
        batch.append(item)
    if batch:
        yield batch
