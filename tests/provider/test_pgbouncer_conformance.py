"""The conformance suite through a real PgBouncer in session mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from affinity.provider.contract import FetchOptions, Provider, WorkerIdentity
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import attempts
from affinity.provider.timeline import Timeline
from affinity_conformance.providers import Harness, ProviderConformance
from tests.provider.fault_proxy import FaultyPostgres
from tests.provider.harnesses import DISCONNECT, PostgresHarness
from tests.servers.pgbouncer import PROGRAM, pooler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer"),
]


class PooledHarness(PostgresHarness):
    """Providers go through the pooler; what the test does itself does not."""

    pooled = ""

    async def open(self, timeline: Timeline | None = None) -> Provider:
        # Under a name by which no connection is kept: what it has set would be reset to what the server has.
        return await PostgresProvider.open(self.pooled, application_name="through a pooler", timeline=timeline)

    async def open_faulty(self) -> FaultyPostgres:
        return await FaultyPostgres.open(self.pooled)

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        """Without the sessions that the pooler keeps for later clients."""
        async with self._monitor() as monitor:
            await monitor.execute(DISCONNECT, [[]])
        return await super().fetch_cost(identity, options)


@pytest.mark.parametrize("postgres_age", ["new"], indirect=True)
class TestPooled(ProviderConformance):
    """On the newer PostgreSQL: whether a rule holds does not depend on the version and the pooler together."""

    @pytest.fixture
    async def harness(
        self, postgres_shared: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr(attempts, "LONGEST_PAUSE", 0.02)
        weighs = "fetch_cost" in request.function.__code__.co_names
        harness = await PooledHarness.create(postgres_shared, as_new=weighs)
        with pooler(tmp_path, postgres_shared, mode="session") as url:
            harness.pooled = urlunsplit(urlsplit(harness._url)._replace(netloc=urlsplit(url).netloc))
            yield harness
            await harness.aclose()
