"""PostgreSQL: the contract, and what only this provider has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from affinity.provider.conformance import ProviderConformance, Trouble
from affinity.provider.conformance.builders import work_item
from affinity.provider.conformance.peer import Peer
from affinity.provider.contract import FetchOptions, Incarnation, Provider, WorkerIdentity
from affinity.provider.postgres import PostgresProvider

_COST = """
SELECT sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))
FROM pg_statio_user_tables"""


class PostgresHarness:
    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> Provider:
        return await PostgresProvider.open(self.url)

    async def advance(self, seconds: float) -> None:
        provider = await PostgresProvider.open(self.url)
        await provider.advance_clock(seconds)
        await provider.aclose()

    async def fetch_cost(self, identity: WorkerIdentity, options: FetchOptions) -> int:
        before = self._blocks()
        provider = await PostgresProvider.open(self.url)
        await provider.fetch_work_item(identity, options)
        await provider.aclose()
        return self._blocks() - before

    def _blocks(self) -> int:
        with psycopg.connect(self.url, autocommit=True) as c:
            while c.execute("select count(*) from pg_stat_activity where datname = current_database() and application_name like 'affinity%'").fetchone()[0]:
                pass
            return int(c.execute(_COST).fetchone()[0])

    async def provoke(self, trouble: Trouble) -> None:
        slash = "&" if "?" in self.url else "?"
        provider = await PostgresProvider.open(f"{self.url}{slash}options=-c%20lock_timeout%3D100ms")
        try:
            peer = Peer(provider, WorkerIdentity(worker_id="trouble", incarnation=Incarnation("x")))
            await peer.register()
            if trouble == "connection_lost":
                with psycopg.connect(self.url, autocommit=True) as c:
                    c.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'affinity keep'")
                await peer.renew_lease()
            at = await peer.own("trouble")
            if trouble == "duplicate":
                await peer.commit_one(at, work_items=[work_item(at, 1), work_item(at, 1)])
            else:
                with psycopg.connect(self.url) as c:
                    c.execute("select from affinity.instances where instance_id = 'trouble' for update")
                    await peer.commit_one(at)
        finally:
            await provider.delete_instance(["trouble"], force=True)
            await provider.aclose()

    async def aclose(self) -> None:
        pass


class TestPostgresProvider(ProviderConformance):
    @pytest.fixture
    async def harness(self, postgres_migrated: str) -> AsyncIterator[PostgresHarness]:
        yield PostgresHarness(postgres_migrated)
