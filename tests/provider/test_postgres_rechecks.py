"""PostgreSQL: a statement looks at a row again that has changed before the statement locks it, but not at the rows of
other tables. Here the change is committed when a statement has begun, and has not locked the row yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, Final, LiteralString, TypeVar

import psycopg
import pytest
from psycopg import sql

from affinity.flow.store.contract import LimitChange, limits_of
from affinity.orchestration.gates import LimitUse
from affinity.provider.contract import Restart
from affinity.provider.postgres import PostgresProvider
from affinity.session import SessionState
from affinity_conformance.providers.builders import new_instance
from affinity_conformance.providers.flow.driver import gate, slots
from tests.provider.postgres_stage import SOMEBODY_WAITS, administrator, opened, registered, until

pytestmark = pytest.mark.anyio

T = TypeVar("T")

HOUR: Final = 3_600.0
STALLED: Final = (
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
)
STALL: Final = """
    CREATE FUNCTION stall() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF current_setting('application_name') LIKE 'affinity%' THEN
            PERFORM pg_advisory_xact_lock_shared(1);
        END IF;
        RETURN true;
    END $$"""
# A statement is stalled in its first call of the clock after it has begun to use this table.
CLOCK: Final[LiteralString] = """
    CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = {table}::regclass) THEN
            PERFORM stall();
        END IF;
        RETURN clock_timestamp();
    END $$"""


# A work item, of a session or not.
QUEUE: Final[LiteralString] = (
    "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, route, session_id, visible_at, payload,"
    " enqueued_at) VALUES ('{}', 1, 1, 'work', '{}', {}, clock(), '', clock())"
)


class Meanwhile:
    """Somebody else, who commits changes while a statement of the provider is stalled."""

    def __init__(self, admin: psycopg.Connection[Any], url: str) -> None:
        self.admin = admin
        self.url = url
        admin.execute(STALL)

    def stall_clock(self, table: str) -> None:
        """Stall statements that use this table, at their clock."""
        self.admin.execute(sql.SQL(CLOCK).format(table=table))

    def stall_function(self, name: str, condition: LiteralString) -> None:
        """Stall a function of the schema where it checks this condition."""
        row = self.admin.execute("SELECT pg_get_functiondef(%s::regproc)", [name]).fetchone()
        assert row is not None
        assert row[0].count(condition) == 1
        self.admin.execute(row[0].replace(condition, f"stall() AND {condition}"))

    async def during(self, verb: Awaitable[T], *changes: LiteralString) -> T:
        """Return the answer of a verb, during which these changes are committed."""
        with psycopg.connect(self.url, autocommit=True) as watcher:
            watcher.execute("SELECT pg_advisory_lock(1)")
            task = asyncio.ensure_future(verb)
            await until(watcher, STALLED)
            for change in changes:
                self.admin.execute(change)
            watcher.execute("SELECT pg_advisory_unlock(1)")
            return await task

    def rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        return self.admin.execute(query).fetchall()


@pytest.fixture
def meanwhile(postgres_migrated: str) -> Iterator[Meanwhile]:
    with administrator(postgres_migrated) as admin:
        yield Meanwhile(admin, postgres_migrated)


@pytest.fixture
async def provider(postgres_migrated: str) -> AsyncIterator[PostgresProvider]:
    async with opened(postgres_migrated) as found:
        yield found


async def sweep(provider: PostgresProvider) -> None:
    assert (await provider.sweep(interval=0, session_retention=1, worker_retention=HOUR)).swept


async def test_a_start_is_not_replaced_that_a_worker_has_taken(
    meanwhile: Meanwhile, provider: PostgresProvider
) -> None:
    """The worker had the row of the instance, for which the client waited."""
    await registered(provider)
    await provider.create_instance([new_instance("i", delay=HOUR)])
    (info,) = await provider.get_instance(["i"])
    assert info is not None
    restart = Restart(new=new_instance("i", start="other"), ended=info.generation, when="waiting")
    with psycopg.connect(meanwhile.url, autocommit=True) as watcher:
        with meanwhile.admin.transaction():
            meanwhile.admin.execute("UPDATE instances SET owner_worker = 'a', owner_incarnation = 'a-1', claims = 1")
            task = asyncio.ensure_future(provider.restart_instance([restart]))
            await until(watcher, SOMEBODY_WAITS)
        assert list(await task) == [False]
    assert meanwhile.rows("SELECT payload FROM orchestrator_queue") == [("start",)]


# A worker that has come meanwhile.
NEWCOMER: Final[LiteralString] = (
    "INSERT INTO workers (worker_id, incarnation, locked_until, started_at, labels, capacity, app, code_version,"
    " code_since, registered) VALUES ('b', 'b-1', clock() + interval '1 h', clock(), '{}', 1, '', '', clock(), '{}')"
)


async def test_work_is_not_taken_from_a_worker_that_has_come_meanwhile(
    meanwhile: Meanwhile, provider: PostgresProvider
) -> None:
    peer = await registered(provider)
    meanwhile.admin.execute(QUEUE.format("i", "free", "NULL"))
    meanwhile.stall_clock("worker_queue")
    taken: LiteralString = (
        "UPDATE worker_queue SET lock_worker = 'b', lock_incarnation = 'b-1', lock_token = 'b-1.1',"
        " locked_until = clock() + interval '1 h'"
    )
    assert await meanwhile.during(peer.take_all(), NEWCOMER, taken) == []
    assert meanwhile.rows("SELECT lock_worker FROM worker_queue") == [("b",)]
    meanwhile.admin.execute("UPDATE workers SET locked_until = clock() WHERE worker_id = 'b'")
    assert len(await peer.take_all()) == 1


async def test_a_record_is_not_deleted_that_a_worker_has_come_to_hold(
    meanwhile: Meanwhile, provider: PostgresProvider
) -> None:
    await provider.states.save(SessionState(session_id="s", state=b""))
    meanwhile.stall_clock("session_states")
    held: LiteralString = (
        "UPDATE sessions SET worker_id = 'b', incarnation = 'b-1', locked_until = clock() + interval '1 h'"
    )
    assert await meanwhile.during(provider.states.delete(["s"], idle_only=True), NEWCOMER, held) == []
    assert await provider.states.load("s") is not None


async def test_a_resource_that_gets_a_user_meanwhile_is_not_destroyed(
    meanwhile: Meanwhile, provider: PostgresProvider
) -> None:
    for n, name in enumerate(("used", "unused"), 1):
        await provider.begin_resource(name, "box", ("i", 1, n), held=None)
        assert await provider.set_resource_handle(name, name)
    meanwhile.admin.execute("UPDATE resources SET taken_until = clock() WHERE resource_id = 'unused'")
    meanwhile.stall_clock("resources")
    taken = await meanwhile.during(
        provider.take_unused_resources(["box"], limit=10, seconds=HOUR),
        "UPDATE resources SET instance_id = 'j', created_at = clock() WHERE resource_id = 'used'",
        QUEUE.format("j", "free", "NULL"),
    )
    assert [resource.resource_id for resource in taken] == ["unused"]


@pytest.mark.parametrize("former", ["w:gone", "new#gpu"])
async def test_a_sweep_sends_no_item_past_the_gate_to_which_it_has_come_back(
    meanwhile: Meanwhile, provider: PostgresProvider, former: str
) -> None:
    """It was on its way to a worker when the sweep has read it."""
    peer = await registered(provider, tags=["gpu"])
    await peer.provider.states.save(SessionState(session_id="s", state=b""))
    meanwhile.admin.execute(
        "UPDATE sessions SET worker_id = 'a', incarnation = 'a-1', locked_until = clock() + interval '1 h'"
    )
    meanwhile.admin.execute(QUEUE.format("i", former, "'s'"))
    meanwhile.admin.execute("UPDATE worker_queue SET limited = true, gate = '[0]'")
    meanwhile.stall_clock("session_watches")
    back: LiteralString = "UPDATE worker_queue SET route = 'gate', session_id = NULL, gate_session = 's'"
    await meanwhile.during(sweep(provider), back)
    assert meanwhile.rows("SELECT route, session_id FROM worker_queue") == [("gate", None)]
    meanwhile.admin.execute(f"UPDATE worker_queue SET route = '{former}', session_id = 's'")
    await sweep(provider)
    assert meanwhile.rows("SELECT route FROM worker_queue") == [("w:a",)]


async def test_a_sweep_ends_no_plan_that_was_made_meanwhile(meanwhile: Meanwhile, provider: PostgresProvider) -> None:
    """It has read a plan for a worker that is gone."""
    for name in "ab":
        await registered(provider, name)
    meanwhile.admin.execute(
        "INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at, next_worker)"
        " VALUES ('s', 'a', 'a-1', 1, clock() + interval '1 h', clock(), 'b')"
    )
    meanwhile.admin.execute("UPDATE workers SET draining = true WHERE worker_id = 'b'")
    meanwhile.stall_clock("sessions")
    await meanwhile.during(
        sweep(provider),
        "UPDATE sessions SET next_worker = 'a2'",
        "UPDATE workers SET worker_id = 'a2' WHERE worker_id = 'b'",
    )
    assert meanwhile.rows("SELECT next_worker FROM sessions") == [("a2",)]


async def test_a_session_with_a_tag_stays_that_got_a_record_meanwhile(
    meanwhile: Meanwhile, provider: PostgresProvider
) -> None:
    meanwhile.admin.execute(
        "INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at, tag)"
        " VALUES ('s', 'a', 'a-1', 1, clock() - interval '1 h', clock(), 'gpu')"
    )
    meanwhile.stall_clock("session_watches")
    await meanwhile.during(
        sweep(provider),
        "UPDATE sessions SET epoch = 2",
        "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, labels, participants, version,"
        " created_at, updated_at) VALUES ('s', '', 'json', 1, 'chat', '{}', '[]', 1, clock(), clock())",
    )
    assert meanwhile.rows("SELECT tag FROM sessions") == [("gpu",)]
    meanwhile.admin.execute("DELETE FROM session_states")
    await sweep(provider)
    assert meanwhile.rows("SELECT tag FROM sessions") == []


# A client has replaced the start by one of a later time, as `replace_start` does.
LATER: Final[Sequence[LiteralString]] = (
    "UPDATE instances SET gate = NULL, limited = NULL",
    "UPDATE instances SET gate = '[0,[\"model\",\"\",1,1.0]]', limited = true, starts_at = clock() + interval '1 h'",
    "UPDATE orchestrator_queue SET visible_at = clock() + interval '1 h', route = 'gate'",
)


@pytest.mark.parametrize("place", ["line_up_work", "admit_line"])
async def test_a_start_that_is_put_off_meanwhile_gets_no_slot(
    meanwhile: Meanwhile, provider: PostgresProvider, place: str
) -> None:
    limits = limits_of(provider)
    await limits.declare_limits("shop", "1", [slots(0)])
    await provider.create_instance([new_instance("i", gate=gate(LimitUse("model")))])
    if place == "admit_line":
        await limits.admit(most=10)
    await limits.change_limits([LimitChange(limit="model", concurrency=1)])
    conditions: dict[str, LiteralString] = {"line_up_work": "i.gate IS NOT NULL", "admit_line": "f.activity_id = -1"}
    meanwhile.stall_function(place, conditions[place])
    await meanwhile.during(limits.admit(most=10), *LATER)
    await limits.admit(most=10)
    assert meanwhile.rows("SELECT gate IS NOT NULL, limited FROM instances") == [(True, True)]
    (row,) = await limits.list_limits(["model"])
    assert (row.in_use, row.waiting) == (0, 0)
