"""PostgreSQL with a synchronous standby that does not answer: what was not confirmed is neither seen nor committed
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import anyio
import psycopg
import pytest

from affinity import migrate
from affinity.errors import ConnectionLost
from affinity.provider.contract import NewInstance
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import connections
from tests.provider.postgres_stage import PATIENCE, administrator, opened
from tests.servers import old_and_new
from tests.support.waiting import run_on_a_thread

pytestmark = pytest.mark.anyio

WAITS_FOR_STANDBY: Final = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
COMMITTED: Final = "SELECT max(instance_id) FROM instances"


@pytest.fixture(params=["old", "new"])
def own_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database on a server whose settings this test may change."""
    offer = dict(zip(("old", "new"), old_and_new(), strict=True))[request.param]
    with offer.open() as server:
        url = server.url(server.create_database())
        run_on_a_thread(migrate, url)
        yield url


def require_standby(admin: psycopg.Connection[Any], name: str) -> None:
    """Of that name; empty: none."""
    admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    admin.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("how", ["not answered", "abandoned", "closed"])
async def test_a_write_that_waits_for_a_standby_is_not_cancelled(
    own_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL commits it on the primary alone when it is, for all to see, and after a failover it is gone. However
    the call is given up: its connection is closed, and the write is seen when the standby has it.
    """
    monkeypatch.setattr(connections, "CALL_TIMEOUT", 3.0 if how == "not answered" else PATIENCE)
    monkeypatch.setattr(connections, "CANCELLED_CALL_TIMEOUT", 0.1)
    with administrator(own_url) as admin:
        async with opened(own_url) as provider:
            await provider.list_workers()
            require_standby(admin, "absent")
            name, write = await _stuck(provider, admin)
            if how == "abandoned":
                write.cancel()
            elif how == "closed":
                await provider.aclose()
            with pytest.raises(asyncio.CancelledError if how == "abandoned" else ConnectionLost):
                await write
            if how == "abandoned":
                await provider.get_instance([name])  # on the same link: that call was given up before
        assert admin.execute(COMMITTED).fetchone() != (name,)
        require_standby(admin, "")
        with anyio.fail_after(PATIENCE):
            while admin.execute(COMMITTED).fetchone() != (name,):
                await anyio.sleep(0.005)


async def _stuck(provider: PostgresProvider, admin: psycopg.Connection[Any]) -> tuple[str, asyncio.Task[Any]]:
    """The name of an instance whose creation waits: from the moment at which the server knows that it should."""
    for n in range(100_000, 200_000):
        new = NewInstance(instance_id=str(n), name="n", version=None, start="s")
        write = asyncio.create_task(provider.create_instance([new]))
        while not write.done():
            if admin.execute(WAITS_FOR_STANDBY).fetchone() == (True,):
                return str(n), write
            await anyio.sleep(0.001)
        await write
    raise AssertionError("no write waits")
