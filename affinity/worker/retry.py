"""Retries of database calls with backoff, and whether the database answers (`DatabaseHealth`)."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

import anyio
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, stop_never, wait_random_exponential

from affinity.errors import Contention, ProviderError
from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.worker")

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

LOST_AFTER = 2
"""Failures in a row after which the database counts as lost."""

SETTLED = 1.0
"""Seconds without a failure after which it counts as back."""

FORGOTTEN = 45.0
"""Seconds after which the failure of a caller that has not called again no longer counts: longer than any call."""


def is_retryable(error: BaseException) -> bool:
    """Whether the provider marks the error as one that may pass."""
    return isinstance(error, ProviderError) and error.retryable


def _is_retryable_at_start(error: BaseException) -> bool:
    return isinstance(error, ProviderError) and error.retryable and not error.misconfigured


def _is_unchanged(error: BaseException) -> bool:
    return isinstance(error, ProviderError) and error.retryable and not error.maybe_done


class Backoff:
    """Pauses between failures in a row: each about twice as long as the one before, and random, so that callers which
    failed together do not come back together.
    """

    def __init__(self, longest: float = LONGEST_PAUSE) -> None:
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        longest = min(self._longest, FIRST_PAUSE * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return random.uniform(longest / 2, longest)  # noqa: S311 -- jitter, not a secret

    def reset(self) -> None:
        """Begin with the shortest pause again, after a success."""
        self._failures = 0


class DatabaseHealth:
    """Whether the database answers, as seen by one worker; logs each change once, however many tasks (and the lease
    renewer's thread) notice it.

    A worker has several connections, which break and come back one by one. A database may fail some calls only: with a
    full disk it goes on reading. So it counts as lost when two calls failed and neither caller has succeeded since. It
    counts as back when every caller that failed has succeeded, and none has failed for `SETTLED` seconds.
    """

    def __init__(self, worker_id: str) -> None:
        self.longest_pause = LONGEST_PAUSE
        """Between two calls that fail."""
        self._worker_id = worker_id
        self._up = True
        self._failures = 0
        self._failed_at = 0.0
        self._failing: dict[Hashable, float] = {}  # callers that have not succeeded since they failed

    @property
    def is_up(self) -> bool:
        """Whether the database counts as answering."""
        return self._up

    def note_failure(self, error: BaseException, caller: Hashable = "") -> None:
        """Note that a call failed. Contention is an answer: it does not count."""
        if isinstance(error, Contention):
            return
        self._failures += 1
        self._failing[caller] = self._failed_at = time.monotonic()
        if self._up and self._failures >= LOST_AFTER:
            self._up = False
            logger.warning("worker %s: database lost (%s); retrying with backoff", self._worker_id, redacted(error))

    def note_answer(self, caller: Hashable = "") -> None:
        """Note that a call succeeded."""
        if not self._failures:
            return
        self._failing.pop(caller, None)
        now = time.monotonic()
        if any(now - at < FORGOTTEN for at in list(self._failing.values())):
            return
        if self._up:
            self._failures = 0
        elif now - self._failed_at >= SETTLED:
            self._up = True
            self._failures = 0
            logger.warning("worker %s: database is back", self._worker_id)

    def forget(self, caller: Hashable) -> None:
        """Forget the failures of a caller that does not repeat its call."""
        self._failing.pop(caller, None)

    def forget_all(self) -> None:
        """Forget the failures of all callers: a new incarnation replaces them."""
        self._failing.clear()

    async def call(self, verb: Callable[[], Awaitable[T]], caller: Hashable = "") -> T:
        """Await ``verb()`` once, and note whether the database answered."""
        try:
            result = await verb()
        except ProviderError as error:
            if error.retryable:
                self.note_failure(error, caller)
            raise
        self.note_answer(caller)
        return result

    async def call_seldom(self, verb: Callable[[], Awaitable[T]], caller: Hashable) -> T:
        """As `call`, for a caller that may call again in a minute only: until then the database may be back."""
        try:
            return await self.call(verb, caller)
        except ProviderError as error:
            if error.retryable:
                self.forget(caller)
            raise

    async def retry(self, verb: Callable[[], Awaitable[T]]) -> T:
        """Await ``verb()``, and repeat it until it answers; only for idempotent verbs.

        Raises:
            ProviderError: one that is not retryable.
        """
        try:
            return await self.call(verb)  # nearly always: without the cost of what repeats it
        except ProviderError as error:
            if not is_retryable(error):
                raise
        await anyio.sleep(random.uniform(0.0, FIRST_PAUSE))  # noqa: S311 -- jitter, not a secret
        return await self._retrying(is_retryable)(self.call, verb)

    async def retry_if_unchanged(self, verb: Callable[[], Awaitable[T]]) -> T:
        """As `retry`, for verbs that are not idempotent: repeat only failures that changed nothing.

        Raises:
            ProviderError: one that is not retryable, or after which it is unknown whether the verb was done.
        """
        return await self._retrying(_is_unchanged)(self.call, verb)

    async def start(self, verb: Callable[[], Awaitable[T]], timeout: float) -> T:
        """As `retry`, for a worker that starts.

        Raises:
            ProviderError: one that is not retryable, or that an operator must correct (``misconfigured``); the last one
                after ``timeout`` seconds.
        """
        return await self._retrying(_is_retryable_at_start, timeout)(self.call, verb)

    def _retrying(self, condition: Callable[[BaseException], bool], timeout: float | None = None) -> AsyncRetrying:
        return AsyncRetrying(
            stop=stop_never if timeout is None else stop_after_delay(timeout),
            retry=retry_if_exception(condition),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE, max=self.longest_pause),
            reraise=True,
        )
