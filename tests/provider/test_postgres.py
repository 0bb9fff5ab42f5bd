"""PostgreSQL: what only this provider has: its URLs, its migrations, its errors."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import anyio
import psycopg
import pytest
from psycopg import sql

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DataRefused,
    Duplicate,
    InvalidUrl,
    SchemaMismatch,
)
from affinity.provider.contract import InstanceUpdate, NewMessage, Release, SessionHold, WorkFetch
from affinity.provider.postgres import PostgresProvider, migration
from affinity.provider.postgres.driver.target import Target
from affinity_conformance.providers.builders import turn, work_item
from tests.provider.postgres_stage import SOMEBODY_WAITS, administrator, opened, registered, staged, terminate, until
from tests.servers import PostgresServer, old_and_new

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


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
    """The log has no secret."""
    with pytest.raises(InvalidUrl) as caught:
        Target.parse("postgresql://u:secret@h/d?nonsense=1")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Target.parse("postgresql://u:secret@h/d"))


DIRECT: Final = "postgresql://v:hidden@direct:5433/d?sslmode=require"


def test_a_url_names_a_direct_one() -> None:
    """It is quoted, has the same schema, and is where sessions are."""
    target = Target.parse(f"postgresql://u@pool:6432/d?schema=x&direct={quote(DIRECT, safe='')}&sslmode=disable")
    assert target.conninfo == {"user": "u", "host": "pool", "port": "6432", "dbname": "d", "sslmode": "disable"}
    direct = target.with_sessions
    assert direct == target.direct
    assert direct.schema == target.schema == "x"
    assert (direct.conninfo["host"], direct.conninfo["sslmode"]) == ("direct", "require")
    alone = Target.parse("postgresql://u@h/d")
    assert alone.with_sessions is alone


def test_the_environment_names_the_direct_url_of_its_own_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of another database that the process uses; and what a URL says itself comes first."""
    pooled = "postgresql://u@pool:6432/d"
    monkeypatch.setenv("AFFINITY_URL", pooled)
    monkeypatch.setenv("AFFINITY_DIRECT_URL", DIRECT)
    assert Target.parse(pooled).with_sessions.conninfo["host"] == "direct"
    assert Target.parse("postgresql://u@other/d").direct is None
    own = f"{pooled}?direct={quote('postgresql://own/d', safe='')}"
    monkeypatch.setenv("AFFINITY_URL", own)
    assert Target.parse(own).with_sessions.conninfo["host"] == "own"
    monkeypatch.setenv("AFFINITY_URL", pooled)
    monkeypatch.setenv("AFFINITY_DIRECT_URL", "")
    assert Target.parse(pooled).direct is None


@pytest.mark.parametrize(
    ("direct", "said"),
    [
        ("postgresql://u:secret@h/d", "quote the whole URL"),
        ("", "postgresql://user@host/database"),
        (quote("sqlite:///secret", safe=""), "postgresql://user@host/database"),
        (quote("postgresql://u:secret@h/d?schema=other", safe=""), "another schema"),
        (quote("postgresql://u:secret@h/d?nonsense=1", safe=""), "not a PostgreSQL URL"),
        (quote("postgresql://u:sec@ret@h/d", safe=""), "malformed"),
        (quote(f"postgresql://h/d?direct={quote('postgresql://h/secret', safe='')}", safe=""), "of its own"),
    ],
)
def test_a_malformed_direct_url_is_refused(direct: str, said: str) -> None:
    with pytest.raises(InvalidUrl, match=said) as caught:
        Target.parse(f"postgresql://h/d?direct={direct}")
    assert "secret" not in str(caught.value)


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
    assert await PostgresProvider.migrate(f"{postgres_database}?schema=made_whole") == (0, len(migration.MIGRATIONS))
    every = migration.MIGRATIONS
    for version in range(1, len(every) + 1):
        monkeypatch.setattr(migration, "MIGRATIONS", every[:version])
        assert await PostgresProvider.migrate(f"{postgres_database}?schema=made_in_steps") == (version - 1, version)
    with psycopg.connect(postgres_database) as connection:
        fresh, grown = (
            {re.sub(rf"\b{schema}\b", "", str(row)) for row in connection.execute(CATALOG, {"schema": schema})}
            for schema in ("made_whole", "made_in_steps")
        )
    assert fresh == grown
    assert len(fresh) > 50


async def test_ten_concurrent_migrators(postgres_database: str) -> None:
    """As ten replicas that start together; then once more, with nothing to do."""
    now = len(migration.MIGRATIONS)
    outcomes = await asyncio.gather(*(PostgresProvider.migrate(postgres_database) for _ in range(10)))
    assert {after for _, after in outcomes} == {now}
    assert await PostgresProvider.migrate(postgres_database) == (now, now)
    async with opened(postgres_database) as provider:
        assert await provider.list_workers() == []


