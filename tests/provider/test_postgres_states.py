"""PostgreSQL: session state where statements wait for each other's rows, and states of 25 MB."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import psycopg
import pytest

from affinity import SessionStore
from affinity.errors import Contention, SessionWriteConflict
from affinity.provider.contract import (
    SessionHold,
    WorkAck,
    WorkItem,
)
from affinity.provider.postgres import PostgresProvider
from affinity.session import SessionMetadata, SessionRecord, SessionState, StateWrite
from affinity_conformance.providers.builders import TIMEOUTS, turn, work_item
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import SOMEBODY_WAITS, Stage, administrator, opened, registered, staged, until

pytestmark = pytest.mark.anyio

LARGE: Final = 25 * 1024 * 1024
HOUR: Final = 3_600.0

CLAIMED_ELSEWHERE: Final = "UPDATE sessions SET worker_id = 'b', incarnation = 'b-1', epoch = nextval('epochs')"
SAVED_BY_HAND: Final = "UPDATE sessions SET epoch = nextval('epochs')"
CLAIMED_FIRST: Final = "INSERT INTO sessions VALUES ('t', 'b', 'b-1', 0, clock(), clock())"
FIRST_WRITE: Final = (
    "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, labels, participants, version,"
    " created_at, updated_at) VALUES ('s', 'theirs', 'plain', 1, '', '{}', '[]', 1, clock(), clock())"
)


Change = Callable[[SessionStore], Awaitable[object]]


async def _save(states: SessionStore) -> object:
    return await states.save(SessionState(session_id="t", state=b"new"))


async def _delete(states: SessionStore) -> object:
    return await states.delete(["t"])


CHANGES: Final[dict[str, Change]] = {"save": _save, "delete": _delete}


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def stage(postgres_migrated: str, admin: psycopg.Connection[Any]) -> AsyncIterator[Stage]:
    async with staged(postgres_migrated, admin) as it:
        yield it


# --- first writes -----------------------------------------------------------------------------------------------------


async def test_of_two_first_writes_the_second_is_a_conflict(stage: Stage) -> None:
    """It waits for the other, whose record is then there to be seen."""
    step = {"acks": [stage.item.lock], "states": [stage.write()]}
    result = await stage.overtaken(FIRST_WRITE, stage.commit(**step))
    assert (result.committed, result.lost_acks, result.conflicts) == (False, [], ["s"])
    assert await stage.peer.check(stage.item) == [True]
    assert await stage.state() == (b"theirs", 1)
    assert (await stage.commit(acks=[stage.item.lock], states=[stage.write(base_version=1)])).committed
    assert await stage.state() == (b"ours", 2)


async def test_a_first_write_with_an_ack_meets_another(stage: Stage) -> None:
    """The same, by the way that takes a result to another worker's instance."""
    acks = [WorkAck(lock=stage.item.lock, message="done", state=stage.write())]
    with pytest.raises(Contention):
        await stage.overtaken(FIRST_WRITE, stage.peer.provider.ack_work_item(stage.peer.identity, acks, TIMEOUTS))
    assert await stage.peer.provider.ack_work_item(stage.peer.identity, acks, TIMEOUTS) == [False]
    assert await stage.peer.check(stage.item) == [True]


async def test_first_writes_by_hand_at_the_same_time_are_all_kept(stage: Stage) -> None:
    """Each is a version; a writer that expects no version gets an error."""
    new = SessionState(session_id="s", state=b"by hand")
    assert await stage.overtaken(FIRST_WRITE, stage.peer.provider.states.save(new)) == 2
    with pytest.raises(SessionWriteConflict, match="version 2, not 0") as caught:
        await stage.peer.provider.states.save(new, expected_version=0)
    assert (caught.value.expected_version, caught.value.version) == (0, 2)


async def test_first_writes_of_two_workers_at_the_same_time(stage: Stage) -> None:
    """Without anybody to hold them up: one is committed, and the other one knows that it was not."""
    async with opened(stage.url) as other:
        rival = Peer(other, stage.peer.identity)
        at = await rival.own("j")
        ours = stage.peer.commit(turn(stage.at, states=[stage.write(b"ours")]))
        theirs = rival.commit(turn(at, states=[stage.write(b"theirs")]))
        outcomes = await asyncio.gather(ours, theirs, return_exceptions=True)
        committed = [isinstance(outcome, list) and outcome[0].committed for outcome in outcomes]
        assert sorted(committed) == [False, True]
        assert await stage.state() == ([b"ours", b"theirs"][committed.index(True)], 1)


# --- the fence, after a wait ------------------------------------------------------------------------------------------


