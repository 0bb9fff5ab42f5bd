"""PostgreSQL: plain turns are written by a statement of their own, all or none; else the general one judges them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest

from affinity.provider.conformance.builders import turn, work_item
from affinity.provider.conformance.peer import Peer
from affinity.provider.contract import InstanceUpdate, Token, TurnResult
from affinity.provider.postgres import PostgresProvider, turns
from tests.provider.postgres_stage import administrator, opened, registered

pytestmark = pytest.mark.anyio

PLAIN = turns._PLAIN


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
    """The statements with which turns are committed from now on, by whether they are the plain one."""
    link, names = provider._links.commit, list[str]()
    run = link.run

    async def noting(statement: LiteralString, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        names.append("plain" if statement == PLAIN else "general")
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
    """By either statement; nor does one whose name another process has taken."""
    peer = await registered(provider)
    at = await peer.own("i")
    admin.execute("UPDATE workers SET locked_until = clock()")
    assert not (await peer.commit_one(at, work_items=[work_item(at, 1)])).committed
    assert asked == ["plain", "general"]
    assert admin.execute("SELECT count(*) FROM worker_queue").fetchone() == (0,)
    assert admin.execute("SELECT event_count FROM instances").fetchone() == (0,)
