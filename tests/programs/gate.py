"""A gate for the calls of clients: they wait while the database, or what is before it, fails on purpose.

What they would raise meanwhile is not what the judges of programs look at.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, Final, cast

import anyio

from affinity.errors import ConnectionLost, ProviderError, ReadOnly
from affinity.provider.contract import Provider

OPENING: Final = 120.0
"""Seconds until a client whose opening fails gives up."""

LOOK: Final = 0.005
"""Seconds between two looks at a gate."""


class Gate:
    """Calls of clients, which are made in several event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False
        self._inside = 0
        self.openings = 0

    async def enter(self) -> int:
        """The number of times that it was opened, as soon as it is open."""
        while True:
            with self._lock:
                if not self._is_shut:
                    self._inside += 1
                    return self.openings
            await anyio.sleep(LOOK)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Within it there is no call."""
        with self._lock:
            self._is_shut = True
        try:
            while self._inside:
                await anyio.sleep(LOOK)
            yield
        finally:
            with self._lock:
                self._is_shut = False
                self.openings += 1


async def open_gated(opening: Callable[[], Awaitable[Provider]], gate: Gate) -> Provider:
    """A provider of a client, whose calls pass the gate, which is shut while they would fail.

    The opening does not wait for the gate: the event loop that opens the gate may wait for the opening.
    """
    with anyio.fail_after(OPENING):
        while True:
            openings = gate.openings
            with suppress(ConnectionLost, ReadOnly):
                provider = await opening()
                return cast("Provider", _Gated(provider, gate, provider.read_identity, [openings]))
            await anyio.sleep(LOOK)


class _Gated:
    """Forwards everything. Each coroutine method passes the gate; once it was shut, over a connection that works."""

    def __init__(self, observed: Any, gate: Gate, ping: Callable[[], Any], seen: list[int]) -> None:
        self._observed, self._gate, self._ping, self._seen = observed, gate, ping, seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._observed, name)
        if name == "states":
            return _Gated(found, self._gate, self._ping, self._seen)
        if not asyncio.iscoroutinefunction(found) or name == "aclose":
            return found

        @wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            openings = await self._gate.enter()
            try:
                while self._seen[0] != openings:
                    with suppress(ProviderError):
                        await self._ping()
                        self._seen[0] = openings
                return await found(*args, **kwargs)
            finally:
                self._gate.leave()

        return call