async def test_a_commit_that_waited_for_its_session_is_refused_when_it_moved(stage: Stage) -> None:
    """The row is judged as it is when the lock is there, not as it was when the statement began."""
    step = {"acks": [stage.item.lock], "states": [stage.write()]}
    result = await stage.overtaken(CLAIMED_ELSEWHERE, stage.commit(**step))
    assert (result.committed, result.lost_acks, result.conflicts) == (False, [], ["s"])
    assert await stage.peer.check(stage.item) == [True]
    assert await stage.state() is None
    assert (await stage.commit(acks=[stage.item.lock])).committed  # without a state, the token governs


async def test_an_ack_that_waited_for_its_session_is_refused_when_it_moved(stage: Stage) -> None:
    """And the token is still live: the activity can be run again."""
    acks = [WorkAck(lock=stage.item.lock, message="done", state=stage.write())]
    ack = stage.peer.provider.ack_work_item(stage.peer.identity, acks, TIMEOUTS)
    assert await stage.overtaken(CLAIMED_ELSEWHERE, ack) == [False]
    assert await stage.peer.check(stage.item) == [True]
    assert await stage.peer.ack(stage.item) == [True]


async def test_a_commit_that_waited_for_the_record_is_refused_when_it_was_written(stage: Stage) -> None:
    """The version that counts is the one under the lock."""
    await stage.commit(states=[stage.write()])
    at = replace(stage.at, event_count=2)
    commit = stage.peer.commit_one(at, states=[stage.write(base_version=1)])
    result = await stage.overtaken("UPDATE session_states SET version = 2, state = 'theirs'", commit)
    assert (result.committed, result.conflicts) == (False, ["s"])
    assert await stage.state() == (b"theirs", 2)


async def test_an_item_is_not_run_under_an_epoch_that_ended_meanwhile(stage: Stage) -> None:
    """Somebody saved by hand while the commit waited: it is run under the new one."""
    here = replace(work_item(stage.at, 2, "s"), lock_here=True)
    result = await stage.overtaken(SAVED_BY_HAND, stage.commit(acks=[stage.item.lock], work_items=[here]))
    assert result.committed
    ((item, *_),) = result.placed
    assert stage.item.session_epoch is not None
    assert item.session_epoch == stage.item.session_epoch + 1


async def test_a_batch_writes_a_session_once(stage: Stage) -> None:
    """The first that may, whatever stands before it; and nothing of the refused ones."""
    peer = stage.peer
    first, second, third = await peer.own("h"), await peer.own("j"), await peer.own("k")
    stale = turn(replace(first, event_count=9), states=[stage.write(b"1")])
    steps = [turn(second, states=[stage.write(b"2")]), turn(third, states=[stage.write(b"3")]), turn(stage.at)]
    results = await peer.commit(stale, *steps)
    assert [result.committed for result in results] == [False, True, False, True]
    assert results[2].conflicts == ["s"]
    assert await stage.state() == (b"2", 1)
    assert len(await peer.history(third)) == 0


# --- saving and deleting by hand --------------------------------------------------------------------------------------


async def test_a_record_is_deleted_only_as_it_is_when_it_is_locked(stage: Stage) -> None:
    """It was written while the deletion waited: it stays, with its family."""
    states = stage.peer.provider.states
    await states.save(SessionState(session_id="s", state=b"1"))
    await states.save(SessionState(session_id="child", state=b"", metadata=SessionMetadata(parent="s")))
    written = "UPDATE session_states SET version = 2 WHERE session_id = 's'"
    family = {"s": "s", "child": "s"}
    assert await stage.overtaken(written, states.delete(family, versions={"s": 1}, families=family)) == []
    assert await states.delete(family, versions={"s": 2}, families=family) == ["s", "child"]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_first_claim_waits_for_a_change_by_hand(
    postgres_migrated: str, stage: Stage, change: Change, admin: psycopg.Connection[Any]
) -> None:
    """Or else its epoch ends: it never goes on with what was there before."""
    claimant, at = stage.peer, await stage.peer.own("j")
    await claimant.provider.states.save(SessionState(session_id="t", state=b"old"), epoch=1)
    await claimant.commit_one(at, work_items=[work_item(at, 1, "t")])

    async def claim() -> tuple[WorkItem, SessionRecord | None]:
        item = await claimant.take_one()
        return item, await claimant.provider.states.load("t")

    async with opened(postgres_migrated) as other:
        with admin.transaction():
            admin.execute("SELECT FROM session_states WHERE session_id = 't' FOR UPDATE")
            changing = asyncio.ensure_future(change(other.states))
            with administrator(postgres_migrated) as watcher:
                await until(watcher, SOMEBODY_WAITS)
                claiming = asyncio.ensure_future(claim())
                while not (claiming.done() or _waiting(watcher) == 2):
                    await asyncio.sleep(0.005)
        await changing
        item, hydrated = await claiming
    (session,) = [row for row in await claimant.provider.list_sessions() if row.session_id == "t"]
    assert hydrated == await claimant.provider.states.load("t") or session.epoch > (item.session_epoch or 0)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_by_hand_that_waited_for_a_first_claim_ends_its_epoch(stage: Stage, change: Change) -> None:
    """It did not see the row when it began."""
    states = stage.peer.provider.states
    await states.save(SessionState(session_id="t", state=b"old"), epoch=1)
    await stage.overtaken(CLAIMED_FIRST, change(states))
    (session,) = [row for row in await stage.peer.provider.list_sessions() if row.session_id == "t"]
    assert (session.worker_id, session.epoch != 0) == ("b", True)
    found = await states.load("t")
    assert found is None or found.state == b"new"


