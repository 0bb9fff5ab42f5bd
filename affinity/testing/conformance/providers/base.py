"""What every theme of the suite shares: the world, made anew for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from affinity.testing.conformance.providers.harness import Harness
from affinity.testing.conformance.providers.world import World


class Rules:
    """A theme of the contract. Its tests need a fixture ``harness``, which the class that runs them defines."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop to run on; a provider for another one overrides it."""
        return "asyncio"

    @pytest.fixture
    async def world(self, harness: Harness) -> AsyncIterator[World]:
        """A fresh database and everything opened on it."""
        world = World(harness)
        await world.clerk()
        yield world
        await world.aclose()
