"""Base class of the suite's themes: the fixture `cluster`, fresh for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.harness import Harness


class Rules:
    """A theme of the contract. Its tests need a fixture ``harness``, which the class that runs them defines."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop to run on; a provider for another one overrides it."""
        return "asyncio"

    @pytest.fixture
    async def cluster(self, harness: Harness) -> AsyncIterator[Cluster]:
        """A fresh database and everything opened on it."""
        cluster = Cluster(harness)
        await cluster.enqueuer()
        yield cluster
        await cluster.aclose()
