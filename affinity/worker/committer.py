"""Group commit: where a turn is committed.

Everything that arrives while a commit is in flight goes together in the next one; when nothing is in flight, it goes at
once. No timer is involved: an idle system has the latency of one statement, a busy one the throughput of a batch.

The outcomes of a large batch are handed out in pieces, with a step of the event loop between two of them: what the
first ones set going is on its way to the database while the rest is still being handed out, so that the process and the
database work at the same time instead of by turns. A batch below `SMALL` is worth less than what it costs: it waits
for what the last one has set going, as far as that comes back without waiting for anything itself.

Why it is safe: `Provider.commit_turn` applies a turn whole or not at all, and only while its fence holds (see `Turn`).
Whoever submitted it learns the outcome and acts on it:

    committed   the instance goes on, new work that was locked here starts
    refused     somebody else moved first: the live coroutine is dropped; results whose token is still live are sent the
                plain way, as a message to the instance
    unknown     the connection broke in the middle: treated as refused. If the commit did happen, the plain ack finds a
                dead token and changes nothing; if it did not, nothing is lost
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from affinity.errors import Contention, DataRefused, ProviderError
from affinity.limits import MAX_BATCH
from affinity.worker.retry import Availability, is_retryable

logger = logging.getLogger("affinity.worker")

Request = TypeVar("Request")
Result = TypeVar("Result")

MAX_CONTENTIONS = 20
"""Deadlocks or busy databases in a row for one batch, before it counts as failed."""


MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Weight of one batch, if it has more than one request: one statement must stay far below what a message may hold."""

HAND_OUT = 24
"""Outcomes that are handed out in one step of the event loop."""

SMALL = 16
"""Requests that are too few for a batch of their own while more may join them."""

JOIN_STEPS = 3
"""Steps of the event loop in which an activity that waits for nothing begins, ends, and is noticed to have ended."""


@dataclass(slots=True)
class _Pending(Generic[Request, Result]):
    request: Request
    done: Callable[[Result | ProviderError], None]
    weight: int


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
    _queue: deque[_Pending[Request, Result]] = field(default_factory=deque)
    _in_flight: list[_Pending[Request, Result]] = field(default_factory=list)
    _outcomes: deque[tuple[_Pending[Request, Result], Result | ProviderError]] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _heard: anyio.Event = field(default_factory=anyio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def unwritten(self) -> list[Request]:
        """Requests whose outcome is not known yet."""
        return [pending.request for pending in (*self._in_flight, *self._queue)]

    def submit(self, request: Request, done: Callable[[Result | ProviderError], None], weight: int = 0) -> None:
        """Queue a request for the next batch; ``weight`` is its size in bytes, where that may be large."""
        self._queue.append(_Pending(request, done, weight))
        self._idle.clear()
        self._arrived.set()

    async def run(self) -> None:
        """Write batches for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hand_out_rest)
            while True:
                if not self._queue:
                    self._arrived.clear()
                    self._idle.set()
                    await self._arrived.wait()
                elif len(self._queue) < SMALL:
                    for _ in range(JOIN_STEPS):
                        await anyio.lowlevel.checkpoint()
                async with self._writing:
                    self._in_flight = self._take()
                    answers = await self._write(self._in_flight)
                    self._outcomes.extend(zip(self._in_flight, answers, strict=True))
                    self._in_flight = []
                    self._hand_out()
                    if self._outcomes:
                        self._answered.set()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Within, nothing is in flight: every outcome has been handed out, and the next batch waits."""
        async with self._writing:
            while self._outcomes:
                await self._heard.wait()
            yield

    async def flushed(self) -> None:
        """Wait until nothing is queued or in flight, and every outcome has been handed out."""
        while self._outcomes or not self._idle.is_set():
            await (self._heard if self._outcomes else self._idle).wait()

    def _take(self) -> list[_Pending[Request, Result]]:
        """The next batch: what is queued, within the bounds."""
        batch = [self._queue.popleft()]
        weight = batch[0].weight
        while self._queue and len(batch) < MAX_BATCH and weight + self._queue[0].weight <= MAX_BATCH_BYTES:
            weight += self._queue[0].weight
            batch.append(self._queue.popleft())
        return batch

    async def _write(self, batch: list[_Pending[Request, Result]]) -> Sequence[Result | ProviderError]:
        self.observe(len(batch))
        try:
            return await self._attempt([pending.request for pending in batch])
        except Exception as error:  # what a request holds may fail anything between here and the database
            refusal = error if isinstance(error, ProviderError) else DataRefused(f"{type(error).__name__}: {error}")
            refusal.__cause__ = None if refusal is error else error
        if is_retryable(refusal) or len(batch) == 1:
            return [refusal] * len(batch)
        logger.error("a batch of %d was refused (%s); looking for the culprit", len(batch), refusal)
        half = len(batch) // 2
        return [*await self._write(batch[:half]), *await self._write(batch[half:])]  # only the culprit fails

    async def _attempt(self, requests: list[Request]) -> Sequence[Result]:
        write = partial(self.write, requests)
        if self.insist:
            return await self.availability.insist(write)
        for _ in range(MAX_CONTENTIONS):
            try:
                return await self.availability.call(write)
            except Contention:
                continue  # nothing was changed: the same batch again
        return await self.availability.call(write)

    def _hand_out(self) -> None:
        """A piece: the first of a batch is handed out at once, for the sake of latency."""
        for _ in range(min(HAND_OUT, len(self._outcomes))):
            pending, outcome = self._outcomes.popleft()
            try:
                pending.done(outcome)
            except Exception:
                logger.exception("the outcome of a request could not be handed out")

    async def _hand_out_rest(self) -> None:
        while True:
            await self._answered.wait()
            while self._outcomes:
                self._hand_out()
                await anyio.lowlevel.checkpoint()
            self._answered = anyio.Event()
            heard, self._heard = self._heard, anyio.Event()
            heard.set()
