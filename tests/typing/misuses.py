"""What type checkers must refuse, and what they must know. No code runs: mypy and pyright read it (`test_checkers.py`).

A line that ends with ``# error`` is one that each of them must refuse, and one that ends with ``# unseen`` is a misuse
that one of them, or both, cannot know of; every other line must pass.
"""

from datetime import timedelta
from typing import Any, Literal, assert_type

from pydantic import BaseModel

import affinity
import affinity.agent
import affinity.testing
from affinity.conversation import AgentMessage, JournalEvent, ReplyItem, UserMessage

app = affinity.App("checked")


class Rated(JournalEvent):
    stars: int
    kind: Literal["user.rated"] = "user.rated"


class Chat(BaseModel):
    title: str = ""


Said = affinity.Event("said", str, reply=int)
chats = affinity.Sessions(Chat)
talks = affinity.Conversations(Chat, kind="talk")


def rename(chat: Chat) -> int:
    return len(chat.title)


async def rename_later(chat: Chat) -> int:
    return len(chat.title)


@app.activity
async def measure(ctx: affinity.ActivityContext, name: str) -> int:
    return len(name)


@app.activity
def beep(ctx: affinity.ActivityContext) -> None:
    return None


@app.orchestration
async def count(ctx: affinity.OrchestrationContext, name: str) -> int:
    assert_type(await ctx.schedule_activity(measure, name), int)
    assert_type(await ctx.schedule_activity(beep), None)
    assert_type(await ctx.schedule_activity("measure", name), Any)
    await ctx.schedule_activity(measure, 5)  # error
    await ctx.schedule_activity(measure)  # error
    await ctx.schedule_activity(beep, 5)  # error
    await ctx.schedule_activity(count, name)  # error
    await ctx.schedule_sub_orchestration(measure, name)  # error
    return await ctx.schedule_sub_orchestration(count, name)


@app.orchestration
async def choose(ctx: affinity.OrchestrationContext) -> str:
    message, timer = ctx.schedule_wait("message", str), ctx.schedule_timer(timedelta(days=1))
    index, value = await ctx.select(message, timer)
    assert_type(index, Literal[0, 1])
    assert_type(value, str | None)
    value.upper()  # error
    index.upper()  # error
    won = await ctx.select(message, ctx.schedule_activity(measure, "x"), timer)
    assert_type(won.value, str | int | None)
    if won.index == 0:
        assert_type(won.value, str)
    elif won.index == 1:
        assert_type(won.value, int)
        won.value.upper()  # error
    else:
        assert_type(won.value, None)
    match await ctx.select(message, timer):
        case (0, text):
            assert_type(text, str)
        case (1, nothing):
            assert_type(nothing, None)
    await ctx.schedule_activity(measure, value)  # error
    if value is None:
        return "late"
    await ctx.schedule_activity(measure, value)
    assert_type(await ctx.gather(message, message), tuple[str, str])
    assert_type(await ctx.gather(message, ctx.schedule_activity(measure, "x"), limit=1), tuple[str, int])
    both = await ctx.gather(message, timer, return_exceptions=True)
    assert_type(both, tuple[str | Exception, Exception | None])
    both[0].upper()  # error
    lengths = [ctx.schedule_activity(measure, name) for name in ("x", "y")]
    assert_type(await ctx.gather(*lengths, limit=5), list[int])
    assert_type(await ctx.gather(*lengths, return_exceptions=True), list[int | Exception])
    assert_type((await ctx.select(*lengths)).value, int)
    await ctx.gather(*lengths, limit="5")  # error
    await ctx.gather(5)  # error
    await ctx.select(measure)  # error
    return value


async def use(client: affinity.Client) -> None:
    handle = await client.start(count, "x", instance_id="i")
    assert_type(await handle.wait(), int)
    assert_type(await (await client.start(choose)).wait(), str)
    assert_type(await (await client.start("count", "x")).wait(), Any)
    assert_type(await client.handle("i", count).wait(), int)
    await client.start(count, 5)  # error
    await client.start(count)  # error
    await client.start(choose, "x")  # error
    await client.start(measure, "x")  # error
    await client.start(beep)  # error
    await client.start_many([affinity.Start(measure, "x")])  # error
    client.handle("i", measure)  # error
    await client.start(count, "x", if_ended="perhaps")  # error


