"""Headers that go with a client's call to all work that it causes, on real workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

import affinity
from affinity import ActivityContext, App, Client, Event, OrchestrationContext, RuntimeOptions, Wake, Worker, sync
from affinity.conversation import AgentMessage, ChildEnded, RunEnded, UserMessage
from affinity.limits import MAX_HEADER_BYTES
from tests.conversation.application import until
from tests.support.rows import all_rows

pytestmark = pytest.mark.anyio

app = App("carried")
Question = Event("question", str, reply=list[dict[str, str]])
ACME, ANN = {"tenant": "acme"}, {"tenant": "acme", "user": "änn"}


@app.activity
async def seen(ctx: ActivityContext) -> list[dict[str, str]]:
    return [dict(ctx.headers), dict(affinity.current_headers())]


@app.activity
def seen_in_thread(ctx: ActivityContext) -> list[dict[str, str]]:
    return [dict(ctx.headers), dict(affinity.current_headers())]


@app.orchestration
async def leaf(ctx: OrchestrationContext) -> list[dict[str, str]]:
    return [dict(ctx.headers), *await ctx.schedule_activity(seen), *await ctx.schedule_activity(seen_in_thread)]


@app.orchestration
async def tree(ctx: OrchestrationContext, again: bool) -> list[dict[str, str]]:
    if again:
        ctx.continue_as_new(False)
    return [dict(ctx.headers), *await ctx.schedule_sub_orchestration(leaf)]


@app.orchestration
async def answers(ctx: OrchestrationContext) -> None:
    while True:
        event = await ctx.schedule_wait(Question)
        event.reply([dict(ctx.headers), *await ctx.schedule_activity(seen)])


talks: affinity.Conversations[dict[str, Any]] = affinity.Conversations(dict[str, Any], kind="talks")
helpers: affinity.Conversations[dict[str, Any]] = affinity.Conversations(dict[str, Any], kind="helpers")


@helpers.on_wake
async def help_out(wake: Wake, state: dict[str, Any]) -> None:
    wake.finish([dict(wake.headers), dict(affinity.current_headers())])


@talks.on_wake
async def on_wake(wake: Wake, state: dict[str, Any]) -> None:
    found = [dict(wake.headers), dict(affinity.current_headers())]
    for event in wake.events:
        if isinstance(event, UserMessage) and event.text == "run":
            wake.start(leaf)
        elif isinstance(event, UserMessage) and event.text == "delegate":
            await wake.delegate(helpers, f"{wake.conversation_id}/child", UserMessage("hi"))
        elif isinstance(event, RunEnded | ChildEnded):
            found += event.result  # type: ignore[arg-type]
    wake.append(AgentMessage(repr(found)))


app.include(helpers)
app.include(talks)


async def has_said(talk: affinity.ConversationHandle, text: str) -> bool:
    return text in [each.event.text for each in await talk.history() if isinstance(each.event, AgentMessage)]


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Worker(app, kept_url, RuntimeOptions(worker_node_id="w-0")), Client(kept_url) as client:
        yield client


async def test_they_reach_children_and_later_executions(client: Client, kept_url: str) -> None:
    with affinity.use_headers(ACME), affinity.use_headers({"user": "änn"}):
        run = await client.start(tree, True)
    assert await run.wait(30) == 6 * [ANN]
    assert await (await client.start(tree, True)).wait(30) == 6 * [{}]


async def test_an_answer_is_made_with_the_headers_of_its_ask(client: Client) -> None:
    with affinity.use_headers(ACME):
        await client.start(answers, instance_id="a")
    got: dict[str, Any] = {}

    async def ask(name: str) -> None:
        with affinity.use_headers({"user": name}):
            got[name] = await client.ask("a", Question(name), timeout=30)

    async with anyio.create_task_group() as tasks:
        for name in "xyz":
            tasks.start_soon(ask, name)
    assert got == {name: 3 * [{"user": name}] for name in "xyz"}
    assert await client.ask("a", Question("without"), timeout=30) == 3 * [ACME]


async def test_a_wake_has_those_of_its_input_and_what_it_starts_too(client: Client) -> None:
    talk = client.conversation(talks, "c")
    with affinity.use_headers(ANN):
        assert (await talk.ask(UserMessage("hi"), timeout=30)).text == repr(2 * [ANN])
    assert (await talk.ask(UserMessage("hi"), timeout=30)).text == repr(2 * [{}])
    for what, count in (("run", 7), ("delegate", 4)):
        with affinity.use_headers(ANN):
            await talk.ask(UserMessage(what), timeout=30)
        assert await until(partial(has_said, talk, repr(count * [ANN])))


async def test_a_sync_client_sends_those_of_the_calling_thread(client: Client, kept_url: str) -> None:
    def call() -> Any:
        with sync.Client(kept_url) as own, affinity.use_headers(ANN):
            return own.start(leaf).wait(30)

    assert await anyio.to_thread.run_sync(call) == 5 * [ANN]


async def test_the_largest_ones_go_through(client: Client) -> None:
    large = {"x": "ü" * ((MAX_HEADER_BYTES - 1) // 2)}
    with affinity.use_headers(large):
        assert await (await client.start(leaf)).wait(30) == 5 * [large]


async def test_without_them_nothing_is_stored(client: Client, kept_url: str) -> None:
    with affinity.use_headers({}):
        await (await client.start(tree, True)).wait(30)
        await client.conversation(talks, "c").ask(UserMessage("hi"), timeout=30)
        rows = all_rows(kept_url)
    assert "carried" in rows
    assert "headers" not in rows
