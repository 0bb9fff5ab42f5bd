"""PostgreSQL: what only this provider has. The contract itself is tested in ``test_conformance.py``."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, LiteralString
from urllib.parse import quote

import anyio
import psycopg
import pytest
from psycopg import AsyncConnection

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    Duplicate,
    InvalidUrl,
    SchemaMismatch,
)
from affinity.provider.conformance.builders import message_ids, timer, turn, work_item
from affinity.provider.conformance.peer import Peer
from affinity.provider.contract import Hint, Incarnation, InstanceUpdate, NewMessage, OrchestrationItem, WorkerIdentity
from affinity.provider.postgres import PostgresProvider, connections, migration
from affinity.provider.postgres.target import Target
from tests.servers import PostgresServer

pytestmark = pytest.mark.anyio

PATIENCE: Final = 30.0
"""Seconds of real time after which a wait has failed; it ends as soon as there is what it waits for."""


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with psycopg.connect(postgres_migrated, autocommit=True, options="-c search_path=affinity") as connection:
        yield connection


@asynccontextmanager
async def opened(url: str, **settings: str) -> AsyncIterator[PostgresProvider]:
    """A provider object, with settings of the server for its connections."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    async with aclosing(await PostgresProvider.open(f"{url}?options={quote(options)}")) as provider:
        yield provider


async def registered(provider: PostgresProvider, worker_id: str = "a") -> Peer:
    """A worker on that provider object; always the same process of that name."""
    peer = Peer(provider, WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(f"{worker_id}-1")))
    await peer.register()
    return peer


async def until(admin: psycopg.Connection[Any], question: LiteralString) -> None:
    """Return when the database says yes; it has no way to call us."""
    with anyio.fail_after(PATIENCE):
        while not (admin.execute(question).fetchone() or [False])[0]:
            await anyio.sleep(0.005)


SOMEBODY_WAITS: Final = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
ALL_IDLE: Final = (
    "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'affinity%'"
    " AND (state <> 'idle' OR backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)"
)


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "schema", "rest"),
    [
        ("postgresql://u@h/d", "affinity", {"host": "h"}),
        ("postgresql://u@a,b:6/d?target_session_attrs=read-write&schema=x_1", "x_1", {"host": "a,b", "port": ",6"}),
        ("postgresql:///d?schema=x&host=/run/pg&application_name=a+b%20c", "x", {"application_name": "a+b c"}),
    ],
)
def test_a_url_is_libpq_s_but_for_the_schema(url: str, schema: str, rest: dict[str, str]) -> None:
    """Our parameter is taken out, everything else is left alone."""
    target = Target.parse(url)
    assert target.schema == schema
    assert rest.items() <= target.conninfo.items()
    assert "schema" not in target.conninfo


@pytest.mark.parametrize("schema", ["", "Upper", "a-b", "a;b", "1a", "pg_x", "x" * 64, "%22x%22"])
def test_a_schema_is_a_plain_identifier(schema: str) -> None:
    """So that nothing needs to be quoted, and nothing can be injected."""
    with pytest.raises(InvalidUrl, match="schema="):
        Target.parse(f"postgresql://h/d?schema={schema}")


def test_a_malformed_url_is_refused_without_its_password() -> None:
    """What is logged holds no secret."""
    with pytest.raises(InvalidUrl) as caught:
        Target.parse("postgresql://u:secret@h/d?nonsense=1")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Target.parse("postgresql://u:secret@h/d"))


# --- migrations -------------------------------------------------------------------------------------------------------

CATALOG: Final = """
    SELECT 'column', table_name, column_name, data_type || coalesce(collation_name, '') || is_nullable
        || coalesce(column_default, '')
    FROM information_schema.columns WHERE table_schema = %(schema)s
    UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %(schema)s
    UNION ALL SELECT 'view', viewname, '', definition FROM pg_views WHERE schemaname = %(schema)s
    UNION ALL SELECT 'option', relname, relkind::text, reloptions::text FROM pg_class
        WHERE relnamespace = %(schema)s::regnamespace AND relname <> 'clock_offset'
    UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'function', proname, provolatile::text, prosrc FROM pg_proc
        WHERE pronamespace = %(schema)s::regnamespace"""


