"""PostgreSQL: a batch of turns is committed as a whole, or checked turn by turn; and where its new work goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, LiteralString, TypeAlias, get_args

import psycopg
import pytest

from affinity.errors import Contention
from affinity.provider.contract import OrchestrationItem, Token, Turn, TurnResult, WorkAck, WorkItem
from affinity.provider.postgres import PostgresProvider, parts, turns
from affinity.provider.postgres.commit_parts import AckCalls, CommitCalls, PostgresCommit
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.records import CommitPart
from affinity_conformance.providers.builders import TIMEOUTS, turn, work_item
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import administrator, opened, registered

pytestmark = pytest.mark.anyio

Kind: TypeAlias = Literal["fused", "here", "placed", "check"]
"""Calls: commit a fused turn, lock all new work here, place each item, or find the turns that do not pass."""


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
        if statement == turns._fence_checks(()):
            kinds.append("check")
        elif "commit_turn(" in statement:
            kinds.append("fused")
        else:
            kinds.append("placed" if "item_here" in (params or {}) else "here")
        return await run(statement, params, **behind)

    monkeypatch.setattr(connection, "run", noting)
    return kinds


async def test_a_batch_that_does_not_pass_as_a_whole_is_checked_turn_by_turn(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind]
) -> None:
    """Nothing of the first attempt is left."""
    peer = await registered(provider)
    good, behind = await peer.own("good"), await peer.own("behind")
    await peer.commit_one(good, work_items=[work_item(good, 1)])
    (item,) = await peer.take_all()
    dead = item.lock._replace(token=Token("dead"))
    good = replace(good, event_count=1)
    asked.clear()
    results = await peer.commit(
        turn(good, acks=[item.lock], work_items=[work_item(good, 2)]),
        turn(replace(behind, event_count=7), work_items=[work_item(behind, 1)]),
    )
    assert [result.committed for result in results] == [True, False]
    assert asked == ["placed", "check", "placed"]
    (result,) = await peer.commit(turn(behind, acks=[dead]))
    assert (result.committed, result.lost_acks) == (False, [dead])
    assert admin.execute("SELECT instance_id, activity_id FROM worker_queue").fetchall() == [("good", 2)]
    assert admin.execute("SELECT instance_id, count(*) FROM history GROUP BY 1").fetchall() == [("good", 2)]


async def test_a_batch_that_is_refused_though_each_turn_passes_is_contention(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changes a fence each time between the judgement and the commit: it does not go on forever."""
    peer = await registered(provider)
    at = await peer.own("i")
    run = provider.connections.commit.run

    async def disturbed(statement: LiteralString, params: Params | None = None, **behind: Any) -> list[Row]:
        admin.execute("UPDATE instances SET event_count = %s", [0 if statement == turns._fence_checks(()) else 1])
        return await run(statement, params, **behind)

    monkeypatch.setattr(provider.connections.commit, "run", disturbed)
    with pytest.raises(Contention, match="again and again"):
        await peer.commit_one(at)
    assert asked == ["here", "check"] * 5
    assert admin.execute("SELECT count(*) FROM history").fetchone() == (0,)


async def test_a_worker_whose_lease_ended_writes_nothing(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind]
) -> None:
    """Nor does one whose name another process has taken."""
    peer = await registered(provider)
    at = await peer.own("i")
    ended: tuple[LiteralString, ...] = ("locked_until = clock()", "locked_until = clock() + '1 h', incarnation = 'a-2'")
    for change in ended:
        admin.execute("UPDATE workers SET " + change)
        for here in (False, True):
            asked.clear()
            assert not (await peer.commit_one(at, work_items=[replace(work_item(at, 1), lock_here=here)])).committed
            assert asked == ["here" if here else "placed", "check"]
    assert admin.execute("SELECT count(*) FROM worker_queue").fetchone() == (0,)
    assert admin.execute("SELECT event_count FROM instances").fetchone() == (0,)


