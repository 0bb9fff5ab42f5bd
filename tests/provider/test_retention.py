"""What pruning costs, on PostgreSQL and on SQLite, and what it knows of instances from before its migration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest

from affinity.provider.contract import FINISHED, InstanceFilter, Retention
from affinity.provider.postgres import old_data, retention
from affinity.provider.postgres.driver import connections
from affinity.provider.sqlite import retention as sqlite_retention
from tests.provider.postgres_plans import AUTO_EXPLAIN, MANY, MOST, collect_plans, rows_read
from tests.provider.postgres_stage import administrator, opened, registered
from tests.provider.sqlite_steps import FEW, MUCH, cost_in_steps, fill_tables, opened_file, steps

pytestmark = pytest.mark.anyio

__all__ = ["steps"]

DAY: Final = 86_400.0
EVERYTHING: Final = Retention(instances=1.0, histories=1.0)


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


ENDED: Final[tuple[LiteralString, ...]] = (
    # Running and lately ended instances; old children of a running parent; histories that may go, or may not.
    "INSERT INTO instances (instance_id, generation, name, created_at, updated_at)"
    " SELECT 'x' || i, '1', 'flow', clock(), clock() FROM generate_series(1, %s) i",
    "INSERT INTO ended_executions SELECT 'x' || i, 1, true, clock() + '1 h' FROM generate_series(1, %s) i",
    "INSERT INTO ended_executions SELECT 'sick' || i, 1, false, clock() + '1 h' FROM generate_series(1, %s) i",
    "INSERT INTO instances (instance_id, generation, name, status, parent_id, created_at, updated_at)"
    " SELECT 'child' || i, '1', 'flow', 'completed', 'x1', clock(), '2001-01-01' FROM generate_series(1, %s) i",
    "INSERT INTO ended_executions SELECT 'child' || i, 1, true, '2001-01-01'::timestamptz + i * '1 s'::interval"
    " FROM generate_series(1, %s) i",
)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_step_reads_what_it_looks_at(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, analyzed: bool
) -> None:
    """By hand and in a sweep, with statistics and without: neither what runs, nor all that has ended."""
    for bound in ("PRUNE_WINDOW", "PRUNE_EVENTS"):
        monkeypatch.setattr(retention, bound, MOST // 4)
    monkeypatch.setattr(old_data, "SWEEP_EVENTS", MOST // 4)
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    for statement in ENDED:
        admin.execute(statement, [MANY])
    if analyzed:
        admin.execute("VACUUM ANALYZE")
    admin.execute("INSERT INTO instances (instance_id, generation, name, status, created_at, updated_at)"
                  " VALUES ('due', '1', 'flow', 'completed', clock(), '2000-01-01')")  # fmt: skip
    admin.execute("INSERT INTO ended_executions VALUES ('due', 1, true, '2000-01-01')")
    async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
        await registered(provider, "other")
        first = await provider.prune_instances(FINISHED, DAY)
        assert (first.instances, first.after is not None) == (1, True)
        for _ in range(2):
            await provider.sweep(interval=0.0, session_retention=DAY, worker_retention=DAY, retention=EVERYTHING)
        await provider.prune_histories(DAY)
    pruning = [plan["Plan"] for plan in plans if "ended_executions" in plan["Query Text"]]
    assert len(pruning) >= 6
    for plan in pruning:
        read = Counter[str]()
        for table, rows in rows_read(plan):
            read[table] += rows
        assert max(read.values(), default=0) <= MOST, read


async def test_a_tree_that_takes_too_long_holds_no_sweep_up(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps go on behind it, and come back to it."""
    monkeypatch.setattr(retention, "PRUNE_WINDOW", 1)
    for name, second in (("large", 1), ("small", 2)):
        admin.execute("INSERT INTO instances (instance_id, generation, name, status, created_at, updated_at)"
                      " VALUES (%s, '1', 'flow', 'completed', clock(), '2001-01-01')", [name])  # fmt: skip
        admin.execute("INSERT INTO ended_executions VALUES (%s, 1, true, make_timestamptz(2001, 1, 1, 0, 0, %s))",
                      [name, second])  # fmt: skip
    admin.execute("INSERT INTO history SELECT 'large', 1, 1, ''")
    admin.execute("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); END'")
    admin.execute("CREATE TRIGGER wait BEFORE DELETE ON history FOR EACH ROW EXECUTE FUNCTION wait()")
    async with opened(postgres_migrated, statement_timeout="1000") as provider:
        sweep = partial(provider.sweep, interval=0.0, session_retention=DAY, worker_retention=DAY, retention=EVERYTHING)
        assert [(await sweep()).instances_removed for _ in range(2)] == [0, 1]
        assert [row.instance_id for row in await provider.list_instances(InstanceFilter(), 10)] == ["large"]


async def test_on_sqlite_a_step_costs_the_same_among_many(
    tmp_path: Path, steps: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether 100 of each kind have ended, or 5,000."""
    monkeypatch.setattr(sqlite_retention, "PRUNE_WINDOW", FEW // 2)
    monkeypatch.setattr(sqlite_retention, "PRUNE_STEP_SECONDS", float("inf"))
    old = (
        "INSERT INTO instances (instance_id, generation, name, status, parent_id, created_at, updated_at)"
        " SELECT 'child' || i, '1', 'flow', 'completed', 'x1', 0, i FROM numbers",
        "INSERT INTO instances (instance_id, generation, name, created_at, updated_at)"
        " VALUES ('x1', '1', 'flow', 0, 0)",
        "INSERT INTO ended_executions SELECT 'child' || i, 1, 1, i FROM numbers",
        "INSERT INTO ended_executions SELECT 'x' || i, 1, 1, 1e12 FROM numbers",
        "INSERT INTO ended_executions SELECT 'y' || i, 1, 0, 1e12 FROM numbers",
    )
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            fill_tables(path, old, rows)
            sweep = partial(
                peer.provider.sweep, interval=0.0, session_retention=DAY, worker_retention=DAY, retention=EVERYTHING
            )
            prune = partial(peer.provider.prune_instances, FINISHED, DAY)
            costs.append([await cost_in_steps(steps, verb) for verb in (sweep, prune)])
    assert costs[1] == costs[0]
