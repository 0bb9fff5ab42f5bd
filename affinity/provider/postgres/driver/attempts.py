"""Attempts to connect: when, and when a second one beside the first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from psycopg import AsyncConnection

from affinity.provider.postgres.driver.wire import Row

FIRST_PAUSE: Final = 0.1
"""Longest time in seconds from the loss of a connection to the first attempt to connect again."""

LONGEST_PAUSE: Final = 1.0
"""Longest time in seconds between two attempts to connect."""


class Attempts:
    """Times at which the connections of one provider try to connect.

    The first time immediately; after a loss or a failure, after a random time. So the connections of many workers do
    not come back at the same moment.
    """

    def __init__(self) -> None:
        self._failures: int | None = None

    def pause(self) -> float:
        """Seconds to wait before an attempt."""
        if self._failures is None:
            return 0.0
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 16))
        return random.uniform(longest / 2 if self._failures else 0.0, longest)  # noqa: S311 -- jitter, not a secret

    def failed(self) -> None:
        """An attempt failed."""
        self._failures = (self._failures or 0) + 1

    def lost(self) -> None:
        """A connection broke."""
        self._failures = self._failures or 0

    def succeeded(self) -> None:
        """Note that a connection was made."""
        self._failures = None


async def first_connection(
    begin: Callable[[], asyncio.Task[AsyncConnection[Row]]], patience: float
) -> AsyncConnection[Row]:
    """A new connection, or the error when no attempt connects. A connection may die before its first answer without a
    word: after ``patience`` seconds a second attempt begins beside the first, and the one that connects first counts.
    """
    attempts = [begin()]
    try:
        done, _ = await asyncio.wait(attempts, timeout=patience)
        if not done:
            attempts.append(begin())
        while True:
            done, _ = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                attempts.remove(ended)
                if not attempts or _has_connected(ended):
                    return ended.result()
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_close_unused)


def _has_connected(attempt: asyncio.Task[AsyncConnection[Row]]) -> bool:
    return not attempt.cancelled() and attempt.exception() is None


def _close_unused(attempt: asyncio.Task[AsyncConnection[Row]]) -> None:
    """Close the connection of an attempt that is not needed any more."""
    if _has_connected(attempt):
        attempt.result().pgconn.finish()