def use_sync(client: affinity.sync.Client) -> None:
    handle = client.start(count, "x", instance_id="i")
    assert_type(handle, affinity.sync.Handle[int])
    assert_type(handle.wait(), int)
    assert_type(client.start(choose).wait(timeout=5), str)
    assert_type(client.handle("i", count).wait(), int)
    assert_type(client.ask("i", Said("hello")), int)
    assert_type(next(client.list_instances()), affinity.Instance)
    with client.conversation(talks, "c").stream_reply(UserMessage("hello")) as stream:
        for item in stream:
            assert_type(item, ReplyItem)
    client.start(count, 5)  # error
    client.start(count)  # error
    client.start(beep)  # error
    client.ask("i", "hello")  # error
    client.wiat("i")  # error
    client.start(count, "x").wait(timeout="5")  # error
    for one in client.sessions:  # error
        print(one)


async def change(client: affinity.Client, sync: affinity.sync.Client) -> None:
    store = client.session_store
    assert_type(await chats.update("s", rename, store=store), int)
    assert_type(await chats.update("s", rename_later, store=store, attempts=3), int)
    assert_type(chats.update_sync("s", rename, store=sync.session_store), int)
    await chats.update("s", measure)  # error
    await chats.update("s", rename, store=sync.session_store)  # error
    await chats.update("s", rename, attempts="3")  # error
    with chats.open_sync("s", store=sync.session_store) as chat:
        assert_type(chat, Chat)


def events() -> None:
    UserMessage("hello")
    UserMessage(content=[{"type": "text", "text": "hello"}])
    UserMessage(5)  # error
    UserMessage(text="hello")  # error
    UserMessage()  # error
    rated = Rated(5)
    assert_type(rated.stars, int)
    assert_type(rated.kind, Literal["user.rated"])
    rated.stars = 4  # error
    Rated("five")  # error
    Rated(5, stars=5)  # error


def names() -> None:
    affinity.errors.InvalidInput("wrong")
    affinity.telemetry.current_session_id()
    print(affinity.Aktivity)  # error
    affinity.RuntimeOptions(worker_concurrency=5)
    affinity.RuntimeOptions(worker_concurency=5)  # error


# --- decorators: functions of a wrong form


@app.activity  # error
async def no_context(name: str) -> int:
    return len(name)


@app.activity  # error
def no_parameter() -> None:
    return None


@app.activity(name="two")  # error
async def two_inputs(ctx: affinity.ActivityContext, name: str, size: int) -> int:
    return size


@app.activity  # error
async def by_keyword(ctx: affinity.ActivityContext, *, name: str) -> int:
    return len(name)


@app.activity  # error
async def of_an_orchestration(ctx: affinity.OrchestrationContext, name: str) -> int:
    return len(name)


@app.orchestration  # error
def not_async(ctx: affinity.OrchestrationContext, name: str) -> int:
    return len(name)


@app.orchestration(version="2.0.0")  # error
async def of_an_activity(ctx: affinity.ActivityContext, name: str) -> int:
    return len(name)


@app.orchestration  # error
async def no_ctx(name: str) -> int:
    return len(name)


@talks.on_wake  # error
async def no_state(wake: affinity.Wake) -> None:
    return None


@talks.on_wake(timeout=5)  # error
async def other_state(wake: affinity.Wake, state: Rated) -> None:
    return None


@talks.on_wake  # error
async def returns(wake: affinity.Wake, state: Chat) -> str:
    return state.title


@talks.on_wake  # error
def sync_handler(wake: affinity.Wake, state: Chat) -> None:
    return None


@affinity.agent.tool(confirm="yes")  # error
async def refund(order: str, cents: int) -> str:
    return order


@chats.migration(1, 2)  # error
def migrate(old: dict[str, Any], version: int) -> dict[str, Any]:
    return old


app.activity(5)  # error
app.activity(nmae="x")  # error
app.orchestration(version=2)  # error
affinity.agent.tool("refund")  # error
affinity.agent.tool(len)  # unseen
app.include(measure)  # error
model = affinity.Limit("model", concurrency=20, rate=affinity.Rate(600, per=60))
tenant = affinity.Limit("tenant", concurrency=5, keyed=True, aging=600)
affinity.Limit("model", 20)  # error
affinity.Limit("model", rate=600)  # error
affinity.Rate(600)  # error
tenant.key(5)  # error
affinity.App("limited", limits=[model, tenant])
affinity.App("limited", limits=[tenant.key("acme")])  # error
assert_type(affinity.RetryAfter(5, limit=tenant.key("acme")).seconds, float)
affinity.RetryAfter("5")  # error
affinity.RetryAfter(5, limit="model")  # error


@app.activity(retry=affinity.RetryPolicy(), timeout=timedelta(minutes=1), limits=[model, tenant.key("acme")], tag="gpu")
async def spend(ctx: affinity.ActivityContext, name: str) -> int:
    await ctx.consume(model, 5)
    await ctx.consume(tenant.key("acme"), 5)
    await ctx.consume("tenant", 5)  # error
    await ctx.consume(model, 0.5)  # error
    return 5