def rows(admin: psycopg.Connection[Any], name: str) -> list[Sequence[Any]]:
    """The rows of these turns."""
    asked: tuple[LiteralString, ...] = (
        "SELECT instance_id, status, execution_id, event_count, claims, owner_worker FROM instances"
        " WHERE instance_id LIKE %s ORDER BY 1",
        "SELECT instance_id, execution_id, event_id, event FROM history WHERE instance_id LIKE %s ORDER BY 1, 2, 3",
        "SELECT instance_id, activity_id, session_id, route, name, payload, lock_worker, lock_incarnation,"
        " lock_token IS NULL, attempts, visible_at > clock() + interval '50 s', locked_until > clock(),"
        " rank() OVER (ORDER BY visible_at) FROM worker_queue WHERE instance_id LIKE %s ORDER BY 1, 2",
        "SELECT session_id, worker_id, incarnation, locked_until > clock() FROM sessions WHERE session_id LIKE %s"
        " ORDER BY 1",
    )
    found = [row for question in asked for row in admin.execute(question, [f"{name}-%"]).fetchall()]
    return [[str(value).replace(name, "") for value in row] for row in found]


def placed(results: list[TurnResult], name: str) -> list[Any]:
    """What the caller received, without tokens and epochs."""
    assert all(result.committed for result in results)
    places = [place for result in results for place in result.placed]
    return [
        (p.holder, p.item and (p.item.lock.key.activity_id, str(p.item.session_id).replace(name, ""))) for p in places
    ]


async def with_sessions(peer: Peer, name: str, *sessions: str | None) -> tuple[OrchestrationItem, list[WorkItem]]:
    """An instance, and a work item of each of these sessions, which ``peer`` has in hand."""
    at = await peer.own(name)
    await peer.commit_one(at, work_items=[work_item(at, n, session) for n, session in enumerate(sessions, 1)])
    return replace(at, event_count=1), await peer.take(len(sessions))


def fused(at: OrchestrationItem, done: WorkItem, number: int, session_id: str | None, **fields: Any) -> Turn:
    """A turn that takes that result, and has the next item locked."""
    item = replace(work_item(at, number, session_id), lock_here=True, **fields)
    return turn(at, acks=[done.lock], work_items=[item])


def after(at: OrchestrationItem) -> OrchestrationItem:
    """The instance after one more turn."""
    return replace(at, event_count=at.event_count + 1)


async def test_work_that_stays_here_is_written_and_answered_as_if_it_were_placed(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind]
) -> None:
    """In no order of keys, of two sessions and of none, beside the result of a session that gets no more."""
    peer = await registered(provider)
    said, wrote = {}, {}
    kinds: tuple[Kind, ...] = ("here", "placed")
    for name, kind in zip(("1st", "2nd"), kinds, strict=True):
        mine = [f"{name}-{session}" for session in ("b", "a", "c")]
        z, (b, c, free) = await with_sessions(peer, f"{name}-z", mine[0], mine[2], None)
        a, (one,) = await with_sessions(peer, f"{name}-a", mine[1])
        # Together with an item that is for anyone, each of the others is placed.
        other = await peer.own(f"{name}-other")
        more = [turn(other, work_items=[work_item(other, 1)])] if kind == "placed" else []
        admin.execute(
            "UPDATE sessions SET locked_until = clock() + interval '1 s' WHERE session_id LIKE %s", [f"{name}-%"]
        )
        asked.clear()
        both = await peer.commit(
            turn(
                z,
                acks=[c.lock, b.lock, free.lock],
                work_items=[
                    replace(work_item(z, n, s), lock_here=True) for n, s in ((8, mine[0]), (9, mine[0]), (10, None))
                ],
                history=["one", "two"],
            ),
            fused(a, one, 8, mine[1]),
            *more,
        )
        assert asked == [kind]
        both = both[:2]
        admin.execute("DELETE FROM worker_queue WHERE instance_id = %s", [f"{name}-other"])
        admin.execute("DELETE FROM history WHERE instance_id = %s", [f"{name}-other"])
        admin.execute("DELETE FROM instances WHERE instance_id = %s", [f"{name}-other"])
        said[kind], wrote[kind] = placed(both, name), rows(admin, name)
        epochs = dict(admin.execute("SELECT session_id, epoch FROM sessions").fetchall())
        taken = [place.item for result in both for place in result.placed]
        assert [item and item.session_epoch for item in taken] == [
            epochs.get(item and item.session_id) for item in taken
        ]
        assert await peer.check(*filter(None, taken)) == [True] * 4
        # Touched: the sessions of the results too.
        assert admin.execute(
            "SELECT count(*) FROM sessions WHERE locked_until < clock() + interval '2 s'"
        ).fetchone() == (0,)
    assert said["here"] == said["placed"]
    assert len(said["here"]) == 4
    assert wrote["here"] == wrote["placed"]


