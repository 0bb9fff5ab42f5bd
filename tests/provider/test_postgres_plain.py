"""PostgreSQL: plain turns are written by a statement of their own, all or none; else the general one judges them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, LiteralString, TypeAlias, get_args

import psycopg
import pytest

from affinity.provider.conformance.builders import turn, work_item
from affinity.provider.conformance.peer import Peer
from affinity.provider.contract import InstanceUpdate, OrchestrationItem, Token, Turn, TurnResult, WorkItem
from affinity.provider.postgres import PostgresProvider, turns
from tests.provider.postgres_stage import administrator, opened, registered

pytestmark = pytest.mark.anyio

KINDS = {turns._PLAIN: "plain", turns._PLAIN_HERE: "here"}


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
def asked(provider: PostgresProvider, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements with which turns are committed from now on, by their kind."""
    link, names = provider._links.commit, list[str]()
    run = link.run

    async def noting(statement: LiteralString, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        names.append(KINDS.get(statement, "general"))
        return await run(statement, params)

    monkeypatch.setattr(link, "run", noting)
    return names


async def some_turns(peer: Peer, other: Peer, name: str) -> list[TurnResult]:
    """A batch of plain turns of two instances, of every kind of item, in no order; ``name`` makes its ids its own."""
    first, second = await peer.own(f"{name}-z"), await peer.own(f"{name}-a")
    for holder, session in ((peer, "mine"), (peer, "idle"), (other, "other")):
        at = await peer.own(f"{name}-{session}")
        await peer.commit_one(at, work_items=[work_item(at, 1, f"{name}-{session}")])
        (item,) = [item for item in await holder.take_all() if item.lock.key.instance_id == at.instance_id]
        await holder.ack(item)
    items = [work_item(first, number, f"{name}-mine") for number in (1, 2)]
    await peer.commit_one(first, work_items=[*items, work_item(first, 3)])
    mine, more, free = await peer.take(3)
    sessions = ("mine", "idle", "other", "new", "offered", None, None, "idle")
    wanted = [work_item(second, 10 + n, s and f"{name}-{s}") for n, s in enumerate(sessions)]
    here = [replace(item, lock_here=n not in {3, 5}, claim_here=n == 4) for n, item in enumerate(wanted)]
    here[-1] = replace(here[-1], delay=60.0)
    return await peer.commit(
        turn(replace(first, event_count=1), acks=[free.lock, mine.lock], history=["one", "two"]),
        turn(second, work_items=here, acks=[more.lock]),
    )


def rows(admin: psycopg.Connection[Any], name: str) -> list[Sequence[Any]]:
    """What the tables say of these turns."""
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
    """What the caller was told, without tokens and epochs."""
    assert all(result.committed for result in results)
    places = [place for result in results for place in result.placed]
    return [
        (p.holder, p.item and (p.item.lock.key.activity_id, str(p.item.session_id).replace(name, ""))) for p in places
    ]


async def test_both_statements_write_and_say_the_same(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, other = await registered(provider, "a"), await registered(provider, "b")
    said, wrote = {}, {}
    for name in ("plain", "general"):
        said[name] = placed(await some_turns(peer, other, name), name)
        wrote[name] = rows(admin, name)
        assert asked[-1] == name
        monkeypatch.setattr(turns, "_needed", lambda _: frozenset({"rest"}))
    assert said["plain"] == said["general"]
    assert [holder for holder, _ in said["plain"]].count("b") == 1
    assert [item for _, item in said["plain"]].count(None) == 5
    assert wrote["plain"] == wrote["general"]
    assert len(wrote["plain"]) > 20


async def test_a_batch_that_does_not_pass_as_a_whole_is_judged_turn_by_turn(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[str]
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
    assert asked == ["plain", "general"]
    (result,) = await peer.commit(turn(behind, acks=[dead]))
    assert (result.committed, result.lost_acks) == (False, [dead])
    assert admin.execute("SELECT instance_id, activity_id FROM worker_queue").fetchall() == [("good", 2)]
    assert admin.execute("SELECT instance_id, count(*) FROM history GROUP BY 1").fetchall() == [("good", 2)]


async def test_whatever_else_a_turn_does_takes_the_general_statement(
    provider: PostgresProvider, asked: list[str]
) -> None:
    peer = await registered(provider)
    at = await peer.own("i")
    at = await peer.go_on(at, update=InstanceUpdate(status="running", version="1"))
    assert asked == ["general"]
    await peer.go_on(at)
    assert asked == ["general", "plain"]


async def test_a_worker_whose_lease_ended_writes_nothing(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[str]
) -> None:
    """By any statement; nor does one whose name another process has taken."""
    peer = await registered(provider)
    at = await peer.own("i")
    ended: tuple[LiteralString, ...] = ("locked_until = clock()", "locked_until = clock() + '1 h', incarnation = 'a-2'")
    for change in ended:
        admin.execute("UPDATE workers SET " + change)
        for here in (False, True):
            asked.clear()
            assert not (await peer.commit_one(at, work_items=[replace(work_item(at, 1), lock_here=here)])).committed
            assert asked == ["here" if here else "plain", "general"]
    assert admin.execute("SELECT count(*) FROM worker_queue").fetchone() == (0,)
    assert admin.execute("SELECT event_count FROM instances").fetchone() == (0,)


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


async def test_work_that_stays_here_is_written_and_told_as_by_the_other_statements(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In no order of keys, of two sessions and of none, beside the result of a session that gets no more."""
    peer = await registered(provider)
    needed = turns._needed
    said, wrote = {}, {}
    for name, kind in (("1st", "here"), ("2nd", "general")):
        mine = [f"{name}-{session}" for session in ("b", "a", "c")]
        z, (b, c, free) = await with_sessions(peer, f"{name}-z", mine[0], mine[2], None)
        a, (one,) = await with_sessions(peer, f"{name}-a", mine[1])
        first = await peer.commit(fused(z, b, 7, mine[0]), fused(a, one, 7, mine[1]))
        held = [place.item for result in first for place in result.placed]
        assert held[0] is not None
        assert held[1] is not None
        admin.execute(
            "UPDATE sessions SET locked_until = clock() + interval '1 s' WHERE session_id LIKE %s", [f"{name}-%"]
        )
        if kind == "general":
            monkeypatch.setattr(turns, "_needed", lambda _: frozenset({"rest"}))
        asked.clear()
        both = await peer.commit(
            turn(
                after(z),
                acks=[c.lock, held[0].lock, free.lock],
                work_items=[
                    replace(work_item(z, n, s), lock_here=True) for n, s in ((8, mine[0]), (9, mine[0]), (10, None))
                ],
                history=["one", "two"],
            ),
            fused(after(a), held[1], 8, mine[1]),
        )
        assert asked == [kind]
        monkeypatch.setattr(turns, "_needed", needed)
        said[kind], wrote[kind] = placed(both, name), rows(admin, name)
        epochs = dict(admin.execute("SELECT session_id, epoch FROM sessions").fetchall())
        taken = [place.item for result in both for place in result.placed]
        assert [item and item.session_epoch for item in taken] == [
            epochs.get(item and item.session_id) for item in taken
        ]
        assert await peer.check(*filter(None, taken)) == [True] * 4
        # Touched: those of the results too.
        assert admin.execute(
            "SELECT count(*) FROM sessions WHERE locked_until < clock() + interval '2 s'"
        ).fetchone() == (0,)
    assert said["here"] == said["general"]
    assert len(said["here"]) == 4
    assert wrote["here"] == wrote["general"]


Spoil: TypeAlias = Literal["expired", "somebody's", "new epoch", "gone", "draining", "delayed", "offered"]


@pytest.mark.parametrize("spoil", get_args(Spoil))
async def test_work_that_was_expected_here_is_placed_where_it_belongs(
    provider: PostgresProvider, admin: psycopg.Connection[Any], asked: list[str], spoil: Spoil
) -> None:
    """The guess costs a statement when it is wrong, and is not made again."""
    peer = await registered(provider)
    await registered(provider, "b")
    at, (done,) = await with_sessions(peer, "i", "s")
    (told,) = await peer.commit(fused(at, done, 2, "s"))
    assert told.placed[0].item is not None
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
    # Whoever asks for an offer does not hold it, nor is what comes later locked now: there is nothing to guess.
    fields: dict[Spoil, dict[str, Any]] = {"delayed": {"delay": 60.0}, "offered": {"claim_here": True}}
    (told,) = await peer.commit(fused(after(at), told.placed[0].item, 3, "s", **fields.get(spoil, {})))
    assert told.committed
    (place,) = told.placed
    if spoil == "new epoch":
        assert asked == ["here"]
        assert place.item is not None
        assert (place.item.session_epoch,) == admin.execute("SELECT epoch FROM sessions").fetchone()
        return
    assert asked == (["plain"] if spoil in fields else ["here", "general"])
    assert place.item is None
    assert place.holder == {"somebody's": "b", "draining": "a", "delayed": "a"}.get(spoil)
    assert admin.execute("SELECT activity_id, lock_token FROM worker_queue").fetchall() == [(3, None)]
    if spoil != "delayed":
        asked.clear()
        here = replace(work_item(at, 4, "s"), lock_here=True)
        assert (await peer.commit_one(after(after(at)), work_items=[here])).committed
        assert asked == ["plain"]


async def test_only_so_many_guesses_are_kept(
    provider: PostgresProvider, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_REMEMBERED", 2)
    peer = await registered(provider)
    at, _ = await with_sessions(peer, "i", "s", "t", "u")
    for number, session_id, kind in (
        (4, "s", "plain"),
        (5, "s", "here"),
        (6, "t", "plain"),
        (7, "u", "plain"),
        (8, "s", "plain"),
        (9, "u", "here"),
    ):
        asked.clear()
        here = replace(work_item(at, number, session_id), lock_here=True)
        assert (await peer.commit_one(at, work_items=[here])).placed[0].item is not None
        at = after(at)
        assert asked == [kind]
