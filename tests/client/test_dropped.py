"""A client that is dropped open says so, and leaves neither a thread nor a task behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Awaitable, Callable

import pytest

from affinity import Client, migrate
from affinity.provider import open_provider


async def _drop_client(url: str) -> None:
    client = Client(url)
    await client.__aenter__()
    await client.workers()


async def _drop_and_wait(url: str) -> None:
    before = asyncio.all_tasks()
    await _drop_client(url)
    gc.collect()
    async with asyncio.timeout(10):
        while asyncio.all_tasks() - before:
            gc.collect()
            await asyncio.sleep(0.01)


async def _drop_provider(url: str) -> None:
    await open_provider(url)


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("affinity-sqlite")}


@pytest.mark.parametrize(("drop", "warns"), [(_drop_client, True), (_drop_and_wait, True), (_drop_provider, False)])
@pytest.mark.parametrize("kept_url", ["sqlite", "new"], indirect=True)
def test_what_is_dropped_open_is_closed(kept_url: str, drop: Callable[[str], Awaitable[None]], warns: bool) -> None:
    """While its loop runs, and with its end."""
    before = _threads()

    async def run() -> None:
        await migrate(kept_url)
        await drop(kept_url)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    said = [each for each in found if "a client was dropped open" in str(each.message)]
    assert len(said) == warns
    said.clear()
    found.clear()  # a warning has its source
    gc.collect()
    for thread in _threads() - before:
        thread.join(10)
    assert not _threads() - before
