"""Connections of browsers: how long a request may take to arrive, and how many connections wait for one.

uvicorn limits the idle time between two requests, but not the time of a request's head. Without a bound, clients that
never finish a request hold descriptors until nobody else can connect.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

logger: logging.Logger = logging.getLogger("affinity.console")

HEAD_SECONDS: Final = 10.0
"""Seconds within which the head of a request arrives; a connection that takes longer is closed."""

MAX_WAITING: Final = 200
"""Connections without a complete head, or a quarter of the process's descriptors; a further one closes the oldest."""

BACKLOG: Final = 64
"""Connections that the system accepts ahead of this process."""

LOG_SECONDS: Final = 10.0
"""Seconds between two log lines about closed connections."""


class BoundedProtocol(H11Protocol):
    """HTTP of one connection, with a bound on the time of a head and on the number of connections that wait for one."""

    _waiting: Final[dict[BoundedProtocol, None]] = {}  # oldest first
    _closed: int = 0
    _logged_at: float = 0.0

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head_timer is not None or self.transport.is_closing():
            return
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close_waiting)
        self._waiting[self] = None
        if len(self._waiting) > max_waiting():
            next(iter(self._waiting))._close_waiting()

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._waiting.pop(self, None)

    def _close_waiting(self) -> None:
        self._stop_waiting()
        self.transport.abort()
        kind = type(self)
        kind._closed += 1
        if time.monotonic() - kind._logged_at >= LOG_SECONDS:
            address = self.client[0] if self.client else "an unknown address"
            logger.warning("closed %d connections without a complete request, the last from %s", kind._closed, address)
            kind._closed, kind._logged_at = 0, time.monotonic()


def max_waiting() -> int:
    """The number of connections that may wait for the head of a request."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WAITING if descriptors < 0 else max(1, min(MAX_WAITING, descriptors // 4))
