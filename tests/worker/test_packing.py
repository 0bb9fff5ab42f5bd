"""Workers with ``placement="pack"``: where new sessions go, and what a worker leaves behind when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from affinity import Client, RuntimeOptions, Worker
from tests.support import apps

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


def options(ordinal: int, **values: object) -> RuntimeOptions:
    return RuntimeOptions.make(
        worker_node_id=f"w-{ordinal}", placement="pack", max_sessions_per_runtime=2, poll_interval=0.2, **values
    )


async def test_the_lowest_workers_are_filled(kept_url: str, client: Client) -> None:
    """Three sessions on three workers with room for two each; the highest starts first and runs alone."""
    async with AsyncExitStack() as stack:
        for ordinal in (2, 1, 0):
            await stack.enter_async_context(Worker(apps.app, kept_url, options(ordinal)))
        for number in range(3):
            await client.start(apps.walk, 2, instance_id=f"i{number}")
            await client.wait(f"i{number}", timeout=60)
        held = {row.worker_id: row.sessions for row in await client.workers()}
        assert held == {"w-0": 2, "w-1": 1, "w-2": 0}


@pytest.mark.parametrize(("ordinal", "kept"), [(0, True), (1, False)])
async def test_a_worker_that_is_not_needed_leaves_no_session_to_its_name(
    kept_url: str, client: Client, ordinal: int, kept: bool
) -> None:
    """One session needs one worker, the lowest: its session waits for its next start, another's session is free."""
    async with Worker(apps.app, kept_url, options(ordinal, restart_grace=600.0)):
        await client.start(apps.walk, 1, instance_id="i")
        await client.wait("i", timeout=60)
    (session,) = [row async for row in client.sessions()]
    assert session.held == kept