app.activity(limits=["model"])  # error
app.activity(limit=[model])  # error


# --- in an orchestration


@app.orchestration
async def more(ctx: affinity.OrchestrationContext[Chat], chat: Chat) -> None:
    measured = ctx.schedule_activity(measure, "x")
    len(measured)  # error
    size: int = measured  # error
    title: str = await measured  # error
    print(size, title)
    measured.on_session(5)  # error
    ctx.schedule_activity(measure, "x", retry=3)  # error
    ctx.schedule_activity(measure, "x", timeout="5")  # error
    ctx.schedule_activity(measure, "x", retries=3)  # error
    ctx.schedule_activity(measure, "x", "y")  # error
    ctx.schedule_activity(measure("x"), "x")  # error
    affinity.RetryPolicy(max_attemps=3)  # error
    affinity.RetryPolicy(strategy="random")  # error
    ctx.schedule_timer("1 day")  # error
    ctx.schedule_sub_orchestration(count, 5)  # error
    ctx.schedule_sub_orchestration(count, "x", id="y")  # error
    ctx.start_detached(count)  # error
    ctx.start_detached(choose, "x")  # error


@app.orchestration
async def waits(ctx: affinity.OrchestrationContext[Chat], chat: Chat) -> None:
    measured = ctx.schedule_activity(measure, "x")
    assert_type(await ctx.schedule_wait("n", int | None), int | None)
    assert_type(await ctx.schedule_wait("n", list[int]), list[int])
    (await ctx.schedule_wait("n", int | None)).bit_length()  # error
    received = await ctx.schedule_wait(Said)
    assert_type(received, affinity.ReceivedEvent[str, int])
    received.reply("five")  # error
    received.data.bit_length()  # error
    ctx.schedule_wait(Said, int)  # error
    ctx.raise_event("i", Said)  # error
    ctx.raise_event("i", Said("x"), "y")  # error
    ctx.raise_event("i", Said(5))  # error
    won = await ctx.select(measured, ctx.schedule_timer(1), ctx.schedule_wait("n", bool), ctx.schedule_wait("m", bytes))
    if won.index == 3:
        assert_type(won.value, bytes)
        won.value.upper()
        won.value.bit_length()  # error
    elif won.index == 2:
        assert_type(won.value, bool)
    await ctx.wait_any("x")  # error
    await ctx.gather(measured, limits=5)  # error
    ctx.release_session(5)  # error
    measured + 1  # error
    for each in ctx.gather(measured, measured):  # error
        print(each)
    await ctx.schedule_activity(measure, chat)  # error
    await ctx.schedule_activity(measure, {"name": "x"})  # error
    ctx.schedule_activity(measure, "x", retry=affinity.RetryPolicy(3))  # error
    measured.on_session("s", wait="5")  # error
    measured.onsession("s")  # error
    assert_type(await measured.limited(model, tenant.key("acme", weight=3)).with_priority(5), int)
    measured.limited("model")  # error
    measured.limited([model])  # error
    measured.with_priority("high")  # error
    (await ctx.utc_now()).upper()  # error
    ctx.new_guid().upper()  # error
    ctx.schedule_wait("n", int, hold_for="1")  # error
    if chat.title == "other":
        ctx.continue_as_new(chat.title)  # error
    if chat.title == "later":
        ctx.continue_as_new({"any": 5}, version="2.0.0")
    ctx.continue_as_new(chat)


# --- in an activity, and in a handler


@app.activity
async def opens(ctx: affinity.ActivityContext) -> None:
    async with chats.open(ctx) as chat:
        assert_type(chat, Chat)
        chat.title = 5  # error
        chat.titel = "x"  # error
    async with chats.open(ctx, labels={"a": 1}) as chat:  # error
        pass
    with chats.open(ctx) as chat:  # error
        pass
    ctx.raise_if_canceled()  # error
    await ctx.schedule_activity(measure, "x")  # error


