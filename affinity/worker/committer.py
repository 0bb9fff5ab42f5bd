"""Group commit: where a turn is committed.

All requests that arrive while a commit is in flight are written together in the next one; when none is in flight, a
request is written immediately. No timer is involved: an idle system has the latency of one statement, a busy one the
throughput of a batch.

The outcomes of a large batch are handed out in pieces, with a step of the event loop between two of them. Requests that
follow the first outcomes reach the database while the rest is still being handed out. So the process and the database
work at the same time.

A batch below `SMALL` costs more than it saves. It waits a few steps of the event loop for requests that follow the last
batch immediately.

Why it is safe: `Provider.commit_turn` applies a turn whole or not at all, and only while its fence holds (see `Turn`).
The submitter receives the outcome and acts on it:

    committed   the instance goes on, new work that was locked here starts
    refused     another worker has written first: the live coroutine is dropped; results whose token is still live are
                sent as messages to the instance (`Provider.ack_work_item`)
    unknown     the connection broke in the middle: treated as refused. If the commit did happen, the plain ack finds a
                dead token and changes nothing; if it did not, nothing is lost

A batch that failed and changed nothing (a full disk, a statement timeout) waits here and is written again, with
backoff, for as long as it takes. It is halved each time: it may be too large for its time limit, or one request of it
cannot be written. In the end that request is alone, and waits while the others go on.

A batch that needs a row which another transaction goes on holding is written in halves immediately, and these in
halves, until the request that needs the row is alone. That one is tried again, alone, behind the others.
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

from affinity.errors import Contention, DatabaseChanged, DataRefused, LockTimeout, ProviderError
from affinity.limits import MAX_BATCH, MAX_BATCH_BYTES
from affinity.provider.contract import BRIEFLY
from affinity.redaction import redacted
from affinity.worker.retry import Backoff, DatabaseHealth

logger: logging.Logger = logging.getLogger("affinity.worker")

Request = TypeVar("Request")
Result = TypeVar("Result")

MAX_CONTENTIONS = 20
"""Deadlocks or busy databases in a row for one batch, before it counts as failed."""

HAND_OUT = 24
"""Outcomes that are handed out in one step of the event loop."""

SMALL = 16
"""Requests that are too few for a batch of their own while more may join them."""

JOIN_STEPS = 3
"""Steps of the event loop that an activity without an await needs: to begin, to end, and to have its end handled."""


@dataclass(slots=True)
class _Pending(Generic[Request, Result]):
    request: Request
    done: Callable[[Result | ProviderError], None]
    weight: int
    alone: bool = False  # it may be at fault for the failure of a batch: written by itself
    held: bool = False  # another transaction held a row that it needs
    backoff: Backoff | None = None  # of its own failures, alone; nearly all requests have none


@dataclass(slots=True)
class GroupCommit(Generic[Request, Result]):
    """Collects requests and writes them in batches, one batch at a time.

    ``done`` of each request is called exactly once, on the loop: with its result, or with the error when it is unknown
    whether it was written, or when the database refused its data. After any other failure the write is repeated.
    """

    write: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]]
    health: DatabaseHealth
    idempotent: bool = False  # repeat the write also when it is unknown whether it was done
    max_weight: int = MAX_BATCH_BYTES  # of one batch, if it has more than one request
    observe: Callable[[int], None] = lambda size: None
    weight: int = 0  # of all requests whose outcome is not handed out yet
    _queue: deque[_Pending[Request, Result]] = field(default_factory=deque)
    _in_flight: list[_Pending[Request, Result]] = field(default_factory=list)
    _outcomes: deque[tuple[_Pending[Request, Result], Result | ProviderError]] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _handed_out: anyio.Event = field(default_factory=anyio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _limit: int = MAX_BATCH  # requests of one batch: less after a failure
    _backoff: Backoff = field(default_factory=Backoff)
    _aside: list[_Pending[Request, Result]] = field(default_factory=list)  # failed alone: to be queued again

    @property
    def unwritten(self) -> list[Request]:
        """Requests whose outcome is not known yet."""
        return [pending.request for pending in (*self._in_flight, *self._queue, *self._aside)]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or in flight, and every outcome has been handed out."""
        return not self._outcomes and self._idle.is_set()

    def submit(self, request: Request, done: Callable[[Result | ProviderError], None], weight: int = 0) -> None:
        """Queue a request for the next batch; ``weight`` is its size in bytes, where that may be large."""
        self._queue.append(_Pending(request, done, weight))
        self.weight += weight
        if len(self._queue) == 1:
            self._idle.clear()
            self._arrived.set()

    async def run(self) -> None:
        """Write batches until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hand_out_rest)
            while True:
                if not self._queue:
                    self._arrived.clear()
                    if not self._aside:
                        self._idle.set()
                    await self._arrived.wait()
                elif len(self._queue) < SMALL:
                    for _ in range(JOIN_STEPS):
                        await anyio.lowlevel.checkpoint()
                async with self._writing:
                    self._in_flight = self._take()
                    pause = await self._write(self._in_flight)
                    self._in_flight = []
                    self._hand_out()
                    if self._outcomes:
                        self._answered.set()
                if pause:
                    await anyio.sleep(pause)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Within, nothing is in flight: every outcome has been handed out, and the next batch waits."""
        async with self._writing:
            while self._outcomes:
                await self._handed_out.wait()
            yield

    async def flushed(self) -> None:
        """Wait until nothing is queued or in flight, and every outcome has been handed out."""
        while self._outcomes or not self._idle.is_set():
            await (self._handed_out if self._outcomes else self._idle).wait()

    def _take(self) -> list[_Pending[Request, Result]]:
        """The next batch: queued requests, within the bounds."""
        queue = self._queue
        batch = [queue.popleft()]
        weight = batch[0].weight
        limit = 1 if batch[0].alone else self._limit
        while queue and len(batch) < limit:
            following = queue[0]
            weight += following.weight
            if weight > self.max_weight or following.alone:
                break
            batch.append(queue.popleft())
        return batch

    async def _write(self, batch: list[_Pending[Request, Result]]) -> float:
        """Write a batch, or put it back; seconds to wait until the next."""
        if not batch[0].held:
            return await self._write_once(batch)
        token = BRIEFLY.set(True)
        try:
            return await self._write_once(batch)
        finally:
            BRIEFLY.reset(token)

    async def _write_once(self, batch: list[_Pending[Request, Result]]) -> float:
        self.observe(len(batch))
        try:
            answers = await self._attempt([pending.request for pending in batch])
        except LockTimeout:
            return await self._write_free(batch)
        except Exception as error:  # the data of a request may cause an error anywhere on the way to the database
            return self._handle_failure(batch, _provider_error(error))
        self._backoff.reset()
        self._limit = min(MAX_BATCH, 2 * self._limit)
        self._outcomes.extend(zip(batch, answers, strict=True))
        return 0.0

    async def _write_free(self, batch: list[_Pending[Request, Result]]) -> float:
        """Write all of a batch but the requests that need a held row, which are put aside."""
        for pending in batch:
            pending.held = True
        if len(batch) == 1:
            self._set_aside(batch[0])
            return 0.0
        middle = len(batch) // 2
        pause = await self._write(batch[:middle])
        self._hand_out()
        return max(pause, await self._write(batch[middle:]))

    async def _attempt(self, requests: list[Request]) -> Sequence[Result]:
        write = partial(self.write, requests)
        for _ in range(MAX_CONTENTIONS):
            try:
                return await self.health.call(write, self.write)
            except LockTimeout:
                raise
            except Contention:
                continue  # nothing was changed: the same batch again
        return await self.health.call(write, self.write)

    def _handle_failure(self, batch: list[_Pending[Request, Result]], error: ProviderError) -> float:
        """Hand the error out where it is final, and put everything else back; seconds to wait until the next batch."""
        if isinstance(error, DatabaseChanged) or (error.retryable and error.maybe_done and not self.idempotent):
            self.health.forget(self.write)
            self._outcomes.extend((pending, error) for pending in batch)
        elif len(batch) > 1:
            if not error.retryable:
                logger.error(
                    "a batch of %d was refused (%s); writing it in halves to find the request at fault",
                    len(batch),
                    redacted(error),
                )
            self._limit = len(batch) // 2
            self._queue.extendleft(reversed(batch))
        elif error.retryable:
            self._set_aside(batch[0])
        else:
            self._outcomes.append((batch[0], error))
        return self._backoff.next() if error.retryable else 0.0

    def _set_aside(self, pending: _Pending[Request, Result]) -> None:
        """Queue a request that failed alone behind the others; it is written alone again."""
        pending.alone = True
        pending.backoff = pending.backoff or Backoff()
        self._aside.append(pending)
        asyncio.get_running_loop().call_later(pending.backoff.next(), self._bring_back, pending)

    def _bring_back(self, pending: _Pending[Request, Result]) -> None:
        self._aside.remove(pending)
        self._queue.append(pending)
        self._arrived.set()

    def _hand_out(self) -> None:
        """Hand out one piece of the outcomes. The first piece of a batch does not wait, for the sake of latency."""
        for _ in range(min(HAND_OUT, len(self._outcomes))):
            pending, outcome = self._outcomes.popleft()
            self.weight -= pending.weight
            try:
                pending.done(outcome)
            except Exception as error:
                logger.exception("the outcome of a request could not be handed out", exc_info=redacted(error))

    async def _hand_out_rest(self) -> None:
        while True:
            await self._answered.wait()
            while self._outcomes:
                self._hand_out()
                await anyio.lowlevel.checkpoint()
            self._answered = anyio.Event()
            handed_out, self._handed_out = self._handed_out, anyio.Event()
            handed_out.set()


def _provider_error(error: Exception) -> ProviderError:
    if isinstance(error, ProviderError):
        return error
    refusal = DataRefused(f"{type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal
