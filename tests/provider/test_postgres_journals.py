"""PostgreSQL: plans of the statements on journals, what concurrent ones do to each other, and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import psycopg
import pytest

from affinity.conversation.journal import (
    Answer,
    Description,
    JournalAppend,
    JournalCreation,
    JournalFilter,
    JournalQuery,
    JournalRange,
    JournalRetention,
    JournalStart,
    JournalWrite,
    NewEntry,
    NewRequest,
    NewRevisit,
    OpenDelegation,
    RequestFilter,
    StreamCursor,
    StreamPart,
    WakeEnd,
)
from affinity.conversation.store import listing
from affinity.conversation.store.contract import journals_of
from affinity.errors import ConnectionLost
from affinity.provider.contract import InstanceUpdate, OrchestrationItem, WorkAck, WorkItem
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.changes import _ChangeListener, notices_of
from affinity.session import SessionState
from affinity_conformance.providers.builders import (
    ORCHESTRATION,
    TIMEOUTS,
    message_ids,
    state_write,
    work_item,
)
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_plans import MANY, Crowd, check_plans, crowd_tables, each_crowd
from tests.provider.postgres_stage import (
    PATIENCE,
    SOMEBODY_WAITS,
    administrator,
    opened,
    registered,
    terminate,
    until,
)

pytestmark = pytest.mark.anyio

LENGTH: Final = 100_000


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


def start(session_id: str) -> JournalStart:
    return JournalStart(name=ORCHESTRATION, start="start", generation=f"generation of {session_id}")


def said(session_id: str, event_id: str | None = None, **fields: Any) -> JournalAppend:
    """An input that starts the conversation if there is none."""
    entry = NewEntry(kind="user.message", payload='"hello"', event_id=event_id, is_input=True)
    filled = {"kind": "chat", "entry": entry, "message": '["$SEQ"]', "start": start(session_id), "unread_limit": 1000}
    return JournalAppend(session_id=session_id, **{**filled, **fields})


def answered(text: str, wake_id: str) -> NewEntry:
    return NewEntry(kind="agent.message", payload=f'"{text}"', wake_id=wake_id)


async def take(peer: Peer, session_id: str) -> OrchestrationItem:
    """The instance of a session, without messages."""
    (at,) = [item for item in await peer.take_instances(100) if item.instance_id == session_id]
    await peer.go_on(at, consumed=message_ids(at))
    return replace(at, event_count=at.event_count + 1, messages=())


def crowd_journals(admin: psycopg.Connection[Any], crowd: Crowd) -> None:
    """A hundred thousand entries of one journal, and one of each of many others."""
    admin.execute("SELECT setval('epochs', 1000)")
    for statement in (
        "INSERT INTO parked_items SELECT 'other' || i, 'b', 1, 1, 'work', 'other' || i, 'input', true"
        f" FROM generate_series(1, {MANY}) i",
        "INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, wake_id, payload)"
        " SELECT j.journal_id, j.last_seq + i, clock(), false, 'agent.message', 'w' || i / 4, '\"x\"'"
        f" FROM journals j, generate_series(1, {LENGTH}) i WHERE j.session_id = 's'",
        f"UPDATE journals SET last_seq = last_seq + {LENGTH} WHERE session_id = 's'",
        "INSERT INTO journals (journal_id, session_id, kind, last_seq, owner, labels, oldest_at, created_at,"
        " updated_at) SELECT i, 'other' || i, 'common', 1, 'o' || i % 100, '{\"tier\": \"common\"}', clock(),"
        f" '2001-01-01', clock() FROM generate_series(1, {MANY}) i",
        "INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, payload)"
        f" SELECT i, 1, clock(), true, 'user.message', 'e', '\"x\"' FROM generate_series(1, {MANY}) i",
        "INSERT INTO journal_requests SELECT i, 'q', 'confirm', 'w', 1, 1, clock(), NULL, '1'"
        f" FROM generate_series(1, {MANY}) i",
        f"INSERT INTO journal_revisits SELECT i, 'k', clock(), 0, '', 'null', 'w' FROM generate_series(1, {MANY}) i",
        f"INSERT INTO journal_parents SELECT i, 1, i + 1 FROM generate_series(1, {MANY}) i",
        f"INSERT INTO journal_streams SELECT i, 'w', 1, 1, '1' FROM generate_series(1, {MANY}) i",
        "INSERT INTO journal_wakes (journal_id, seq, base, read, processed, attempt, outcome, reason, wake_id)"
        " SELECT journal_id, seq, 0, seq - 1, 0, 1, 'failed', '', coalesce(wake_id, 'w') FROM journal_entries",
        "INSERT INTO journal_steps (journal_id, wake_id, key, arguments, result)"
        f" SELECT i, 'w', 'k', '', '1' FROM generate_series(1, {MANY}) i",
        f"INSERT INTO journal_delegations SELECT i, 'd', 'child' || i FROM generate_series(1, {MANY}) i",
    ):
        admin.execute(statement)
    if crowd != "unknown":
        admin.execute("VACUUM ANALYZE")


@pytest.mark.slow
@each_crowd
async def test_statements_on_journals_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """In a journal of 100,000 entries, among 20,000 others, no step of any plan reads many rows."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        await journals_of(provider).append_journal([said("s", "first"), said("t")])
        at = await take(peer, "s")
        crowd_tables(admin, crowd)
        crowd_journals(admin, crowd)
        (before, _) = await journals_of(provider).get_pending(["s", "t"], limit=10)
        assert before is not None
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            batch = [said("s", "a"), said("s", "first"), said("new"), said("s", "b", message=None)]
            outcomes = [one.outcome for one in await check(partial(journals_of(watched).append_journal, batch))]
            assert outcomes == ["appended", "repeated", "appended", "appended"]
            batch = [replace(said(each, "c"), start=None) for each in ("t", "new", "none")]
            outcomes = [one.outcome for one in await check(partial(journals_of(watched).append_journal, batch))]
            assert outcomes == ["appended", "appended", "unknown"]
            (pending, *_) = await check(partial(journals_of(watched).get_pending, ["s", "new", "none"], limit=10))
            assert pending is not None
            assert len(pending.inputs) == 3
            part = StreamPart(
                session_id="s", journal_id=before.journal_id, wake_id="w", attempt=1, number=1, payload="1"
            )
            await check(partial(journals_of(watched).write_stream, [part, replace(part, number=2)]))
            await check_reads(watched, check, before.last_seq)
            write = JournalWrite(
                session_id="s",
                journal_id=before.journal_id,
                base=0,
                processed=pending.last_seq,
                wake_id="w",
                attempt=1,
                entries=[answered("1", "w"), replace(answered("2", "w"), event_id="mine")],
                requests=[NewRequest(request_id="r", kind="confirm", payload="1")],
                revisits=[NewRevisit(key="k", delay=60)],
                delegations=[OpenDelegation("d", "t")],
                appends=[said("t", "from s"), said("child")],
                clear_stream=True,
                end=WakeEnd(read=pending.last_seq),
            )
            own = replace(peer, provider=watched)
            assert (
                await check(partial(own.commit_one, at, parts=[write], work_items=[work_item(at, 1, "s")]))
            ).committed
            await check_replies(watched, check, pending.last_seq)
            refused = await check(partial(own.commit_one, replace(at, event_count=at.event_count + 1), parts=[write]))
            assert refused.conflicts == ["s"]
            item = await own.take_one()
            again = replace(write, base=write.processed, wake_id="w2", ended_requests=["r"], ended_revisits=["k"])
            again = replace(again, delegations=[OpenDelegation("e", "t")], ended_delegations=["d"])
            acks = [WorkAck(lock=item.lock, message="done", parts=[replace(again, appends=[said("t", "again")])])]
            assert await check(partial(watched.ack_work_item, own.identity, acks, TIMEOUTS)) == [True]
            await provider.states.save(SessionState(session_id="s", state=b""))
            at = replace(at, event_count=at.event_count + 1)
            at = await own.go_on(at, work_items=[work_item(at, 2, "s")])
            item = await own.take_one()
            alone = replace(again, wake_id="w4", entries=[answered("3", "w4")], requests=[], revisits=[], appends=[])
            alone = replace(alone, delegations=[], ended_requests=[], ended_revisits=[])
            step = {"acks": [item.lock], "parts": [alone], "states": [state_write(item, base=1)]}
            assert (await check(partial(own.commit_one, at, **step))).committed
            answer = said("s", answers=Answer(request_id="r", kind="confirm"), drops=True, closes=True)
            assert (await check(partial(journals_of(watched).append_journal, [answer])))[0].outcome == "appended"
            await check(partial(journals_of(watched).retract_stream, "s", before.journal_id, "w3", 1))
            assert len(await check(partial(journals_of(watched).get_pending, ["s", "other5"], limit=0))) == 2
            assert await check(partial(journals_of(watched).delete_journal, ["t", "none"])) == [True, False]
            await provider.states.save(SessionState(session_id="new", state=b""))
            assert await check(partial(watched.states.delete, ["new"])) == ["new"]
            assert await journals_of(provider).get_pending(["new"], limit=1) == [None]


