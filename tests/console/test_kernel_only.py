"""The console on a database whose provider lacks the verbs of guests."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from affinity import Client
from affinity.console.pages.overview import overview
from affinity.console.pages.sessions import session
from affinity.console.payloads import Payloads, show_all
from affinity.provider import open_provider
from affinity.provider.contract import Provider
from tests.provider.sqlite_files import create_file
from tests.support.kernel_only import KernelOnly

pytestmark = pytest.mark.anyio


async def test_pages_that_show_more_than_conversations_are_there(tmp_path: Path) -> None:
    create_file(path := tmp_path / "console.db")
    provider = await open_provider(f"sqlite:///{path}")
    try:
        async with Client.from_provider(cast(Provider, KernelOnly(provider))) as client:
            await client.start("chat", instance_id="i")
            found = await overview(client, {}, Payloads(show_all))
            assert (found["requests"], found["failed_conversations"]) == ([], [])
            assert (await session(client, {"id": "i"}, Payloads(show_all)))["conversation"] is None
    finally:
        await provider.aclose()