@pytest.mark.parametrize("session", ["s", None])
async def test_a_fused_turn_alone_writes_what_it_writes_in_a_batch(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind], session: str | None
) -> None:
    """Of a session, which it touches, or of none."""
    peer = await registered(provider)
    said, wrote = {}, {}
    for kind in ("fused", "here"):
        at, (done,) = await with_sessions(peer, f"{kind}-i", session and f"{kind}-s")
        more = [turn(await peer.own("other"))] if kind == "here" else []
        admin.execute(
            "UPDATE sessions SET locked_until = clock() + interval '1 s' WHERE session_id = %s", [f"{kind}-s"]
        )
        asked.clear()
        one = replace(fused(at, done, 2, done.session_id), history=["one", "two", "three"])
        result, *_ = await peer.commit(one, *more)
        assert asked == [kind]
        said[kind], wrote[kind] = placed([result], kind), rows(admin, kind)
        (place,) = result.placed
        assert place.item is not None
        assert place.item.session_epoch == done.session_epoch
        assert await peer.check(place.item) == [True]
        recorded = "SELECT recorded_at IS NOT NULL, recorded_events, recorded_by FROM history WHERE instance_id = %s"
        assert admin.execute(recorded + " ORDER BY event_id OFFSET 1", [f"{kind}-i"]).fetchall() == [
            (True, 3, "a"),
            (False, None, None),
            (False, None, None),
        ]
    assert not admin.execute("SELECT FROM sessions WHERE locked_until < clock() + interval '2 s'").fetchall()
    assert said["fused"] == said["here"]
    assert wrote["fused"] == wrote["here"]


@pytest.mark.parametrize("session", ["s", None])
async def test_a_fused_turn_whose_result_is_of_another_session_is_committed(
    provider: PostgresProvider, asked: list[Kind], session: str | None
) -> None:
    """Its work is locked here if its own session is held here."""
    peer = await registered(provider)
    at, (done, _) = await with_sessions(peer, "i", "t", "s")
    (result,) = await peer.commit(fused(at, done, 3, session))
    assert asked[-2:] == ["fused", "here"]
    assert result.placed[0].item is not None


@pytest.mark.parametrize("change", ["generation", "events", "ack", "execution"])
async def test_a_fused_turn_that_does_not_pass_is_refused(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind], change: str
) -> None:
    """Nothing of it is left, and the caller learns which lock was lost."""
    peer = await registered(provider)
    at, (done,) = await with_sessions(peer, "i", "s")
    before = rows(admin, "i")
    one = fused(at, done, 2, "s")
    lost = done.lock._replace(token=Token("dead"))
    changes: dict[str, dict[str, Any]] = {
        "generation": {"generation": "another"},
        "events": {"event_count": 7},
        "ack": {"acks": [lost]},
        "execution": {"execution_id": 2},
    }
    asked.clear()
    (result,) = await peer.commit(replace(one, **changes[change]))
    assert not result.committed
    assert result.lost_acks == ([lost] if change == "ack" else [])
    assert asked == ["fused", "here", "check"]
    assert rows(admin, "i") == before


Spoil: TypeAlias = Literal["expired", "somebody's", "new epoch", "gone", "draining", "delayed", "offered"]


