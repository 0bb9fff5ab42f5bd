"""What the session cache is made of: one copy of a session's state, the order in which unused copies go, and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from cachetools import TTLCache

from affinity.errors import UnknownSession

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts since the cache was made, and its size now."""

    hits: int = 0  # uses and peeks that found the state in memory
    misses: int = 0  # uses and peeks that did not
    hydrations: int = 0  # copies that came to be, by ``hydrate`` or by ``put``
    evictions: int = 0  # copies given up for room or for idleness
    losses: int = 0  # copies given up because their lease had ended
    conflicts: int = 0  # changes that were refused, or whose commit nobody could confirm: the store won
    size: int = 0  # copies in memory, those that wait for their last user included
    bytes: int = 0  # of these copies, as far as somebody measures them


class Copy(Generic[S]):
    """The state of one session at one epoch."""

    state: S  # set once hydrated

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.users: list[int] = []  # id() of the contexts that pin it; an activity may do so more than once
        self.bytes = 0
        self.hydrated = self.leaving = self.disposing = False
        self.failure: Exception | None = None
        self.ready: anyio.Event | None = None  # set when a hydrate that runs has ended, well or not
        self.unused = anyio.Event()  # set when it is leaving and its last user has left
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


def unknown_session(session_id: str, epoch: int, other: Copy[Any] | None) -> UnknownSession:
    """The error, with what this process has instead."""
    text = f"no state of session {session_id!r} at epoch {epoch} in this process"
    if other is not None:
        hint = "the session has moved on" if other.epoch > epoch else "hydrate it again"
        text += f", which has it at epoch {other.epoch}: {hint}"
    return UnknownSession(text)
