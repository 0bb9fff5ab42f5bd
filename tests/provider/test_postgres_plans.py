"""PostgreSQL: the plans of the hot statements, as the server makes them for the provider's own connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, LiteralString, TypeAlias, TypeVar

import psycopg
import pytest
from psycopg import AsyncConnection

from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import connections
from affinity.records import SessionFilter, SessionState
from affinity.testing.conformance.providers.builders import fetch_options, work_item
from tests.provider.postgres_stage import (
    administrator,
    hot_verbs,
    opened,
    registered,
    session_verbs,
    some_sessions,
    some_work,
)

T = TypeVar("T")

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


MANY: Final = 20_000
Crowd: TypeAlias = Literal["unknown", "mixed", "lopsided"]
CROWDS: Final[Sequence[Crowd]] = ("unknown", "mixed", "lopsided")
"""What the planner takes the queue of work for: it has no statistics; several workers have items there; it knows of
nothing but a great many items of one worker and one instance, so that it expects none on any other route.
"""
AUTO_EXPLAIN: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_nested_statements": "on",
    "client_min_messages": "log",
}
MOST: Final = 200
"""Rows that a step of a plan may read: the verbs below handle a handful each."""


@pytest.mark.slow
@pytest.mark.parametrize("crowd", CROWDS)
async def test_hot_statements_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among 20,000 foreign rows in each table, with statistics and without, no step of any plan reads many of them."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        _crowd(admin, crowd)
        stage = await some_work(peer)
        async with _watched(postgres_migrated, monkeypatch) as (watched, check):
            for verb in hot_verbs(replace(peer, provider=watched), stage):
                await check(verb)


@pytest.mark.slow
@pytest.mark.parametrize("crowd", CROWDS)
async def test_statements_of_session_state_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """The same for states, holds and watches, and for what a claim does for those who watch."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        _crowd(admin, crowd)
        at = await some_sessions(peer)
        async with _watched(postgres_migrated, monkeypatch) as (watched, check):
            for verb in session_verbs(replace(peer, provider=watched), at):
                await check(verb)


@pytest.mark.slow
@pytest.mark.parametrize("crowd", CROWDS)
async def test_releases_of_sessions_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """The same for a worker with twenty sessions that makes room, for a turn, and by hand."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider, "rare")
        await registered(provider, "other")
        _crowd(admin, crowd)
        at = await peer.own("i")
        await peer.commit_one(at, work_items=[work_item(at, 1, "newcomer")])
        admin.execute("UPDATE worker_queue SET visible_at = visible_at - '1 min'::interval WHERE instance_id = 'i'")
        options = fetch_options(5, max_sessions=20)
        async with _watched(postgres_migrated, monkeypatch) as (watched, check):
            room = partial(
                watched.release_idle_session, peer.identity, options, min_idle=0.001, only_users={"rare1": "x1"}
            )
            assert len(await check(room)) == 1
            own = replace(peer, provider=watched)
            assert (await check(partial(own.take_one, max_sessions=20))).session_id == "newcomer"
            released = partial(
                own.commit_one, replace(at, event_count=1), release_sessions=["rare2", "rare4", "newcomer"]
            )
            assert (await check(released)).committed
            assert await check(partial(watched.release_session, ["rare3", "rare2"])) == ["released", "not_held"]


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
        _crowd(admin, "mixed")
        await provider.states.save(
            SessionState(session_id="other0", state=b"")
        )  # the only parent that would be missing
        async with _watched(postgres_migrated, monkeypatch) as (watched, check):
            for where in PAGES:
                found = await check(partial(watched.states.list, where, 10))
                assert found, where
            assert await check(partial(watched.states.families, [f"rare{number}" for number in range(1, 21)]))
            assert await check(partial(watched.states.count, SessionFilter(participant="rare"))) > 0


@asynccontextmanager
async def _watched(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[PostgresProvider, Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]]]:
    """A provider object, and what calls a verb of it and looks at every plan that the server made for it."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(_listening, plans, connections.connect))

    async def check(verb: Callable[[], Awaitable[T]]) -> T:
        plans.clear()
        outcome = await verb()
        assert plans
        for plan in plans:
            _check_plan(plan["Plan"], plan["Query Text"])
        return outcome

    async with opened(url, **AUTO_EXPLAIN) as provider:
        yield provider, check


