"""Families of 100,000 records: each statement reads, locks and removes what one step needs, whatever their shape."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest

from affinity import SessionManager
from affinity.limits import DELETE_STEP, MAX_PAGE
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.wire import Params
from affinity.session import SessionFilter, SessionState
from affinity_conformance.providers.builders import ITEM_LOCK, state, work_item
from tests.provider.postgres_plans import AUTO_EXPLAIN, collect_plans, rows_read
from tests.provider.postgres_stage import administrator, opened, registered
from tests.provider.sqlite_steps import cost_in_steps, opened_file, steps

__all__ = ["steps"]

pytestmark = pytest.mark.anyio

SHAPES: Final[dict[str, LiteralString]] = {
    "one parent": "CASE WHEN i > 0 THEN 's' || 0 END",
    "chains": "CASE WHEN i % 1000 > 0 THEN 's' || i - 1 END",
    "random": "CASE WHEN i > 0 THEN 's' || (i * 7919 % 100003) % i END",
    "tens": "CASE WHEN i % 10 > 0 THEN 's' || i - i % 10 END",
}
"""The parent of the i-th record: one has all; every 1,000th begins a line; any that is older; every tenth has nine."""

RECORDS: Final = 100_000
"""In whose families a step is looked at: many times what it may read."""

MOST: Final = 10 * MAX_PAGE
"""Rows of one table that one statement reads; the listing of heads reads past the records that are none."""

COLUMNS: Final[LiteralString] = (
    "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, parent, labels, participants,"
    " version, created_at, updated_at)"
)
POSTGRES: Final[LiteralString] = (
    COLUMNS + " SELECT 's' || i, '', 'plain', 1, '', {parent}, '{{}}', '[]', 1, clock(),"
    " clock() - '1 d'::interval + i * '1 ms'::interval FROM generate_series(0, {last}) i"
)
SQLITE: Final[LiteralString] = (
    COLUMNS + " WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
    " SELECT 's' || i, x'', 'plain', 1, '', {parent}, '{{}}', '[]', 1, i, i FROM n"
)


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


def check(plans: list[dict[str, Any]]) -> None:
    """No statement reads much, but for the listing of heads."""
    for plan in plans:
        heads = "h.session_id = r.parent" in plan["Query Text"]
        read: dict[str, float] = {}
        for table, rows in rows_read(plan["Plan"]):
            read[table] = read.get(table, 0) + rows
        assert heads or max(read.values(), default=0) <= MOST, (read, plan["Query Text"])
    plans.clear()


@pytest.mark.slow
@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
@pytest.mark.timeout(900)  # at night, beside others
@pytest.mark.nightly_cases("new|old.*(fresh|parent|random|tens)|old.*chains")
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_step_reads_what_it_needs(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, shape: str, analyzed: bool
) -> None:
    """With statistics, which may say that each record has most of the others as children, and without."""
    admin.execute("ALTER TABLE session_states SET (autovacuum_enabled = off)")
    admin.execute(POSTGRES.format(parent=SHAPES[shape], last=RECORDS - 1).encode())
    if analyzed:
        admin.execute("VACUUM ANALYZE")
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
        manager = SessionManager(provider.states)
        family = await manager.family("s9")
        check(plans)
        would = await manager.prune(keep=1, family=True, dry_run=True)
        check(plans)
        removed = await manager.delete(family.head.session_id)
        assert len(removed) == len(family.members)
        check(plans)
        kept = {"one parent": RECORDS, "chains": 1_000, "random": RECORDS, "tens": 10}[shape]
        assert len(would.removed) == RECORDS - kept
        pruned = await manager.prune(keep=0, family=True)
        check(plans)
        assert len(pruned.removed) == RECORDS - len(removed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("shape", ["one parent", "tens"])
async def test_a_large_family_is_pruned(postgres_migrated: str, admin: psycopg.Connection[Any], shape: str) -> None:
    """Of 100,000 records, by the age of its newest; within the time that one statement may take, were it one."""
    admin.execute(POSTGRES.format(parent=SHAPES[shape], last=99_999).encode())
    async with opened(postgres_migrated) as provider:
        done = list[int]()
        pruned = await SessionManager(provider.states).prune(older_than=60.0, family=True, progress=done.append)
        assert len(pruned.removed) == 100_000
        assert done == list(range(DELETE_STEP, 100_001, DELETE_STEP))


async def test_records_that_are_named_are_removed_in_steps(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are named: one statement for all takes a time that grows with their square."""
    named = [f"s{number}" for number in range(2 * DELETE_STEP + 1)]
    async with opened(postgres_migrated) as provider:
        for name in (named[0], named[-1], "other"):
            await provider.states.save(state(name))
        deletions = provider.connections.deletions
        run, sizes = deletions.run_once, list[int]()

        async def counted(statement: LiteralString, params: Params | None = None) -> list[Any]:
            sizes.append(len(json.loads((params or {})["named"])))
            return await run(statement, params)

        monkeypatch.setattr(deletions, "run_once", counted)
        assert await provider.states.delete([*named, named[0]]) == [named[0], named[-1]]
        assert sizes == [DELETE_STEP, DELETE_STEP, 1]
        assert await provider.states.delete(["other"]) == ["other"]