@pytest.mark.parametrize("spoil", get_args(Spoil))
async def test_work_that_was_asked_to_stay_here_is_placed_where_it_belongs(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[Kind], spoil: Spoil
) -> None:
    """In one call, or in the one behind the fused turn's, whatever happened to its session meanwhile."""
    peer = await registered(provider)
    await registered(provider, "b")
    at, (done,) = await with_sessions(peer, "i", "s")
    (result,) = await peer.commit(fused(at, done, 2, "s"))
    assert result.placed[0].item is not None
    spoiling: dict[Spoil, LiteralString] = {
        "expired": "UPDATE sessions SET locked_until = clock()",
        "somebody's": "UPDATE sessions SET worker_id = 'b', incarnation = 'b-1', epoch = nextval('epochs')",
        "new epoch": "UPDATE sessions SET epoch = nextval('epochs')",
        "gone": "DELETE FROM sessions",
        "draining": "UPDATE workers SET draining = true WHERE worker_id = 'a'",
        "delayed": "SELECT",
        "offered": "UPDATE sessions SET locked_until = clock()",
    }
    admin.execute(spoiling[spoil])
    asked.clear()
    fields: dict[Spoil, dict[str, Any]] = {"delayed": {"delay": 60.0}, "offered": {"claim_here": True}}
    (result,) = await peer.commit(fused(after(at), result.placed[0].item, 3, "s", **fields.get(spoil, {})))
    assert result.committed
    (place,) = result.placed
    assert asked == (["placed"] if spoil in fields else ["fused"] if spoil == "new epoch" else ["fused", "here"])
    if spoil == "new epoch":
        assert place.item is not None
        assert (place.item.session_epoch,) == admin.execute("SELECT epoch FROM sessions").fetchone()
        return
    assert place.item is None
    assert place.holder == {"somebody's": "b", "draining": "a", "delayed": "a"}.get(spoil)
    assert admin.execute("SELECT activity_id, lock_token FROM worker_queue").fetchall() == [(3, None)]


class Alpha(CommitPart):
    """A part of a guest that writes nothing."""

    guest = "alpha"
    session_id = "s"
    sessions = ("s",)


class Beta(Alpha):
    """The same of another guest."""

    guest = "beta"


def commit_of(guest: Literal["alpha", "beta"]) -> PostgresCommit:
    """The commit of such a guest: its call is its name."""
    return PostgresCommit(
        lone=lambda _: None,
        calls=lambda *_: CommitCalls([f"'{guest}'"], {}),
        fences="SELECT '', 0 WHERE false",
        fence_params=lambda _: {},
        ack_tables=f"), {guest}_rows AS (SELECT 1",
        ack_fence="true",
        acks=lambda _: AckCalls([f"'{guest}'"], {}),
    )


async def test_guests_write_in_the_order_of_their_names(
    provider: PostgresProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of the parts: two statements that lock rows of two guests would wait for each other."""
    commits = {"beta": commit_of("beta"), "alpha": commit_of("alpha")}
    monkeypatch.setattr(parts, "commits", lambda: commits)
    sent: list[str] = []
    run = provider.connections.commit.run

    async def noting(statement: LiteralString, params: Params | None = None, **behind: Any) -> list[Row]:
        sent.append(statement)
        return await run(statement, params, **behind)

    monkeypatch.setattr(provider.connections.commit, "run", noting)
    peer = await registered(provider)
    at, (first, second) = await with_sessions(peer, "i", "s", "t")
    assert (await peer.commit_one(at, acks=[first.lock], parts=[Beta(), Alpha()])).committed
    ack = WorkAck(lock=second.lock, message="done", parts=[Beta(), Alpha()])
    assert await provider.ack_work_item(peer.identity, [ack], TIMEOUTS) == [True]
    for statement in sent[-2:]:
        assert 0 < statement.index("'alpha'") < statement.index("'beta'")
    assert sent[-1].index("alpha_rows") < sent[-1].index("beta_rows")
