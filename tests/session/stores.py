"""The session stores that we have, as the suite of stores wants them."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, LiteralString, Protocol

from affinity import SessionStore
from affinity.provider.sqlite import Clock
from affinity.session.stores import MemorySessionStore
from affinity_conformance.providers import Harness
from tests.provider.harnesses import PostgresHarness, SqliteHarness


class StoppableClock(Clock):
    """The machine's clock plus an offset, until it is stopped."""

    _stopped_at: float | None = None

    def now(self) -> float:
        return super().now() if self._stopped_at is None else self._stopped_at

    def stop(self) -> None:
        self._stopped_at = self.now()

    def advance(self, seconds: float) -> None:
        """Move forward from where it is, and go on from there."""
        now, self._stopped_at = self.now(), None
        self.offset = now + seconds - time.time()


class MemoryStores:
    """One store for all: another process would have another memory."""

    def __init__(self) -> None:
        self._clock = StoppableClock()
        self._store = MemorySessionStore(lambda: datetime.fromtimestamp(self._clock.now(), UTC))

    async def open(self) -> SessionStore:
        return self._store

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def stop_clock(self) -> None:
        self._clock.stop()

    async def aclose(self) -> None:
        """Nothing was opened."""


class Stoppable(Harness, Protocol):
    """A provider's database whose clock can be stopped."""

    async def stop_clock(self) -> None: ...


class StoppableSqlite(SqliteHarness):
    """A file whose clock can be stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._clock: StoppableClock = StoppableClock()

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def stop_clock(self) -> None:
        self._clock.stop()


STOP_CLOCK: Final[LiteralString] = """
DO $do$
BEGIN
    EXECUTE format(
        $f$CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
        AS %L$f$, format('SELECT timestamptz %L', clock()));
END $do$"""


class StoppablePostgres(PostgresHarness):
    """A schema whose clock can be stopped; to advance it is to let it go."""

    async def stop_clock(self) -> None:
        async with self._monitor() as monitor:
            await monitor.execute(STOP_CLOCK)


class ProviderStores:
    """The records of a provider's database."""

    def __init__(self, harness: Stoppable) -> None:
        self._harness = harness
        self._opened = AsyncExitStack()

    async def open(self) -> SessionStore:
        provider = await self._harness.open()
        self._opened.push_async_callback(provider.aclose)
        return provider.states

    async def advance(self, seconds: float) -> None:
        await self._harness.advance(seconds)

    async def stop_clock(self) -> None:
        await self._harness.stop_clock()

    async def aclose(self) -> None:
        await self._opened.aclose()
        await self._harness.aclose()
