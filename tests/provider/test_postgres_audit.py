"""The audit log on PostgreSQL: the connection of its transactions, and what a page reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, LiteralString

import anyio
import psycopg
import pytest

from affinity.audit import AuditFilter, stated
from affinity.errors import ConnectionLost
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import connections, transactions
from affinity.testing.conformance.providers.builders import new_instance
from affinity.testing.conformance.providers.fault_audit import acting, entries_of
from tests.provider.postgres_plans import AUTO_EXPLAIN, MOST, collect_plans, rows_read
from tests.provider.postgres_stage import SOMEBODY_WAITS, administrator, opened, until
from tests.servers.proxy import proxy

pytestmark = pytest.mark.anyio

CONNECTED: Final[LiteralString] = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '% audit'"
)
ROWS: Final[LiteralString] = """
INSERT INTO audit (at, stated_user, source, role, action, kind, target, outcome, succeeded, details)
SELECT clock() - n * '1 s'::interval, CASE WHEN n % 2000 = 0 THEN 'ann' ELSE 'bob' END, 'console', 'r',
    CASE WHEN n % 2000 = 1 THEN 'reset' ELSE 'cancel' END, 'instance', 'i' || n, 'done', true, '{}'
FROM generate_series(1, 20000) n"""


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


async def test_its_connection_is_made_again_and_closed(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a user needs it. One that broke while it was idle fails no action."""
    async with opened(postgres_migrated) as provider:
        await provider.create_instance([new_instance("i0")])
        assert admin.execute(CONNECTED).fetchone() == (0,)
        with stated(acting(provider)):
            await provider.create_instance([new_instance("i1")])
            assert admin.execute(CONNECTED).fetchone() == (1,)
            admin.execute(
                "SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '% audit'"
            )
            assert await provider.create_instance([new_instance("i2")]) == [True]
            monkeypatch.setattr(transactions, "IDLE_SECONDS", 0.0)
            assert await provider.create_instance([new_instance("i3")]) == [True]
        await until(admin, f"SELECT ({CONNECTED}) = 0")
        for name in ("i1", "i2", "i3"):
            assert await entries_of(provider, name) == [("create_instance", "done", True)]


@pytest.mark.parametrize("by", ["caller", "provider"])
async def test_a_transaction_that_is_given_up_leaves_nothing(
    postgres_migrated: str, admin: psycopg.Connection[Any], by: str
) -> None:
    """By a caller that is cancelled, and by a provider that is closed, while it waits for a lock."""
    async with opened(postgres_migrated) as provider:
        with admin.transaction():
            admin.execute("LOCK TABLE instances")
            with stated(acting(provider)):
                call = asyncio.create_task(provider.create_instance([new_instance("i")]))
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
            if by == "caller":
                call.cancel()
            else:
                await provider.aclose()
            with pytest.raises(asyncio.CancelledError if by == "caller" else ConnectionLost):
                await call
        await until(admin, f"SELECT ({CONNECTED}) = 0")
    async with opened(postgres_migrated) as other:
        assert await other.get_instance(["i"]) == [None]
        assert await other.list_audit(AuditFilter(), 10) == []


SESSIONS: Final[LiteralString] = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name LIKE '% audit' AND state <> 'idle'"
)


@pytest.mark.parametrize("only_replies", [True, False])
async def test_a_silent_link_ends_an_action_as_soon_as_any_call(
    postgres_migrated: str, admin: psycopg.Connection[Any], only_replies: bool
) -> None:
    """Its connection is asked about, and both ends are closed; an action that has not begun goes on a new one."""
    with proxy(postgres_migrated) as network:
        async with aclosing(await PostgresProvider.open(network.url, probe_after=1.0)) as provider:
            with stated(acting(provider)):
                await provider.create_instance([new_instance("i0")])
                network.lose(only_replies=only_replies)
                with anyio.fail_after(10.0):
                    assert await provider.create_instance([new_instance("i1")]) == [True]
            await until(admin, f"SELECT ({SESSIONS}) = 0")


async def test_a_link_that_is_cut_inside_an_action_holds_rows_for_a_second(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the effect and its entry: the server ends the transaction, and nothing is done."""
    with proxy(postgres_migrated) as network:
        async with aclosing(await PostgresProvider.open(network.url, probe_after=1.0)) as provider:
            await provider.create_instance([new_instance("i")])
            commit_with = transactions.Transaction.commit_with

            async def cut(self: transactions.Transaction, *args: Any) -> None:
                network.lose()
                await commit_with(self, *args)

            monkeypatch.setattr(transactions.Transaction, "commit_with", cut)
            with stated(acting(provider)):
                action = asyncio.create_task(provider.delete_instance(["i"], force=True))
            await until(admin, f"SELECT ({SESSIONS}) = 1")
            began = asyncio.get_running_loop().time()
            admin.execute("SELECT FROM instances WHERE instance_id = 'i' FOR UPDATE")
            assert asyncio.get_running_loop().time() - began < 4.0
            with pytest.raises(ConnectionLost):
                await action
    async with opened(postgres_migrated) as other:
        assert await other.get_instance(["i"]) != [None]
        assert await other.list_audit(AuditFilter(), 10) == []


async def test_a_page_reads_what_it_shows(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each condition, among 20,000 entries, with statistics and without."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    admin.execute(ROWS)
    now = datetime.now(UTC)
    pages = [{"user": "ann"}, {"action": "reset"}, {"target": "i7"}, {"until": now}, {"after": (now, 5)}, {}]
    for prepare in ("SELECT 1", "VACUUM ANALYZE audit"):
        admin.execute(prepare)
        async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
            for where in pages:
                plans.clear()
                assert await provider.list_audit(AuditFilter(**where), 10), where  # type: ignore[arg-type]
                read = sum(rows for plan in plans for table, rows in rows_read(plan["Plan"]) if table == "audit")
                assert 0 < read <= MOST, (where, read)