async def test_zero_to_now_is_step_by_step(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that was migrated release by release is like a new one."""
    assert await PostgresProvider.migrate(f"{postgres_database}?schema=fresh") == (0, len(migration.MIGRATIONS))
    every = migration.MIGRATIONS
    for version in range(1, len(every) + 1):
        monkeypatch.setattr(migration, "MIGRATIONS", every[:version])
        assert await PostgresProvider.migrate(f"{postgres_database}?schema=grown") == (version - 1, version)
    with psycopg.connect(postgres_database) as connection:
        fresh, grown = (
            {re.sub(rf"\b{schema}\b", "", str(row)) for row in connection.execute(CATALOG, {"schema": schema})}
            for schema in ("fresh", "grown")
        )
    assert fresh == grown
    assert len(fresh) > 50


async def test_ten_migrators_at_once(postgres_database: str) -> None:
    """As ten replicas that start together; then once more, with nothing to do."""
    now = len(migration.MIGRATIONS)
    outcomes = await asyncio.gather(*(PostgresProvider.migrate(postgres_database) for _ in range(10)))
    assert {after for _, after in outcomes} == {now}
    assert await PostgresProvider.migrate(postgres_database) == (now, now)
    async with opened(postgres_database) as provider:
        assert (await provider.count_work())["workers"] == 0


async def test_a_failed_migration_leaves_nothing(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one transaction."""
    broken = [migration.MIGRATIONS[0] + "; SELECT 1 / 0"]
    with monkeypatch.context() as patch:
        patch.setattr(migration, "MIGRATIONS", broken)
        with pytest.raises(DatabaseFailure, match="division by zero"):
            await PostgresProvider.migrate(postgres_database)
    assert (await PostgresProvider.migrate(postgres_database))[0] == 0


async def test_a_database_that_was_never_migrated_is_refused(postgres_database: str) -> None:
    """With the remedy."""
    with pytest.raises(SchemaMismatch, match="affinity migrate"):
        await PostgresProvider.open(postgres_database)


async def test_a_newer_database_is_refused(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """By workers and by the migration alike."""
    admin.execute("INSERT INTO schema_versions VALUES (999)")
    for verb in (PostgresProvider.open, PostgresProvider.migrate):
        with pytest.raises(SchemaMismatch, match=r"999, newer .* upgrade affinity"):
            await verb(postgres_migrated)


async def test_schemas_of_one_database_are_apart(postgres_database: str) -> None:
    """Rows, epochs and clocks."""
    one, other = (f"{postgres_database}?schema={name}" for name in ("one", "user"))
    for url in (one, other):
        await PostgresProvider.migrate(url)
    async with aclosing(await PostgresProvider.open(one)) as a, aclosing(await PostgresProvider.open(other)) as b:
        await a.advance_clock(1_000)
        lease, later = [await (await registered(provider)).renew_lease() for provider in (b, a)]
        assert lease is not None
        assert later is not None
        assert (later.database_time - lease.database_time).total_seconds() > 900
        assert (await a.create_instance([]), (await b.count_work())["workers"]) == ([], 1)


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_database_is_denied(postgres_server: PostgresServer) -> None:
    """Not retried for ever; the message names it."""
    with pytest.raises(AccessDenied, match="no_such_database"):
        await PostgresProvider.open(postgres_server.url("no_such_database"))


async def test_an_unknown_user_is_denied(postgres_migrated: str) -> None:
    """Without the password in the message."""
    with pytest.raises(AccessDenied) as caught:
        await PostgresProvider.open(postgres_migrated.replace("postgres@", "nobody_such:secret@"))
    assert "secret" not in str(caught.value)


async def test_a_missing_right_is_denied(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """The role may connect, but not use the schema."""
    admin.execute("DROP ROLE IF EXISTS affinity_guest")
    admin.execute("CREATE ROLE affinity_guest LOGIN")
    try:
        with pytest.raises(AccessDenied, match="permission denied"):
            await PostgresProvider.open(postgres_migrated.replace("postgres@", "affinity_guest@"))
    finally:
        admin.execute("DROP ROLE affinity_guest")


async def test_a_port_where_nobody_listens_is_a_lost_connection() -> None:
    """The server may come up."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost, match="affinity_test"):
            await PostgresProvider.open(f"postgresql://u@127.0.0.1:{bound.getsockname()[1]}/affinity_test")


async def test_a_lock_that_is_not_given_is_contention(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """And the provider goes on with the same connection."""
    async with opened(postgres_migrated, lock_timeout="50ms") as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE workers")
            with pytest.raises(Contention):
                await peer.renew_lease()
        assert await peer.renew_lease() is not None


async def test_a_deadlock_is_contention(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Provoked by locks that are taken against our order."""
    async with opened(postgres_migrated, deadlock_timeout="50ms") as provider:
        peer = await registered(provider)
        first, second = await peer.own("1"), await peer.own("2")
        admin.execute("SET deadlock_timeout = '60s'")
        with admin.transaction():
            admin.execute("SELECT FROM instances WHERE instance_id = '2' FOR UPDATE")
            commit = asyncio.create_task(peer.commit(turn(first), turn(second)))
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
            rival = anyio.to_thread.run_sync(admin.execute, "SELECT FROM instances WHERE instance_id = '1' FOR UPDATE")
            with pytest.raises(Contention, match="deadlock"):
                await asyncio.gather(commit, rival)
        assert all(result.committed for result in await peer.commit(turn(first), turn(second)))


async def test_a_row_that_was_there_is_a_duplicate(postgres_migrated: str) -> None:
    """The whole statement is undone."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        at = await peer.own("i")
        with pytest.raises(Duplicate):
            await peer.commit_one(at, work_items=[work_item(at, 1), work_item(at, 1)])
        assert (await peer.commit_one(at, work_items=[work_item(at, 1)])).committed


async def test_a_terminated_backend_is_a_lost_connection(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """In the middle of a call and between two; the next call connects again."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE workers")
            renewal = asyncio.create_task(peer.renew_lease())
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
                _terminate(watcher)
            with pytest.raises(ConnectionLost):
                await renewal
        assert await peer.renew_lease() is not None
        _terminate(admin)
        with pytest.raises(ConnectionLost):
            await peer.renew_lease()
        assert await peer.renew_lease() is not None


def _terminate(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'affinity%'"
    )


# --- calls that nobody waits for any more -----------------------------------------------------------------------------


async def test_whoever_is_cancelled_goes_at_once_and_the_provider_stays_usable(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the database does not answer; a call that had not begun never does."""
    monkeypatch.setattr(connections, "GRACE", 0.05)
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE workers")
            stuck, queued = (asyncio.create_task(peer.renew_lease()) for _ in range(2))
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
                for task in (stuck, queued):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
        assert await peer.renew_lease() is not None


async def test_an_abandoned_call_comes_to_its_end(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Within the grace; on the same connection the next one follows."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE instances")
            with anyio.move_on_after(0.05):
                await provider.delete_instance(["i"])
        assert await peer.renew_lease() is not None


async def test_closing_ends_calls_under_way(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """With an error that says so."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        with admin.transaction():
            admin.execute("LOCK TABLE workers")
            stuck = asyncio.create_task(peer.renew_lease())
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
            await provider.aclose()
            with pytest.raises(ConnectionLost, match="closed"):
                await stuck
        with pytest.raises(ConnectionLost, match="closed"):
            await peer.renew_lease()


async def test_no_verb_leaves_a_transaction_open(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """So a worker that is paused between two calls holds no lock and holds up no vacuum."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        for verb in _hot_verbs(peer, await _stage(peer)):
            await verb()
            await until(admin, ALL_IDLE)


# --- hints ------------------------------------------------------------------------------------------------------------


async def test_a_broken_subscription_says_so(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """And a new one works."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        async with provider.hints(peer.identity) as source:
            _terminate(admin)
            with pytest.raises(ConnectionLost):
                await source.wait(PATIENCE)
        async with provider.hints(peer.identity) as source:
            with pytest.raises(ConnectionLost):  # the connection that sends was ended too
                await provider.wake({"a": Hint()})
            await provider.wake({"other": Hint(), "a": Hint(work=False, cancel=True)})
            assert await source.wait(PATIENCE) == Hint(work=False, cancel=True)


# --- marks ------------------------------------------------------------------------------------------------------------


async def test_a_fetch_puts_marks_of_messages_right(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Marked for anyone, though owned; marked for one who does not own it; and of an instance that is gone."""
    async with opened(postgres_migrated) as provider:
        a, b = await registered(provider, "a"), await registered(provider, "b")
        for name in ("1", "2", "3"):
            await a.own(name)
        admin.execute("UPDATE orchestrator_queue SET route = CASE instance_id WHEN '1' THEN 'new' ELSE 'w:b' END")
        admin.execute("DELETE FROM instances WHERE instance_id = '3'")
        assert await b.take_instances() == []
        found = admin.execute("SELECT instance_id, route FROM orchestrator_queue ORDER BY 1").fetchall()
        assert found == [("1", "w:a"), ("2", "w:a")]
        assert len(await a.take_instances()) == 2


# --- deadlocks --------------------------------------------------------------------------------------------------------


async def test_overlapping_batches_in_opposite_order_do_not_deadlock(postgres_migrated: str) -> None:
    """Two provider objects, the same instances, items and sessions, renewals in between; no deadlock, no lost turn."""
    async with opened(postgres_migrated) as one, opened(postgres_migrated) as other:
        left, right = await registered(one), Peer(other, WorkerIdentity(worker_id="a", incarnation=Incarnation("a-1")))
        owned = [await left.own(f"i{number}") for number in range(12)]
        for at in owned:
            await left.commit_one(at, work_items=[work_item(at, 1, f"s{at.instance_id}")])
        items = await left.take(len(owned))
        locks = [item.lock for item in items]
        shuffle = random.Random(7).shuffle
        for round_ in range(1, 30):
            steps = [turn(replace(at, event_count=round_), acks=()) for at in owned]
            again = list(reversed(steps))
            shuffle(items)
            renewals = [asyncio.create_task(peer.renew(*items)) for peer in (right, left)]
            mine, theirs = await asyncio.gather(left.commit(*steps), right.commit(*again))
            won = [(a.committed, b.committed) for a, b in zip(mine, reversed(theirs), strict=True)]
            assert all(a != b for a, b in won)
            assert await asyncio.gather(*renewals) == [[True] * len(items)] * 2
        assert await left.provider.check_work_item(locks) == [True] * len(locks)


# --- plans ------------------------------------------------------------------------------------------------------------

MANY: Final = 20_000
AUTO_EXPLAIN: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_format": "json",
    "client_min_messages": "log",
}
MOST: Final = 200
"""Rows that a step of a plan may read: the verbs below handle a handful each."""


@pytest.mark.parametrize("analyzed", [False, True])
async def test_hot_statements_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, analyzed: bool
) -> None:
    """Among 20,000 foreign rows in each table, with statistics and without, no step of any plan reads many of them."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        stage = await _stage(peer)
        _crowd(admin)
        if analyzed:
            admin.execute("VACUUM ANALYZE")
        plans: list[dict[str, Any]] = []
        monkeypatch.setattr(connections, "connect", partial(_listening, plans, connections.connect))
        async with opened(postgres_migrated, **AUTO_EXPLAIN) as watched:
            for verb in _hot_verbs(replace(peer, provider=watched), stage):
                plans.clear()
                await verb()
                assert plans
                for plan in plans:
                    _check_plan(plan["Plan"], plan["Query Text"])


async def _listening(
    plans: list[dict[str, Any]], connect: Callable[[str], Awaitable[AsyncConnection[Any]]], conninfo: str
) -> AsyncConnection[Any]:
    connection = await connect(conninfo)

    def notice(said: psycopg.errors.Diagnostic) -> None:
        text = said.message_primary or ""
        if "plan:" in text:
            plans.append(json.loads(text.partition("plan:")[2]))

    connection.add_notice_handler(notice)
    return connection


def _check_plan(node: dict[str, Any], query: str) -> None:
    if node["Node Type"] == "Aggregate" and '"sessions_worker"' in json.dumps(node):
        return  # capacity: a count of our own sessions, made only when there is something to claim
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    where = f"{node['Node Type']} on {node.get('Relation Name')} by {node.get('Index Name')} in\n{query}"
    assert read <= MOST, f"{read} rows read by {where}"
    if node.get("Relation Name") not in (None, "workers"):
        assert node["Node Type"] != "Seq Scan", where
    for child in node.get("Plans", ()):
        _check_plan(child, query)


def _crowd(admin: psycopg.Connection[Any]) -> None:
    """What another worker has; and many sessions of ours, with nothing to do."""
    for statement in (
        "INSERT INTO sessions SELECT w || i, w, w || '-1', nextval('epochs'), clock() + '1 h', clock(), clock()"
        " FROM generate_series(1, %s / 4) i, unnest(ARRAY['a', 'other']) w",
        "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
        " payload, enqueued_at) SELECT 'x', 1, i, 'work', 'other' || i %% 100 + 1, 'w:other', clock(), '', clock()"
        " FROM generate_series(1, %s) i",
        "INSERT INTO instances (instance_id, name, owner_worker, owner_incarnation, created_at, updated_at)"
        " SELECT 'x' || i, 'flow', 'other', 'other-1', clock(), clock() FROM generate_series(1, %s) i",
        "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
        " SELECT 'x' || i, 'w:other', clock(), '' FROM generate_series(1, %s) i",
        "INSERT INTO history SELECT 'x' || i, 1, 1, '' FROM generate_series(1, %s) i",
    ):
        admin.execute(statement, [MANY])


async def _stage(peer: Peer) -> list[OrchestrationItem]:
    """Two instances, one item of each kind in the queue, and three in hand."""
    first, second = await peer.own("i"), await peer.own("j")
    await peer.commit_one(first, work_items=[work_item(first, n, s) for n, s in enumerate(("s", "t", None), 1)])
    await peer.take(3)
    await peer.commit_one(second, work_items=[work_item(second, n, s) for n, s in enumerate(("s", None, "new"), 1)])
    return [replace(first, event_count=1), replace(second, event_count=1)]


def _hot_verbs(peer: Peer, stage: list[OrchestrationItem]) -> list[Callable[[], Awaitable[object]]]:
    """Each verb of the hot loop once, with something to do."""
    first, second = stage
    hand: dict[int, Any] = {}

    async def fetch() -> None:
        hand.update({item.lock.key.activity_id: item for item in await peer.take(10)})
        assert len(hand) == 3

    async def fused() -> None:
        here = replace(work_item(second, 9, "s"), lock_here=True)
        assert (await peer.commit_one(second, acks=[hand[1].lock], work_items=[here])).placed[0].item is not None

    async def everything() -> None:
        messages = [timer(first, 7, 60), NewMessage(instance_id="j", payload="x")]
        step = {"consumed": message_ids(first), "messages": messages, "cancel_activities": [2], "cancel_timers": [8]}
        assert (await peer.commit_one(first, **step)).committed

    async def finish() -> None:
        at = replace(first, event_count=2)
        assert (await peer.commit_one(at, update=InstanceUpdate(status="completed"))).committed

    return [
        fetch,
        fused,
        peer.fetch,
        peer.fetch_instances,
        lambda: peer.renew(hand[2], hand[3]),
        lambda: peer.check(hand[2], hand[3]),
        lambda: peer.give_back(hand[3], release_session=True),
        lambda: peer.ack(hand[2]),
        peer.take,
        everything,
        finish,
        lambda: peer.provider.send_message([NewMessage(instance_id="j", payload="x")]),
        lambda: peer.provider.read_history([("j", 1)]),
        lambda: peer.provider.get_instance(["j"]),
        peer.renew_lease,
    ]
