"""PostgreSQL: a sweep looks at a part of what there is, and the next one, of any worker, goes on from there; and it
vacuums.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from affinity.provider.contract import Sweep
from affinity.provider.postgres import PostgresProvider, sweep
from affinity_conformance.providers.builders import message_ids, payloads
from tests.provider.postgres_stage import administrator, opened, registered, until

pytestmark = pytest.mark.anyio

WINDOW: Final = 10
HOUR: Final = 3_600.0


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def sweepers(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[PostgresProvider]]:
    """Two workers, alive, which look at ten rows in a sweep."""
    monkeypatch.setattr(sweep, "WINDOW", WINDOW)
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(opened(postgres_migrated)) for _ in range(2)]
        for name, provider in zip("ab", providers, strict=True):
            await registered(provider, name)
        yield providers


async def swept(sweepers: list[PostgresProvider], times: int) -> list[Sweep]:
    """Sweeps of the two, by turns."""
    return [
        await sweepers[number % 2].sweep(interval=0, session_retention=HOUR, worker_retention=HOUR)
        for number in range(times)
    ]


def queue(admin: psycopg.Connection[Any], first: int, last: int, route: str) -> None:
    """An item for each of these sessions, which no worker holds, with that mark."""
    admin.execute(
        "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
        " payload, enqueued_at) SELECT 'x', 1, i, 'work', 's' || i, %s, clock(), '', clock()"
        " FROM generate_series(%s::int, %s::int) i",
        [route, first, last],
    )


def marks(admin: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(admin.execute("SELECT route, count(*) FROM worker_queue GROUP BY 1").fetchall())


async def test_stale_marks_are_found_window_by_window(
    sweepers: list[PostgresProvider], admin: psycopg.Connection[Any]
) -> None:
    queue(admin, 101, 125, "w:b")
    assert [done.rerouted for done in await swept(sweepers, 3)] == [WINDOW, WINDOW, 5]
    assert marks(admin) == {"new": 25}


async def test_a_window_is_left_when_nothing_in_it_is_stale_any_more(
    sweepers: list[PostgresProvider], admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MAX_REROUTE", 4)
    queue(admin, 101, 125, "w:b")
    assert [done.rerouted for done in await swept(sweepers, 8)] == [4, 4, 2, 4, 4, 2, 4, 1]
    assert marks(admin) == {"new": 25}


async def test_after_the_last_window_comes_the_first(
    sweepers: list[PostgresProvider], admin: psycopg.Connection[Any]
) -> None:
    queue(admin, 101, 125, "new")
    await swept(sweepers, 2)
    admin.execute("UPDATE worker_queue SET route = 'w:b' WHERE session_id IN ('s101', 's125')")
    assert [done.rerouted for done in await swept(sweepers, 2)] == [1, 1]
    assert marks(admin) == {"new": 25}


async def test_what_a_dead_worker_leaves_behind_does_not_wait_for_its_window(
    sweepers: list[PostgresProvider], admin: psycopg.Connection[Any]
) -> None:
    queue(admin, 101, 125, "new")
    queue(admin, 201, 225, "w:dead")
    (done,) = await swept(sweepers, 1)
    assert done.rerouted == 25
    assert marks(admin) == {"new": 50}


async def test_old_sessions_are_removed_window_by_window(
    sweepers: list[PostgresProvider], admin: psycopg.Connection[Any]
) -> None:
    """And rows between them that are not old stay."""
    admin.execute(
        "INSERT INTO sessions SELECT 's' || i, 'a', 'a-1', i, clock() - i % 2 * interval '2 h', clock()"
        " FROM generate_series(101, 125) i"
    )
    assert [done.sessions_removed for done in await swept(sweepers, 3)] == [5, 5, 3]
    assert admin.execute("SELECT count(*) FROM sessions").fetchone() == (12,)
    assert [done.sessions_removed for done in await swept(sweepers, 3)] == [0, 0, 0]


# --- vacuum -----------------------------------------------------------------------------------------------------------

DEAD_ROWS: Final = "SELECT pg_stat_get_dead_tuples('worker_queue'::regclass) >= 100"


@pytest.fixture
async def dead(admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows have gone, which are worth a vacuum."""
    monkeypatch.setattr(sweep, "DEAD", 100)
    queue(admin, 1, 100, "new")
    admin.execute("DELETE FROM worker_queue")
    admin.execute("SELECT pg_stat_force_next_flush()")
    await until(admin, DEAD_ROWS)


def vacuums(admin: psycopg.Connection[Any]) -> int:
    found = admin.execute("SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'worker_queue'").fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.usefixtures("dead")
async def test_dead_rows_of_a_queue_are_vacuumed(sweepers: list[PostgresProvider], admin: Any) -> None:
    """Once: then they are dead no more."""
    await swept(sweepers, 3)
    assert vacuums(admin) == 1
    assert admin.execute(DEAD_ROWS).fetchone() == (False,)


@pytest.mark.usefixtures("dead")
async def test_dead_rows_that_vacuums_did_not_remove_are_left_alone(
    sweepers: list[PostgresProvider], admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long transaction keeps them visible, and there are ever more of them."""
    monkeypatch.setattr(sweep, "TOO_MANY", 99)
    monkeypatch.setattr(sweep, "DEAD", 10)
    await swept(sweepers, 2)
    assert vacuums(admin) == 0


@pytest.mark.usefixtures("dead", "sweepers")
async def test_a_worker_that_does_not_own_the_tables_leaves_them_to_autovacuum(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """With the rights that a worker has on PostgreSQL 16; PostgreSQL would warn of a vacuum in its log each time."""
    role = sql.Identifier(f"plain_{uuid.uuid4().hex}")
    grants = (
        "CREATE ROLE {}",
        "GRANT USAGE ON SCHEMA affinity TO {}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA affinity TO {}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA affinity TO {}",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA affinity TO {}",
    )
    for statement in grants:
        admin.execute(sql.SQL(statement).format(role))
    try:
        async with opened(postgres_migrated, role=role.as_string().strip('"')) as provider:
            assert (await provider.sweep(interval=0, session_retention=HOUR, worker_retention=HOUR)).swept
        assert vacuums(admin) == 0
    finally:
        for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
            admin.execute(sql.SQL(statement).format(role))


async def test_a_message_that_met_a_resumption_is_found(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """One that was sent by who still saw its instance suspended has a mark that no fetch reads."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        first = await peer.own("i")
        assert await peer.suspend(await peer.go_on(first, consumed=message_ids(first)))
        await provider.resume_instance(["i"])
        admin.execute(
            "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
            " VALUES ('i', 'suspended', clock(), 'late')"
        )
        assert await peer.take_instances() == []
        await provider.advance_clock(11)
        await provider.sweep(interval=0, session_retention=HOUR, worker_retention=HOUR)
        (item,) = await peer.take_instances()
        assert payloads(item) == ["late"]
