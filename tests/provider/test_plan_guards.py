"""More guards of hot statements: PostgreSQL's rarer forms of them, and what each verb costs on SQLite, in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from affinity.provider.contract import FailureFilter, FailurePlace, OrchestrationItem, Release, SessionHold
from affinity.provider.postgres import sweep
from affinity.provider.postgres.driver import connections
from affinity.schedules.store.contract import schedules_of
from affinity_conformance.providers.builders import state, state_write, timer, turn, work_item
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_plans import (
    AUTO_EXPLAIN,
    MANY,
    MOST,
    Crowd,
    check_plans,
    collect_plans,
    crowd_tables,
    each_crowd,
    rows_read,
)
from tests.provider.postgres_stage import (
    administrator,
    hot_verbs,
    opened,
    order_verbs,
    registered,
    session_verbs,
    some_order,
    some_sessions,
    some_work,
)
from tests.provider.sqlite_steps import (
    FEW,
    FOREIGN_CLASSES,
    FOREIGN_ROWS,
    FOREIGN_SESSIONS,
    MUCH,
    Verb,
    cost_in_steps,
    fill_tables,
    opened_file,
    steps,
)

__all__ = ["steps"]

pytestmark = pytest.mark.anyio

Prepare: TypeAlias = Callable[[Peer], Awaitable[Any]]
Verbs: TypeAlias = Callable[[Peer, Any], Sequence[Verb]]


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.mark.slow
@each_crowd
async def test_rarer_forms_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among thousands of foreign rows in each table, with statistics and without, no step of a plan reads many."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        crowd_tables(admin, crowd)
        first, second = await some_sessions(peer), await peer.own("n")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for verb in rarer_verbs(replace(peer, provider=watched), first, second):
                await check(verb)


def rarer_verbs(peer: Peer, first: OrchestrationItem, second: OrchestrationItem) -> list[Verb]:
    """A commit with all its parts, states by hand, a deletion of idle sessions, and an instance that is handed over."""
    states = peer.provider.states

    async def everything() -> None:
        """Two turns of one batch write the same state: the second one is refused."""
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
        alone = {"u": "u", "w": "w"}
        assert await states.delete(["u", "w"], idle_only=True, families=alone, versions={"w": 1}) == ["w"]

    async def hand_over() -> None:
        await peer.provider.release_instance(peer.identity, [Release(instance_id="n", to="other")])
        assert (await peer.info("n")).owner == "other"

    return [everything, by_hand, prune, hand_over, *management_verbs(peer)]


def management_verbs(peer: Peer) -> list[Verb]:
    """The verbs that operators call."""
    of_step = FailureFilter(seconds=86_400.0, kind="activity", name="step3", error_type="Error")
    suspended = replace(of_step, kind="suspension", name="flow3", error_type="Nondeterminism")
    return [
        lambda: peer.provider.list_work_items("m", 10),
        lambda: peer.provider.list_failed_attempts("x7", 1, 10),
        lambda: peer.provider.list_failures(FailureFilter(seconds=86_400.0), 10),
        lambda: peer.provider.list_failures(of_step, 10),
        lambda: peer.provider.list_failures(replace(of_step, error_type=None), 10),
        lambda: peer.provider.list_failures(replace(of_step, after=FailurePlace(datetime.now(UTC), "x", 1, 2, 1)), 10),
        lambda: peer.provider.list_failures(suspended, 10),
        lambda: peer.provider.list_failures(replace(suspended, error_type=None), 10),
        lambda: peer.provider.group_failures(86_400.0, 10, most=10),
        lambda: peer.provider.list_executions("m", 10),
        lambda: peer.provider.read_origins("m", 1),
        lambda: peer.provider.list_tree("m", 10),
        lambda: peer.provider.list_queue("retried", 10),
        lambda: peer.provider.list_queue("delayed", 10),
        lambda: peer.provider.list_queue("blocked", 10),
        lambda: peer.provider.list_queue("limited", 10),
        lambda: peer.provider.measure_queues(10),
        lambda: peer.provider.sample_waiting_work(10),
        lambda: peer.provider.count_instances(10),
        lambda: peer.provider.count_statuses(10),
        lambda: schedules_of(peer.provider).get_due_schedules(10),
    ]


@pytest.mark.slow
@each_crowd
async def test_a_long_order_costs_its_session_nothing(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Though 20,000 items of others are blocked in the order in which it adds and removes some."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        at = await some_order(peer)
        admin.execute(
            "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, route, visible_at, payload,"
            " enqueued_at, order_session, order_number) SELECT 'z', 1, i, 'work', 'blocked', clock(), '', clock(),"
            " 'ordered', 10 + i FROM generate_series(1, %s) i",
            [MANY],
        )
        await registered(provider, "other")
        crowd_tables(admin, crowd)
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for verb in order_verbs(replace(peer, provider=watched), at):
                await check(verb)
            measured = await check(partial(watched.measure_queues, 10))
            assert measured.work_items["blocked"] == 10


@pytest.mark.slow
@each_crowd
async def test_a_sweep_does_not_read_the_queues(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Nor held sessions, nor all sessions, queued or not: it looks at a window of them."""
    monkeypatch.setattr(sweep, "WINDOW", MOST // 4)
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
        await registered(provider, "other")
        crowd_tables(admin, crowd)
        admin.execute(
            "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
            " payload, enqueued_at) SELECT 'y', 1, i, 'work', 'queued' || i, 'new', clock(), '', clock()"
            " FROM generate_series(1, %s) i",
            [MANY],
        )
        if crowd == "mixed":  # else the statistics are from before
            admin.execute("VACUUM ANALYZE")
        for _ in range(2):
            plans.clear()
            await provider.sweep(interval=0.0, session_retention=60.0, worker_retention=60.0)
            await schedules_of(provider).get_due_schedules(10)
            read = Counter[str]()
            for plan in plans:
                for table, rows in rows_read(plan["Plan"]):
                    read[table] += rows
            assert max(read.values()) <= MOST, read


# --- SQLite -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "verbs"), [(some_work, hot_verbs), (some_sessions, session_verbs), (some_order, order_verbs)]
)
async def test_on_sqlite_each_verb_takes_as_many_steps_among_many_rows(
    tmp_path: Path, steps: Iterator[int], prepare: Prepare, verbs: Verbs
) -> None:
    """Whether another worker has 100 rows of each kind or 5,000."""
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            at = await prepare(peer)
            fill_tables(path, [FOREIGN_SESSIONS, *FOREIGN_ROWS], rows)
            costs.append([await cost_in_steps(steps, verb) for verb in verbs(peer, at)])
    assert costs[1] == costs[0]


