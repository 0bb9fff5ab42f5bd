"""`Client.activities`: all of an execution, with their status."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta

import anyio
import pytest

import affinity
from affinity.errors import UnknownInstance
from affinity.orchestration.events import ActivityCompleted, ActivityScheduled, RawJson
from affinity.provider.contract import Provider, WorkItemInfo
from affinity.testing import Env
from tests.client.conftest import Puppet

app = affinity.App("activities")

RETRY = affinity.RetryPolicy(max_attempts=2, initial_interval=60, max_interval=60)


@app.activity
async def send(ctx: affinity.ActivityContext) -> str:
    return "sent"


@app.activity
async def refuse(ctx: affinity.ActivityContext) -> None:
    raise ValueError(f"no {ctx.attempt}")


@app.orchestration
async def several(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_activity(send).on_session("s")
    with suppress(affinity.errors.ActivityFailed):
        await ctx.schedule_activity(refuse, retry=RETRY)
    await ctx.select(ctx.schedule_activity(send).with_tag("gpu"), ctx.schedule_timer(60))
    rarely = affinity.RetryPolicy(initial_interval=86_400, max_interval=86_400)
    await ctx.gather(ctx.schedule_activity(refuse, retry=rarely), ctx.schedule_activity(send).with_tag("gpu"))


@app.orchestration
async def two_executions(ctx: affinity.OrchestrationContext, number: int) -> None:
    await ctx.schedule_activity(send)
    if number == 1:
        ctx.continue_as_new(2)


gate = anyio.Event()


@app.activity
async def hold(ctx: affinity.ActivityContext) -> None:
    await gate.wait()


@app.orchestration
async def crowded(ctx: affinity.OrchestrationContext) -> None:
    await ctx.gather(ctx.schedule_activity(hold), ctx.schedule_activity(send))


@pytest.fixture
async def env(env_url: str | None) -> AsyncIterator[Env]:
    async with Env(app, url=env_url) as env:
        yield env


async def test_all_of_them_are_listed_in_order_with_their_status(env: Env) -> None:
    run = await env.client.start(several)
    await env.advance(121)
    sent, failed, cancelled, retried, waits = found = await run.activities()
    assert [one.name for one in found] == ["send", "refuse", "send", "refuse", "send"]
    assert [one.activity_id for one in found] == sorted(one.activity_id for one in found)
    assert [one.finished for one in found] == [True, True, True, False, False]
    assert (sent.status, sent.attempt, sent.worker_id, sent.session_id) == ("completed", 1, "worker-0", "s")
    assert (failed.status, failed.attempt, failed.last_error) == ("failed", 2, "ValueError: no 2")
    assert failed.scheduled_at is not None
    assert failed.ended_at is not None
    assert failed.ended_at - failed.scheduled_at == pytest.approx(timedelta(minutes=1), abs=timedelta(seconds=1))
    assert failed.started_at is not None
    assert failed.ended_at - failed.started_at < timedelta(seconds=1)
    assert sent.started_at == sent.scheduled_at  # it has not waited
    assert cancelled.started_at is retried.started_at is waits.started_at is None
    assert (cancelled.status, cancelled.attempt, cancelled.tag) == ("cancelled", None, "gpu")
    assert (retried.status, retried.attempt, retried.last_error) == ("queued", 2, "ValueError: no 1")
    assert retried.next_attempt_at is not None
    assert timedelta(hours=23) < retried.next_attempt_at - env.now() < timedelta(hours=24)
    assert (waits.status, waits.attempt, waits.tag, waits.has_worker) == ("queued", 1, "gpu", False)


async def test_the_wait_for_a_slot_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a first attempt: while it waits, and from its history."""
    monkeypatch.setattr(sys.modules[__name__], "gate", anyio.Event())
    async with Env(app, options=affinity.RuntimeOptions(worker_concurrency=1)) as env:
        run = await env.client.start(crowded)
        await env.advance(60)
        assert [(one.status, one.started_at is None) for one in await run.activities()] == [
            ("running", False),
            ("queued", True),
        ]
        gate.set()
        await run.wait()
        held, waited = await run.activities()
    assert held.started_at == held.scheduled_at
    assert waited.attempt == 1
    assert waited.started_at is not None
    assert waited.scheduled_at is not None
    assert waited.started_at - waited.scheduled_at >= timedelta(minutes=1)


async def test_what_has_no_result_when_its_instance_ends_is_cancelled(env: Env) -> None:
    run = await env.client.start(several)
    await env.advance(121)
    await run.cancel("enough")
    with pytest.raises(affinity.errors.OrchestrationCancelled):
        await run.wait()
    assert [one.status for one in await run.activities()] == [
        "completed",
        "failed",
        "cancelled",
        "cancelled",
        "cancelled",
    ]


async def test_the_ones_of_the_current_execution_are_listed(env: Env) -> None:
    run = await env.client.start(two_executions, 1)
    await run.wait()
    (activity,) = await run.activities()
    assert (activity.execution_id, activity.status) == (2, "completed")


async def test_an_unknown_instance_has_none(env: Env) -> None:
    with pytest.raises(UnknownInstance):
        await env.client.activities("nothing")


SCHEDULED = ActivityScheduled(name="act", input=RawJson("null"))


async def test_one_that_is_queued_no_more_has_ended(client: affinity.Client, puppet: Puppet) -> None:
    """Its result is a message to its instance, which no turn has recorded yet."""
    await client.start("wait", instance_id="i")
    await puppet.record("i", SCHEDULED)
    (activity,) = await client.activities("i")
    assert (activity.status, activity.finished, activity.attempt, activity.ended_at) == ("ended", True, None, None)


async def test_of_an_instance_that_is_replaced_while_it_is_read_nothing_is_listed(
    client: affinity.Client, provider: Provider, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("wait", instance_id="i")
    await puppet.record("i", SCHEDULED)
    read = provider.list_work_items

    async def replace(instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
        await client.raise_event("i", "go")
        await puppet.end("i")
        await client.delete("i")
        await client.start("wait", instance_id="i")
        return await read(instance_id, limit)

    monkeypatch.setattr(provider, "list_work_items", replace)
    with pytest.raises(UnknownInstance, match="replaced by another one"):
        await client.activities("i")


async def test_of_an_instance_that_ends_while_it_is_read_all_results_are_listed(
    client: affinity.Client, provider: Provider, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("wait", instance_id="i")
    await puppet.record("i", SCHEDULED)
    read = provider.list_work_items

    async def end(instance_id: str, limit: int) -> Sequence[WorkItemInfo]:
        if not (await client.status("i")).finished:
            await client.raise_event("i", "go")
            await puppet.record("i", ActivityCompleted(schedule_id=2, result=RawJson("null")))
            await client.raise_event("i", "go")
            await puppet.end("i")
        return await read(instance_id, limit)

    monkeypatch.setattr(provider, "list_work_items", end)
    assert [one.status for one in await client.activities("i")] == ["completed"]
