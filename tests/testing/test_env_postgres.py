"""`affinity.testing.Env` on PostgreSQL: in a schema of its own."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import anyio
import psycopg
import pytest

import affinity
from affinity.testing import Env
from affinity.testing.env.postgres import PostgresDatabase

app = affinity.App("env")


@app.activity
async def where(ctx: affinity.ActivityContext) -> str:
    if ctx.attempt == 1:
        raise OSError("once")
    return ctx.worker_id


@app.orchestration
async def naps(ctx: affinity.OrchestrationContext, count: int) -> list[str]:
    found = []
    for _ in range(count):
        await ctx.schedule_timer(86_400)
        retry = affinity.RetryPolicy(max_attempts=2, initial_interval=3600, max_interval=3600)
        found.append(await ctx.schedule_activity(where, retry=retry).on_session("s"))
    return found


@app.orchestration
async def works(ctx: affinity.OrchestrationContext) -> str:
    return await ctx.schedule_activity(where).on_session("s")


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {name for (name,) in connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'aff%'")}


async def test_time_jumps_in_a_schema_that_is_dropped(postgres_database: str) -> None:
    async with Env(app, url=postgres_database, workers=2) as env:
        run = await env.client.start(naps, 3)
        held = (await run.wait())[0]
        assert env.jumps == 6
        assert abs(env.now() - env.started - 3 * timedelta(days=1, hours=1)) < timedelta(milliseconds=1)
        (schema,) = schemas(postgres_database)
        assert schema.startswith("affinity_env_")
        run = await env.client.start(naps, 1)
        await env.crash(held, restart=False)
        assert await run.wait() == list(env.workers)
    assert schemas(postgres_database) == set()


async def test_a_schema_that_exists_is_refused(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        connection.execute("CREATE SCHEMA affinity_mine")
    with pytest.raises(affinity.errors.InvalidOptions, match="'affinity_mine' exists"):
        async with Env(app, url=f"{postgres_database}?schema=affinity_mine"):
            pass
    assert schemas(postgres_database) == {"affinity_mine"}
    with pytest.raises(affinity.errors.InvalidOptions, match="PostgreSQL"):
        async with Env(app, url="sqlite:///x.db"):
            pass


@pytest.mark.parametrize("tables", [("worker_queue", "sessions"), ("sessions", "worker_queue")], ids=" ".join)
async def test_a_jump_survives_a_call_that_locks_the_same_rows(postgres_database: str, tables: tuple[str, str]) -> None:
    """An ack locks the item, then the session; other calls the other way round, which is a deadlock."""
    async with Env(app, url=postgres_database) as env, anyio.create_task_group() as tasks:
        begun, goes = anyio.Event(), anyio.Event()

        async def slow(ctx: affinity.ActivityContext) -> str:
            begun.set()
            await goes.wait()
            return "done"

        env.fake(where, slow)
        run = await env.client.start(works)
        await begun.wait()
        database = env._database
        assert isinstance(database, PostgresDatabase)
        path = f"-c search_path={database._schema}"
        async with await psycopg.AsyncConnection.connect(postgres_database, options=path) as other:
            first, second = (f"UPDATE {table} SET locked_until = locked_until" for table in tables)
            await other.execute(first.encode())
            alive = [worker.identity.incarnation for worker in env._workers]
            tasks.start_soon(database.jump, database.now() + 1, alive, alive)
            await _blocked(postgres_database, database._connection.info.backend_pid)
            with suppress(psycopg.errors.DeadlockDetected):  # of this call, where the jump has looked for one before
                await other.execute(second.encode())
        goes.set()
        assert await run.wait(timeout=20) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [False, True], ids=["same", "new"])
async def test_an_env_goes_on_behind_a_failover(postgres_database: str, is_new: bool) -> None:
    """Its connections break, and the database may have a new timeline: then its workers are new incarnations."""
    async with Env(app, url=postgres_database, workers=2) as env:
        await (await env.client.start(naps, 1)).wait()
        before = [worker.identity.incarnation for worker in env._workers]
        (schema,) = schemas(postgres_database)
        with psycopg.connect(postgres_database, autocommit=True) as admin:
            if is_new:
                admin.execute(f"UPDATE {schema}.timeline SET place = 'elsewhere'".encode())
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        with anyio.fail_after(60):
            assert len(await (await env.client.start(naps, 3)).wait()) == 3
            assert env.jumps == 8
        assert ([worker.identity.incarnation for worker in env._workers] != before) is is_new
    assert schemas(postgres_database) == set()


async def _blocked(url: str, pid: int) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while await (await connection.execute(waits, [pid])).fetchone() is None:
            await anyio.sleep(0.01)


async def test_a_call_of_a_crashed_worker_is_in_the_way_of_the_end(postgres_database: str) -> None:
    """The server still runs it when the schema is dropped, and locks tables in another order."""
    async with await psycopg.AsyncConnection.connect(postgres_database) as other, anyio.create_task_group() as tasks:

        async def lock_the_others(tables: list[tuple[str, ...]]) -> None:
            async with await psycopg.AsyncConnection.connect(postgres_database, autocommit=True) as look:
                blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
                with anyio.fail_after(30):
                    while (await (await look.execute(blocked, [other.info.backend_pid])).fetchone()) == (0,):
                        await anyio.sleep(0.02)
            with suppress(psycopg.errors.DeadlockDetected):  # of these, where the drop has looked for one before
                for (name,) in tables:
                    await other.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
            await other.rollback()

        async with Env(app, url=postgres_database):
            found = await other.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid > 16384 ORDER BY oid DESC"
            )
            first, *tables = await found.fetchall()
            await other.execute(f"LOCK TABLE {first[0]} IN ACCESS SHARE MODE".encode())
            tasks.start_soon(lock_the_others, tables)