async def test_on_sqlite_what_operators_look_at_takes_as_many_steps_among_many_rows(
    tmp_path: Path, steps: Iterator[int]
) -> None:
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            await some_sessions(peer)
            fill_tables(path, [FOREIGN_SESSIONS, *FOREIGN_ROWS], rows)
            costs.append([await cost_in_steps(steps, verb) for verb in management_verbs(peer)])
    assert costs[1] == costs[0]


async def test_on_sqlite_a_page_of_a_name_costs_the_same_however_many_classes_it_has(
    tmp_path: Path, steps: Iterator[int]
) -> None:
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            fill_tables(path, [FOREIGN_CLASSES], rows)
            where = FailureFilter(seconds=86_400.0, kind="activity", name="step")
            costs.append(await cost_in_steps(steps, partial(peer.provider.list_failures, where, 10)))
    assert costs[1] == costs[0]


async def test_on_sqlite_a_sweep_does_not_read_the_queues(tmp_path: Path, steps: Iterator[int]) -> None:
    """It looks at each session that is held, and jumps over their items and messages."""
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            fill_tables(path, [FOREIGN_SESSIONS], FEW)
            fill_tables(path, FOREIGN_ROWS, rows)
            sweep = partial(peer.provider.sweep, interval=0.0, session_retention=60.0, worker_retention=60.0)
            costs.append([await cost_in_steps(steps, sweep), await cost_in_steps(steps, sweep)])
    assert costs[1] == costs[0]
