"""An application that stores something of every kind, each with a word to look for, under a codec."""

from __future__ import annotations

import dataclasses

import pytest

import affinity
from affinity.conversation import AgentMessage, ConfirmationAnswer, ToolConfirmation, UserMessage
from affinity.errors import EventIdConflict, OrchestrationFailed
from affinity.payloads import PayloadCodec
from tests.payloads.xor import CODEC

MARK = "s3cret"


@dataclasses.dataclass
class Chat:
    notes: list[str] = dataclasses.field(default_factory=list)


app = affinity.App("marked")
chats = affinity.Conversations(Chat, kind="marked")


@chats.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    for event in wake.events:
        if isinstance(event, ConfirmationAnswer):
            wake.append(AgentMessage(f"{MARK} allowed: {event.allowed}"))
        if not isinstance(event, UserMessage):
            continue
        chat.notes.append(event.text)
        wake.stream(f"{MARK} part")
        said = await wake.step(f"think-{len(chat.notes)}", think, event.text)
        wake.append(AgentMessage(said, usage={"tokens": 3}))
        await wake.commit()
        if event.text.endswith("ask"):
            wake.require(ToolConfirmation("tool", {"path": MARK}))
        if event.text.endswith("later"):
            wake.revisit(3600.0, reason=f"{MARK} reason", note={"why": MARK})
        if event.text.endswith("fail"):
            raise LookupError(f"{MARK} failed")


app.include(chats)


def create(resource_id: str, session_id: str) -> dict[str, str]:
    return {"handle": MARK}


box = affinity.Resource(name="box", create=create, destroy=lambda *_: None, open=lambda handle: handle["handle"])
app.include(box)
records = affinity.Sessions(Chat, kind="marked-record")
app.include(records)


async def think(text: str) -> str:
    return f"{MARK} thought of {text}"


@app.activity
async def work(ctx: affinity.ActivityContext, text: str) -> str:
    if text.endswith("fail"):
        raise LookupError(f"{MARK} failed")
    return f"{MARK} did {text}"


@app.activity
async def remember(ctx: affinity.ActivityContext, text: str) -> int:
    opening = records.open(ctx)
    async with opening as record:
        assert await opening.resource(box) == MARK
        record.notes.append(text)
        return len(record.notes)


@app.activity
async def flaky(ctx: affinity.ActivityContext, text: str) -> str:
    if ctx.attempt == 1:
        try:
            dict[str, str]()[MARK]
        except KeyError:
            raise LookupError(f"{MARK} flaky") from ValueError(MARK)
    return text


Ask = affinity.Event("ask", str, reply=str)


@app.orchestration
async def answers(ctx: affinity.OrchestrationContext, text: str) -> int:
    ctx.values.set("marked", {"value": text})
    asked = await ctx.schedule_wait(Ask)
    asked.reply(f"{MARK} reply to {asked.data}")
    await ctx.schedule_activity(flaky, text, retry=affinity.RetryPolicy(max_attempts=2, initial_interval=0.01))
    await ctx.schedule_activity(remember, text).on_session("marked-session")
    return await ctx.schedule_wait("number", int)


@app.orchestration
async def broken(ctx: affinity.OrchestrationContext, text: str) -> None:
    raise RuntimeError(text) from LookupError(text)


@app.orchestration
async def child(ctx: affinity.OrchestrationContext, text: str) -> str:
    return await ctx.schedule_activity(work, text)


@app.orchestration
async def parent(ctx: affinity.OrchestrationContext, text: str) -> str:
    ctx.set_custom_status({"now": MARK})
    done = await ctx.schedule_sub_orchestration(child, text)
    more = await ctx.schedule_wait("more", str)
    if more.endswith("again"):
        ctx.continue_as_new(f"{text} more")
    return await ctx.schedule_activity(
        work, f"{done}, {more}", retry=affinity.RetryPolicy(max_attempts=2, initial_interval=0.01)
    )


