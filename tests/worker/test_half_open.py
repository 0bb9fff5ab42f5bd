"""All connections of a worker and of a client are half-open at one moment, on real TCP: packets are lost, and neither
end hears of it. New connections work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker, migrate
from tests.servers.namespaces import Cable, NoNamespaces, RemoteServer, cable, inside
from tests.servers.programs import programs

pytestmark = pytest.mark.slow

PATIENCE = 60.0

BESIDE_LEASE = 3.0
"""Seconds that a worker may be without a turn, beside its lease."""

CLIENT = 8.0
"""Seconds that a call of a client may take."""

STEPS = 40
"""By then every connection of a worker has been used."""


class Walk:
    """An app that takes one turn after the other on a session until it is stopped."""

    def __init__(self) -> None:
        self.app = App("walks")
        self.at: list[float] = []
        """When each step began."""
        self.is_stopped = False

        @self.app.activity
        async def step(ctx: ActivityContext) -> bool:
            self.at.append(time.monotonic())
            return self.is_stopped

        @self.app.orchestration
        async def walk(ctx: OrchestrationContext) -> None:
            session = await ctx.new_guid()
            while not await ctx.schedule_activity(step).on_session(session):
                pass

    async def goes_on(self, since: float) -> None:
        """Until steps have begun after that moment."""
        with anyio.fail_after(PATIENCE):
            while sum(at > since for at in self.at) < STEPS:
                await anyio.sleep(0.01)


@pytest.fixture(scope="module")
def network() -> Iterator[Cable]:
    try:
        with cable() as network:
            yield network
    except NoNamespaces as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def url(network: Cable) -> Iterator[str]:
    """Of a migrated database on a server at the other end."""
    offers = [*programs()]
    if not offers:
        pytest.skip("no programs of a PostgreSQL server are installed")
    newest = max(offers, key=lambda offer: offer.major)

    def start() -> tuple[RemoteServer, str]:
        server = RemoteServer(Path(newest.origin), newest.major, fsync=False)
        url = server.url(server.create_database())
        anyio.run(migrate, url)
        return server, url

    server, url = inside(network.server, start)
    with server:
        yield url


@pytest.mark.parametrize("lease", [3.0, 15.0])
def test_a_worker_and_a_client_go_on_in_time(network: Cable, url: str, lease: float) -> None:
    inside(network.clients, partial(anyio.run, _lose_all, network, url, lease))


async def _lose_all(network: Cable, url: str, lease: float) -> None:
    walk = Walk()
    options = RuntimeOptions.make(worker_lease_timeout=lease)
    async with Client(url) as client, Worker(walk.app, url, options):
        run = await client.start("walk")
        await walk.goes_on(since=0)
        await anyio.to_thread.run_sync(network.lose)
        lost = time.monotonic()
        assert (await run.status()).status == "running"
        took = time.monotonic() - lost
        await walk.goes_on(since=lost + 0.5)
        walk.is_stopped = True
        with anyio.fail_after(PATIENCE):
            await run.wait()
    longest = max(later - earlier for earlier, later in pairwise(walk.at))
    assert 1 < took < CLIENT
    assert 1 < longest < lease + BESIDE_LEASE
