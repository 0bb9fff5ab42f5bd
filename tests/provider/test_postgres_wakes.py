"""PostgreSQL: one append alone, and the turn of one wake alone, have functions of their own, and are as in a batch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, LiteralString, TypeAlias

import psycopg
import pytest

from affinity.conversation.journal import JournalCreation, JournalRange, NewEntry, NewRequest, journal_writes
from affinity.conversation.store.contract import journals_of
from affinity.limits import MAX_FETCHED_INPUT
from affinity.provider.contract import (
    Generation,
    NewWorkItem,
    Placed,
    SessionHold,
    Token,
    Turn,
    TurnResult,
    WorkItem,
    WorkKey,
)
from affinity.provider.postgres import PostgresProvider, turns
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.records import ActivityRun
from affinity.session import StateWrite
from affinity_conformance.providers.builders import state, state_write, turn, work_item
from affinity_conformance.providers.conversation.driver import (
    KIND,
    Conversation,
    ConversationOwner,
    new_input,
    new_start,
    output,
)
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import administrator, opened, registered

pytestmark = pytest.mark.anyio

Kind: TypeAlias = Literal["wake", "batch", "check"]
"""Calls: commit a wake, or a batch, or find the turns of a batch that do not pass."""

BOTH: Final[list[Kind]] = ["wake", "batch"]
REFUSED: Final[list[Kind]] = ["wake", "batch", "check"]


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.fixture
async def provider(postgres_migrated: str) -> AsyncIterator[PostgresProvider]:
    async with opened(postgres_migrated) as provider:
        yield provider


@pytest.fixture
def asked(provider: PostgresProvider, monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """The calls from now on, in order."""
    connection, kinds = provider.connections.commit, list[Kind]()
    run = connection.run

    async def noting(statement: LiteralString, params: Params | None = None, **behind: Any) -> list[Row]:
        is_wake = "commit_wake(" in statement
        kinds.append("check" if statement == turns._fence_checks(("conversation",)) else "wake" if is_wake else "batch")
        return await run(statement, params, **behind)

    monkeypatch.setattr(connection, "run", noting)
    return kinds


async def ready(peer: Peer, name: str = "i", session: str | None = "s") -> Turn:
    """The turn of a wake that has run, of a conversation that has had another one; its session has a record."""
    talk = Conversation(peer.provider, name)
    await talk.append(text="first")
    owner = await ConversationOwner.of(peer, name)
    await owner.commit_wake(entries=[output()])
    if session is not None:
        await peer.provider.states.save(state(session))
    await talk.append(text="second", message=None)
    at = await peer.go_on(owner.at, work_items=[work_item(owner.at, 1, session)])
    item = await peer.take_one()
    await talk.stream(1, 2, wake_id="w2")
    entries = [output("one", "w2"), output("zwölf", "w2", kind="span.ended")]
    write = await owner.new_write(entries=entries, wake_id="w2", attempt=3, clear_stream=True)
    metadata = {"kind": "chat", "name": "n", "parent": "p", "labels": {"a": "b"}, "message_count": 7}
    states = [] if session is None else [saved(item, **metadata, participants=["u"])]
    return turn(at, acks=[item.lock], parts=[write], states=states, history=["done", "next", "last"])


def saved(item: WorkItem, **metadata: Any) -> StateWrite:
    """The second version of the state of its session."""
    return replace(state_write(item, base=1), new=state(item.session_id or "", b"new", **metadata))


def rows(admin: psycopg.Connection[Any], name: str) -> dict[str, Any]:
    """What the tables say of the instances, sessions and journals of these names, without times and generated ids."""
    by_journal = "t.journal_id IN (SELECT journal_id FROM journals WHERE session_id LIKE %(name)s)"
    conditions = {
        "instances": "t.instance_id LIKE %(name)s",
        "history": "t.instance_id LIKE %(name)s",
        "worker_queue": "t.instance_id LIKE %(name)s",
        "orchestrator_queue": "t.instance_id LIKE %(name)s",
        "sessions": "t.session_id LIKE %(name)s",
        "session_states": "t.session_id LIKE %(name)s",
        "journals": by_journal,
        "journal_entries": by_journal,
        "journal_streams": by_journal,
    }
    generated = "'{id,journal_id,generation,epoch,last_at,size_class,entries_class,lock_token,updated_second}'::text[]"
    found = {
        table: admin.execute(
            f"SELECT jsonb_object_agg(c.key, c.value) FROM {table} t, jsonb_each(to_jsonb(t) - {generated}) c"
            f" WHERE c.key !~ '(_at|_until)$' AND {condition} GROUP BY t.ctid ORDER BY 1",
            {"name": f"{name}%"},
        ).fetchall()
        for table, condition in conditions.items()
    }
    text: dict[str, Any] = json.loads(json.dumps(found).replace(name, ""))
    return text


@pytest.mark.parametrize("session", ["s", "home", None])
@pytest.mark.parametrize("writes", [True, False])
async def test_a_wake_alone_writes_what_it_writes_in_a_batch(
    provider: PostgresProvider,
    admin: psycopg.Connection[Any],
    asked: list[Kind],
    session: str | None,
    writes: bool,
) -> None:
    """With state and without, with a result of its session, of another one and of none; the session is touched."""
    peer = await registered(provider)
    wrote = []
    for name, kinds in (("1st", ["wake"]), ("2nd", ["batch"])):
        one = await ready(peer, f"{name}-s", session and f"{name}-{session}")
        one = one if writes else replace(one, states=())
        more = [turn(await peer.own("other"))] if kinds == ["batch"] else []
        admin.execute("UPDATE sessions SET locked_until = clock() + interval '1 s' WHERE locked_until > clock()")
        asked.clear()
        result, *_ = await peer.commit(one, *more)
        assert (result.committed, list(result.placed), asked) == (True, [], kinds)
        touched = "SELECT locked_until > clock() + interval '2 s' FROM sessions WHERE session_id = %s"
        assert admin.execute(touched, [f"{name}-{session}"]).fetchone() == (None if session is None else (True,))
        wrote.append(rows(admin, f"{name}-"))
    assert wrote[0] == wrote[1]
    assert len(wrote[0]["journal_entries"]) == 5
    assert wrote[0]["journal_streams"] == wrote[0]["worker_queue"] == []
    events = admin.execute("SELECT recorded_at IS NULL FROM history WHERE instance_id = '1st-s' ORDER BY event_id")
    assert [is_null for (is_null,) in events][-3:] == [False, True, True]


async def refused(
    peer: Peer, admin: psycopg.Connection[Any], asked: list[Kind], one: Turn, kinds: list[Kind]
) -> TurnResult:
    """The result of a turn that writes nothing."""
    before = rows(admin, "")
    asked.clear()
    (result,) = await peer.commit(one)
    assert (result.committed, asked) == (False, kinds)
    assert rows(admin, "") == before
    return result


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        ("UPDATE instances SET generation = 'another'", ""),
        ("UPDATE instances SET event_count = 7", ""),
        ("UPDATE instances SET execution_id = 2", ""),
        ("UPDATE instances SET status = 'suspended'", ""),
        ("UPDATE instances SET owner_worker = 'b'", ""),
        ("UPDATE instances SET owner_incarnation = 'a-2'", ""),
        ("UPDATE workers SET locked_until = clock()", ""),
        ("UPDATE workers SET incarnation = 'a-2'", ""),
        ("UPDATE worker_queue SET lock_token = 'another'", "lock"),
        ("UPDATE worker_queue SET locked_until = clock()", "lock"),
        ("DELETE FROM worker_queue", "lock"),
        ("UPDATE sessions SET epoch = nextval('epochs')", "s"),
        ("UPDATE session_states SET epoch = nextval('epochs')", "s"),
        ("UPDATE session_states SET version = 2", "s"),
        ("DELETE FROM session_states", "s"),
        ("UPDATE journals SET processed = processed + 1", "i"),
        ("UPDATE journals SET journal_id = journal_id + 1", "i"),
        ("DELETE FROM journals", "i"),
    ],
)
async def test_a_wake_alone_that_does_not_pass_is_refused(
    provider: PostgresProvider,
    admin: psycopg.Connection[Any],
    asked: list[Kind],
    change: LiteralString,
    blamed: str,
) -> None:
    """By each fence; nothing of it is left, and the caller learns which lock was lost, or whose write did not pass."""
    peer = await registered(provider)
    one = await ready(peer)
    admin.execute(change)
    result = await refused(peer, admin, asked, one, REFUSED)
    assert list(result.lost_acks) == ([*one.acks] if blamed == "lock" else [])
    assert list(result.conflicts) == ([blamed] if blamed in {"s", "i"} else [])


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ("UPDATE workers SET draining = true", ["wake"]),
        ("UPDATE sessions SET locked_until = clock()", ["wake"]),
        ("UPDATE sessions SET worker_id = 'b', incarnation = 'b-1'", ["wake"]),
        ("UPDATE sessions SET next_worker = 'b', next_until = clock() + interval '1 h'", ["wake"]),
        ("DELETE FROM sessions", BOTH),
    ],
)
async def test_a_wake_alone_needs_no_session(
    provider: PostgresProvider,
    admin: psycopg.Connection[Any],
    asked: list[Kind],
    change: LiteralString,
    kinds: list[Kind],
) -> None:
    """Its epoch is enough, or that there is none. What the worker does not hold, it does not extend."""
    peer = await registered(provider)
    one = await ready(peer)
    admin.execute("UPDATE sessions SET locked_until = clock() + interval '1 s'")
    admin.execute(change)
    asked.clear()
    (result,) = await peer.commit(one)
    assert (result.committed, asked) == (True, kinds)
    touched = "SELECT locked_until > clock() + interval '2 s' FROM sessions WHERE session_id = 's'"
    assert admin.execute(touched).fetchone() in ([(True,)] if "workers" in change else [(False,), None])


PARKED_ITEMS: Final = (
    "SELECT generation, execution_id, activity_id, name, session_id, payload, parked FROM parked_items"
)
QUEUED: Final = "SELECT activity_id, lock_token FROM worker_queue"


def with_parked(one: Turn, number: int) -> Turn:
    """The same turn with the next wake, which is to be parked."""
    key = WorkKey(one.instance_id, one.execution_id, number)
    item = NewWorkItem(key=key, name="work", payload="input", session_id="s", parked=True)
    return replace(one, work_items=[item])


@pytest.mark.parametrize("before", [[], [True], [False]])
async def test_the_next_wake_is_parked_behind_a_wake_alone(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind], before: list[bool]
) -> None:
    """In place of the one before. No item of a turn that is refused does."""
    peer = await registered(provider)
    one = with_parked(await ready(peer), 7)
    for parked in before:
        admin.execute("INSERT INTO parked_items VALUES ('i', 'before', 9, 1, 'x', NULL, 'x', %s)", [parked])
    found = admin.execute(PARKED_ITEMS).fetchall()
    await refused(peer, admin, asked, replace(one, generation=Generation("another")), REFUSED)
    assert admin.execute(PARKED_ITEMS).fetchall() == found
    asked.clear()
    (result,) = await peer.commit(one)
    assert (result.committed, list(result.placed), asked) == (True, [Placed(None, None, parked=True)], ["wake"])
    assert admin.execute(PARKED_ITEMS).fetchall() == [(one.generation, 1, 7, "work", "s", "input", True)]
    assert admin.execute(QUEUED).fetchall() == []


async def test_the_next_wake_is_queued_behind_a_wake_alone(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind]
) -> None:
    """An input has come that the wake has not processed."""
    peer = await registered(provider)
    one = with_parked(await ready(peer), 7)
    await Conversation(provider, "i").append(text="late", message=None)
    asked.clear()
    (result,) = await peer.commit(one)
    assert (result.committed, list(result.placed), asked) == (True, [Placed(None, "a")], BOTH)
    assert admin.execute(QUEUED).fetchall() == [(7, None)]


async def test_a_wake_alone_whose_watermark_is_inherited_goes_the_general_way(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind]
) -> None:
    """An input may be among the entries that the journal has from another one."""
    peer = await registered(provider)
    one = with_parked(await ready(peer), 7)
    admin.execute("UPDATE journals SET base_seq = 1000")
    asked.clear()
    (result,) = await peer.commit(one)
    assert (result.committed, asked) == (True, BOTH)


async def test_what_is_more_than_a_wake_goes_the_general_way(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind]
) -> None:
    """Each thing that the short function does not know."""
    peer = await registered(provider)
    one = await ready(peer)
    (write,), (ack,), (saved_state,) = journal_writes(one.parts), one.acks, one.states
    at = await peer.own("other")
    writes: list[dict[str, Any]] = [
        {"entries": [output("e", "w2", event_id="e")]},
        {"entries": [output("e", "another")]},
        {"entries": [output("e", "w2", is_input=True)]},
        {"appends": [new_input("other")]},
        {"requests": [NewRequest(request_id="r", kind="confirm", payload="1")]},
        {"ended_requests": ["r"]},
        {"ended_revisits": ["r"]},
    ]
    steps: list[dict[str, Any]] = [
        {"acks": []},
        {"acks": [ack, ack._replace(token=Token("lost"))]},
        {"consumed": [1]},
        {"custom_status": "1"},
        {"unread": 1},
        {"cancel_activities": [7]},
        {"holds": [SessionHold("s", 1, 60.0)]},
        {"release_sessions": ["s"]},
        {"runs": {one.event_count + 1: ActivityRun("b", 2)}},
        {"work_items": [work_item(at, 1)]},
        {"work_items": [*with_parked(one, 7).work_items] * 2},
        {"work_items": with_parked(one, 7).work_items, "parts": [replace(write, session_id="other")]},
        {"states": [replace(saved_state, base_version=0)]},
        {"states": [saved_state, replace(saved_state, new=state("t"))]},
        *({"parts": [replace(write, **fields)]} for fields in writes),
    ]
    stale = replace(one, event_count=77)
    for step in steps:
        await refused(peer, admin, asked, replace(stale, **step), ["batch", "check"])
    asked.clear()
    (result,) = await peer.commit(one)
    assert (result.committed, asked) == (True, ["wake"])


APPENDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "parked": {},
    "held": {},
    "queued": {},
    "full": {"unread_limit": 1},
    "repeated": {"event_id": "first"},
    "closed": {},
    "other kind": {"kind": "of another kind"},
    "suspended": {},
    "quota": {},
    "none": {},
}
"""What the journal is like to which an input is appended, and fields of that."""


async def with_next_wake(
    peer: Peer, admin: psycopg.Connection[Any], name: str, case: str, **write: Any
) -> ConversationOwner:
    """A conversation whose next wake is parked, unless the case says otherwise."""
    talk = Conversation(peer.provider, name)
    await talk.append(event_id="first")
    owner = await ConversationOwner.of(peer, name)
    items = [] if case in {"queued", "full"} else [replace(work_item(owner.at, 1, name), parked=True)]
    await owner.commit(await owner.new_write(**write), work_items=items)
    if case == "held":
        admin.execute(
            "INSERT INTO sessions SELECT %s, %s, %s, nextval('epochs'), clock() + '1 h', clock()",
            [name, peer.worker_id, peer.identity.incarnation],
        )
    elif case == "full":
        await talk.append(entry=None)
    elif case == "closed":
        await talk.append(closes=True)
    elif case == "suspended":
        assert await peer.suspend(owner.at)
    return owner


@pytest.mark.parametrize("case", APPENDS)
async def test_an_append_alone_is_as_one_of_a_batch(
    provider: PostgresProvider, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Its outcome, the worker to wake, and the rows of the tables."""
    peer = await registered(provider)
    await Conversation(provider, "other").append()
    outcomes, wrote = [], []
    if case == "quota":
        admin.execute("SELECT set_quotas(NULL, NULL, 1000000)")
    calls = list[LiteralString]()
    run = provider.connections.quick.run

    async def noting(statement: LiteralString, *args: Any, **more: Any) -> list[tuple[Any, ...]]:
        calls.append(statement)
        return await run(statement, *args, **more)

    monkeypatch.setattr(provider.connections.quick, "run", noting)
    for name in ("1st-s", "2nd-s"):
        if case != "none":
            await with_next_wake(peer, admin, name, case)
        fields = {"event_id": "e", "start": None, **APPENDS[case]}
        beside = [] if name == "1st-s" else [new_input("other", start=None)]
        calls.clear()
        outcome, *_ = await journals_of(provider).append_journal([new_input(name, **fields), *beside])
        compared = [False] * (case == "repeated")  # with the event that was appended before
        assert ["append_input" in call for call in calls] == [name == "1st-s", *compared]
        outcomes.append(outcome._replace(journal_id=0))
        wrote.append(rows(admin, name))
    assert outcomes[0] == outcomes[1]
    assert wrote[0] == wrote[1]
    unparked = {
        "parked": (True, None),
        "held": (True, peer.worker_id),
        "suspended": (True, None),
        "quota": (True, None),
    }
    assert (outcomes[0].unparked, outcomes[0].holder) == unparked.get(case, (False, None))


