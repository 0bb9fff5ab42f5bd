"""Instances that a worker runs, as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest
from anyio import to_thread
from click.testing import CliRunner

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker, migrate
from affinity.cli import main
from affinity.errors import InvalidInput, UnknownInstance
from affinity.session import SessionFilter

pytestmark = pytest.mark.anyio

app = App("management")


@app.activity
async def refuse(context: ActivityContext) -> None:
    raise ValueError("not today")


@app.orchestration
async def stuck(context: OrchestrationContext) -> None:
    await context.schedule_activity(refuse, retry=RetryPolicy(initial_interval=60))


@app.orchestration
async def line(context: OrchestrationContext) -> None:
    retry = RetryPolicy(initial_interval=60)
    steps = [context.schedule_activity(refuse, retry=retry).on_session("s", ordered=True) for _ in range(2)]
    await context.gather(*steps)


@app.orchestration
async def countdown(context: OrchestrationContext, left: int) -> str:
    if left:
        context.continue_as_new(left - 1)
    return "zero"


@app.orchestration
async def leaf(context: OrchestrationContext) -> None:
    pass


@app.orchestration
async def branch(context: OrchestrationContext, width: int) -> None:
    await context.gather(*(context.schedule_sub_orchestration(leaf) for _ in range(width)))


@app.orchestration
async def root(context: OrchestrationContext) -> None:
    await context.schedule_sub_orchestration(branch, 2)
    await context.schedule_sub_orchestration(branch, 1)


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with (
        Worker(app, kept_url, RuntimeOptions.make(worker_node_id="w", poll_interval=0.2)),
        Client(kept_url) as one,
    ):
        yield one


async def test_an_activity_in_back_off_has_its_next_time_and_its_last_error(client: Client) -> None:
    handle = await client.start(stuck)
    with anyio.fail_after(30):
        while not [one for one in await handle.activities() if one.next_attempt_at]:
            await anyio.sleep(0.01)
    (activity,) = await handle.activities()
    assert (activity.name, activity.attempt, activity.worker_id) == ("refuse", 2, None)
    assert (activity.last_error, activity.activity_id, activity.execution_id) == ("ValueError: not today", 2, 1)
    assert activity.next_attempt_at is not None
    assert activity.scheduled_at is not None
    assert timedelta(seconds=59) < activity.next_attempt_at - activity.scheduled_at < timedelta(seconds=90)
    found = await client.statistics()
    assert found.instances["running"] == 1
    assert found.work_items == {"running": 0, "waiting": 0, "delayed": 1, "blocked": 0}


async def test_an_ordered_activity_behind_another_is_blocked(client: Client, kept_url: str) -> None:
    handle = await client.start(line)
    with anyio.fail_after(30):
        while not any(one.next_attempt_at for one in await handle.activities()):
            await anyio.sleep(0.01)
    first, second = await handle.activities()
    assert (first.status, first.blocked, second.status, second.blocked) == ("queued", False, "queued", True)
    assert (first.session_id, second.session_id, second.attempt, second.next_attempt_at) == ("s", "s", 1, None)
    assert (await client.statistics()).work_items == {"running": 0, "waiting": 0, "delayed": 1, "blocked": 1}
    shown = await to_thread.run_sync(CliRunner().invoke, main, ["--url", kept_url, "show", handle.instance_id])
    assert "refuse: waits for an ordered activity of session 's' that is before it" in shown.output


async def test_executions_have_their_status_and_times(client: Client) -> None:
    handle = await client.start(countdown, 2)
    assert await handle.wait(30) == "zero"
    executions = await handle.executions()
    assert [(one.execution_id, one.status, one.event_count) for one in executions] == [
        (3, "completed", 2),
        (2, "continued", 2),
        (1, "continued", 2),
    ]
    times = [time for one in reversed(executions) for time in (one.started_at, one.ended_at) if time is not None]
    assert len(times) == 6
    assert times == sorted(times)
    assert times[0] == (await handle.status()).created_at
    assert [one.execution_id for one in await handle.executions(limit=1, before=3)] == [2]
    again = await client.reset(handle.instance_id, to_event=1)
    assert await handle.wait(30) == "zero"
    assert [(one.execution_id, one.status) for one in await handle.executions(limit=2)] == [
        (again, "completed"),
        (3, "completed"),
    ]


async def test_a_tree_is_shown_in_its_order(client: Client) -> None:
    handle = await client.start(root)
    await handle.wait(30)
    tree = await handle.tree()
    assert [(node.depth, node.name) for node in tree.nodes] == [
        (0, "root"),
        (1, "branch"),
        (2, "leaf"),
        (2, "leaf"),
        (1, "branch"),
        (2, "leaf"),
    ]
    assert {node.status for node in tree.nodes} == {"completed"}
    assert not tree.truncated
    part = await handle.tree(limit=3)
    assert [node.depth for node in part.nodes] == [0, 1, 1]
    assert part.truncated


async def test_unknown_instances_and_invalid_limits_are_refused(client: Client) -> None:
    for ask in (client.executions, client.activities, client.tree):
        with pytest.raises(UnknownInstance):
            await ask("unknown")
    for limit in (0, 1_001):
        for listing in (client.executions, client.tree):
            with pytest.raises(InvalidInput, match="limit"):
                await listing("unknown", limit=limit)
    with pytest.raises(InvalidInput, match="limit"):
        await client.statistics(limit=0)


@pytest.mark.parametrize("text", ["\udcff", "a\x00"])
async def test_conditions_that_no_store_can_keep_are_refused(text: str, kept_url: str) -> None:
    await migrate(kept_url)
    async with Client(kept_url) as client:
        for condition in ("prefix", "name", "session_id", "reason"):
            given: dict[str, Any] = {condition: text}
            with pytest.raises(InvalidInput):
                await client.list_instances(**given)
        with pytest.raises(InvalidInput):
            [each async for each in client.list_instances(parent_id=text)]
        with pytest.raises(InvalidInput):
            await client.list_conversations(prefix=text)
        with pytest.raises(InvalidInput):
            await client.session_moves(worker_id=text)
        with pytest.raises(InvalidInput):
            SessionFilter(labels={"a": text})
