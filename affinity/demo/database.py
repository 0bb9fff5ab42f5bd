"""The database of a run: opened, and cleaned at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio

from affinity.demo.app import transcript_kind
from affinity.demo.display import Display
from affinity.errors import ProviderError, SessionLoadFailed
from affinity.limits import MAX_BATCH
from affinity.provider import open_provider
from affinity.provider.contract import Provider
from affinity.records import SessionFilter
from affinity.session import SessionManager

CLEAN_UP_SECONDS: Final = 10.0
"""How long to try to remove the data of the run from a database that it shares."""


@asynccontextmanager
async def open_database(url: str, clear: Sequence[str], display: Display) -> AsyncIterator[Provider]:
    """The database; at the end, the sessions and instances of the ids in ``clear`` are removed."""
    provider = await open_provider(url, application_name="affinity demo")
    try:
        yield provider
    finally:
        with anyio.CancelScope(shield=True):
            if clear:
                await _clear(provider, clear, display)
            await provider.aclose()


async def _clear(provider: Provider, names: Sequence[str], display: Display) -> None:
    try:
        with anyio.fail_after(CLEAN_UP_SECONDS):
            for start in range(0, len(names), MAX_BATCH):
                batch = names[start : start + MAX_BATCH]
                await provider.delete_instance(batch, force=True)
                await provider.states.delete(batch)
    except (ProviderError, TimeoutError) as error:
        display.say(f"instances and sessions of this run are left in the database, from {names[0]!r} on: {error}")


async def export_transcripts(provider: Provider, run: str, folder: Path, display: Display) -> None:
    """Write the transcripts of a failed run to the folder, as ``affinity sessions export`` would write them."""
    try:
        async with await anyio.open_file(folder / "transcripts.jsonl", "w", encoding="utf-8") as file:
            async for line in SessionManager(provider.states).export(SessionFilter(kind=transcript_kind(run))):
                await file.write(f"{line}\n")
    except (ProviderError, SessionLoadFailed) as error:
        display.say(f"not all transcripts could be read: {error}")
