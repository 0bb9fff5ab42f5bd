"""PostgreSQL: the plans of the hot statements, as the server makes them for the provider's own connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from affinity.provider.contract import IdleSession, InstanceFilter, InstanceStatus, InstanceUpdate
from affinity.provider.postgres import instances
from affinity.session import SessionFilter, SessionState
from affinity_conformance.providers.builders import fetch_options, work_item
from tests.provider.postgres_plans import MANY, Crowd, check_plans, crowd_tables, each_crowd
from tests.provider.postgres_stage import (
    administrator,
    hot_verbs,
    opened,
    registered,
    session_verbs,
    some_sessions,
    some_work,
    until,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


@pytest.mark.slow
@each_crowd
async def test_hot_statements_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among thousands of foreign rows in each table, with statistics and without, no step of a plan reads many."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        crowd_tables(admin, crowd)
        stage = await some_work(peer)
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for verb in hot_verbs(replace(peer, provider=watched), stage):
                await check(verb)


@pytest.mark.slow
@each_crowd
async def test_statements_of_session_state_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """The same for states, holds and watches, and for the notices to watchers of a claim."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        crowd_tables(admin, crowd)
        at = await some_sessions(peer)
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for verb in session_verbs(replace(peer, provider=watched), at):
                await check(verb)


@pytest.mark.slow
@each_crowd
async def test_releases_of_sessions_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """The same for a worker with twenty sessions that makes room, for a turn, and by hand."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider, "rare")
        await registered(provider, "other")
        crowd_tables(admin, crowd)
        at = await peer.own("i")
        await peer.commit_one(at, work_items=[work_item(at, 1, "newcomer")])
        admin.execute("UPDATE worker_queue SET visible_at = visible_at - '1 min'::interval WHERE instance_id = 'i'")
        options = fetch_options(5, max_sessions=20)
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            order = [IdleSession(session_id="rare1", only_user="x1"), IdleSession(session_id="rare5", in_use=True)]
            room = partial(watched.release_idle_session, peer.identity, options, order=order)
            assert len(await check(room)) == 1
            own = replace(peer, provider=watched)
            assert (await check(partial(own.take_one, max_sessions=20))).session_id == "newcomer"
            released = partial(
                own.commit_one, replace(at, event_count=1), release_sessions=["rare2", "rare4", "newcomer"]
            )
            assert (await check(released)).committed
            assert await check(partial(watched.release_session, ["rare3", "rare2"])) == ["released", "not_held"]


@pytest.mark.slow
@each_crowd
async def test_a_fetch_that_packs_reads_what_it_needs(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Of a worker whose set has two lower ordinals, with twenty sessions each: with room, and without."""
    async with opened(postgres_migrated) as provider:
        lower = [await registered(provider, f"w-{ordinal}") for ordinal in range(2)]
        peer = await registered(provider, "w-2")
        crowd_tables(admin, crowd)
        for each in lower:
            await each.register(capacity=21)
            admin.execute(
                "INSERT INTO sessions SELECT %s || i, %s, %s, nextval('epochs'), clock() + '1 h', clock()"
                " FROM generate_series(1, 20) i",
                [each.worker_id, each.worker_id, each.identity.incarnation],
            )
        at = await peer.own("i")
        await peer.commit_one(at, work_items=[work_item(at, 1, "newcomer")])
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            own = replace(peer, provider=watched)
            assert await check(partial(own.take, 5, pack=True)) == []
            for each in lower:
                await each.register(capacity=20)
            assert (await check(partial(own.take_one, pack=True))).session_id == "newcomer"


