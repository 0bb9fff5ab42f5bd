"""Waiting for a state that the database shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from affinity.client import Client


async def started(client: Client, instance_id: str) -> None:
    """Until the instance has committed a turn: some worker owns it."""
    with anyio.fail_after(30):
        while (await client.status(instance_id)).event_count == 0:
            await anyio.sleep(0)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Until ``look`` says so."""
    with anyio.fail_after(30):
        while not await look():
            await anyio.sleep(0.01)
