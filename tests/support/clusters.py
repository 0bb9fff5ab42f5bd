"""A `Cluster` of the conformance suite on the database at a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from affinity.provider import open_provider
from affinity.provider.contract import Provider
from affinity.provider.sqlite import Clock, SqliteProvider
from affinity.provider.timeline import Timeline


class Database:
    """What a `Cluster` needs of the database at a URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clock = Clock()

    async def open(self, timeline: Timeline | None = None) -> Provider:
        """Open it, with the clock of the test."""
        if self._url.startswith("sqlite"):
            return await SqliteProvider.open(Path(self._url.removeprefix("sqlite:///")), clock=self._clock)
        return await open_provider(self._url)

    async def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._clock.offset += seconds
        if not self._url.startswith("sqlite"):
            provider: Any = await open_provider(self._url)
            await provider.advance_clock(seconds)
            await provider.aclose()
