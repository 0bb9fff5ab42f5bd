"""The table of moves: what it costs a turn (nothing), and what its readers read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import psycopg
import pytest

from affinity import migrate
from affinity.provider import open_provider
from affinity.provider.contract import MoveFilter, MoveReport, Provider, Retention
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import connections
from affinity.provider.sqlite.driver.database import connect
from affinity_conformance.providers.builders import work_item
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_plans import AUTO_EXPLAIN, MOST, Crowd, check_plans, collect_plans, each_crowd, rows_read
from tests.provider.postgres_stage import administrator, hot_verbs, opened, registered, some_work

pytestmark = pytest.mark.anyio

MANY: Final = 20_000


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


async def test_a_turn_that_moves_nothing_does_not_touch_the_table(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statement of the verbs of the hot loop, nor of a trigger, names it, except the fetch that claims a session."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
        peer = await _peer(provider)
        own, claim, *others = hot_verbs(peer, await some_work(peer))
        plans.clear()
        await own()
        assert "session_moves" not in json.dumps(plans)
        plans.clear()
        await claim()
        assert "session_moves" in json.dumps(plans)
        plans.clear()
        for verb in others:
            await verb()
        assert len(plans) > len(others) / 2
        assert "session_moves" not in json.dumps(plans)


async def test_on_sqlite_a_turn_that_moves_nothing_runs_no_trigger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verbs of the hot loop run as many statements, also in triggers, as without the triggers of moves.
    The fetch that claims a session runs more.
    """
    ran: list[str] = []
    plain = connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = plain(*arguments, **options)
        connection.set_trace_callback(ran.append)
        return connection

    counts = []
    for name in ("with", "without"):
        path = tmp_path / f"{name}.db"
        await migrate(f"sqlite:///{path}")
        if name == "without":
            for trigger in ("session_begun", "session_claimed"):
                _run(f"sqlite:///{path}", f"DROP TRIGGER {trigger}")
        with monkeypatch.context() as patch:
            patch.setattr("affinity.provider.sqlite.provider.connect", traced)
            async with aclosing(await open_provider(f"sqlite:///{path}")) as provider:
                peer = await _peer(provider)
                counts.append([await _count(ran, verb) for verb in hot_verbs(peer, await some_work(peer))[:9]])
    (own, claim, *others), (own_without, claim_without, *others_without) = counts
    assert claim > claim_without
    assert [own, *others] == [own_without, *others_without]
    assert min(own, *others) > 0


async def _peer(provider: Provider, worker_id: str = "a") -> Peer:
    return await registered(cast("PostgresProvider", provider), worker_id)


async def _count(ran: list[str], verb: Callable[[], Awaitable[object]]) -> int:
    ran.clear()
    await verb()
    return len(ran)


ROWS: Final = (
    "INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued)"
    " SELECT nextval('epochs'), 'other' || i %% 100, 'other', 'another', 'drained', clock(), 0"
    " FROM generate_series(1, %s) i"
)
RARE: Final = (
    "INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued)"
    " SELECT nextval('epochs'), 'rare', 'rare', 'rare too', 'released', clock(), 0 FROM generate_series(1, 20) i"
)
PAGES: Final = [
    MoveFilter(),
    MoveFilter(session_id="rare"),
    MoveFilter(worker_id="rare"),
    MoveFilter(worker_id="rare too"),
    MoveFilter(worker_id="other"),
    MoveFilter(reason="released"),
    MoveFilter(reason="drained"),
    MoveFilter(session_id="rare", reason="released", worker_id="rare"),
]


@pytest.mark.slow
@each_crowd
async def test_reading_moves_reads_what_it_needs(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among 20,000 moves of others on both sides, in either direction; without statistics, with and with old ones."""
    async with opened(postgres_migrated) as provider:
        await _peer(provider)
    admin.execute(ROWS, [MANY])
    if crowd == "lopsided":
        admin.execute("VACUUM ANALYZE session_moves")
    admin.execute(RARE)
    admin.execute(ROWS, [MANY])
    if crowd == "mixed":
        admin.execute("VACUUM ANALYZE session_moves")
    async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
        for where in PAGES:
            newest = await check(partial(watched.list_session_moves, where, limit=10))
            oldest = await check(partial(watched.list_session_moves, where, after=1, limit=10))
            middle = await check(partial(watched.list_session_moves, where, before=newest[-1].epoch, limit=10))
            assert len(newest) == len(oldest) == len(middle) == 10, where
        report = [MoveReport(move.epoch, 1.0, 1) for move in newest]
        assert await check(partial(watched.report_session_moves, report)) == ["released"] * 10


async def test_a_sweep_reads_no_more_moves_than_it_removes(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When none is old enough, it reads one."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))
    admin.execute(RARE)
    admin.execute("UPDATE session_moves SET moved_at = clock() - '1 h'::interval")
    admin.execute(ROWS, [MANY])
    sweep = {"interval": 0.0, "session_retention": 60.0, "worker_retention": 60.0}
    async with opened(postgres_migrated, **AUTO_EXPLAIN) as provider:
        assert (await provider.sweep(**sweep, retention=Retention(moves=1800.0))).moves_removed == 20
        for retention in (Retention(moves=1800.0), Retention()):
            plans.clear()
            assert (await provider.sweep(**sweep, retention=retention)).moves_removed == 0
            read = sum(rows for plan in plans for table, rows in rows_read(plan["Plan"]) if table == "session_moves")
            assert read <= MOST, read


async def test_a_reused_epoch_fails_no_claim(any_url: str) -> None:
    """After a restore that set the epochs back, until a migration or a worker has found it."""
    async with aclosing(await open_provider(any_url)) as provider:
        peer = await _peer(provider)
        at = await peer.own("i")
        await peer.commit_one(at, work_items=[work_item(at, 1, "s")])
        reused = "SELECT {} + n, 'x', 'x', 'new', (SELECT max(started_at) FROM workers), 0 FROM {}"
        rows = {
            "sqlite": reused.format("value", "counters, (SELECT 1 AS n UNION SELECT 2) WHERE name = 'epoch'"),
            "postgresql": reused.format("last_value", "epochs, generate_series(1, 5) n"),
        }[provider.dialect]
        into = "INSERT INTO session_moves (epoch, session_id, to_worker, reason, moved_at, queued)"
        _run(any_url, f"{into} {rows}")
        assert (await peer.take_one()).session_id == "s"
        (last,) = await provider.list_session_moves(MoveFilter(), limit=1)
        assert last.session_id == "x"


def _run(url: str, statement: str) -> None:
    _ask(url, statement)


def _ask(url: str, statement: Any) -> list[Any]:
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    with administrator(url) as admin:
        cursor = admin.execute(statement)
        return cursor.fetchall() if cursor.description else []
