"""PostgreSQL: holds and watches where statements wait for each other's rows, and their end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Final, LiteralString

import psycopg
import pytest

from affinity.limits import SWEEP_ROWS
from affinity.provider.contract import Incarnation, InstanceUpdate, SessionHold, SessionWatch, WorkerIdentity
from affinity_conformance.providers.builders import SESSION_LOCK, payloads, work_item
from tests.provider.postgres_stage import Stage, administrator, staged

pytestmark = pytest.mark.anyio

HOUR: Final = 3_600.0

LOCK: Final = "SELECT extract(epoch FROM locked_until - clock())::float8 FROM sessions WHERE session_id = 's'"


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def stage(postgres_migrated: str, admin: psycopg.Connection[Any]) -> AsyncIterator[Stage]:
    async with staged(postgres_migrated, admin) as it:
        yield it


async def test_a_hold_that_was_made_meanwhile_is_not_cut(stage: Stage) -> None:
    """The end of one hold waits for the session's row; another hold was made before it got it."""
    await stage.commit(holds=[SessionHold("s", 5, 2 * HOUR)])
    assert stage.rival.execute(LOCK).fetchone() == (pytest.approx(2 * HOUR, abs=60),)
    made: LiteralString = (
        "WITH s AS (UPDATE sessions SET touched_at = clock())"
        " INSERT INTO session_holds VALUES ('other', 1, 1, 's', clock() + '1 h', 300)"
    )
    ended = stage.peer.commit_one(replace(stage.at, event_count=2), ended_holds=[5])
    assert (await stage.overtaken(made, ended)).committed
    assert stage.rival.execute(LOCK).fetchone() == (pytest.approx(HOUR, abs=60),)


@pytest.mark.parametrize("end", ["finish", "continue", "delete"])
async def test_what_ends_an_execution_ends_its_holds(stage: Stage, end: str) -> None:
    """Back to the session's own timeout; an instance that goes on as another execution watches on."""
    await stage.commit(holds=[SessionHold("s", 5, HOUR)], watches=[SessionWatch("s", "moved")])
    peer, at = stage.peer, replace(stage.at, event_count=2)
    if end == "delete":
        await peer.provider.delete_instance(["i"], force=True)
    else:
        update = InstanceUpdate(status="completed" if end == "finish" else "running", continued=end == "continue")
        assert (await peer.commit_one(at, update=update)).committed
    assert stage.rival.execute(LOCK).fetchone() == (pytest.approx(SESSION_LOCK, abs=60),)
    left = "SELECT (SELECT count(*) FROM session_holds), (SELECT count(*) FROM session_watches)"
    assert stage.rival.execute(left).fetchone() == (0, 1 if end == "continue" else 0)


async def test_a_watch_that_was_set_meanwhile_receives_the_move(stage: Stage) -> None:
    """The claim waited for the session's row, which the watch had."""
    b = replace(stage.peer, identity=WorkerIdentity(worker_id="b", incarnation=Incarnation("b-1")))
    await b.register()
    await stage.commit(acks=[stage.item.lock], work_items=[work_item(stage.at, 2, "s")])
    await stage.peer.drain()
    set_: LiteralString = (
        "WITH s AS (SELECT FROM sessions FOR NO KEY UPDATE) INSERT INTO session_watches SELECT 's', 'i', 'moved' FROM s"
    )
    assert await stage.overtaken(set_, b.take_one())
    (found,) = await stage.peer.take_instances()
    assert payloads(found)[-1] == "moved"


async def test_expired_holds_are_swept_in_steps(stage: Stage) -> None:
    """And rows of sessions that somebody watches stay."""
    stage.rival.execute(
        "INSERT INTO session_holds SELECT 'x', 1, i, 's', clock() - '1 s'::interval, 300 FROM generate_series(1, %s) i",
        [SWEEP_ROWS + 1],
    )
    await stage.commit(acks=[stage.item.lock], watches=[SessionWatch("s", "moved")])
    stage.rival.execute("UPDATE sessions SET locked_until = clock() - '1 h'::interval")
    sweeps = [await stage.peer.provider.sweep(interval=0, session_retention=1, worker_retention=HOUR) for _ in range(2)]
    assert [sweep.backlog for sweep in sweeps] == [True, False]
    left = "SELECT (SELECT count(*) FROM session_holds), (SELECT count(*) FROM sessions)"
    assert stage.rival.execute(left).fetchone() == (0, 1)
    stage.rival.execute("DELETE FROM session_watches")
    swept = await stage.peer.provider.sweep(interval=0, session_retention=1, worker_retention=HOUR)
    assert swept.sessions_removed == 1
