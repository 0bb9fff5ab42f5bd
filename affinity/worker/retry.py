"""Trying again while the database is gone: with backoff, without losing work, and with one log line per state
change.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from affinity.errors import Contention, ProviderError

logger = logging.getLogger("affinity.worker")

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

LOST_AFTER = 2
"""Failures in a row after which the database counts as lost."""

SETTLED = 1.0
"""Seconds without a failure after which it counts as back."""


def is_retryable(error: BaseException) -> bool:
    """Whether the provider says that trying again makes sense."""
    return isinstance(error, ProviderError) and error.retryable


class Availability:
    """Whether the database answers, as seen by one worker; logs each change once, however many tasks (and the keeper's
    thread) notice it.

    A worker has several connections, which break and come back one by one. So the database counts as lost when two
    calls in a row failed, and as back when none has failed for `SETTLED` seconds.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._up = True
        self._failures = 0
        self._failed_at = 0.0

    def failed(self, error: BaseException) -> None:
        """A call failed. Contention is an answer too: it says nothing about the connection."""
        if not is_retryable(error) or isinstance(error, Contention):
            return
        self._failures += 1
        self._failed_at = time.monotonic()
        if self._up and self._failures >= LOST_AFTER:
            self._up = False
            logger.warning("worker %s: database lost (%s); retrying with backoff", self._worker_id, error)

    def answered(self) -> None:
        """A call succeeded."""
        if self._up:
            self._failures = 0
        elif time.monotonic() - self._failed_at >= SETTLED:
            self._up = True
            self._failures = 0
            logger.warning("worker %s: database is back", self._worker_id)

    async def call(self, verb: Callable[[], Awaitable[T]]) -> T:
        """Await ``verb()`` once, and note whether the database answered."""
        try:
            result = await verb()
        except ProviderError as error:
            self.failed(error)
            raise
        self.answered()
        return result

    async def insist(self, verb: Callable[[], Awaitable[T]], patience: float = math.inf) -> T:
        """Await ``verb()`` until it answers; only for verbs that are right when done twice.

        Raises:
            ProviderError: one that is not retryable, or the last one after ``patience`` seconds.
        """
        attempts = AsyncRetrying(
            stop=stop_after_delay(patience),
            retry=retry_if_exception(is_retryable),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
            reraise=True,
        )
        return await attempts(self.call, verb)