@talks.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    assert_type(await wake.step("measure", len, chat.title), int)
    assert_type(await wake.step("rename", rename_later, chat, key="k"), int)
    assert_type(await wake.step("now", lambda: 5.0), float)
    await wake.step("rename", rename, chat.title)  # error
    await wake.step("rename", rename)  # error
    await wake.step("rename", rename_later, chat, 5)  # error
    await wake.step("rename", rename, chat, repeat="once")  # error
    await wake.step(rename, chat)  # error
    wake.step("rename", rename_later, chat)  # error
    wake.call(measure, "x", timeout=5)
    wake.call("measure", {"any": 5})
    wake.call(beep)
    wake.call(measure, 5)  # error
    wake.call(measure)  # error
    wake.call(beep, 5)  # error
    wake.call(count, "x")  # error
    wake.call(measure, "x", instance_id="i")  # error
    wake.start(count, "x", instance_id="i")
    wake.start(choose)
    wake.start(count, 5)  # error
    wake.start(count)  # error
    wake.start(measure, "x")  # error
    wake.start(count, "x", session_id="s")  # error
    wake.append("hello")  # error
    wake.append(chat)  # error
    wake.require(UserMessage("hello"))  # error
    wake.revisit("tomorrow")  # error
    wake.revisit(5, priority="urgent")  # error
    await wake.delegate(chats, "child", UserMessage("hello"))  # error
    await wake.delegate(talks, "child", "hello")  # error
    await affinity.agent.run_loop(wake, model=measure)  # error
    await affinity.agent.run_loop(wake, tools=[refund])  # error
    await affinity.agent.run_loop(wake, model=answer, tools=["refund"])  # error
    await affinity.agent.run_loop(wake, model=answer, while_waiting="wait")  # error
    assert_type(await wake.resource(models), str)
    await wake.resource(chats)  # error
    wake.finish(chat)  # error
    with wake.span(5):  # error
        pass
    for event in wake.events:
        print(event.text)  # error
        if isinstance(event, UserMessage):
            assert_type(event.text, str)
    wake.commit()  # error
    wake.apend(AgentMessage("x"))  # error
    await wake.read(5)  # error
    for each in wake.history():  # error
        print(each)


def answer(request: affinity.agent.ModelRequest) -> affinity.agent.ModelReply:
    return affinity.agent.ModelReply(content=f"round {request.round}")


async def open_model(key: str) -> str:
    return key


async def close_model(key: str, model: int) -> None:
    return None


async def make(resource_id: str, session_id: str) -> str:
    return resource_id


async def free(resource_id: str, handle: str | None) -> None:
    return None


models = affinity.Resource(open=open_model)
affinity.Resource(open=free)  # error
affinity.Resource(open=open_model, close=close_model)  # error
affinity.Resource(open=open_model, on_error="drop")  # error
affinity.Resource(open=open_model, name="m", create=free)  # error
affinity.Resource(open=open_model, key=len)  # error
assert_type(affinity.Resource(open=open_model), affinity.Resource[str])
assert_type(affinity.Resource(open=str.upper, close=lambda key, value: None), affinity.Resource[str])
assert_type(affinity.Resource(name="m", create=make, destroy=free), affinity.Resource[str])
assert_type(affinity.Resource(name="m", create=make, destroy=free, open=len), affinity.Resource[int])
affinity.Resource(name="m", create=make)  # error
affinity.Resource(create=make, destroy=free)  # error
affinity.Resource(name="m", create=make, destroy=free, open=round)  # error


# --- clients


async def more_of_clients(client: affinity.Client) -> None:
    affinity.Start(count, "x", "i")
    affinity.Start(choose, instance_id="i")
    affinity.Start("count", 5)
    affinity.Start(count, 5)  # error
    affinity.Start(count)  # error
    affinity.Start(choose, 5)  # error
    affinity.Start(count, "x", if_ended="perhaps")  # error
    affinity.Start(count, "x", id="i")  # error
    assert_type(await client.ask("i", Said("x"), start=(count, "x")), int)
    await client.ask("i", Said("x"), start=affinity.Start(count, "x"))
    await client.ask("i", Said("x"), start=choose)
    await client.ask("i", Said("x"), start="count")
    await client.ask("i", Said("x"), start=("count", 5))
    await client.ask("i", Said("x"), start=(count, 5))  # error
    await client.ask("i", Said("x"), start=count)  # error
    await client.ask("i", Said("x"), start=measure)  # error
    await client.ask("i", Said("x"), start=(choose, 5))  # error
    await client.ask("i", Said)  # error
    text: str = await client.ask("i", Said("x"))  # error
    assert_type(await client.wait("i", type=int | None), int | None)
    other: str = await client.wait("i", type=int)  # error
    print(text, other)
    client.start(count, "x")  # error
    (await client.start(count, "x")).wait()  # error
    client.start(count, "x").wait()  # error


