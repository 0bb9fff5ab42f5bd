"""More guards of hot statements: PostgreSQL's rarer forms of them, and what each verb costs on SQLite, in steps."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
import pytest

from affinity.provider.contract import Incarnation, OrchestrationItem, Release, SessionHold, WorkerIdentity
from affinity.provider.postgres import sweep
from affinity.provider.postgres.driver import connections
from affinity.provider.sqlite import SqliteProvider
from affinity.provider.sqlite.driver.database import connect
from affinity.testing.conformance.providers.builders import state, state_write, timer, turn, work_item
from affinity.testing.conformance.providers.peer import Peer
from tests.provider.postgres_stage import (
    administrator,
    hot_verbs,
    opened,
    registered,
    session_verbs,
    some_sessions,
    some_work,
)
from tests.provider.test_postgres_plans import AUTO_EXPLAIN, CROWDS, MANY, MOST, Crowd, _crowd, _listening, _watched

pytestmark = pytest.mark.anyio

Verb: TypeAlias = Callable[[], Awaitable[object]]
Prepare: TypeAlias = Callable[[Peer], Awaitable[Any]]
Verbs: TypeAlias = Callable[[Peer, Any], Sequence[Verb]]


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.mark.slow
@pytest.mark.parametrize("crowd", CROWDS)
async def test_rarer_forms_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among 20,000 foreign rows in each table, with statistics and without, no step of any plan reads many of them."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        _crowd(admin, crowd)
        first, second = await some_sessions(peer), await peer.own("n")
        async with _watched(postgres_migrated, monkeypatch) as (watched, check):
            for verb in rarer_verbs(replace(peer, provider=watched), first, second):
                await check(verb)


def rarer_verbs(peer: Peer, first: OrchestrationItem, second: OrchestrationItem) -> list[Verb]:
    """A commit with all its parts, states by hand, a deletion of what is idle, and an instance that is handed over."""
    states = peer.provider.states

    async def everything() -> None:
        """Two turns of one batch write the same state: the second one is told so."""
        (item,) = [item for item in await peer.take(10) if item.session_id == "u"]
        write = state_write(item, base=1)
        hold = SessionHold("u", 7, 60.0)
        step = {"acks": [item.lock], "work_items": [replace(work_item(first, 3, "u"), lock_here=True)], "holds": [hold]}
        whole = turn(first, **step, states=[write], messages=[timer(first, 8, 60.0)])
        passed, refused = await peer.commit(whole, turn(second, states=[write]))
        assert passed.committed
        assert refused.conflicts == ["u"]

    async def by_hand() -> None:
        assert await states.save(state("u")) == 3
        assert await states.save(state("u"), expected_version=3) == 4
        assert await states.save(state("w", parent="u"), idempotency_key="once") == 1

    async def prune() -> None:
        assert await states.delete(["u", "w"], idle_only=True, cascade=True, versions={"w": 1}) == ["w"]

    async def hand_over() -> None:
        await peer.provider.release_instance(peer.identity, [Release(instance_id="n", to="other")])
        assert (await peer.info("n")).owner == "other"

    return [everything, by_hand, prune, hand_over, *management_verbs(peer)]


def management_verbs(peer: Peer) -> list[Verb]:
    """What operators look at."""
    return [
        lambda: peer.provider.list_work_items("m", 10),
        lambda: peer.provider.list_executions("m", 10),
        lambda: peer.provider.read_origins("m", 1),
        lambda: peer.provider.list_tree("m", 10),
        lambda: peer.provider.measure_queues(10),
        lambda: peer.provider.count_instances(10),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("crowd", CROWDS)
async def test_a_sweep_does_not_read_the_queues(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Nor what is held, nor all sessions, queued or not: of those it looks at a window."""
    monkeypatch.setattr(sweep, "WINDOW", MOST // 4)
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(_listening, plans, connections.connect))
    async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
        await registered(provider, "other")
        _crowd(admin, crowd)
        admin.execute(
            "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
            " payload, enqueued_at) SELECT 'y', 1, i, 'work', 'queued' || i, 'new', clock(), '', clock()"
            " FROM generate_series(1, %s) i",
            [MANY],
        )
        if crowd == "mixed":  # else the statistics are those from before
            admin.execute("VACUUM ANALYZE")
        for _ in range(2):
            plans.clear()
            await provider.sweep(interval=0.0, session_retention=60.0, worker_retention=60.0)
            read = Counter[str]()
            for plan in plans:
                for table, rows in _rows_read(plan["Plan"]):
                    read[table] += rows
            assert max(read.values()) <= MOST, read


