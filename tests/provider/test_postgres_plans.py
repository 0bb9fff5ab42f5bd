"""PostgreSQL: the plans of the hot statements, as the server makes them for the provider's own connections."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from psycopg import AsyncConnection

from affinity.provider.postgres import connections
from tests.provider.postgres_stage import administrator, hot_verbs, opened, registered, some_work

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


MANY: Final = 20_000
AUTO_EXPLAIN: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_format": "json",
    "client_min_messages": "log",
}
MOST: Final = 200
"""Rows that a step of a plan may read: the verbs below handle a handful each."""


@pytest.mark.parametrize("analyzed", [False, True])
async def test_hot_statements_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, analyzed: bool
) -> None:
    """Among 20,000 foreign rows in each table, with statistics and without, no step of any plan reads many of them."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        await registered(provider, "other")
        stage = await some_work(peer)
        _crowd(admin)
        if analyzed:
            admin.execute("VACUUM ANALYZE")
        plans: list[dict[str, Any]] = []
        monkeypatch.setattr(connections, "connect", partial(_listening, plans, connections.connect))
        async with opened(postgres_migrated, **AUTO_EXPLAIN) as watched:
            for verb in hot_verbs(replace(peer, provider=watched), stage):
                plans.clear()
                await verb()
                assert plans
                for plan in plans:
                    _check_plan(plan["Plan"], plan["Query Text"])


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
    if node.get("Relation Name") not in (None, "workers"):
        assert node["Node Type"] != "Seq Scan", where
    for child in node.get("Plans", ()):
        _check_plan(child, query)


def _crowd(admin: psycopg.Connection[Any]) -> None:
    """What another worker has; and many sessions of ours, with nothing to do."""
    for statement in (
        "INSERT INTO sessions SELECT w || i, w, w || '-1', nextval('epochs'), clock() + '1 h', clock(), clock()"
        " FROM generate_series(1, %s / 4) i, unnest(ARRAY['a', 'other']) w",
        "INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at,"
        " payload, enqueued_at) SELECT 'x', 1, i, 'work', 'other' || i %% 100 + 1, 'w:other', clock(), '', clock()"
        " FROM generate_series(1, %s) i",
        "INSERT INTO instances (instance_id, name, owner_worker, owner_incarnation, created_at, updated_at)"
        " SELECT 'x' || i, 'flow', 'other', 'other-1', clock(), clock() FROM generate_series(1, %s) i",
        "INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)"
        " SELECT 'x' || i, 'w:other', clock(), '' FROM generate_series(1, %s) i",
        "INSERT INTO history SELECT 'x' || i, 1, 1, '' FROM generate_series(1, %s) i",
    ):
        admin.execute(statement, [MANY])
