"""Starting the id of an instance that has ended: returned, restarted or refused, with workers that had the old one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, cast

import anyio
import pytest

from affinity import ActivityContext, App, Client, Event, OrchestrationContext, RuntimeOptions, Start, Worker
from affinity.errors import (
    InstanceExists,
    InstanceFinished,
    InvalidOptions,
    OrchestrationCancelled,
    OrchestrationFailed,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("restarts")
Question = Event("question", str, reply=str)
release: dict[str, anyio.Event] = {}


@app.orchestration
async def job(ctx: OrchestrationContext, how: str) -> str:
    match how:
        case "fail":
            raise ValueError("no")
        case "wait":
            await ctx.schedule_wait("never")
    return how


@app.activity
async def late(ctx: ActivityContext, name: str) -> str:
    with anyio.CancelScope(shield=True):
        await release[name].wait()
    return name


@app.orchestration
async def slow(ctx: OrchestrationContext, name: str) -> list[str]:
    first = ctx.schedule_activity(late, name)
    if name == "old":
        await ctx.schedule_wait("stop")
        raise ValueError("stopped")
    return [await first]


@app.orchestration
async def talker(ctx: OrchestrationContext, name: str) -> None:
    question = await ctx.schedule_wait(Question)
    question.reply(f"{name}: {question.data}")


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)), Client(kept_url) as client:
        yield client


async def ended(client: Client, how: str, instance_id: str) -> None:
    run = await client.start(job, how, instance_id=instance_id)
    if how == "wait":
        await run.cancel()
    await client.wait_finished(instance_id, 30)


@pytest.mark.parametrize(("how", "status"), [("fail", "failed"), ("wait", "cancelled"), ("done", "completed")])
async def test_an_id_that_has_ended_starts_again(client: Client, how: str, status: str) -> None:
    await ended(client, how, "nightly")
    before = await client.history("nightly")
    assert (await client.start(job, "x", instance_id="nightly")).outcome == "ended"
    with pytest.raises(InstanceFinished, match="if_ended"):
        await client.start(job, "x", instance_id="nightly", if_ended="fail")
    run = await client.start(job, "again", instance_id="nightly", for_session="s", if_ended="restart")
    assert (run.outcome, await run.wait(30)) == ("restarted", "again")
    assert [(one.execution_id, one.status) for one in await run.executions()] == [(2, "completed"), (1, status)]
    assert await client.history("nightly", execution_id=1) == before
    assert (await run.status()).session_id == "s"
    assert (await client.start(job, "wait", instance_id="nightly", if_ended="restart")).outcome == "restarted"
    for choice in ("return", "restart", "fail"):
        assert (await client.start(job, "wait", instance_id="nightly", if_ended=choice)).outcome == "running"
    assert (await client.start(job, "x", instance_id="other", if_ended="fail")).outcome == "created"


async def test_of_many_that_restart_one_does(client: Client, kept_url: str) -> None:
    await ended(client, "fail", "nightly")
    outcomes: list[Any] = []

    async def start(one: Client) -> None:
        outcomes.append((await one.start(job, "wait", instance_id="nightly", if_ended="restart")).outcome)

    async with Client(kept_url) as other, anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(start, (client, other)[n % 2])
    assert sorted(outcomes) == ["restarted"] + ["running"] * 9
    assert (await client.status("nightly")).execution_id == 2


async def test_many_starts_each_have_their_outcome(client: Client) -> None:
    for how, name in (("fail", "a"), ("done", "b"), ("done", "c"), ("done", "d")):
        await ended(client, how, name)
    choices: list[tuple[str, Literal["return", "restart", "fail"]]]
    choices = [("a", "restart"), ("a", "restart"), ("b", "return"), ("new", "restart"), ("c", "restart")]
    handles = await client.start_many([Start(job, "wait", name, if_ended=choice) for name, choice in choices])
    assert [one.outcome for one in handles] == ["restarted", "running", "ended", "created", "restarted"]
    with pytest.raises(InstanceFinished, match="'d'"):
        await client.start_many([Start(job, "wait", "d", if_ended="fail"), Start(job, "wait", "e")])
    assert (await client.status("e")).status in {"pending", "running"}


@pytest.mark.parametrize("if_ended", ["return", "restart", "fail"])
async def test_an_id_stays_that_of_its_orchestration(client: Client, if_ended: Any) -> None:
    await ended(client, "fail", "nightly")
    with pytest.raises(InstanceExists, match="'job'"):
        await client.start(slow, "x", instance_id="nightly", if_ended=if_ended)
    assert (await client.status("nightly")).status == "failed"
    with pytest.raises(InvalidOptions, match="restart"):
        await client.start(job, "x", instance_id="nightly", if_ended=cast("Any", "again"))


async def test_work_of_the_former_generation_does_not_reach_the_new_one(client: Client) -> None:
    """An activity that still runs, on the same worker, when its orchestration is restarted."""
    release.update(old=anyio.Event(), new=anyio.Event())
    await client.start(slow, "old", instance_id="i")
    await until(lambda: _runs(client))
    await client.raise_event("i", "stop")
    with pytest.raises(OrchestrationFailed):
        await client.wait("i", 30)
    run = await client.start(slow, "new", instance_id="i", if_ended="restart")
    release["old"].set()
    await until(lambda: _runs(client))
    assert (await run.status()).status == "running"
    release["new"].set()
    assert await run.wait(30) == ["new"]


async def _runs(client: Client) -> bool:
    return [one.status for one in await client.activities("i")] == ["running"]


async def test_an_event_of_the_former_generation_does_not_reach_the_new_one(client: Client) -> None:
    """Neither unread nor by its key: the same key may be used again."""
    await client.start(talker, "old", instance_id="i")
    assert await client.ask("i", Question("one"), idempotency_key="k", timeout=30) == "old: one"
    await client.wait("i", 30)
    again = Start(talker, "new", if_ended="restart")
    assert await client.ask("i", Question("lost"), idempotency_key="k", start=again, timeout=30) == "old: one"
    with pytest.raises(InstanceFinished):
        await client.ask("i", Question("two"), idempotency_key="l", start=(talker, "new"), timeout=30)
    assert await client.ask("i", Question("two"), idempotency_key="l", start=again, timeout=30) == "new: two"
    await client.wait("i", 30)
    assert (await client.start(talker, "third", instance_id="i", if_ended="restart")).outcome == "restarted"
    assert await client.ask("i", Question("three"), idempotency_key="k", timeout=30) == "third: three"


async def test_a_cancelled_generation_does_not_cancel_the_new_one(client: Client) -> None:
    run = await client.start(job, "wait", instance_id="i")
    await run.cancel()
    with pytest.raises(OrchestrationCancelled):
        await run.wait(30)
    again = await client.start(job, "done", instance_id="i", if_ended="restart")
    assert await again.wait(30) == "done"
