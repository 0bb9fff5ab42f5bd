"""Group commit: where a turn is committed.

Everything that arrives while a commit is in flight goes together in the next one; when nothing is in flight, it goes at
once. No timer is involved: an idle system has the latency of one statement, a busy one the throughput of a batch.

Why it is safe: `Provider.commit_turn` applies a turn whole or not at all, and only while its fence holds (see `Turn`).
Whoever submitted it learns the outcome and acts on it:

    committed   the instance goes on, new work that was locked here starts
    refused     somebody else moved first: the live coroutine is dropped; results whose token is still live are sent the
                plain way, as a message to the instance
    unknown     the connection broke in the middle: treated as refused. If the commit did happen, the plain ack finds a
                dead token and changes nothing; if it did not, nothing is lost
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import anyio

from affinity.errors import Contention, ProviderError
from affinity.limits import MAX_BATCH
from affinity.worker.retry import Availability, is_retryable

logger = logging.getLogger("affinity.worker")

Request = TypeVar("Request")
Result = TypeVar("Result")

MAX_CONTENTIONS = 20
"""Deadlocks or busy databases in a row for one batch, before it counts as failed."""


@dataclass(slots=True)
class _Pending(Generic[Request, Result]):
    request: Request
    done: Callable[[Result | ProviderError], None]


@dataclass(slots=True)
class GroupCommit(Generic[Request, Result]):
    """Collects requests and writes them in batches, one batch at a time.

    ``done`` of each request is called exactly once, on the loop, with its result, or with the error when nobody can say
    whether it was written, or when the database refused it for good.
    """

    write: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]]
    availability: Availability
    insist: bool = False  # the verb is right when done twice: try until the database answers
    observe: Callable[[int], None] = lambda size: None
    _queue: list[_Pending[Request, Result]] = field(default_factory=list)
    _in_flight: list[_Pending[Request, Result]] = field(default_factory=list)
    _arrived: anyio.Event = field(default_factory=anyio.Event)
    _idle: anyio.Event = field(default_factory=anyio.Event)
    _writing: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))

    @property
    def unwritten(self) -> list[Request]:
        """Requests whose outcome is not known yet."""
        return [pending.request for pending in (*self._in_flight, *self._queue)]

    def submit(self, request: Request, done: Callable[[Result | ProviderError], None]) -> None:
        """Queue a request for the next batch."""
        self._queue.append(_Pending(request, done))
        self._arrived.set()

    async def run(self) -> None:
        """Write batches for ever."""
        while True:
            if not self._queue:
                self._arrived = anyio.Event()
                self._idle.set()
                await self._arrived.wait()
                self._idle = anyio.Event()  # only here: whoever waits for the end of a busy spell waits on one event
            async with self._writing:
                self._in_flight, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                await self._write(self._in_flight)
                self._in_flight = []

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Within, nothing is in flight: every reply has been handed out, and the next batch waits."""
        async with self._writing:
            yield

    async def flushed(self) -> None:
        """Wait until nothing is queued or in flight."""
        while self._queue or not self._idle.is_set():
            await self._idle.wait()

    async def _write(self, batch: list[_Pending[Request, Result]]) -> None:
        self.observe(len(batch))
        try:
            results = await self._attempt([pending.request for pending in batch])
        except ProviderError as error:
            await self._failed(batch, error)
            return
        for pending, result in zip(batch, results, strict=True):
            pending.done(result)

    async def _attempt(self, requests: list[Request]) -> Sequence[Result]:
        async def write() -> Sequence[Result]:
            return await self.write(requests)

        if self.insist:
            return await self.availability.insist(write)
        for _ in range(MAX_CONTENTIONS):
            try:
                return await self.availability.call(write)
            except Contention:
                continue  # nothing was changed: the same batch again
        return await self.availability.call(write)

    async def _failed(self, batch: list[_Pending[Request, Result]], error: ProviderError) -> None:
        """A batch that the database refuses for good is written one by one, so that only the culprit fails."""
        if is_retryable(error) or len(batch) == 1:
            for pending in batch:
                pending.done(error)
            return
        logger.error("a batch of %d was refused (%s); writing them one by one", len(batch), error)
        for pending in batch:
            await self._write([pending])
