"""Waiting for a state that the database shows."""

from __future__ import annotations

import anyio

from affinity.client import Client


async def started(client: Client, instance_id: str) -> None:
    """Until the instance has committed a turn: some worker owns it."""
    with anyio.fail_after(30):
        while (await client.status(instance_id)).event_count == 0:
            await anyio.sleep(0)
