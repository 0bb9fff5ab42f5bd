"""What limits cost while they are set, on PostgreSQL and on SQLite; and what a client receives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, LiteralString

import anyio
import psycopg
import pytest

from affinity import Client
from affinity.errors import InvalidOptions, QuotaExceeded, TooManyUnreadEvents
from affinity.limits import MAX_UNREAD_EVENTS
from affinity.provider.contract import NewMessage, Provider, Quotas
from affinity_conformance.providers.builders import new_instance
from tests.provider.postgres_plans import MANY, check_plans
from tests.provider.postgres_stage import SOMEBODY_WAITS, administrator, opened, until
from tests.provider.sqlite_steps import FEW, MUCH, cost_in_steps, fill_tables, opened_file, steps

pytestmark = pytest.mark.anyio

__all__ = ["steps"]

ALL: Final = Quotas(instances=10_000_000, unread_events=100, instance_bytes=1_000_000_000)


def _writes(provider: Provider) -> Sequence[Callable[[], Awaitable[object]]]:
    """Operations that check limits; the first message to an instance measures it."""
    message = NewMessage(instance_id="x1", payload="x", unread_limit=1_000)
    return [
        lambda: provider.create_instance([new_instance("i")]),
        lambda: provider.send_message([message]),
        lambda: provider.send_message([message]),
    ]


INSTANCES: Final[tuple[LiteralString, ...]] = (
    "INSERT INTO instances (instance_id, generation, name, event_count, created_at, updated_at)"
    " SELECT 'x' || i, '1', 'flow', 1, clock(), clock() FROM generate_series(1, %s) i",
    "INSERT INTO history SELECT 'x' || i, 1, 1, '' FROM generate_series(1, %s) i",
    "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
    " SELECT 'x' || i, 'new', clock(), '' FROM generate_series(1, %s) i",
    "INSERT INTO instance_sizes SELECT 'y' || i, '', 1, 1, 1 FROM generate_series(1, %s) i",
)


async def test_limits_read_what_they_need(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among 20,000 instances: they are counted when they come and go, and events are measured once."""
    async with opened(postgres_migrated) as provider:
        await provider.set_quotas(ALL)
        with administrator(postgres_migrated) as admin:
            for statement in INSTANCES:
                admin.execute(statement, [MANY])
            admin.execute("VACUUM ANALYZE")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for verb in _writes(watched):
                await check(verb)


async def test_an_event_is_measured_once(postgres_migrated: str) -> None:
    """Not at each message: what was measured is kept, and only what came since is added."""
    async with opened(postgres_migrated) as provider:
        await provider.set_quotas(ALL)
        await provider.create_instance([new_instance("x1")])
        with administrator(postgres_migrated) as admin:
            await _measured(provider, admin, 10)
            admin.execute("UPDATE history SET event = repeat('x', 1000)")  # they are not read again
            await _measured(provider, admin, 5)
            assert admin.execute("SELECT event_count, bytes FROM instance_sizes").fetchone() == (15, 15)


async def _measured(provider: Provider, admin: psycopg.Connection[Any], events: int) -> None:
    """Send a message, after the instance has that many more events of a byte."""
    admin.execute(
        "INSERT INTO history SELECT 'x1', 1, event_count + i, 'x' FROM instances, generate_series(1, %s) i", [events]
    )
    admin.execute("UPDATE instances SET event_count = event_count + %s", [events])
    message = NewMessage(instance_id="x1", payload="", unread_limit=1_000)
    assert list(await provider.send_message([message])) == ["delivered"]


async def test_a_message_is_not_lost_while_a_limit_is_lifted(postgres_migrated: str) -> None:
    """A sender has read the limit, and then does not find the size of the instance: it sends the message, and does not
    drop it while it reports it as delivered.
    """
    async with opened(postgres_migrated) as provider:
        await provider.set_quotas(Quotas(instance_bytes=1_000_000))
        await provider.create_instance([new_instance("x1"), new_instance("x2")])
        both = [NewMessage(instance_id=name, payload="", unread_limit=1_000) for name in ("x1", "x2")]
        assert list(await provider.send_message(both)) == ["delivered"] * 2
        with administrator(postgres_migrated) as admin, administrator(postgres_migrated) as watcher:
            admin.execute("UPDATE instances SET event_count = 1 WHERE instance_id = 'x2'")  # it is measured again
            async with anyio.create_task_group() as tasks:
                with admin.transaction():
                    admin.execute("SELECT set_quotas(NULL, NULL, NULL)")
                    tasks.start_soon(provider.send_message, both)
                    await until(watcher, SOMEBODY_WAITS)
            queued = admin.execute(
                "SELECT instance_id, count(*) FROM orchestrator_queue GROUP BY 1 ORDER BY 1"
            ).fetchall()
    assert queued == [("x1", 3), ("x2", 3)]  # with the start messages


async def test_on_sqlite_limits_cost_the_same_among_many(tmp_path: Path, steps: Iterator[int]) -> None:
    """Whether there are 100 instances or 5,000."""
    rows_of = (
        "INSERT INTO instances (instance_id, generation, name, event_count, created_at, updated_at)"
        " SELECT 'x' || i, '1', 'flow', 1, 0, 0 FROM numbers",
        "INSERT INTO history (instance_id, execution_id, event_id, event) SELECT 'x' || i, 1, 1, '' FROM numbers",
    )
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            await peer.provider.set_quotas(ALL)
            fill_tables(path, rows_of, rows)
            costs.append([await cost_in_steps(steps, verb) for verb in _writes(peer.provider)])
    assert costs[1] == costs[0]


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


async def test_a_quota_error_names_the_limit(client: Client) -> None:
    """With the number and the remedy; all clients of the database agree."""
    await client.start("flow", instance_id="i")
    await client.set_quotas(Quotas(instances=1, unread_events=3, instance_bytes=2_000))
    with pytest.raises(QuotaExceeded, match="1 instances in the database") as instances:
        await client.start("flow", instance_id="j")
    assert (instances.value.quota, instances.value.limit) == ("instances", 1)
    assert "affinity prune" in instances.value.remedy
    assert (await client.start("flow", instance_id="i")).outcome == "running"
    with pytest.raises(QuotaExceeded, match="2000 bytes") as size:
        await client.raise_event("i", "e", "x" * 2_000)
    assert (size.value.quota, size.value.limit) == ("instance_bytes", 2_000)
    assert "continue_as_new" in size.value.remedy
    await client.raise_event("i", "e")  # the start message counts, too
    await client.raise_event("i", "e")
    with pytest.raises(TooManyUnreadEvents) as unread:
        await client.raise_event("i", "e")
    assert (unread.value.quota, unread.value.limit) == ("unread_events", 3)
    await client.cancel("i")
    await client.set_quotas(Quotas())
    await client.raise_event("i", "e")
    assert TooManyUnreadEvents("unread_events", MAX_UNREAD_EVENTS).limit == MAX_UNREAD_EVENTS


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, 2**60])
async def test_limits_that_make_no_sense_are_refused(sqlite_url: str, limit: Any) -> None:
    """Before anything is set."""
    async with Client(sqlite_url) as client:
        with pytest.raises(InvalidOptions, match="instances"):
            await client.set_quotas(Quotas(instances=limit))
        assert await client.quotas() == Quotas()
