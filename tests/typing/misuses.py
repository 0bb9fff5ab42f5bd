"""What type checkers must refuse, and what they must know. No code runs: mypy and pyright read it (`test_checkers.py`).

A line that ends with ``# error`` is one that each of them must refuse; every other line must pass.
"""

from datetime import timedelta
from typing import Any, Literal, assert_type

from pydantic import BaseModel

import affinity

app = affinity.App("checked")


class Rated(affinity.JournalEvent):
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
    with client.conversation(talks, "c").stream_reply(affinity.UserMessage("hello")) as stream:
        for item in stream:
            assert_type(item, affinity.ReplyItem)
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
    affinity.UserMessage("hello")
    affinity.UserMessage(content=[{"type": "text", "text": "hello"}])
    affinity.UserMessage(5)  # error
    affinity.UserMessage(text="hello")  # error
    affinity.UserMessage()  # error
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