async def test_writes_in_one_second_change_no_index(
    postgres_migrated: str, stage: Stage, admin: psycopg.Connection[Any]
) -> None:
    """A session that is written many times a second leaves nothing behind in seven indexes."""
    begun = time.monotonic()
    async with opened(postgres_migrated) as provider:
        metadata = SessionMetadata(kind="chat", name="n", parent="p", labels={"a": "b"})
        for number in range(50):
            new = SessionState(session_id="t", state=b"%d" % number, metadata=metadata)
            await provider.states.save(new, epoch=1)
    seconds = time.monotonic() - begun
    await until(admin, "SELECT n_tup_upd = 49 FROM pg_stat_user_tables WHERE relname = 'session_states'")
    found = admin.execute("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'session_states'").fetchone()
    assert found is not None
    assert found[0] >= 49 - (seconds + 1)


# --- large states -----------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases(r"\[old")
async def test_a_state_of_25_mb_goes_both_ways(stage: Stage) -> None:
    """With a turn, with an ack, by hand; its size is known without reading it."""
    states = stage.peer.provider.states
    first, second, third = (secrets.token_bytes(LARGE) for _ in range(3))
    new = SessionState(session_id="s", state=first, encoding="zlib")
    assert await states.save(new, epoch=stage.item.session_epoch) == 1
    assert await stage.state() == (first, 1)
    assert (await stage.commit(states=[stage.write(second, 1)])).committed
    assert await stage.state() == (second, 2)
    acks = [WorkAck(lock=stage.item.lock, message="done", state=stage.write(third, 2))]
    assert await stage.peer.provider.ack_work_item(stage.peer.identity, acks, TIMEOUTS) == [True]
    assert await stage.state() == (third, 3)


# --- deadlocks --------------------------------------------------------------------------------------------------------


async def test_writes_in_opposite_order_do_not_deadlock_and_are_all_counted(postgres_migrated: str) -> None:
    """Batches of states and holds, saves by hand and deletions, over the same sessions; every version is somebody's."""
    async with opened(postgres_migrated) as one, opened(postgres_migrated) as other:
        left = await registered(one)
        right = replace(left, provider=other)
        names = [f"s{number}" for number in range(10)]
        owned = [await left.own(name) for name in names]
        await left.commit(*(turn(at, work_items=[work_item(at, 1, at.instance_id)]) for at in owned))
        versions = {name: await one.states.save(SessionState(session_id=name, state=b"")) for name in names}
        await left.take(len(names))
        epoch = 1 << 60  # of no lease, and above all
        events = dict.fromkeys(names, 1)
        for round_ in range(30):
            steps = [
                turn(
                    replace(at, event_count=events[name]),
                    states=[_write(name, versions[name], epoch)],
                    holds=[SessionHold(other_name, round_, HOUR)],
                    ended_holds=[round_ - 1],
                )
                for at, name, other_name in zip(owned, names, reversed(names), strict=True)
            ]
            hand = names[round_ % len(names)]
            mine, theirs, *_ = await asyncio.gather(
                left.commit(*steps),
                right.commit(*reversed(steps)),
                other.states.save(_write(hand, 0, 0).new, epoch=epoch),
                one.states.delete(names, dry_run=True),
            )
            versions[hand] += 1
            for name, a, b in zip(names, mine, reversed(theirs), strict=True):
                assert a.committed + b.committed <= 1
                events[name] += a.committed + b.committed
                versions[name] += a.committed + b.committed
        assert {name: await _version(one, name) for name in names} == versions
        assert min(events.values()) > 20


def _waiting(watcher: psycopg.Connection[Any]) -> int:
    """Connections that wait for a lock."""
    found = watcher.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    assert found is not None
    return int(found[0])


def _write(session_id: str, base_version: int, epoch: int) -> StateWrite:
    new = SessionState(session_id=session_id, state=b"state")
    return StateWrite(new=new, base_version=base_version, epoch=epoch)


async def _version(provider: PostgresProvider, session_id: str) -> int:
    record = await provider.states.load(session_id)
    assert record is not None
    return record.version