def samples_of(worker: affinity.Worker) -> list[str]:
    """What a scrape of the metrics of a worker gets."""
    return [repr(sample) for family in worker.metrics.registry.collect() for sample in family.samples]


async def use_instances(client: affinity.Client) -> None:
    """Ask, set values, retry, fail, and send data that fits no wait."""
    handle = await client.start(answers, MARK, instance_id="a1")
    assert await client.ask("a1", Ask(MARK), timeout=30) == f"{MARK} reply to {MARK}"
    await client.raise_event("a1", "number", MARK, force=True)
    await client.raise_event("a1", "number", 7)
    assert await handle.wait(timeout=30) == 7
    assert await client.values("a1") == {"marked": {"value": MARK}}
    with pytest.raises(OrchestrationFailed, match=MARK):
        await (await client.start(broken, MARK, instance_id="b1")).wait(timeout=30)
    assert MARK in str(await client.export_history("a1"))


async def use_everything(url: str, codec: PayloadCodec | None = CODEC) -> list[str]:
    """Store something of every kind, and read it; return samples of the metrics."""
    worker = affinity.Worker(app, url, codec=codec)
    async with worker, affinity.Client(url, codec=codec) as client:
        await use_instances(client)
        handle = await client.start(parent, MARK, instance_id="p1")
        await handle.raise_event("more", f"{MARK} again")
        await handle.raise_event("more", f"{MARK} fail")
        with pytest.raises(OrchestrationFailed, match=f"{MARK} failed"):
            await handle.wait(timeout=30)
        waiting = await client.start(parent, MARK, instance_id="p2")
        with client.acting_as("ann"):
            await client.cancel("p2", reason=f"{MARK} reason")
        assert [entry.details.get("reason") async for entry in client.audit()] == [f"{MARK} reason"]
        with pytest.raises(affinity.errors.OrchestrationCancelled):
            await waiting.wait(timeout=30)
        await client.schedules.create("nightly", child, input=f"{MARK} tick", cron="0 3 * * *")
        assert await client.schedules.pause("nightly", f"{MARK} note")
        talk = client.conversation(chats, "chat-1")
        reply = await talk.ask(UserMessage(f"{MARK} hello"), event_id="e1", timeout=30, title=f"{MARK} title")
        assert reply.text == f"{MARK} thought of {MARK} hello"
        assert await talk.send(UserMessage(f"{MARK} hello"), event_id="e1") == 1
        with pytest.raises(EventIdConflict):
            await talk.send(UserMessage("other"), event_id="e1")
        await talk.ask(UserMessage(f"{MARK} later"), timeout=30)
        await talk.ask(UserMessage(f"{MARK} ask"), timeout=30)
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        assert request.event.arguments == {"path": MARK}
        forked = await talk.fork("chat-2", operator="me", extras={"note": MARK})
        (copied,) = await forked.requests()
        await forked.answer(copied.request_id, allowed=True)
        answer = await forked.ask(UserMessage(f"{MARK} fork"), timeout=30)
        assert answer.text.endswith(f"{MARK} fork")
        assert len([entry async for entry in forked.events(follow=False)]) > 6
        detached = await forked.detach("chat-3")
        assert (await detached.ask(UserMessage(f"{MARK} detached"), timeout=30)).text.endswith(f"{MARK} detached")
        assert len([entry async for entry in detached.events(follow=False)]) > 8
        assert (await talk.usage())["tokens"] >= 9
        async with affinity.open_store(url, codec=codec) as store:
            record = await store.load("chat-2")
            assert record is not None
        lines = [line async for line in talk.export()]
        assert MARK in str(lines)
        await client.conversation(chats, "chat-4").import_(lines, times="now")
        rows = [line async for line in client.session_manager.export(["marked-session"])]
        assert MARK in str(rows)
        await client.session_manager.import_(rows, on_exists="replace")
        return samples_of(worker)