async def _listening(
    plans: list[dict[str, Any]], connect: Callable[[str], Awaitable[AsyncConnection[Any]]], conninfo: str
) -> AsyncConnection[Any]:
    connection = await connect(conninfo)

    def notice(said: psycopg.errors.Diagnostic) -> None:
        text = said.message_primary or ""
        if "plan:" in text:
            plans.append(json.loads(text.partition("plan:")[2]))

    connection.add_notice_handler(notice)
    return connection


def _check_plan(node: dict[str, Any], query: str) -> None:
    if node["Node Type"] == "Aggregate" and '"sessions_worker"' in json.dumps(node):
        return  # capacity: a count of our own sessions, made only when there is something to claim
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    where = f"{node['Node Type']} on {node.get('Relation Name')} by {node.get('Index Name')} in\n{query}"
    assert read <= MOST, f"{read} rows read by {where}"
    if node.get("Relation Name") not in (None, "workers", "timeline", "quotas", "instance_counts"):
        assert node["Node Type"] != "Seq Scan", where
    for child in node.get("Plans", ()):
        _check_plan(child, query)


def _crowd(admin: psycopg.Connection[Any], crowd: Crowd) -> None:
    """What another worker has; and many sessions of ours, with nothing to do."""
    offered: tuple[LiteralString, ...] = (
        "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
        " payload, enqueued_at) SELECT 'offered', 1, i, 'work', 'offered' || i, 'new:other', clock() + '1 h', '',"
        " clock() FROM generate_series(1, %s) i",
    )
    queued: tuple[LiteralString, ...] = (
        "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
        " payload, enqueued_at) SELECT 'x', nextval('epochs'), 1, 'work', 'other' || i %% 100 + 1, 'w:other', clock(),"
        " '', clock() FROM generate_series(1, %s) i",
    )
    for statement in (
        *(queued * 5 if crowd == "lopsided" else offered + queued),
        "INSERT INTO sessions SELECT w || i, w, w || '-1', nextval('epochs'), clock() + '1 h', clock(), clock()"
        " FROM generate_series(1, %s / 4) i, unnest(ARRAY['a', 'other']) w",
        "INSERT INTO instances (instance_id, name, owner_worker, owner_incarnation, created_at, updated_at)"
        " SELECT 'x' || i, 'flow', 'other', 'other-1', clock(), clock() FROM generate_series(1, %s) i",
        "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
        " SELECT 'x' || i, 'w:other', clock(), '' FROM generate_series(1, %s) i",
        "INSERT INTO instances (instance_id, name, status, created_at, updated_at)"
        " SELECT 'sick' || i, 'flow', 'suspended', clock(), clock() FROM generate_series(1, %s) i",
        "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
        " SELECT 'sick' || i, 'suspended', clock(), '' FROM generate_series(1, %s) i",
        "INSERT INTO history SELECT 'x' || i, 1, 1, '' FROM generate_series(1, %s) i",
        "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels,"
        " participants, version, created_at, updated_at) SELECT 'other' || i, '', 'plain', 1, 'common', 'other' || i,"
        " 'other' || i %% 100, '{\"tenant\": \"common\"}', '[]', 1, '2001-01-01', clock() - i * '1 s'::interval"
        " FROM generate_series(1, %s) i",
        "INSERT INTO session_holds SELECT 'x' || i, 1, 1, 'other' || i, clock() + '1 h', 300"
        " FROM generate_series(1, %s) i",
        "INSERT INTO session_watches SELECT 'other' || i, 'x' || i, '' FROM generate_series(1, %s) i",
    ):
        admin.execute(statement, [MANY])
    admin.execute(
        "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels,"
        " participants, version, created_at, updated_at) SELECT 'rare' || i, '', 'plain', 2, 'rare', 'rare', 'rare',"
        " '{\"tenant\": \"rare\"}', '[\"rare\"]', 1, clock(), '2001-01-01' FROM generate_series(1, 20) i"
    )
    admin.execute(
        "INSERT INTO sessions SELECT 'rare' || i, 'rare', 'rare-1', nextval('epochs'), clock() + '1 h', clock(),"
        " clock() FROM generate_series(1, 20) i"
    )
    if crowd != "unknown":
        admin.execute("VACUUM ANALYZE")
