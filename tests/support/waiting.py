"""Waiting: for a state that the database shows, and for work on another thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import anyio

from affinity import Client


async def started(client: Client, instance_id: str) -> None:
    """Wait until the instance has committed a turn: a worker owns it."""
    with anyio.fail_after(30):
        while (await client.status(instance_id)).event_count == 0:
            await anyio.sleep(0)


async def until(look: Callable[[], Awaitable[bool]], patience: float = 30) -> None:
    """Wait until ``look`` is true, at most ``patience`` seconds."""
    with anyio.fail_after(patience):
        while not await look():
            await anyio.sleep(0.01)


def run_on_a_thread(work: Callable[[str], Awaitable[object]], url: str) -> None:
    """Run to its end on a thread of its own: an async fixture, whose loop runs, may use the fixture that calls this."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(anyio.run, work, url).result()