async def handles(client: affinity.Client) -> None:
    handle = await client.start(count, "x")
    (await handle.wait()).upper()  # error
    await handle.raise_event("said", "x")
    await handle.raise_event(Said("x"), "y")  # error
    await handle.ask("said")  # error
    await client.raise_event("i", Said("x"), idempotency_key="k")
    await client.raise_event("i", Said("x"), 5)  # error
    await client.raise_event("i", Said)  # error
    await client.raise_event("i", "said", "x", key="k")  # error
    affinity.ExternalEvent("i", Said("x"), 5)  # error
    affinity.ExternalEvent("i", Said)  # error
    for one in client.list_instances():  # error
        print(one)
    async for info in client.list_instances(status="ended"):  # error
        print(info)
    async for info in client.list_instances(nmae="x"):  # error
        print(info)
    client.conversation("talk", "c")  # error
    talk = client.conversation(talks, "c")
    await talk.send("hello")  # error
    await talk.ask(UserMessage("hello"), until="forever")  # error
    print((await talk.ask(UserMessage("hello"))).txt)  # error
    await client.prune(older_than=5, status="running")  # error
    await client.raise_events([("i", "said")])  # error
    await client.start_many([count])  # error
    await client.cancel(handle)  # error
    print((await client.status("i")).statsu)  # error
    if (await client.status("i")).status == "done":  # unseen
        pass
    with client:  # error
        pass
    async with affinity.sync.Client("sqlite:///x.db"):  # error
        pass


async def schedules(client: affinity.Client) -> None:
    app.schedule("a", count, every=5)
    app.schedule("b", count, input="x", cron="0 3 * * *")
    app.schedule("c", choose, every=timedelta(days=1), overlap="queue")
    app.schedule("d", "count", input=5, every=5)
    app.schedule("e", affinity.ExternalEvent("i", "said", {"text": "x"}), every=5, due_as="at")
    app.schedule("f", count, input={"a": 1}, due_as="at", every=5)
    app.schedule("g", count, input=5, every=5)  # error
    app.schedule("h", measure, every=5)  # error
    app.schedule("i", count, evry=5)  # error
    app.schedule("j", count, every="5")  # error
    app.schedule("k", count, every=5, overlap="never")  # error
    await client.schedules.create("l", count, input=5, every=5)  # error
    await client.schedules.update("m", input=5)  # error
    await client.schedules.update("n", zone="Europe/Berlin")


async def limits(client: affinity.Client) -> None:
    await client.limits.set("model", concurrency=5, rate=affinity.Rate(600, per=60))
    await client.limits.set("model", key="acme", concurrency=None)
    await client.limits.set("model", concurency=5)  # error
    await client.limits.set("model", rate=600)  # error
    await client.limits.resume("model", ramp="10/s")  # error
    print((await client.limits.get("model")).status == "stopped")  # unseen


async def tests() -> None:
    async with affinity.testing.Env(app) as env:
        env.fake(measure, 5)
        env.fake(measure, "five")  # unseen
        env.fake(no_parameter, 5)  # error
        env.fake(count, 5)  # error
        await env.advance("1 day")  # error
        await env.drain(worker=1.5)  # error
    with affinity.testing.Env(app):  # error
        pass
    affinity.testing.Env("app")  # error
    affinity.Worker("app", "sqlite:///x.db")  # error
    affinity.Worker(app, "sqlite:///x.db", {"worker_concurrency": 5})  # error
    affinity.RuntimeOptions(placement=5)  # error
    affinity.RuntimeOptions(missing_tag="never")  # error
    affinity.Sessions("Chat")  # error
    affinity.Sessions(Chat, idle_timout=5)  # error
    affinity.Sessions(Chat, initial=rename)  # error
    affinity.Conversations(Chat, events=[Chat])  # error
    affinity.Conversations(Chat, limits={"entries": 5})  # error
    affinity.Sessions(Chat, schema_version="1")  # error
    affinity.Sessions(Chat, dispose=measure)  # error
    affinity.Conversations(Chat, rebuild=rename)  # error
    affinity.RuntimeOptions(worker_concurrency="many")  # error
    await affinity.testing.crash_matrix(app, respond)  # error
    affinity.testing.replay(app, 5)  # error
    affinity.Event(5, str)  # error
    affinity.Event("x", str, replay=int)  # error


def more_of_sync(client: affinity.sync.Client) -> None:
    client.raise_event("i", Said("x"), 5)  # error
    client.ask("i", Said("x"), start=(count, 5))  # error
    client.schedules.create("a", count, input=5, every=5)  # error
    assert_type(client.wait("i", type=int | None), int | None)
    client.conversation(talks, "c").send("hello")  # error
    client.start_many([count])  # error
    chats.update_sync("s", rename_later, store=client.session_store)  # error


@app.orchestration
async def again(ctx: affinity.OrchestrationContext, name: str) -> None:
    ctx.continue_as_new(5)  # unseen
