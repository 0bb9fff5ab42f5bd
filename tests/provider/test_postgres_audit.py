"""The audit log on PostgreSQL: an action and its entry are one message, and what a page reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from inspect import isfunction
from types import SimpleNamespace
from typing import Any, Final, LiteralString

import psycopg
import pytest

from affinity.actions import stated
from affinity.audit.acting import Acting
from affinity.audit.entries import AuditFilter, NewAuditEntry
from affinity.audit.store.contract import audit_of
from affinity.provider.contract import Provider
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.wire import WireProtocol
from affinity.provider.postgres.parts import parts
from affinity_conformance.providers import ProviderConformance
from affinity_conformance.providers.audit.fault_verbs import USER, acting, entries_of
from affinity_conformance.providers.builders import new_instance
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.fault_fixtures import FaultFixtures, fault_verbs
from tests.provider.harnesses import SCHEMA, PostgresHarness
from tests.provider.postgres_plans import AUTO_EXPLAIN, MOST, collect_plans, rows_read
from tests.provider.postgres_stage import ALL_IDLE, SOMEBODY_WAITS, administrator, opened, until
from tests.servers.proxy import proxy

pytestmark = pytest.mark.anyio

VERBS: Final = fault_verbs(ProviderConformance)

ROWS: Final[LiteralString] = """
INSERT INTO audit (at, stated_user, source, role, action, kind, target, outcome, succeeded, details)
SELECT clock() - n * '1 s'::interval, CASE WHEN n % 2000 = 0 THEN 'ann' ELSE 'bob' END,
    CASE WHEN n % 2000 = 2 THEN 'command' ELSE 'console' END, 'r',
    CASE WHEN n % 2000 = 1 THEN 'reset' ELSE 'cancel' END, 'instance', 'i' || n, 'done', n % 2000 <> 3, '{}'
FROM generate_series(1, 20000) n"""


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


VERBS_OF_ALL: Final = {
    **vars(PostgresProvider),
    **{name: verb for part in parts().values() for name, verb in part.verbs.items()},
}
AUDITED: Final = sorted(
    {name for name, verb in VERBS_OF_ALL.items() if isfunction(verb) and hasattr(verb, "__wrapped__")}
    | {"save_state", "delete_state"}
)
"""Each verb that has entries, by its name in the conformance suite's table of verbs."""


class Noted(Acting):
    """Keeps the entries that a verb has left."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(USER, "suite", audit_of(provider))
        self.noted: list[tuple[str, str, str]] = []

    def committed(self, entries: Sequence[NewAuditEntry]) -> None:
        self.noted += [(each.action, each.target, each.outcome) for each in entries if each.succeeded]


def listed(admin: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    rows = admin.execute("SELECT action, target, outcome FROM audit WHERE stated_user = %s ORDER BY entry_id", [USER])
    return [*rows.fetchall()]


@pytest.mark.parametrize("name", AUDITED)
async def test_an_action_and_its_entry_are_one_message(
    postgres_shared: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So both are there, and no row is held, whenever the client is stopped or its link is cut."""
    sent = 0

    def count(protocol: WireProtocol, then: Callable[[], None] | None = None) -> None:
        nonlocal sent
        sent += 1
        send(protocol, then)

    send = WireProtocol._sent
    monkeypatch.setattr(WireProtocol, "_sent", count)
    cluster = Cluster(await PostgresHarness.create(postgres_shared))
    with proxy(postgres_shared) as network, administrator(postgres_shared) as admin:
        admin.execute(f"SET search_path = {SCHEMA}")
        url = f"{network.url}?schema={SCHEMA}"
        async with aclosing(await PostgresProvider.open(url, one_connection=True)) as provider:
            faulty: Any = SimpleNamespace(provider=provider)
            fixtures = FaultFixtures(cluster, faulty, await cluster.worker("a"), await cluster.worker("b"))
            attempt, user = await VERBS[name](fixtures), Noted(provider)
            with stated(user):
                await attempt.call()  # from now on its statement is prepared
            ((action, _, outcome),) = found = listed(admin)
            assert found == user.noted
            fixtures.number = 1
            attempt = await VERBS[name](fixtures)
            await until(admin, ALL_IDLE)
            network.lose(only_replies=True)
            sent = 0
            with stated(user):
                cut = asyncio.ensure_future(attempt.call())
            await until(admin, "SELECT count(*) > 1 FROM audit")
            await until(admin, ALL_IDLE)
            assert sent == 1
            cut.cancel()
            await asyncio.wait([cut])
            assert [(verb, result) for verb, _, result in listed(admin)] == 2 * [(action, outcome)]
    await cluster.aclose()


async def test_a_cancelled_action_has_its_entry_if_it_has_its_effect(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Though its caller hears nothing of it."""
    async with opened(postgres_migrated) as provider:
        with admin.transaction():
            admin.execute("LOCK TABLE instances")
            with stated(acting(provider)):
                call = asyncio.create_task(provider.create_instance([new_instance("i")]))
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(admin, ALL_IDLE)
        assert (await provider.get_instance(["i"]) == [None]) is (await entries_of(provider, "i") == [])


async def test_a_page_reads_what_it_shows(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each condition, among 20,000 entries, with statistics and without."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    admin.execute(ROWS)
    now = datetime.now(UTC)
    pages = [{"user": "ann"}, {"action": "reset"}, {"target": "i7"}, {"until": now}, {"after": (now, 5)}, {}]
    pages += [{"source": "command"}, {"succeeded": False}]
    for prepare in ("SELECT 1", "VACUUM ANALYZE audit"):
        admin.execute(prepare)
        async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
            for where in pages:
                plans.clear()
                assert await audit_of(provider).list_audit(AuditFilter(**where), 10), where  # type: ignore[arg-type]
                read = sum(rows for plan in plans for table, rows in rows_read(plan["Plan"]) if table == "audit")
                assert 0 < read <= MOST, (where, read)
