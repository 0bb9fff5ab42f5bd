"""What the session cache is made of: one copy of a session's state, and the order in which unused copies go."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
from cachetools import TTLCache

S = TypeVar("S")


class Copy(Generic[S]):
    """The state of one session at one epoch."""

    state: S  # set once hydrated

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.users: list[int] = []  # id() of the contexts that pin it; an activity may do so more than once
        self.hydrated = self.leaving = self.disposing = False
        self.failure: Exception | None = None
        self.ready: anyio.Event | None = None  # set when a hydrate that runs has ended, well or not
        self.gone = anyio.Event()
        self.saving = anyio.Lock(fast_acquire=True)  # checkpoints of one session keep their order

    @property
    def is_new(self) -> bool:
        """Made just now: nobody uses it, and nobody has tried to hydrate it."""
        return not self.hydrated and not self.users

    def __str__(self) -> str:
        return f"session {self.session_id!r} at epoch {self.epoch}"


class Shelf(TTLCache[str, None]):
    """Ids of the copies that nobody uses. cachetools expires on almost every call: expiry reports what it removed."""

    def __init__(self, idle_timeout: float, timer: Callable[[], float], on_expire: Callable[[str], None]) -> None:
        super().__init__(math.inf, idle_timeout, timer)
        self._on_expire = on_expire

    def expire(self, time: float | None = None) -> list[tuple[str, None]]:
        expired = super().expire(time)
        for session_id, _ in expired:
            self._on_expire(session_id)
        return expired

    def discard(self, session_id: str) -> None:
        """Remove it, expired or not; ``pop`` would leave an expired one to be reported later."""
        with suppress(KeyError):
            del self[session_id]