async def test_a_failed_migration_leaves_nothing(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one transaction."""
    first = migration.MIGRATIONS[0]
    broken = [replace(first, script=first.script + "; SELECT 1 / 0")]
    with monkeypatch.context() as patch:
        patch.setattr(migration, "MIGRATIONS", broken)
        with pytest.raises(DataRefused, match="division by zero"):
            await PostgresProvider.migrate(postgres_database)
    assert (await PostgresProvider.migrate(postgres_database))[0] == 0


async def test_a_database_that_was_never_migrated_is_refused(postgres_database: str) -> None:
    """With the remedy."""
    with pytest.raises(SchemaMismatch, match="affinity migrate"):
        await PostgresProvider.open(postgres_database)


async def test_a_newer_database_is_refused(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """By workers and by the migration alike."""
    admin.execute("INSERT INTO migrations (version, oldest_code, release) VALUES (999, 999, '9.1')")
    for verb in (PostgresProvider.open, PostgresProvider.migrate):
        with pytest.raises(SchemaMismatch, match=r"999 .* use affinity 9.1 or later"):
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
        assert (await a.create_instance([]), len(await b.list_workers())) == ([], 1)


async def test_a_schema_that_is_renamed_as_the_page_says_serves_as_before(postgres_migrated: str) -> None:
    """Its rows are there, it is migrated, and its functions find its tables, and no others."""
    page = (Path(__file__).parents[2] / "docs" / "run" / "databases.md").read_text()
    (script,) = re.findall(r"```text\n(ALTER SCHEMA affinity RENAME TO name;.*?)```", page, re.DOTALL)
    async with opened(postgres_migrated) as provider:
        await registered(provider)
    with psycopg.connect(postgres_migrated, autocommit=True) as connection:
        connection.execute(script)
    url = f"{postgres_migrated}?schema=name"
    now = len(migration.MIGRATIONS)
    assert await PostgresProvider.migrate(url) == (now, now)
    async with aclosing(await PostgresProvider.open(url)) as provider:
        assert [worker.worker_id for worker in await provider.list_workers()] == ["a"]
        peer = await registered(provider, "b")
        at = await peer.own("i")
        assert (await peer.commit_one(at, work_items=[work_item(at, 1, "s")])).committed
        assert [item.session_id for item in await peer.take(10, max_sessions=1)] == ["s"]
    with psycopg.connect(postgres_migrated) as connection:
        assert connection.execute("SELECT to_regnamespace('affinity')").fetchone() == (None,)


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_database_is_denied(postgres_server: PostgresServer) -> None:
    """Not retried forever; the message says what to check, and names nothing."""
    with pytest.raises(AccessDenied, match="database … does not exist; check the user"):
        await PostgresProvider.open(postgres_server.url("no_such_database"))


async def test_an_unknown_user_is_denied(postgres_migrated: str) -> None:
    """Without the password in the message."""
    with pytest.raises(AccessDenied) as caught:
        await PostgresProvider.open(postgres_migrated.replace("postgres@", "nobody_such:secret@"))
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_denied() -> None:
    """On a server that asks one role for its password; the one that was given is not in the message."""
    with old_and_new()[0].open() as server, psycopg.connect(server.url(), autocommit=True) as owner:
        owner.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        # Through the server, which can reach its own files wherever it runs.
        owner.execute(
            "DO $$ BEGIN EXECUTE format('COPY (SELECT %L UNION ALL SELECT line FROM "
            "regexp_split_to_table(pg_read_file(current_setting(''hba_file'')), E''\\n'') AS line) TO %L', "
            "'host all locked all scram-sha-256', current_setting('hba_file')); END $$"
        )
        owner.execute("SELECT pg_reload_conf()")
        url = server.url().replace("postgres@", "locked:wrong@")
        with anyio.fail_after(60):
            while True:  # until the server has read the file
                with pytest.raises((AccessDenied, SchemaMismatch)) as caught:
                    await PostgresProvider.open(url)
                if caught.type is AccessDenied:
                    break
        assert "password authentication failed" in str(caught.value)
        assert "wrong" not in str(caught.value)


async def test_a_missing_right_is_denied(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """The role may connect, but not use the schema."""
    admin.execute("DROP ROLE IF EXISTS affinity_guest")
    admin.execute("CREATE ROLE affinity_guest LOGIN")
    try:
        with pytest.raises(AccessDenied, match="permission denied"):
            await PostgresProvider.open(postgres_migrated.replace("postgres@", "affinity_guest@"))
    finally:
        admin.execute("DROP ROLE affinity_guest")


async def test_a_closed_port_is_a_lost_connection() -> None:
    """The server may come up."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost, match="Connection refused"):
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
    """Provoked by locks that are taken against our order. The server looks once for it: when the rival waits too."""
    async with opened(postgres_migrated, deadlock_timeout="1s") as provider:
        peer = await registered(provider)
        first, second = await peer.own("1"), await peer.own("2")
        admin.execute("SET deadlock_timeout = '60s'")
        with admin.transaction():
            admin.execute("SELECT FROM instances WHERE instance_id = '2' FOR UPDATE")
            both = [Release(instance_id=name) for name in ("1", "2")]
            release = asyncio.create_task(provider.release_instance(peer.identity, both))
            with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
                await until(watcher, SOMEBODY_WAITS)
            rival = anyio.to_thread.run_sync(admin.execute, "SELECT FROM instances WHERE instance_id = '1' FOR UPDATE")
            with pytest.raises(Contention, match="deadlock detected"):
                await asyncio.gather(release, rival)
        assert all(result.committed for result in await peer.commit(turn(first), turn(second)))


async def test_own_work_that_others_have_locked_is_a_lost_claim(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Until they let go; and so is work of a session that is lost while the fetch waits for its row."""
    async with staged(postgres_migrated, admin) as stage:
        assert (await stage.commit(work_items=[work_item(stage.at, number, "s") for number in (2, 3)])).committed
        fetch = partial(stage.peer.fetch, only_own=True)
        with admin.transaction():
            admin.execute("SELECT FROM worker_queue FOR UPDATE")
            assert await fetch() == WorkFetch(items=[], claim_lost=True, next_due=None)
        assert [item.lock.key.activity_id for item in (await fetch()).items] == [2]
        lost = await stage.overtaken("UPDATE sessions SET locked_until = clock()", fetch())
        assert (list(lost.items), lost.claim_lost) == ([], True)
        assert await fetch() == WorkFetch(items=[], claim_lost=False, next_due=None)


@pytest.mark.parametrize("tags", [(), ("gpu",)])
async def test_sessions_whose_work_became_visible_at_one_moment_are_claimed_one_by_one(
    postgres_migrated: str, admin: psycopg.Connection[Any], tags: Sequence[str]
) -> None:
    """A worker with room for one gets one of them; it got none."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider, tags=tags)
        at = await peer.own("i")
        items = [work_item(at, number, session) for number, session in enumerate("sstu", 2)]
        assert (await peer.commit_one(at, history=["1"], work_items=items)).committed
        admin.execute("UPDATE worker_queue SET visible_at = '2001-01-01'")
        fetched = await peer.take(10, max_sessions=1)
        assert len({item.session_id for item in fetched}) == 1
        assert len(fetched) == (2 if fetched[0].session_id == "s" else 1)
        assert len({item.session_id for item in await peer.take(10, max_sessions=3)}) == 2


async def test_a_row_that_was_there_is_a_duplicate(postgres_migrated: str) -> None:
    """The whole statement is undone."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        at = await peer.own("i")
        with pytest.raises(Duplicate):
            await peer.commit_one(at, work_items=[work_item(at, 1), work_item(at, 1)])
        assert (await peer.commit_one(at, work_items=[work_item(at, 1)])).committed


async def test_a_deletion_leaves_no_row_of_its_instance(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """In no table: also not a parked item, a key, a size, the end of the execution, the entry of its status."""
    admin.execute("SELECT set_quotas(NULL, NULL, 1000000)")
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        at = await peer.own("i")
        await provider.send_message([NewMessage(instance_id="i", payload="m", key="k", unread_limit=9)])
        hold = SessionHold(hold_id=1, session_id="s", seconds=60)
        await peer.commit_one(at, work_items=[work_item(at, 1, "s")], history=["1"], holds=[hold], watches=[("s", "w")])
        await peer.commit_one(replace(at, event_count=1), update=InstanceUpdate(status="failed", error="e"))
        admin.execute("INSERT INTO parked_items VALUES ('i', 'g', 1, 2, 'work', NULL, '', true)")
        tables = {
            name: sql.SQL("SELECT count(*) FROM {} WHERE instance_id = 'i'").format(sql.Identifier(name))
            for (name,) in admin.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
                " WHERE c.relkind = 'r' AND c.relnamespace = current_schema::regnamespace AND a.attname = 'instance_id'"
            )
        }
        there = {name for name, query in tables.items() if admin.execute(query).fetchone() != (0,)}
        assert there >= {
            "instances",
            "history",
            "message_keys",
            "instance_sizes",
            "instances_by_status",
            "parked_items",
        }
        assert await provider.delete_instance(["i"]) == ["deleted"]
        assert {name for name, query in tables.items() if admin.execute(query).fetchone() != (0,)} == set()


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
                terminate(watcher)
            with pytest.raises(ConnectionLost):
                await renewal
        assert await peer.renew_lease() is not None
        terminate(admin)
        with pytest.raises(ConnectionLost):
            await peer.renew_lease()
        assert await peer.renew_lease() is not None
