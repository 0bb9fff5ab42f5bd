"""Work that waits at a limit is explained by the limit, whatever else it is or lacks; on a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from pydantic import BaseModel

from affinity import (
    ActivityContext,
    App,
    Client,
    Conversations,
    Limit,
    OrchestrationContext,
    RuntimeOptions,
    Wake,
    Worker,
)
from affinity.conversation import UserMessage
from affinity.errors import Explanation
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

model = Limit("model", concurrency=1)
tenant = Limit("tenant", concurrency=0, keyed=True)
app = App("limited", limits=[tenant])


class Chat(BaseModel):
    """Nothing."""


chats = Conversations(Chat, kind="chat", limits=[tenant.by(lambda info: info.owner)])


@chats.on_wake
async def respond(wake: Wake, chat: Chat) -> None:
    """Never runs."""


app.include(chats)


@app.activity(limits=[model])
async def call(ctx: ActivityContext) -> None:
    await anyio.sleep(60)


@app.orchestration
async def calls(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(call)


@app.orchestration
async def on_session(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(call).on_session("s")


@app.orchestration
async def in_order(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(call).on_session("o", ordered=True)


@app.orchestration
async def tagged(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(call).with_tag("gpu")


@app.orchestration
async def urgent(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(call).with_priority(7)


@app.orchestration
async def unknown(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("nowhere").limited(model)


@app.orchestration
async def parent(ctx: OrchestrationContext) -> None:
    await ctx.schedule_sub_orchestration(calls, instance_id="child")


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    options = RuntimeOptions(poll_interval=0.1, drain_timeout=0.1)
    async with Worker(app, kept_url, options), Client(kept_url) as client:
        yield client


async def explained(client: Client, instance_id: str, limit: str) -> Explanation:
    """The explanation, once it names this limit."""
    found: list[Explanation] = []

    async def names_it() -> bool:
        reason = await client.explain(instance_id)
        found[:] = [] if reason is None else [reason]
        return reason is not None and reason.limit == limit

    await until(names_it, 20)
    return found[0]


async def test_activities_of_each_kind(client: Client) -> None:
    """On a session that no worker holds, in order, with a tag or a name that no worker has, in a child."""
    await client.start(calls, instance_id="first")

    async def runs() -> bool:
        return any(limit.in_use == 1 for limit in await client.limits.list())

    await until(runs)
    for orchestration in (calls, on_session, in_order, tagged, urgent, unknown, parent):
        await client.start(orchestration, instance_id=orchestration.__name__)
    for orchestration in (calls, on_session, in_order, tagged, urgent, unknown):
        reason = await explained(client, orchestration.__name__, "model")
        assert (reason.code, reason.limit_key, reason.instance_id) == ("limited", None, orchestration.__name__)
        name = "nowhere" if orchestration is unknown else "call"
        text = (
            f"'{orchestration.__name__}' waits for the activity '{name}', which waits for limit 'model': 1 of 1 in use"
        )
        assert reason.sentence.startswith(text)
        assert ("priority 7" in reason.sentence) is (orchestration is urgent)
        assert reason.since is not None
        (activity,) = await client.activities(orchestration.__name__)
        assert (activity.status, activity.limited, activity.blocked) == ("queued", True, False)
    assert (await explained(client, "parent", "model")).path == ("parent", "child")
    assert await client.unserved_work() == []
    with client.acting_as("ann"):
        await client.limits.pause("model")
    reason = await explained(client, "on_session", "model")
    assert reason.code == "limit_paused"
    assert "it is paused by 'ann' since" in reason.sentence


async def test_a_wake_of_a_conversation(client: Client) -> None:
    await client.conversation(chats, "talk").send(UserMessage("hello"), owner="acme")
    reason = await explained(client, "talk", "tenant")
    assert (reason.code, reason.limit_key) == ("limited", "acme")
    assert reason.sentence.startswith(
        "'talk' waits for its wake, which waits for limit 'tenant' of 'acme': 0 of 0 in use"
    )
    assert await client.unserved_work() == []


async def test_a_start_that_waits_for_its_limit_and_its_time(client: Client) -> None:
    await client.start(calls, instance_id="limited", limits=[tenant.key("acme")])
    await client.start(calls, instance_id="later", limits=[tenant.key("acme")], delay=3_600)
    assert (await explained(client, "limited", "tenant")).sentence.startswith("'limited' waits to begin, for limit")
    later = await client.explain("later")
    assert later is not None
    assert later.code == "start_delayed"
