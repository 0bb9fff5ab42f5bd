"""Plans that PostgreSQL makes for the provider's own connections, and tables full of rows of other workers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, LiteralString, TypeAlias, TypeVar

import psycopg
import pytest
from psycopg import AsyncConnection

from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.target import Target
from tests.provider.postgres_stage import opened

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MANY: Final = 20_000
"""Rows of others in a table, so that the planner has to assume so without statistics."""

KNOWN_MANY: Final = 8_000
"""Enough where it has statistics."""

Crowd: TypeAlias = Literal["unknown", "mixed", "lopsided"]
CROWDS: Final[Sequence[Crowd]] = ("unknown", "mixed", "lopsided")
"""What the planner takes the queue of work for: it has no statistics; several workers have items there; it knows of
nothing but a great many items of one worker and one instance, so that it expects none on any other route.
"""


def each_crowd(test: F) -> F:
    """Run a test in each crowd. Those on the older PostgreSQL, and those with usual statistics, are nightly."""
    pytest.mark.nightly_cases("old-|mixed")(test)
    pytest.mark.parametrize("crowd", CROWDS)(test)
    return test


AUTO_EXPLAIN: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_nested_statements": "on",
    "client_min_messages": "log",
}
MOST: Final = 200
"""Rows that a step of a plan may read: the verbs of these tests handle a handful each."""


@asynccontextmanager
async def check_plans(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[PostgresProvider, Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]]]:
    """A provider object, and what calls a verb of it and looks at every plan that the server made for it."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(connections, "connect", partial(collect_plans, plans, connections.connect))

    async def check(verb: Callable[[], Awaitable[T]]) -> T:
        plans.clear()
        outcome = await verb()
        assert plans
        for plan in plans:
            check_plan(plan["Plan"], plan["Query Text"])
        return outcome

    async with opened(url, **AUTO_EXPLAIN) as provider:
        yield provider, check


async def collect_plans(
    plans: list[dict[str, Any]],
    connect: Callable[[Target, str], Awaitable[AsyncConnection[Any]]],
    target: Target,
    conninfo: str,
) -> AsyncConnection[Any]:
    connection = await connect(target, conninfo)

    def notice(said: psycopg.errors.Diagnostic) -> None:
        text = said.message_primary or ""
        if "plan:" in text:
            plans.append(json.loads(text.partition("plan:")[2]))

    connection.add_notice_handler(notice)
    return connection


def check_plan(node: dict[str, Any], query: str) -> None:
    if node["Node Type"] == "Aggregate" and '"sessions_worker"' in json.dumps(node):
        return  # capacity: a count of our own sessions, made only when there is something to claim
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    where = f"{node['Node Type']} on {node.get('Relation Name')} by {node.get('Index Name')} in\n{query}"
    assert read <= MOST, f"{read} rows read by {where}"
    if node.get("Relation Name") not in (None, "workers", "timeline", "quotas", "instance_counts"):
        assert node["Node Type"] != "Seq Scan", where
    for child in node.get("Plans", ()):
        check_plan(child, query)


def crowd_tables(admin: psycopg.Connection[Any], crowd: Crowd) -> None:
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
        "INSERT INTO sessions SELECT w || i, w, w || '-1', nextval('epochs'), clock() + '1 h', clock()"
        " FROM generate_series(1, %s / 4) i, unnest(ARRAY['a', 'other']) w",
        "INSERT INTO instances (instance_id, generation, name, owner_worker, owner_incarnation, created_at, updated_at)"
        " SELECT 'x' || i, '1', 'flow', 'other', 'other-1', clock(), clock() FROM generate_series(1, %s) i",
        "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
        " SELECT 'x' || i, 'w:other', clock(), '' FROM generate_series(1, %s) i",
        "INSERT INTO instances (instance_id, generation, name, status, created_at, updated_at)"
        " SELECT 'sick' || i, '1', 'flow', 'suspended', clock(), clock() FROM generate_series(1, %s) i",
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
        "INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried,"
        " failed_at, error) SELECT 'x' || i, 1, 2, 1, 'activity', 'step' || i %% 10, 'Error', false,"
        " clock() - i * '1 s'::interval, 'Error: no' FROM generate_series(1, %s) i",
        "INSERT INTO suspensions (instance_id, name, execution_id, event_count, error_type, message, worker_id, code,"
        " tried, needs_code, suspended_at) SELECT 'sick' || i, 'flow' || i %% 10, 1, 0, 'Nondeterminism', '', 'other',"
        " 'v1', '{}', false, clock() - i * '1 s'::interval FROM generate_series(1, %s) i",
        "INSERT INTO schedules (name, generation, revision, spec, next_due, skipped, created_at, updated_at)"
        " SELECT 'later' || i, '1', 1, '{}', clock() + i * '1 h'::interval, 0, clock(), clock()"
        " FROM generate_series(1, %s) i",
    ):
        admin.execute(statement, [MANY if crowd == "unknown" else KNOWN_MANY])
    admin.execute(
        "INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels,"
        " participants, version, created_at, updated_at) SELECT 'rare' || i, '', 'plain', 2, 'rare', 'rare', 'rare',"
        " '{\"tenant\": \"rare\"}', '[\"rare\"]', 1, clock(), '2001-01-01' FROM generate_series(1, 20) i"
    )
    admin.execute(
        "INSERT INTO sessions SELECT 'rare' || i, 'rare', 'rare-1', nextval('epochs'), clock() + '1 h', clock()"
        " FROM generate_series(1, 20) i"
    )
    if crowd != "unknown":
        admin.execute("VACUUM ANALYZE")


def rows_read(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Tables, and rows that a step of a plan has read of them."""
    if "Relation Name" in node:
        yield (
            node["Relation Name"],
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"],
        )
    for child in node.get("Plans", ()):
        yield from rows_read(child)