async def test_an_append_alone_to_a_fork_knows_the_events_of_its_base(provider: PostgresProvider) -> None:
    """One that the base has is repeated; another one is appended."""
    (first,) = await journals_of(provider).append_journal([new_input("base", event_id="first")])
    base = JournalRange(first.journal_id, 1)
    fork = JournalCreation(
        session_id="fork", kind=KIND, start=new_start("fork"), lineage="fork", operator="fork", base=base
    )
    assert [each.outcome for each in await journals_of(provider).create_journals([fork])] == ["created"]
    peer = await registered(provider)
    owner = await ConversationOwner.of(peer, "fork")
    item = replace(work_item(owner.at, 1, "fork"), parked=True)
    assert (await owner.commit(await owner.new_write(), work_items=[item])).placed[0].parked
    for event_id, expected in (("first", ("repeated", 1, False)), ("second", ("appended", 2, True))):
        (found,) = await journals_of(provider).append_journal([new_input("fork", event_id=event_id, start=None)])
        assert (found.outcome, found.seq, found.unparked) == expected


async def test_a_first_wake_knows_that_there_is_no_record(provider: PostgresProvider) -> None:
    """Of its session; others may have one."""
    talk, other = Conversation(provider, "s"), Conversation(provider, "t")
    await talk.append()
    await other.append()
    await provider.states.save(state("t"))
    assert [(await one.pending()).has_record for one in (talk, other)] == [False, True]


@pytest.mark.parametrize(
    ("appends", "write", "comes"),
    [
        ([{}], {}, True),
        ([{}, {}], {}, False),
        ([{}, {"entry": NewEntry(kind="note", payload="null")}], {}, False),
        ([{"text": "x" * MAX_FETCHED_INPUT}], {}, False),
        ([{}], {"requests": [NewRequest(request_id="q", kind="confirm", payload="1")]}, False),
    ],
    ids=["one", "two", "a note behind it", "large", "a request"],
)
async def test_one_input_comes_with_the_item_of_its_wake(
    provider: PostgresProvider,
    admin: psycopg.Connection[Any],
    appends: list[dict[str, Any]],
    write: Mapping[str, Any],
    comes: bool,
) -> None:
    """Where it is small, and all that the wake has to do."""
    peer = await registered(provider)
    owner = await with_next_wake(peer, admin, "s", "held", **write)
    for fields in appends:
        await owner.conversation.append(**fields)
    fetched = await peer.fetch(10, only_own=True, prefetch={"conversation": ["work"]})
    assert [item.session_id for item in fetched.items] == ["s"]
    assert fetched.prefetched["conversation"] == ({"s": await owner.conversation.pending()} if comes else {})