@pytest.mark.slow
@each_crowd
async def test_a_fetch_by_tags_reads_what_it_needs(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """The same for a worker with tags, among items with another tag; and for a worker without any."""
    async with opened(postgres_migrated) as provider:
        plain, gpu = await registered(provider), await registered(provider, "gpu", tags=("gpu", "eu"))
        await registered(provider, "other")
        crowd_tables(admin, crowd)
        admin.execute(
            "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
            " payload, enqueued_at, tag) SELECT 'tagged', 1, i, 'work', s, r, clock(), '', clock(), 'cpu'"
            " FROM generate_series(1, 20000) i, LATERAL (VALUES (NULL, 'free#cpu'), ('cpu' || i, 'new#cpu')) t (s, r)"
            " WHERE (i %% 2 = 0) = (s IS NULL)".replace("%%", "%")
        )
        if crowd != "unknown":
            admin.execute("VACUUM ANALYZE")
        at = await plain.own("i")
        kinds = ((None, "gpu"), ("s", "gpu"), (None, "eu"), ("t", "eu"), (None, None), ("u", None))
        items = [replace(work_item(at, n, s), tag=tag) for n, (s, tag) in enumerate(kinds, 1)]
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            plain, gpu = replace(plain, provider=watched), replace(gpu, provider=watched)
            assert (await check(partial(plain.commit_one, at, work_items=items))).committed
            taken = [item.lock.key.activity_id for item in await check(partial(gpu.take, 4))]
            assert sorted(taken) == [1, 2, 3, 4]
            at = await plain.go_on(replace(at, event_count=1), work_items=[work_item(at, 7, "s")])
            (own,) = await check(partial(gpu.take, 4, only_own=True))
            assert (own.lock.key.activity_id, own.session_tag) == (7, "gpu")
            assert len(await check(partial(plain.take, 10))) == 2
            assert not await check(partial(gpu.take, 10))
            assert len(await check(partial(watched.list_work_items, "i", 10))) == 7
            waiting = [replace(work_item(at, n, f"w{n}"), fail_after=1.0, takeover_after=0.5) for n in (11, 12)]
            assert (await check(partial(plain.commit_one, at, work_items=waiting))).committed
            admin.execute("UPDATE worker_queue SET attend_at = attend_at - '1 s'::interval, waits_since = clock()")
            assert not (await check(partial(gpu.end_waits, 60.0))).failed
            admin.execute(
                "UPDATE worker_queue SET waits_since = waits_since - '2 s'::interval, attend_at = waits_since"
                " WHERE attend_at IS NOT NULL"
            )
            assert len((await check(partial(gpu.end_waits, 60.0))).failed) == 2


RARE: Final = datetime(2001, 1, 1, tzinfo=UTC)
PAGES: Final = [
    SessionFilter(),
    SessionFilter(updated_after=datetime.now(UTC) - timedelta(minutes=1)),
    SessionFilter(created_after=datetime.now(UTC) - timedelta(minutes=1)),
    SessionFilter(idle_for=10_000_000.0),
    SessionFilter(idle_for=10.0, kind="common"),
    SessionFilter(kind="common"),
    SessionFilter(kind="rare"),
    SessionFilter(schema_version=1),
    SessionFilter(schema_version=2),
    SessionFilter(name="rare"),
    SessionFilter(parent="rare"),
    SessionFilter(labels={"tenant": "rare"}),
    SessionFilter(participant="rare"),
    SessionFilter(orphaned=True),
    SessionFilter(holder="rare"),
    SessionFilter(prefix="rare"),
    SessionFilter(after=(RARE, "rare5"), kind="rare"),
    SessionFilter(after=(RARE, "x")),
]


@pytest.mark.slow
async def test_a_page_of_records_costs_the_same_among_many(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is filtered by, though what it finds was written long before all others."""
    async with opened(postgres_migrated) as provider:
        await registered(provider, "rare")
        crowd_tables(admin, "mixed")
        await provider.states.save(
            SessionState(session_id="other0", state=b"")
        )  # the only parent that would be missing
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            for where in PAGES:
                found = await check(partial(watched.states.list, where, 10))
                assert found, where
            assert len(await check(partial(watched.states.children, ["common", "other0", "rare"], 10))) == 10
            assert await check(partial(watched.states.ancestors, "rare1", 10))
            assert await check(partial(watched.states.count, SessionFilter(participant="rare"))) > 0


@pytest.mark.slow
async def test_a_fetch_of_older_code_does_not_read_what_it_leaves_to_newer(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many new sessions have work; a worker of newer code has room for them."""
    async with opened(postgres_migrated) as provider:
        old = await registered(provider)
        await old.register(app="app", capacity=10, code_version="1")
        await (await registered(provider, "other")).register(app="app", capacity=10, code_version="2")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            admin.execute(
                "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
                " payload, enqueued_at) SELECT 'x', 1, i, 'work', 's' || i, 'new', now() + '60 s', '', now()"
                " FROM generate_series(1, %s) i",
                [MANY],
            )
            (until_visible,) = admin.execute(
                "SELECT extract(epoch FROM max(visible_at) - clock())::float8 FROM worker_queue"
            ).fetchone() or (0.0,)
            await provider.advance_clock(until_visible + 0.01)

            async def fetch() -> None:
                fetched = await replace(old, provider=watched).fetch(10)
                assert fetched.outdated
                assert not fetched.items

            await check(fetch)


@pytest.mark.slow
@each_crowd
async def test_a_page_of_instances_of_a_rare_status_reads_what_it_needs(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among 20,000 others, and of 20,000 with one status; all of them newer than the wanted ones."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        for name in ("old1", "old2", "old3"):
            await peer.suspend(await peer.own(name))
        await peer.commit_one(await peer.own("gone"), update=InstanceUpdate(status="cancelled"))
        crowd_tables(admin, "unknown")
        admin.execute(
            "INSERT INTO suspensions SELECT 'x' || i, '', 1, 0, '', '', 'w', '', '{}', false, clock(), clock()"
            " FROM generate_series(1, 20000) i"
        )
        admin.execute("UPDATE instances SET status = 'failed' WHERE instance_id LIKE 'sick%'")
        if crowd == "lopsided":
            admin.execute("UPDATE instances SET status = 'failed' WHERE instance_id LIKE 'x%'")
        if crowd != "unknown":
            admin.execute("VACUUM ANALYZE")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):

            async def ask(**where: Any) -> list[str]:
                page = partial(watched.list_instances, InstanceFilter(**where), 10)
                return [row.instance_id for row in await check(page)]

            assert await ask(status=["suspended"]) == ["old3", "old2", "old1"]
            assert await ask(reason="Nondeterminism") == ["old3", "old2", "old1"]
            assert await ask(status=["suspended", "cancelled"]) == ["gone", "old3", "old2", "old1"]
            assert await ask(status=["cancelled"], prefix="go") == ["gone"]
            assert len(await ask(status=["failed"])) == 10
            some = await watched.list_instances(InstanceFilter(status=["failed"]), 500)
            last = (some[-1].created_at, some[-1].instance_id)
            assert len(await ask(status=["failed", "suspended"], after=last)) == 10
            assert await ask(name="none", most=100) == await ask(name="none", most=100, after=last) == []
            if crowd == "unknown":  # without statistics, it expects few of one status, and sorts them
                return
            assert await ask(name="none", most=100, status=["failed"]) == []
            ended = await watched.list_instances(InstanceFilter(order="ended"), 500)
            far = {"order": "ended", "after": (ended[-1].updated_at, ended[-1].instance_id)}
            for oldest_first in (False, True):
                assert len(await ask(**far, oldest_first=oldest_first)) == 10
                assert await ask(**far, oldest_first=oldest_first, most=100, name="none") == []
            assert len(await ask(order="duration", most=100)) == 10


@pytest.mark.slow
@each_crowd
async def test_a_page_by_labels_reads_what_it_needs(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among thousands with either label: by one, by two that many have, by a rare one and a frequent one, and by two
    that are far apart; a count reads no instance whose status its label tells.
    """
    monkeypatch.setattr(instances, "FEW_LABELLED", 20)
    async with opened(postgres_migrated) as provider:
        await registered(provider)
        admin.execute(
            "INSERT INTO instances (instance_id, generation, name, status, created_at, updated_at, labels)"
            " SELECT 'i' || i, '1', 'flow', CASE WHEN i % 3 = 0 THEN 'failed' ELSE 'completed' END,"
            " clock() - i * '1 s'::interval, clock(), jsonb_strip_nulls(jsonb_build_object('tenant', 'acme', 'half',"
            " CASE WHEN i % 2 = 0 THEN 'a' END, 'third', CASE WHEN (i / 4) % 3 = 0 THEN 'a' END, 'few',"
            " CASE WHEN i % 2000 = 0 THEN 'a' END, 'last', CASE WHEN i > 7000 THEN 'a' END, 'first',"
            " CASE WHEN i <= 7000 THEN 'a' END)) FROM generate_series(1, 8000) i"
        )
        admin.execute(  # an empty table has no use for its index
            "INSERT INTO suspensions SELECT 'x' || i, '', 1, 0, '', '', 'w', '', '{}', false, clock(), clock()"
            " FROM generate_series(1, 2000) i"
        )
        if crowd != "unknown":
            admin.execute("VACUUM ANALYZE")
        if crowd == "lopsided":
            admin.execute("UPDATE instances SET labels = '{\"tenant\": \"acme\"}' WHERE instance_id LIKE 'i1%'")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            pages: list[tuple[dict[str, str], list[InstanceStatus], int]] = [
                ({"tenant": "acme"}, [], 10),
                ({"tenant": "acme", "half": "a"}, [], 10),
                ({"half": "a", "third": "a"}, ["completed"], 10),
                ({"tenant": "acme", "few": "a"}, ["failed", "completed"], 4),
                ({"last": "a", "tenant": "acme"}, [], 10),
                ({"first": "a", "tenant": "acme", "third": "a"}, ["failed"], 10),
            ]
            for labels, status, number in pages:
                for oldest_first in (False, True):
                    where = InstanceFilter(labels=labels, status=status, oldest_first=oldest_first)
                    found = await check(partial(watched.list_instances, where, 10))
                    assert len(found) == number, where
                    bound = replace(where, name="flow", most=20)
                    assert len(await check(partial(watched.list_instances, bound, 10))) == number
                last = (found[-1].created_at, found[-1].instance_id)
                assert await check(partial(watched.list_instances, replace(where, after=last, oldest_first=False), 10))
                counted = await check(partial(watched.count_matching, replace(where, oldest_first=False), 20))
                assert sum(counted.counts.values()) >= number


async def test_turns_and_ends_of_instances_are_heap_only(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """No update of an instance, whatever its status becomes, writes to an index of that table."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        updates: tuple[InstanceStatus, ...] = ("failed", "cancelled", "completed")
        for name in updates:
            at = await peer.own(name)
            for number in range(3):
                assert (await peer.commit_one(replace(at, event_count=number), history=["1"])).committed
            ended = await peer.commit_one(replace(at, event_count=3), update=InstanceUpdate(status=name))
            assert ended.committed
        await peer.suspend(await peer.own("suspended"))
        listed = await provider.list_instances(InstanceFilter(status=["failed", "cancelled", "suspended"]), 10)
        assert len(listed) == 3
    await until(
        admin,
        "SELECT n_tup_upd >= 13 AND n_tup_hot_upd = n_tup_upd FROM pg_stat_user_tables WHERE relname = 'instances'",
    )
