"""Following the moves of sessions as they happen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import anyio

from affinity.client.calls import retry
from affinity.limits import MAX_PAGE
from affinity.paging import PageIterator
from affinity.provider.contract import MoveFilter, Provider, SessionMove

LATE_SECONDS: Final = 10.0
"""How long after a move one with a smaller epoch may still be committed."""


def follow_moves(
    connect: Callable[[], Provider], where: MoveFilter, after: int | None, poll_interval: float
) -> AsyncIterator[SessionMove]:
    """Each move after an epoch once; None: after the last one so far."""
    return PageIterator(_Follower(connect, where, poll_interval).read, _Cursor(after))


class _Cursor(NamedTuple):
    """Where the next page of moves begins."""

    after: int | None  # an epoch; None: the last one so far
    waits: bool = False  # for the poll interval before it is read


class _Follower:
    """Reads each move once. The reading begins so far back that late moves are found."""

    def __init__(self, connect: Callable[[], Provider], where: MoveFilter, poll_interval: float) -> None:
        self._connect = connect
        self._where = where
        self._poll_interval = poll_interval
        self._after: int | None = None  # moves up to here are not read again
        self._seen: dict[int, float] = {}  # epochs, by when they were first seen on the monotonic clock

    async def read(self, at: _Cursor) -> tuple[Sequence[SessionMove], _Cursor]:
        """The moves of one page that were not seen before, and where the next page begins."""
        if at.after is None:
            newest = await self._list(None, 1)
            return (), _Cursor(newest[0].epoch if newest else 0)
        if at.waits:
            await anyio.sleep(self._poll_interval)
        page = await self._list(at.after, MAX_PAGE)
        if self._after is None:
            self._after = at.after
        new = [move for move in page if move.epoch not in self._seen]
        self._seen.update(dict.fromkeys([move.epoch for move in new], time.monotonic()))
        if len(page) == MAX_PAGE:
            return new, _Cursor(page[-1].epoch)
        self._after = max([self._after, *self._forgotten()])
        return new, _Cursor(self._after, waits=True)

    async def _list(self, after: int | None, limit: int) -> Sequence[SessionMove]:
        return await retry(partial(self._connect().list_session_moves, self._where, after=after, limit=limit))

    def _forgotten(self) -> Sequence[int]:
        """Epochs that were seen so long ago that no older one comes any more."""
        long_ago = time.monotonic() - LATE_SECONDS
        found = [epoch for epoch, at in self._seen.items() if at < long_ago]
        for epoch in found:
            del self._seen[epoch]
        return found
