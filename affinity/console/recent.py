"""One read for all browsers that look at the same page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

from affinity.tasks import ignore_error

T = TypeVar("T")

SECONDS: Final = 1.0
"""Between two reads of one page at least, however many browsers look."""

MAX_PAGES: Final = 100
"""Pages whose last read is kept."""


class Recent(Generic[T]):
    """The last result of each page's read."""

    def __init__(self) -> None:
        self._reads = LRUCache[Hashable, tuple[float, asyncio.Task[T]]](MAX_PAGES)

    async def get(self, key: Hashable, read: Callable[[], Coroutine[None, None, T]]) -> T:
        """What ``read`` returns or has returned for this key: less than `SECONDS` ago, or it is still reading."""
        now = asyncio.get_running_loop().time()
        at, task = self._reads.get(key, (0.0, None))
        if task is None or (task.done() and now - at >= SECONDS):
            task = asyncio.create_task(read())
            task.add_done_callback(ignore_error)  # its readers may all leave
            self._reads[key] = now, task
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Forget all results: the next calls read again, as after a change."""
        self._reads.clear()
