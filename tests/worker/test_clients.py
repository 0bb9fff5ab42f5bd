"""`ctx.client`, the worker's own client in its activities; and the application's metrics on the worker's port."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry, Counter

import affinity
from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Wake, Worker
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import ClientError, InvalidOptions
from affinity.testing import Env

pytestmark = pytest.mark.anyio

app = App("clients")
found: list[Any] = []


@app.orchestration
async def inner(ctx: OrchestrationContext, text: str) -> list[Any]:
    return [text, dict(ctx.headers)]


@app.activity
async def calls(ctx: ActivityContext, text: str) -> list[Any]:
    found.append(ctx.client)
    with pytest.raises(ClientError, match=r"ctx\.client"):
        _ = ctx.sync_client
    run = await ctx.client.start(inner, text, instance_id=f"{ctx.instance_id}/{text}")
    return list(await run.wait(20))


@app.activity
def calls_in_thread(ctx: ActivityContext, text: str) -> list[Any]:
    with pytest.raises(ClientError, match=r"ctx\.sync_client"):
        _ = ctx.client
    run = ctx.sync_client.start(inner, text, instance_id=f"{ctx.instance_id}/{text}")
    with pytest.raises(ClientError, match="worker"):
        ctx.sync_client.close()
    return list(run.wait(20))


@app.orchestration
async def main(ctx: OrchestrationContext) -> list[Any]:
    both = [ctx.schedule_activity(calls, "async"), ctx.schedule_activity(calls_in_thread, "sync")]
    return [*await ctx.gather(*both), await ctx.schedule_activity(calls, "again")]


talks: affinity.Conversations[dict[str, Any]] = affinity.Conversations(dict[str, Any], kind="talks")


@talks.on_wake
async def on_wake(wake: Wake, state: dict[str, Any]) -> None:
    def in_thread() -> Any:
        return wake.context.sync_client.start(inner, "step").wait(20)

    async def on_loop() -> Any:
        return await (await wake.context.client.start(inner, "step")).wait(20)

    wake.append(AgentMessage(repr([await wake.step("thread", in_thread), await wake.step("loop", on_loop)])))


app.include(talks)


async def test_activities_have_the_client_of_their_worker_with_their_headers(kept_url: str) -> None:
    found.clear()
    async with Worker(app, kept_url, RuntimeOptions(worker_node_id="w-0")), Client(kept_url) as client:
        with affinity.use_headers({"a": "b"}):
            run = await client.start(main, instance_id="i")
            talk = await client.conversation(talks, "c").ask(UserMessage("hi"), timeout=30)
        assert await run.wait(30) == [[text, {"a": "b"}] for text in ("async", "sync", "again")]
        assert talk.text == repr(2 * [["step", {"a": "b"}]])
    assert len({*map(id, found)}) == 1
    with pytest.raises(ClientError):
        await found[0].start(inner, "late")


async def test_in_an_env_too() -> None:
    async with Env(app) as env:
        run = await env.client.start(main, instance_id="i")
        assert await run.wait(30) == [[text, {}] for text in ("async", "sync", "again")]


async def test_a_context_of_a_test_has_none() -> None:
    ctx = ActivityContext(
        instance_id="i", execution_id=1, activity_id=2, name="a", orchestration_name="o",
        orchestration_version="1", worker_id="w",
    )  # fmt: skip
    for name in ("client", "sync_client"):
        with pytest.raises(ClientError, match="worker"):
            getattr(ctx, name)


class Broken:
    def collect(self) -> Any:
        raise LookupError


async def test_the_metrics_of_the_application_are_on_the_port_of_the_worker(sqlite_url: str) -> None:
    registry = CollectorRegistry()
    Counter("orders", "Orders", registry=registry).inc(7)
    options = RuntimeOptions(worker_node_id="w-0", metrics_port=0, metrics_host="127.0.0.1")
    async with Worker(app, sqlite_url, options, registry=registry) as worker:

        def read(query: str = "") -> str:
            with urlopen(f"http://127.0.0.1:{worker.metrics_port}/metrics{query}") as reply:
                return str(reply.read().decode())

        text = await anyio.to_thread.run_sync(read)
        assert "orders_total 7.0" in text
        assert "affinity_held_sessions" in text
        text = await anyio.to_thread.run_sync(read, "?name[]=orders_total")
        assert "orders_total 7.0" in text
        assert "affinity_held_sessions" not in text
        registry.register(Broken())
        text = await anyio.to_thread.run_sync(read)
        assert "affinity_held_sessions" in text


def test_another_registry_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="registry"):
        Worker(app, "sqlite:///x", registry={})  # type: ignore[arg-type]