@pytest.mark.slow
async def test_on_sqlite_a_step_costs_the_same_in_a_large_family(tmp_path: Path, steps: Iterator[int]) -> None:
    """A page of children, a judgement and a removal, of the last records of 5,000 and of 50,000."""
    for shape in ("one parent", "chains", "tens"):
        costs = []
        for last in (4_999, 49_999):
            async with opened_file(tmp_path / f"{shape}{last}.db") as (peer, path):
                with closing(sqlite3.connect(path)) as file, file:
                    file.execute(SQLITE.format(parent=SHAPES[shape], last=last))
                states = peer.provider.states
                names = [f"s{number}" for number in range(last - 99, last + 1)]
                which: Any = {"idle_only": True, "families": dict.fromkeys(names, "f")}
                verbs = (
                    partial(states.children, ["s0", "s10", *names], 100),
                    partial(states.ancestors, "s9", 10),
                    partial(states.delete, names, dry_run=True, **which),
                    partial(states.delete, names, **which),
                )
                costs.append([await cost_in_steps(steps, verb) for verb in verbs])
        assert costs[1] == pytest.approx(costs[0], rel=0.05), shape


async def test_pruning_does_not_wait_for_a_session_in_use(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Its row is locked, by a claim or a commit that goes on for long: it is left, and the others go meanwhile."""
    async with opened(postgres_migrated) as provider:
        for name in ("a", "used", "b"):
            await provider.states.save(state(name))
        for table in ("sessions", "session_states"):
            with admin.transaction():
                admin.execute(f"SELECT FROM {table} WHERE session_id = 'used' FOR UPDATE".encode())
                pruned = await asyncio.wait_for(SessionManager(provider.states).prune(keep=0, family=True), 20)
                assert pruned.left == ["used"]
        assert await SessionManager(provider.states).count() == 1


async def test_a_session_that_is_kept_is_not_locked(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """While a step waits in the middle, a worker takes turns on a session that is judged with it and stays."""
    async with opened(postgres_migrated) as provider, opened(postgres_migrated) as other:
        worker = await registered(other)
        for name, parent in (("idle", None), ("live", None), ("child", "live")):
            await provider.states.save(state(name, parent=parent))
        at = await worker.own("i")
        at = await worker.go_on(at, work_items=[work_item(at, 1, "live")])
        admin.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN OLD; END $$"
        )
        admin.execute("CREATE TRIGGER wait BEFORE DELETE ON session_states FOR EACH ROW EXECUTE FUNCTION wait()")
        with administrator(postgres_migrated) as holder, holder.transaction():
            holder.execute("SELECT pg_advisory_xact_lock(7)")
            pruning = asyncio.ensure_future(SessionManager(provider.states).prune(keep=0, family=True))
            while not admin.execute("SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory'").fetchall():
                await asyncio.sleep(0.005)
            async with asyncio.timeout(ITEM_LOCK):
                item = await worker.take_one()
                assert await worker.ack(item) == [True]
                for name in ("live", "child"):
                    await other.states.save(SessionState(session_id=name, state=b"new"))
            assert not pruning.done()
        pruned = await pruning
        assert (list(pruned.removed), pruned.left) == (["idle"], ["child", "live"])
        assert await SessionManager(provider.states).count(SessionFilter(prefix="live")) == 1
