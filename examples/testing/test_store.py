"""The conformance suite of session stores, run on a store: ``pip install affinity-conformance``, ``pytest``."""

from datetime import UTC, datetime, timedelta

import pytest

import affinity
from affinity_conformance.stores import StoreConformance


class MemoryHarness:
    """A fresh store for one test, and a clock that the test moves."""

    def __init__(self) -> None:
        self.offset = timedelta()
        self.stopped: datetime | None = None
        self.store = affinity.MemorySessionStore(self.now)

    def now(self) -> datetime:
        """The time as the store is to see it."""
        return self.stopped or datetime.now(UTC) + self.offset

    async def open(self) -> affinity.SessionStore:
        """A further store object on the same records."""
        return self.store

    async def advance(self, seconds: float) -> None:
        """Move the clock; it goes again if it was stopped."""
        self.offset = self.now() + timedelta(seconds=seconds) - datetime.now(UTC)
        self.stopped = None

    async def stop_clock(self) -> None:
        """Until the next `advance`."""
        self.stopped = self.now()

    async def aclose(self) -> None:
        """Remove the records."""


class TestMyStore(StoreConformance):
    """All rules of a session store, on this one."""

    @pytest.fixture
    async def harness(self) -> MemoryHarness:
        """What each test gets."""
        return MemoryHarness()