@pytest.mark.slow
@each_crowd
async def test_parked_items_are_found_by_their_key(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """One is parked, unparked, parked again with an input pending, cancelled, and gone with its instance.
    Among 20,000 others, no step of any plan reads many rows.
    """
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        (first, _) = await journals_of(provider).append_journal([said("s"), said("t")])
        at = await take(peer, "s")
        crowd_tables(admin, crowd)
        crowd_journals(admin, crowd)
        write = JournalWrite(session_id="s", journal_id=first.journal_id, base=0, processed=1, wake_id="w")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            own = replace(peer, provider=watched)

            async def commit(number: int, *items: int, **step: Any) -> list[bool]:
                new = [replace(work_item(at, item, "s"), parked=True) for item in items]
                now = replace(at, event_count=at.event_count + number)
                result = await check(partial(own.commit_one, now, work_items=new, **step))
                assert result.committed
                return [place.parked for place in result.placed]

            assert await commit(0, 1, parts=[write]) == [True]
            plain, started = replace(said("s"), start=None), said("s")
            assert [one.unparked for one in await check(partial(journals_of(watched).append_journal, [plain]))] == [
                True
            ]
            admin.execute(
                "INSERT INTO sessions SELECT 's', 'a', %s, nextval('epochs'), clock() + '1 h', clock()",
                [peer.identity.incarnation],
            )
            admin.execute("UPDATE worker_queue SET route = 'w:a' WHERE instance_id = 's'")
            fetched = await check(partial(own.fetch, 10, only_own=True, prefetch={"conversation": ["work"]}))
            assert (len(fetched.items), len(fetched.prefetched["conversation"])) == (1, 1)
            assert await commit(1, 2) == [False]
            assert await commit(2, 3, parts=[replace(write, base=1, processed=LENGTH + 2)]) == [True]
            outcomes = await check(partial(journals_of(watched).append_journal, [started, said("t"), plain]))
            assert [one.unparked for one in outcomes] == [True, False, False]
            assert await commit(3, cancel_activities=[3]) == []
            assert await commit(4, update=InstanceUpdate(status="completed")) == []
        assert await peer.take_all() == []


SCANS: Final = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'journals_kind'"
ALL_GONE: Final = (
    "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'affinity%'"
)


@pytest.mark.slow
@pytest.mark.slow_cases(r"\[old")
async def test_an_ask_finds_its_journal_by_the_key_among_dead_rows(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """Statistics say that there are two journals: few enough to read all of them, but for deleted ones."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        (first, _) = await journals_of(provider).append_journal([said("s"), said("t")])
        at = await take(peer, "s")
        write = JournalWrite(session_id="s", journal_id=first.journal_id, base=0, processed=1, wake_id="w")
        parked = replace(work_item(at, 1, "s"), parked=True)
        assert (await peer.commit_one(at, parts=[write], work_items=[parked])).committed
    admin.execute(
        f"DO 'BEGIN FOR i IN 1 .. {MANY} LOOP UPDATE journals SET updated_at = updated_at WHERE session_id = ''s'';"
        " END LOOP; END'"
    )
    admin.execute("ANALYZE")
    before = admin.execute(SCANS).fetchone()
    async with opened(postgres_migrated) as provider:
        (again,) = await journals_of(provider).append_journal([replace(said("s", "first"), start=None)])
        assert again.unparked
        assert len(await journals_of(provider).get_pending(["s", "t"], limit=10)) == 2
        for query in (JournalQuery(session_id="s"), JournalQuery(session_id="s", stream=StreamCursor())):
            assert len(await journals_of(provider).read_journal([query, query])) == 2
    await until(admin, ALL_GONE)  # an ending backend reports its scans
    assert admin.execute(SCANS).fetchone() == before


async def check_reads(watched: PostgresProvider, check: Any, last_seq: int) -> None:
    """Each condition of a query, in both directions."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({"after": last_seq - 4, "stream": StreamCursor()}, 6),
        ({"after": 5}, 20),
        ({"newest_first": True}, 20),
        ({"newest_first": True, "before": 500}, 20),
        ({"kinds": ["user.message", "none"]}, 3),
        ({"kinds": ["user.message", "agent.message"], "newest_first": True}, 20),
        ({"kinds": ["none"]}, 0),
        ({"wake_id": "w5000"}, 4),
        ({"wake_id": "w5000", "kinds": ["agent.message"], "newest_first": True}, 4),
        ({"event_id": "first"}, 1),
        ({"pending": True}, 3),
        ({"pending": True, "newest_first": True, "kinds": ["user.message"]}, 3),
    ]
    for fields, found in cases:
        query = JournalQuery(session_id="s", **{"limit": 20, **fields})
        (page,) = await check(partial(journals_of(watched).read_journal, [query]))
        assert len(page.entries) == found, fields
        assert len(page.stream) == (2 if "stream" in fields else 0)
    for newest_first in (False, True):
        assert (
            len(
                await check(partial(journals_of(watched).get_wakes, "s", after=50, newest_first=newest_first, limit=20))
            )
            == 20
        )


async def check_replies(watched: PostgresProvider, check: Any, last: int) -> None:
    """Of inputs that a wake has processed, the last of them too, and of one that none has."""
    queries = [JournalQuery(session_id="s", reply_to=seq) for seq in (1, 50_000, last, last + 9)]
    pages = await check(partial(journals_of(watched).read_journal, queries))
    assert [page.wake and page.wake.seq for page in pages] == [*[last + 2] * 3, None]


RARE: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"kind": "chat"},
    {"kind": "common"},
    {"prefix": "rare"},
    {"parent": "rare"},
    {"owner": "rare"},
    {"labels": {"team": "rare"}},
    {"labels": {"team": "rare", "tier": "common"}},
    {"closed": True, "kind": "chat"},
    {"session_id": "s"},
    {"status": "running"},
    {"status": "running", "kind": "chat"},
    {"status": "terminated", "kind": "chat"},
)


