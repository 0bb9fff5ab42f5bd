"""What has failed: each attempt with its error and stack, failures by time, by text, and their counts."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker
from affinity.client import failures
from affinity.encryption import Encryption
from affinity.errors import InvalidInput
from affinity.provider.contract import FailureRecord
from affinity.provider.urls import sqlite_path

pytestmark = pytest.mark.anyio

app = App("failures")
FAST = RetryPolicy(max_attempts=3, initial_interval=0.01)
SECRET = "card 4111"  # noqa: S105 -- as it may stand in the text of an error


@app.activity
async def charge(ctx: ActivityContext) -> str:
    if ctx.attempt < 3:
        raise ValueError(f"{SECRET} was refused, attempt {ctx.attempt}")
    return "paid"


@app.activity
async def ship(ctx: ActivityContext) -> None:
    raise OSError("no ship")


@app.orchestration
async def order(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(charge, retry=FAST)
    await ctx.schedule_activity(ship)


@asynccontextmanager
async def failed_order(url: str, **options: Any) -> AsyncIterator[Client]:
    """A client, when an order has failed."""
    once = RuntimeOptions.make(poll_interval=0.05, drain_timeout=0.1, worker_node_id="w")
    async with Worker(app, url, once, **options), Client(url, **options) as client:
        await client.start(order, instance_id="o")
        assert (await client.wait_finished("o", timeout=20)).status == "failed"
        yield client


def shown(found: FailureRecord) -> tuple[object, ...]:
    return found.kind, found.name, found.error_type, found.attempt, found.is_retried


async def test_each_failure_is_kept_once(sqlite_url: str) -> None:
    """Attempts that are repeated have their stacks; what has failed in the end is in the history with its own."""
    async with failed_order(sqlite_url) as client:
        attempts = await client.failed_attempts("o", execution_id=1)
        assert [shown(each) for each in attempts] == [
            ("activity", "charge", "ValueError", 1, True),
            ("activity", "charge", "ValueError", 2, True),
            ("activity", "ship", "OSError", 1, False),
        ]
        assert attempts[1].error == f"ValueError: {SECRET} was refused, attempt 2"
        assert [each.stack is not None and "in charge" in each.stack for each in attempts] == [True, True, False]
        newest = await client.failures()
        assert {shown(each) for each in newest} == {
            *map(shown, attempts),
            ("orchestration", "order", "ActivityFailed", 0, False),
        }
        groups = (await client.failure_groups()).groups
        counts = {(each.kind, each.name, each.error_type): (each.count, each.instances) for each in groups}
        assert counts == {
            ("activity", "charge", "ValueError"): (2, 1),
            ("activity", "ship", "OSError"): (1, 1),
            ("orchestration", "order", "ActivityFailed"): (1, 1),
        }
        assert (groups[0].name, groups[0].count) == ("charge", 2)


async def test_a_codec_has_texts_and_stacks(sqlite_url: str) -> None:
    """Neither is stored in the clear; a search decodes them."""
    async with failed_order(sqlite_url, codec=Encryption({"k": bytes(32)})) as client:
        assert SECRET in (await client.failed_attempts("o", execution_id=1))[0].error
        assert "in charge" in str((await client.failed_attempts("o", execution_id=1))[0].stack)
        assert [each.attempt for each in await client.failures(text="4111 WAS")] == [2, 1]
    with closing(sqlite3.connect(sqlite_path(sqlite_url) or "")) as database:
        rows = database.execute("SELECT error_type, error || coalesce(stack, '') FROM failures").fetchall()
    assert {error_type for error_type, _ in rows} == {"ValueError", "OSError", "ActivityFailed"}
    assert not [text for _, text in rows if SECRET in text or "in charge" in text]


async def test_a_search_looks_at_a_bounded_number(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may have nothing, and the next one goes on behind what this one has looked at."""
    monkeypatch.setattr(failures, "MAX_PAGE", 2)
    monkeypatch.setattr(failures, "MAX_FAILURES_SEARCHED", 4)
    with closing(sqlite3.connect(sqlite_path(sqlite_url) or "")) as database, database:
        database.executemany(
            "INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried,"
            " failed_at, error) VALUES (?, 1, 1, 1, 'activity', 'a/b', 'E', 0, ?, ?)",
            [(f"i/{n}", round(time.time()) - 10 * n, "E: rare" if n in {5, 9} else "E: often") for n in range(11)],
        )
    async with Client(sqlite_url) as client:
        found: list[list[str]] = []
        after = None
        while not found or after is not None:
            page = await client.failures(kind="activity", name="a/b", error_type="E", text="RARE").page(after)
            found.append([each.instance_id for each in page.items])
            after = page.next
        assert found == [[], ["i/5"], ["i/9"]]
        first = await client.failures(text="often").page(limit=3)
        rest = await client.failures(text="often").page(first.next, limit=3)
        assert [each.instance_id for each in (*first.items, *rest.items)] == [f"i/{n}" for n in (0, 1, 2, 3, 4, 6)]


@pytest.mark.parametrize(
    "conditions",
    [{"seconds": 0}, {"seconds": 86_401}, {"kind": "activity"}, {"name": "a"}, {"error_type": "E"}, {"text": "\0"}],
)
async def test_conditions_that_no_index_has_are_refused(sqlite_url: str, conditions: dict[str, Any]) -> None:
    """A class of errors is found within a name, and a name within a kind."""
    async with Client(sqlite_url) as client:
        with pytest.raises(InvalidInput):
            await client.failures(**conditions)
        with pytest.raises(InvalidInput):
            await client.failures().page("2026/1/1/x")
