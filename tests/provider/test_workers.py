"""What a listing of workers costs in a database with many sessions."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity.provider.postgres import workers as on_postgres
from affinity.provider.sqlite import workers as on_sqlite
from affinity.session import SessionState
from affinity_conformance.providers.peer import Peer

pytestmark = pytest.mark.anyio


async def test_of_many_sessions_each_worker_says_how_many_it_holds(
    kept_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are counted; of more, as many rows are read as the limit, held or not (contract: list_workers)."""
    for module in (on_postgres, on_sqlite):
        monkeypatch.setattr(module, "SCRAPE_COUNT", 3)
    async with aclosing(await open_provider(kept_url)) as provider:
        peer = Peer(provider, WorkerIdentity(worker_id="a", incarnation=Incarnation("a-1")))
        await peer.register()
        await provider.get_load(peer.identity, held=7)
        for number, expected in ((1, 0), (2, 0), (3, 7)):
            await provider.states.save(SessionState(session_id=f"s{number}", state=b"{}"))
            assert [row.sessions for row in await provider.list_workers()] == [expected]