def _rows_read(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Tables, and rows that a step of a plan has read of them."""
    if "Relation Name" in node:
        yield (
            node["Relation Name"],
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"],
        )
    for child in node.get("Plans", ()):
        yield from _rows_read(child)


# --- SQLite -----------------------------------------------------------------------------------------------------------

FEW, MUCH = 100, 5_000

FOREIGN_SESSIONS: Final = "INSERT INTO sessions SELECT 'other' || i, 'other', 'other-1', 1, 1e12, 0, 0 FROM numbers"
FOREIGN_ROWS: Final = (
    "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
    " enqueued_at, payload) SELECT 'x', 1, i, 'work', 'other' || (i % 100 + 1), 'w:other', 0, 0, '' FROM numbers",
    "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
    " enqueued_at, payload) SELECT 'y', 1, i, 'work', 'offered' || i, 'new:other', 1e12, 0, '' FROM numbers",
    "INSERT INTO instances (instance_id, name, owner_worker, owner_incarnation, created_at, updated_at)"
    " SELECT 'x' || i, 'flow', 'other', 'other-1', 0, 0 FROM numbers",
    "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
    " SELECT 'x' || i, 'w:other', 0, '' FROM numbers",
    "INSERT INTO instances (instance_id, name, status, created_at, updated_at)"
    " SELECT 'sick' || i, 'flow', 'suspended', 0, 0 FROM numbers",
    "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
    " SELECT 'sick' || i, 'suspended', 0, '' FROM numbers",
    "INSERT INTO history (instance_id, execution_id, event_id, event) SELECT 'x' || i, 1, 1, '' FROM numbers",
    "INSERT INTO session_states (session_id, version, created_at, updated_at, schema_version, encoding, kind, labels,"
    " participants, state) SELECT 'other' || i, 1, i, i, 1, 'plain', 'other', '{}', '[]', x'00' FROM numbers",
    "INSERT INTO session_holds SELECT 'x' || i, 1, 1, 'other' || i, 1e12, 300 FROM numbers",
    "INSERT INTO session_watches SELECT 'other' || i, 'x' || i, '' FROM numbers",
)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Counts the instructions of SQLite's virtual machine that provider objects run from now on."""
    counter = count()

    def counted(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_progress_handler(lambda: next(counter) < 0, 1)  # a true answer would end the statement
        return connection

    monkeypatch.setattr("affinity.provider.sqlite.provider.connect", counted)
    return counter


@pytest.mark.parametrize(("prepare", "verbs"), [(some_work, hot_verbs), (some_sessions, session_verbs)])
async def test_on_sqlite_each_verb_takes_as_many_steps_among_many_rows(
    tmp_path: Path, steps: Iterator[int], prepare: Prepare, verbs: Verbs
) -> None:
    """Whether another worker has 100 rows of each kind or 5,000."""
    costs = []
    for rows in (FEW, MUCH):
        async with _peer(tmp_path / f"{rows}.db") as (peer, path):
            at = await prepare(peer)
            _fill(path, [FOREIGN_SESSIONS, *FOREIGN_ROWS], rows)
            costs.append([await _cost(steps, verb) for verb in verbs(peer, at)])
    assert costs[1] == costs[0]


async def test_on_sqlite_what_operators_look_at_takes_as_many_steps_among_many_rows(
    tmp_path: Path, steps: Iterator[int]
) -> None:
    costs = []
    for rows in (FEW, MUCH):
        async with _peer(tmp_path / f"{rows}.db") as (peer, path):
            await some_sessions(peer)
            _fill(path, [FOREIGN_SESSIONS, *FOREIGN_ROWS], rows)
            costs.append([await _cost(steps, verb) for verb in management_verbs(peer)])
    assert costs[1] == costs[0]


async def test_on_sqlite_a_sweep_does_not_read_the_queues(tmp_path: Path, steps: Iterator[int]) -> None:
    """It looks at each session that is held, and jumps over their items and messages."""
    costs = []
    for rows in (FEW, MUCH):
        async with _peer(tmp_path / f"{rows}.db") as (peer, path):
            _fill(path, [FOREIGN_SESSIONS], FEW)
            _fill(path, FOREIGN_ROWS, rows)
            sweep = partial(peer.provider.sweep, interval=0.0, session_retention=60.0, worker_retention=60.0)
            costs.append([await _cost(steps, sweep), await _cost(steps, sweep)])
    assert costs[1] == costs[0]


@asynccontextmanager
async def _peer(path: Path) -> AsyncIterator[tuple[Peer, Path]]:
    """A worker on a new file, beside the one that has all the rows."""
    await SqliteProvider.migrate(path)
    async with aclosing(await SqliteProvider.open(path)) as provider:
        peer, other = (
            Peer(provider, WorkerIdentity(worker_id=name, incarnation=Incarnation(f"{name}-1")))
            for name in ("a", "other")
        )
        await peer.register()
        await other.register()
        yield peer, path


async def _cost(steps: Iterator[int], verb: Verb) -> int:
    before = next(steps)
    await verb()
    return next(steps) - before


def _fill(path: Path, statements: Sequence[str], rows: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TEMP TABLE numbers (i INTEGER)")
        connection.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(1, rows + 1)])
        for statement in statements:
            connection.execute(statement)
