"""Following the moves of sessions as they happen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import anyio

from affinity.client.calls import retry
from affinity.limits import MAX_PAGE
from affinity.provider.contract import MoveFilter, Provider, SessionMove

LATE_SECONDS: Final = 10.0
"""How long after a move one with a smaller epoch may still be committed."""


async def follow_moves(
    provider: Provider, where: MoveFilter, after: int | None, poll_interval: float
) -> AsyncIterator[SessionMove]:
    """Each move after an epoch once; None: after the last one so far."""
    if after is None:
        newest = await retry(partial(provider.list_session_moves, where, limit=1))
        after = newest[0].epoch if newest else 0
    follower = _Follower(after)
    while True:
        found = follower.after
        while True:
            page = await retry(partial(provider.list_session_moves, where, after=found, limit=MAX_PAGE))
            for move in page:
                if follower.note(move):
                    yield move
            if len(page) < MAX_PAGE:
                break
            found = page[-1].epoch
        follower.forget()
        await anyio.sleep(poll_interval)


class _Follower:
    """Which moves were seen: the reading begins so far back that late ones are found."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._seen: dict[int, float] = {}  # epochs, by when they were first seen on the monotonic clock

    def note(self, move: SessionMove) -> bool:
        """Whether the move is seen for the first time."""
        if move.epoch in self._seen:
            return False
        self._seen[move.epoch] = time.monotonic()
        return True

    def forget(self) -> None:
        """No move comes any more that is older than those that were seen long ago."""
        long_ago = time.monotonic() - LATE_SECONDS
        for epoch in [epoch for epoch, at in self._seen.items() if at < long_ago]:
            del self._seen[epoch]
            self.after = max(self.after, epoch)
