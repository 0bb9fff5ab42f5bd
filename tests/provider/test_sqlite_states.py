"""SQLite: session state, holds and watches beyond the conformance suite."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from affinity.limits import SWEEP_ROWS
from affinity.provider.contract import InstanceUpdate, OrchestrationItem, SessionHold, SessionWatch
from affinity.provider.sqlite import SqliteProvider
from affinity.session import SessionFilter
from affinity_conformance.providers.builders import state, state_write, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer
from tests.provider.harnesses import SqliteHarness

pytestmark = pytest.mark.anyio

LARGE: Final = 25 * 1024 * 1024


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A migrated file, and workers on it."""
    cluster = Cluster(await SqliteHarness.create(tmp_path))
    yield cluster
    await cluster.aclose()


@pytest.fixture
async def path(cluster: Cluster, tmp_path: Path) -> Path:
    """The file of that cluster."""
    return tmp_path / "affinity.db"


# --- large states -----------------------------------------------------------------------------------------------------


async def test_a_state_of_25_mb_goes_both_ways(cluster: Cluster) -> None:
    """By hand, with a turn, with an ack; its size is known without reading it."""
    a, store = await cluster.worker("a"), await cluster.states()
    first, second, third = (secrets.token_bytes(LARGE) for _ in range(3))
    await store.save(state("s", first))
    assert (await cluster.record("s")).state == first
    await cluster.enqueue("s", "s")
    one, other = await a.take(2)
    step = {"acks": [one.lock], "states": [state_write(one, second, base=1)]}
    assert (await a.commit_one(await a.own("i"), **step)).committed
    assert (await cluster.record("s")).state == second
    assert await a.ack_with(other, state_write(other, third, base=2))
    assert (await cluster.record("s")).state == third
    assert [row.size for row in await store.list(SessionFilter(), 10)] == [LARGE]


# --- what a statement costs -------------------------------------------------------------------------------------------


async def test_a_plain_turn_runs_no_statement_for_sessions_that_it_does_not_write(cluster: Cluster) -> None:
    """Neither a commit nor an ack, as long as no state comes with them and no execution ends."""
    a = await cluster.worker("a")
    await cluster.enqueue("s", "s")
    one, other = await a.take(2)
    at = await a.own("i")
    ran = await traced(a)
    await a.go_on(at, acks=[one.lock], work_items=[work_item(at, 1, "s")])
    await a.ack(other)
    assert ran
    assert mentioned(ran, "session_") == []


async def test_a_batch_with_states_reads_once_and_writes_each_once(cluster: Cluster) -> None:
    """However many there are."""
    a = await cluster.worker("a")
    sessions = [f"s{number}" for number in range(20)]
    await cluster.enqueue(*sessions)
    items = await a.take_all()
    at = await a.own("i")
    ran = await traced(a)
    await a.go_on(at, acks=[item.lock for item in items], states=[state_write(item) for item in items])
    assert len(mentioned(ran, "LEFT JOIN session_states")) == 1
    written = mentioned(ran, "INSERT INTO session_states")
    assert len(set(written)) == len(sessions)  # each is traced a second time, when a trigger has looked at it
    assert len(written) <= 2 * len(sessions)
    assert mentioned(ran, "session_labels") + mentioned(ran, "session_participants") == []


async def test_labels_are_written_when_they_change(cluster: Cluster, path: Path) -> None:
    """And follow their record, until it is gone."""
    a, store = await cluster.worker("a"), await cluster.states()
    await store.save(state("other", labels={"x": "1"}))
    await store.save(state("s", labels={"x": "1", "y": "2"}))
    ran = await traced(a)
    await a.provider.states.save(state("s", b"new", labels={"y": "2", "x": "1"}))
    assert mentioned(ran, "INSERT INTO session_states")
    assert mentioned(ran, "session_labels") == []
    assert labels(path) == [("other", "x", "1"), ("s", "x", "1"), ("s", "y", "2")]
    await store.save(state("s", labels={"y": "3"}))
    assert labels(path) == [("other", "x", "1"), ("s", "y", "3")]
    item = await cluster.use(a, "s")
    assert (await a.commit_one(await a.own("i"), states=[state_write(item, base=3)])).committed
    assert labels(path) == [("other", "x", "1")]
    await store.delete(["other"])
    assert labels(path) == []


# --- holds ------------------------------------------------------------------------------------------------------------


async def test_the_sweep_removes_old_holds_step_by_step(cluster: Cluster, path: Path) -> None:
    """And says when there are more of them; what still holds stays."""
    a = await cluster.worker("a")
    at = await a.own("i")
    first, last = [SessionHold("s", number, 10.0) for number in range(SWEEP_ROWS)], SessionHold("t", SWEEP_ROWS, 10.0)
    await a.go_on(at, holds=[*first, last, SessionHold("u", SWEEP_ROWS + 1, 1_000.0)])
    await cluster.advance(20)
    assert (await cluster.sweep()).backlog
    assert rows(path, "session_holds") == 2
    assert not (await cluster.sweep()).backlog
    assert rows(path, "session_holds") == 1


@pytest.mark.parametrize("way", ["completed", "deleted"])
async def test_nothing_of_an_instance_is_left(cluster: Cluster, path: Path, way: str) -> None:
    """Neither of its former turns nor of the one that ends it."""
    a = await cluster.worker("a")
    waits: dict[str, Any] = {"holds": [SessionHold("s", 1, 10.0)], "watches": [SessionWatch("s", "moved")]}
    at = await a.go_on(await a.own("i"), **waits)
    assert [rows(path, table) for table in ("session_holds", "session_watches")] == [1, 1]
    await end(a, at, way, waits)
    assert [rows(path, table) for table in ("session_holds", "session_watches")] == [0, 0]


async def end(a: Peer, at: OrchestrationItem, way: str, waits: dict[str, Any]) -> None:
    if way == "completed":
        await a.go_on(at, update=InstanceUpdate(status="completed", output="1"), **waits)
    else:
        assert await a.provider.delete_instance([at.instance_id], force=True) == ["deleted"]


# --- migration --------------------------------------------------------------------------------------------------------


# --- helpers ----------------------------------------------------------------------------------------------------------


async def traced(peer: Peer) -> list[str]:
    """The statements that the worker's writing thread runs from now on."""
    assert isinstance(peer.provider, SqliteProvider)
    ran: list[str] = []
    await peer.provider._writer.call(lambda database: database._connection.set_trace_callback(ran.append))
    return ran


def mentioned(statements: Sequence[str], text: str) -> list[str]:
    """The statements that name something; ``sessions`` and ``session_id`` are named by all kinds."""
    plain = ((statement, statement.replace("session_id", "")) for statement in statements)
    return [statement for statement, shortened in plain if text in shortened]


def labels(path: Path) -> list[tuple[str, str, str]]:
    """The side table, sorted."""
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT session_id, key, value FROM session_labels"))


def rows(path: Path, table: str) -> int:
    """How many a table has."""
    with closing(sqlite3.connect(path)) as connection:
        number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return number
