"""Whether the worker's event loop makes progress: for the keeper's thread, and for liveness probes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

BEAT_SECONDS: Final = 0.5
"""How often the worker's loop says that it makes progress."""

BLOCKED_BEATS: Final = 3
"""So many missing beats in a row are a loop that is blocked, for one second at least."""


def _ignore() -> None:
    pass


class LoopProgress:
    """Beats of an event loop, from the worker's start to its end, whether or not its database answers."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self.on_beat: Callable[[], None] = _ignore

    def stands_still_for(self) -> float:
        """Seconds since the last beat. For any thread."""
        return time.monotonic() - self._at

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Beat on the running loop within the block."""
        loop = asyncio.get_running_loop()
        self._beat(loop)
        try:
            yield
        finally:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop)
        self._at = time.monotonic()
        self.on_beat()