@pytest.mark.slow
async def test_a_page_of_journals_costs_the_same_among_many(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each filter; and so does a step of their retention: of the others none is read."""
    monkeypatch.setattr(listing, "MAX_PAGE", 100)
    async with opened(postgres_migrated) as provider:
        about: Description = {"owner": "rare", "labels": {"team": "rare", "tier": "common"}}
        starts = [replace(start(f"rare{n}"), parent="rare", about=about) for n in range(5)]
        children = [said(f"rare{n}", start=each) for n, each in enumerate(starts)]
        await journals_of(provider).append_journal([said("s", closes=True), *children])
        crowd_journals(admin, "mixed")
        for statement in (
            "UPDATE journals SET size = 300000 WHERE session_id = 's'",
            "UPDATE journals SET processed = last_seq, oldest_at = '2001-01-01' WHERE session_id = 's'",
            "UPDATE journal_entries SET recorded_at = '2001-01-01' WHERE journal_id ="
            " (SELECT journal_id FROM journals WHERE session_id = 's')",
            "DELETE FROM journal_wakes WHERE journal_id IN (SELECT journal_id FROM journals WHERE kind = 'chat')",
            "INSERT INTO instances (instance_id, generation, name, created_at, updated_at)"
            " SELECT session_id, '1', 'flow', clock(), clock() FROM journals WHERE session_id IS NOT NULL"
            " ON CONFLICT DO NOTHING",
            "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
            " payload, enqueued_at) SELECT 'x' || i, 1, 1, 'work', NULL, 'free', clock(), '', clock()"
            " FROM generate_series(1, 5000) i",
            "VACUUM ANALYZE",
        ):
            admin.execute(statement)
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for fields in RARE:
                assert await check(partial(journals_of(watched).list_journals, JournalFilter(**fields), 10)), fields
            prune = partial(journals_of(watched).prune_journals, JournalRetention(age=1e6), limit=100)
            assert (await check(prune)).entries == (await check(prune)).entries == 100
            sized = [
                JournalRetention(entries=5000),
                JournalRetention(size=100_000),
                JournalRetention(age=1e9, entries=5000),
            ]
            for bounds in sized:
                prune = partial(journals_of(watched).prune_journals, bounds, limit=100)
                assert (await check(prune)).entries == 100, bounds


@pytest.mark.slow
@each_crowd
async def test_a_page_of_requests_reads_no_other_journals(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """By an index of the requests in their order, and by the key of each one's journal, among 20,000 of both."""
    monkeypatch.setattr(listing, "REQUEST_WINDOW", 100)
    about: Description = {"owner": "rare", "labels": {"team": "rare"}}
    async with opened(postgres_migrated) as provider:
        await journals_of(provider).append_journal(
            [said("s"), *(said(f"t{n}", start=replace(start("t"), about=about)) for n in "12")]
        )
        crowd_tables(admin, crowd)
        crowd_journals(admin, crowd)
        admin.execute(
            "INSERT INTO journal_requests SELECT journal_id, 'r' || i, 'rare', 'w', 1, i, '2001-01-01', NULL, '1'"
            " FROM journals, generate_series(1, 5) i WHERE owner = 'rare'"
        )
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            cases: list[tuple[dict[str, Any], int]] = [
                ({}, 20),
                ({"by_expiry": True}, 20),
                ({"kinds": ["rare"]}, 10),
                ({"owner": "rare"}, 10),
                ({"labels": {"team": "rare"}}, 10),
                ({"prefix": "t2"}, 5),
                ({"session_ids": ["t1", "s", "none", "other7"]}, 6),
                ({"below": "t1"}, 5),
            ]
            for fields, number in cases:
                page = await check(partial(journals_of(watched).list_requests, RequestFilter(**fields), 20))
                assert len(page.requests) == number, fields
                rest = await check(
                    partial(journals_of(watched).list_requests, RequestFilter(**fields, after=page.after), 20)
                )
                assert rest.requests == [] or {"session_ids", "below", "by_expiry"} & fields.keys() or not fields


# --- what concurrent statements do to each other ----------------------------------------------------------------------


async def test_an_append_and_a_commit_wait_for_each_other(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """An input that comes while a wake commits gets the number behind its entries; no number is given twice."""
    async with opened(postgres_migrated) as provider, opened(postgres_migrated) as client:
        peer = await registered(provider)
        (first,) = await journals_of(client).append_journal([said("s")])
        at = await take(peer, "s")
        write = JournalWrite(
            session_id="s", journal_id=first.journal_id, base=0, processed=1, wake_id="w", entries=[answered("a", "w")]
        )
        with administrator(postgres_migrated) as rival:
            with rival.transaction():
                rival.execute("SELECT FROM journals WHERE session_id = 's' FOR UPDATE")
                commit = asyncio.create_task(peer.commit_one(at, parts=[write]))
                await until(admin, SOMEBODY_WAITS)
                append = asyncio.create_task(journals_of(client).append_journal([said("s", "e")]))
                await until(admin, SOMEBODY_WAITS.replace("> 0", "> 1"))
            assert (await commit).committed
            assert [(one.outcome, one.seq) for one in await append] == [("appended", 3)]
        (page,) = await journals_of(client).read_journal([JournalQuery(session_id="s")])
        assert page is not None
        assert [(entry.seq, entry.is_input) for entry in page.entries] == [(1, True), (2, False), (3, True)]


MOVES: Final = "UPDATE journals SET processed = processed + 1 WHERE session_id = 's'"


async def test_a_fence_is_compared_with_the_row_that_was_waited_for(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """A commit that waits for the journal's row is refused if the watermark has moved meanwhile, and so is an ack."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        (first,) = await journals_of(provider).append_journal([said("s")])
        at = await take(peer, "s")
        write = JournalWrite(session_id="s", journal_id=first.journal_id, base=0, processed=1, wake_id="w")
        assert (await peer.commit_one(at, work_items=[work_item(at, 1)])).committed
        at = replace(at, event_count=at.event_count + 1)
        item = await peer.take_one()
        ack = WorkAck(lock=item.lock, message="done", parts=[replace(write, base=1)])
        with administrator(postgres_migrated) as rival:
            with rival.transaction():
                rival.execute(MOVES)
                commit = asyncio.create_task(peer.commit_one(at, parts=[write]))
                await until(admin, SOMEBODY_WAITS)
            assert (await commit).conflicts == ["s"]
            with rival.transaction():
                rival.execute(MOVES)
                acked = asyncio.ensure_future(provider.ack_work_item(peer.identity, [ack], TIMEOUTS))
                await until(admin, SOMEBODY_WAITS)
            assert await acked == [False]
        (page,) = await journals_of(provider).read_journal([JournalQuery(session_id="s")])
        assert page is not None
        assert page.last_seq == 1
        assert await peer.ack(item) == [True]


async def test_of_two_acks_of_one_batch_the_first_writes_a_journal(postgres_migrated: str) -> None:
    """The second one has the former fence; it keeps its lock. Others of the batch are not affected."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        (first, other) = await journals_of(provider).append_journal([said("s"), said("t")])
        at = await take(peer, "s")
        assert (await peer.commit_one(at, work_items=[work_item(at, n) for n in (1, 2, 3, 4)])).committed
        items = sorted(await peer.take(10), key=lambda item: item.lock.key)
        write = JournalWrite(session_id="s", journal_id=first.journal_id, base=0, processed=1, wake_id="w")
        writes = [
            replace(write, entries=[answered("first", "w")], appends=[said("child", "1")]),
            replace(write, entries=[answered("second", "w")], appends=[said("child", "2")]),
            None,
            replace(write, session_id="t", journal_id=other.journal_id, entries=[answered("other", "w")]),
        ]
        acks = [
            WorkAck(lock=item.lock, message="done", parts=[] if journal is None else [journal])
            for item, journal in zip(items, writes, strict=True)
        ]
        assert await provider.ack_work_item(peer.identity, acks, TIMEOUTS) == [True, False, True, True]
        pages = await journals_of(provider).read_journal(
            [JournalQuery(session_id=name) for name in ("s", "t", "child")]
        )
        assert [[entry.payload for entry in page.entries] for page in pages if page] == [
            ['"hello"', '"first"'], ['"hello"', '"other"'], ['"hello"'],
        ]  # fmt: skip
        assert await peer.check(*items) == [False, True, False, False]


async def test_retention_waits_for_no_other_transaction(postgres_migrated: str) -> None:
    """It takes journals in any order, so it leaves out one whose row is locked; the next call removes its entries."""
    async with opened(postgres_migrated) as provider:
        await journals_of(provider).append_journal([said("s"), said("t")])
        prune = partial(journals_of(provider).prune_journals, JournalRetention(entries=0), limit=10)
        with administrator(postgres_migrated) as rival:
            rival.execute("UPDATE journals SET processed = last_seq")
            with rival.transaction():
                rival.execute("SELECT FROM journals WHERE session_id = 's' FOR KEY SHARE")
                with anyio.fail_after(PATIENCE / 2):
                    assert (await prune()).entries == 1
        assert [(await prune()).entries, (await prune()).entries] == [1, 0]


async def test_batches_in_different_orders_do_not_block_each_other(postgres_migrated: str) -> None:
    """Rows are locked by key: senders to the same journals, created by the first of them, meet no deadlock."""
    names = [f"s{n}" for n in range(30)]
    async with opened(postgres_migrated) as one, opened(postgres_migrated) as two, opened(postgres_migrated) as three:
        batches = [names, names[::-1], names[15:] + names[:15]]

        async def send(provider: PostgresProvider, batch: list[str]) -> None:
            for _ in range(10):
                found = await journals_of(provider).append_journal([said(name) for name in batch])
                assert {each.outcome for each in found} == {"appended"}

        await asyncio.gather(*(send(each, batch) for each, batch in zip((one, two, three), batches, strict=True)))
        pages = await journals_of(one).read_journal([JournalQuery(session_id=name) for name in names])
        assert [page.last_seq for page in pages if page] == [30] * 30


@pytest.mark.parametrize("acked", [False, True])
async def test_a_wake_that_creates_a_child_and_a_sender_to_both_do_not_block_each_other(
    postgres_migrated: str, admin: psycopg.Connection[Any], acked: bool
) -> None:
    """Journals that are there are locked before instances are created: the sender has created nothing when it waits."""
    async with opened(postgres_migrated) as provider, opened(postgres_migrated) as client:
        peer = await registered(provider)
        (first,) = await journals_of(client).append_journal([said("s")])
        at = await take(peer, "s")
        to_child = said("child", start=replace(start("child"), parent="s"), sender="s")
        write = JournalWrite(
            session_id="s", journal_id=first.journal_id, base=0, processed=1, wake_id="w", appends=[to_child]
        )
        item = await _item(peer, at) if acked else None
        with administrator(postgres_migrated) as rival:
            with rival.transaction():
                rival.execute("SELECT FROM journals WHERE session_id = 's' FOR UPDATE")
                wake = asyncio.ensure_future(_acked(peer, item, write) if item else _committed(peer, at, write))
                await until(admin, SOMEBODY_WAITS)
                append = asyncio.ensure_future(journals_of(client).append_journal([said("child"), said("s")]))
                await until(admin, SOMEBODY_WAITS.replace("> 0", "> 1"))
            assert await wake
            assert [one.outcome for one in await append] == ["appended", "appended"]
        pages = await journals_of(client).read_journal([JournalQuery(session_id=name) for name in ("s", "child")])
        assert [page.last_seq for page in pages if page] == [2, 2]


async def test_acks_of_wakes_that_append_to_each_other_do_not_block_each_other(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """All journals that a statement writes to are locked in the order of their keys, before a fence is looked at."""
    async with opened(postgres_migrated) as one, opened(postgres_migrated) as two:
        peer = await registered(one)
        beside = replace(peer, provider=two)
        names = {"s": ("t",), "t": ("r", "s")}
        found = await journals_of(one).append_journal([said(name) for name in ("r", *names)])
        writes = [
            JournalWrite(
                session_id=name,
                journal_id=of.journal_id,
                base=0,
                processed=1,
                wake_id="w",
                appends=[said(other) for other in others],
            )
            for (name, others), of in zip(names.items(), found[1:], strict=True)
        ]
        items = [await _item(peer, at) for at in [await take(peer, "s"), await take(peer, "t")]]
        with administrator(postgres_migrated) as rival:
            with rival.transaction():
                rival.execute("SELECT FROM journals WHERE session_id = 'r' FOR UPDATE")
                second = asyncio.ensure_future(_acked(beside, items[1], writes[1]))
                await until(admin, SOMEBODY_WAITS)
                assert await _acked(peer, items[0], writes[0])
            assert await second
        pages = await journals_of(one).read_journal([JournalQuery(session_id=name) for name in "rst"])
        assert [page.last_seq for page in pages if page] == [2, 2, 2]


async def _item(peer: Peer, at: OrchestrationItem) -> WorkItem:
    assert (await peer.commit_one(at, work_items=[work_item(at, 1)])).committed
    return await peer.take_one()


async def _acked(peer: Peer, item: WorkItem, write: JournalWrite) -> bool:
    ack = WorkAck(lock=item.lock, message="done", parts=[write])
    return (await peer.provider.ack_work_item(peer.identity, [ack], TIMEOUTS))[0]


async def _committed(peer: Peer, at: OrchestrationItem, write: JournalWrite) -> bool:
    return (await peer.commit_one(at, parts=[write])).committed


# --- notifications ----------------------------------------------------------------------------------------------------


def test_ids_are_split_into_notices_that_fit() -> None:
    """Of at most 7,999 bytes, which is PostgreSQL's limit; none is lost."""
    for ids in ([], ["a"], [f"{n}" for n in range(5000)], ["é" * 128 + str(n) for n in range(200)], ["x" * 7999, "y"]):
        notices = list(notices_of(ids))
        assert "\n".join(notices) == "\n".join(ids)
        assert all(len(notice.encode()) <= 7999 for notice in notices)
    assert len(list(notices_of([f"{n}" for n in range(1000)]))) == 1


async def test_journals_are_watched_on_the_connection_of_the_calls(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """A client has one connection, which is free for calls meanwhile; subscriptions end one by one."""
    client = await PostgresProvider.open(postgres_migrated, application_name="affinity watcher", one_connection=True)
    async with opened(postgres_migrated) as other:
        many = {f"session {n} " + "x" * 200 for n in range(100)}
        async with client.watch_changes() as watch:
            async with client.watch_changes() as second:
                await other.notify_changes(many)
                assert await journals_of(client).append_journal([said("s")])
                for each in (watch, second):
                    assert set(await each.wait(PATIENCE) or ()) | set(await each.wait(0.5) or ()) == many
            assert await watch.wait(0.01) is None
            await client.notify_changes(["s"])
            assert set(await watch.wait(PATIENCE) or ()) == {"s"}
            count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'affinity watcher%'"
            assert admin.execute(count).fetchone() == (1,)
        assert await journals_of(client).get_pending(["s"], limit=1)
        async with client.watch_changes() as watch:
            waiting = asyncio.create_task(watch.wait(PATIENCE))
            await asyncio.sleep(0)
            terminate(admin)
            with pytest.raises(ConnectionLost), anyio.fail_after(PATIENCE / 2):
                await waiting
    await client.aclose()


async def test_a_slow_reader_is_notified_that_any_journal_may_have_changed(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is bounded."""
    monkeypatch.setattr("affinity.provider.postgres.changes._MAX_WATCHED", 10)
    async with opened(postgres_migrated) as provider, provider.watch_changes() as watch:
        for batch in range(3):
            await provider.notify_changes([f"{batch} {n}" for n in range(11)])
        await provider.notify_changes(["last"])
        assert await watch.wait(PATIENCE) == {}
        await provider.notify_changes(["again"])
        assert set(await watch.wait(PATIENCE) or ()) == {"again"}


async def test_a_notice_says_whether_it_is_of_inputs_only(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an empty line, which is no id of a session."""
    notices: list[list[str]] = []
    receive = _ChangeListener.receive

    def note(self: _ChangeListener, channel: str, payload: str) -> None:
        notices.append(payload.split("\n"))
        receive(self, channel, payload)

    monkeypatch.setattr(_ChangeListener, "receive", note)
    many = [f"session {n} " + "x" * 200 for n in range(100)]
    async with opened(postgres_migrated) as provider, provider.watch_changes() as watch:
        await provider.notify_changes(many, minor=True)
        assert await watch.wait(PATIENCE) == dict.fromkeys(many, False)
        await provider.notify_changes(["a", "b"], minor=True)
        await provider.notify_changes(["b"])
        await provider.notify_changes(["b"], minor=True)
        assert await watch.wait(PATIENCE) == {"a": False, "b": True}
    assert len(notices) > 4
    assert {line for notice in notices for line in notice} == {"", "a", "b", *many}


async def test_a_fork_has_the_state_of_its_last_entry(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Not the state of a wake, or a part of one, that commits while the fork is made."""
    async with opened(postgres_migrated) as provider:
        (first,) = await journals_of(provider).append_journal([said("s")])
        admin.execute(
            "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, labels, participants,"
            " version, created_at, updated_at) VALUES ('s', 'old', 'json', 1, 'chat', '{}', '[]', 1, clock(), clock())"
        )
        creation = JournalCreation(
            session_id="fork",
            kind="chat",
            start=start("fork"),
            lineage="fork",
            operator="test",
            parents=[first.journal_id],
            base=JournalRange(first.journal_id),
            copies_state=True,
        )
        with administrator(postgres_migrated) as rival:
            with rival.transaction(force_rollback=True):
                rival.execute(
                    "INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at)"
                    " VALUES ('fork', '', '', 1, clock(), clock())"
                )
                fork = asyncio.create_task(journals_of(provider).create_journals([creation]))
                await until(admin, SOMEBODY_WAITS)
                admin.execute("UPDATE session_states SET state = 'new', version = 2")
                admin.execute("UPDATE journals SET processed = 1, last_seq = 2 WHERE session_id = 's'")
            (result,) = await fork
        assert (result.outcome, result.last_seq) == ("created", 1)
        assert admin.execute("SELECT state FROM session_states WHERE session_id = 'fork'").fetchall() == [(b"old",)]
        (work,) = await journals_of(provider).get_pending(["fork"], limit=10)
        assert work is not None
        assert [each.seq for each in work.inputs] == [1]  # nor has it processed the input
