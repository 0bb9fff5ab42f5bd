"""Mistakes in handlers and calls: each is refused with a message that names the remedy, and no wake repeats it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import pytest

import affinity
from affinity import Wake
from affinity.agent import ModelReply, ModelRequest, run_loop
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    ConversationIdle,
    JournalEntry,
    JournalEvent,
    Reply,
    SpanStarted,
    ToolConfirmation,
    UnknownEvent,
    UserInterrupt,
    UserMessage,
    wake_parts,
)
from affinity.errors import ConversationKindMismatch, EventIdConflict, InvalidOptions, WakeFailed, WakeMisuse
from tests.conversation.application import Chat, echo, kinds, make, stage, until

pytestmark = pytest.mark.anyio


class Foreign(JournalEvent):
    """An event that these conversations do not name."""

    kind: Literal["shop.foreign"] = "shop.foreign"


async def append(value: Any, wake: Wake) -> None:
    wake.append(value)


async def require(value: Any, wake: Wake) -> None:
    wake.require(value)


async def delegate(value: Any, wake: Wake) -> None:
    await wake.delegate(make(kind="child"), "child", value)


async def delegate_to(value: Any, wake: Wake) -> None:
    await wake.delegate(value, "child", UserMessage("work"))


@pytest.mark.parametrize(
    ("call", "value", "remedy"),
    [
        (append, "hi", r"'hi' is no event: .*AgentMessage"),
        (append, UserMessage("as a client"), r"revisit\(\).*delegate\(\)"),
        (append, UserInterrupt(), r"revisit\(\).*delegate\(\)"),
        (append, UnknownEvent(kind="user.rated"), r"revisit\(\).*delegate\(\)"),
        (append, ConversationIdle("end_turn"), "Return from the handler"),
        (append, SpanStarted(span="s", name="n"), r"wake\.span\(\)"),
        (append, ChildEnded("c", "d", "failed"), r"wake\.finish\(\)"),
        (append, ToolConfirmation("refund"), r"wake\.require\(\)"),
        (append, Foreign(), r"events=\[\.\.\.\]"),
        (require, AgentMessage("x"), "require takes a RequestEvent"),
        (delegate, "work", r"'work' is no event: .*UserMessage"),
        (delegate, AgentMessage("work"), "by wakes only"),
        (delegate_to, "child", "'child' is no kind of conversations: give the Conversations"),
    ],
)
async def test_a_call_that_can_never_work_fails_the_wake_in_its_first_attempt(
    sqlite_url: str, call: Callable[[Any, Wake], Awaitable[None]], value: Any, remedy: str
) -> None:
    attempts: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        await call(value, wake)

    async with stage(sqlite_url, handler) as on:
        with pytest.raises(WakeFailed, match=remedy) as failed:
            await on.talk().ask(UserMessage("x"), timeout=30)
        assert failed.value.error_type == "WakeMisuse"
        assert attempts == [1]


# -- waiting for the own conversation


async def ask(own: affinity.ConversationHandle) -> None:
    await own.ask(UserMessage("me"))


async def reply(own: affinity.ConversationHandle) -> None:
    await own.reply(await own.send(UserMessage("me")))


async def ask_in_task(own: affinity.ConversationHandle) -> None:
    await asyncio.create_task(ask(own))


async def ask_from_thread(own: affinity.ConversationHandle) -> None:
    await anyio.to_thread.run_sync(anyio.from_thread.run, ask, own)


WAYS = {each.__name__: each for each in (ask, reply, ask_in_task, ask_from_thread)}


@pytest.mark.parametrize("way", WAYS)
async def test_a_handler_that_waits_for_a_reply_of_its_own_conversation_is_refused(url: str, way: str) -> None:
    refused: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        own = clients[0].conversation(conversations, wake.conversation_id)
        if len(wake.events) + wake.pending[0].seq > 2:
            return wake.append(AgentMessage("the next wake"))
        with pytest.raises(WakeMisuse, match=r"its own conversation.*wake\.revisit\(\)") as error:
            await WAYS[way](own)
        refused.append(str(error.value))
        return None

    conversations = make(handler)
    clients: list[affinity.Client] = []
    async with stage(url, conversations) as on:
        clients.append(on.client)
        talk = on.talk()
        await talk.ask(UserMessage("x"), timeout=30)
        assert len(refused) == 1
        inputs = [each for each in await talk.history() if each.kind == "user.message"]
        assert len(inputs) == (2 if way == "reply" else 1)  # an ask that is refused has sent nothing


async def test_what_a_handler_has_left_behind_may_ask_once_the_handler_has_ended(sqlite_url: str) -> None:
    left: list[asyncio.Task[Reply]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.events[0] == UserMessage("first"):
            own = clients[0].conversation(conversations, wake.conversation_id)

            async def later() -> Reply:
                await go.wait()
                return await own.ask(UserMessage("second"), timeout=30)

            left.append(asyncio.create_task(later()))
        await echo(wake, chat)

    conversations = make(handler)
    clients: list[affinity.Client] = []
    async with stage(sqlite_url, conversations) as on:
        clients.append(on.client)
        go = anyio.Event()
        await on.talk().ask(UserMessage("first"), timeout=30)
        go.set()
        assert (await left[0]).text == "re: second"


async def test_a_handler_may_read_its_own_replies_and_ask_other_conversations(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.conversation_id == "c" and wake.pending[0].seq > 1:
            own, other = (clients[0].conversation(conversations, name) for name in ("c", "d"))
            texts = (await own.reply(1)).text, (await other.ask(UserMessage("b"), timeout=30)).text
            return wake.append(AgentMessage(", ".join(texts)))
        return await echo(wake, chat)

    conversations = make(handler)
    clients: list[affinity.Client] = []
    async with stage(sqlite_url, conversations) as on:
        clients.append(on.client)
        await on.talk().ask(UserMessage("a"), timeout=30)
        assert (await on.talk().ask(UserMessage("x"), timeout=30)).text == "re: a, re: b"


async def test_handlers_that_wait_for_each_other_are_refused(url: str) -> None:
    """The one that closes the circle, before it has sent anything; the others go on."""
    refused: list[tuple[str, str]] = []

    async def others_wait() -> bool:
        return len(wake_parts._waits) == 2

    async def handler(wake: Wake, chat: Chat) -> None:
        following = {"a": "b", "b": "c", "c": "a"}[wake.conversation_id]
        if following == "a":
            await until(others_wait)
        try:
            reply = await clients[0].conversation(conversations, following).ask(UserMessage("you"))
        except WakeMisuse as error:
            refused.append((wake.conversation_id, str(error)))
            wake.append(AgentMessage("refused"))
        else:
            wake.append(AgentMessage(f"{following} was {reply.text}"))

    conversations = make(handler)
    clients: list[affinity.Client] = []
    async with stage(url, conversations) as on:
        clients.append(on.client)
        with anyio.fail_after(30):
            assert (await on.talk("a").ask(UserMessage("x"))).text == "b was c was refused"
        ((name, why),) = refused
        assert name == "c"
        assert "'a', whose next wake begins when this handler has ended" in why
        assert kinds(await on.talk("a").history()).count("user.message") == 1


async def test_a_handler_whose_reply_has_been_written_does_not_wait_for_its_writer(sqlite_url: str) -> None:
    """It may not have noticed yet, while the next wake of that conversation asks."""

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("begin")]:
            other = clients[0].conversation(conversations, "d")
            seq = await other.send(UserMessage("work"))
            await other.reply(seq, timeout=30)
            with wake_parts.waiting_for(clients[0].journals.database, "d", seq):
                await other.send(UserMessage("ask back"))
                await until_said("c", UserMessage("and you?"))
        elif wake.events == [UserMessage("ask back")]:
            await clients[0].conversation(conversations, "c").ask(UserMessage("and you?"), timeout=30)
        await echo(wake, chat)

    async def until_said(name: str, event: JournalEvent) -> None:
        async with clients[0].conversation(conversations, name).events(follow=True) as feed:
            async for each in feed:
                if isinstance(each, JournalEntry) and each.event == event:
                    return

    conversations = make(handler)
    clients: list[affinity.Client] = []
    async with stage(sqlite_url, conversations) as on:
        clients.append(on.client)
        with anyio.fail_after(30):
            await on.talk().ask(UserMessage("begin"))
            await until_said("d", AgentMessage("re: ask back"))


# -- event ids


async def test_another_event_under_a_used_event_id_is_refused(url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("ask me")]:
            wake.require(ToolConfirmation("refund"))
            wake.require(ToolConfirmation("refund"))
        await echo(wake, chat)

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("pay 5"), event_id="e1", timeout=30)
        await talk.ask(UserMessage("ask me"), event_id="e2", timeout=30)
        before = len(await talk.history())
        first, second = [each.request_id for each in await talk.requests()]
        for again in (talk.ask, talk.send):
            with pytest.raises(
                EventIdConflict, match="entry 1 is another event with the event id 'e1': give each event"
            ):
                await again(UserMessage("pay 500"), event_id="e1")
        with pytest.raises(EventIdConflict):
            await talk.answer(first, allowed=True, event_id="e2")
        with pytest.raises(EventIdConflict):
            await talk.interrupt(event_id="e2")
        assert len(await talk.history()) == before
        assert len(await talk.requests()) == 2
        seq = await talk.answer(first, allowed=True, event_id="e3")
        with pytest.raises(EventIdConflict):
            await talk.answer(first, allowed=False, event_id="e3")
        with pytest.raises(EventIdConflict):
            await talk.answer(second, allowed=True, event_id="e3")
        assert await talk.answer(first, allowed=True, event_id="e3") == seq


# -- returned values, models


async def test_a_value_that_a_handler_returns_is_dropped_with_one_warning(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def returns(wake: Wake, chat: Chat) -> Any:
        return None if wake.events[0] == UserMessage("nothing") else "hi"

    async with stage(sqlite_url, make(returns)) as on:
        talk = on.talk()
        await talk.ask(UserMessage("nothing"), timeout=30)
        assert "dropped" not in caplog.text
        for _ in range(3):
            assert (await talk.ask(UserMessage("x"), timeout=30)).text == ""
    (record,) = [each for each in caplog.records if "dropped" in each.message]
    assert record.levelno == logging.WARNING
    assert "returns of the conversations of kind 'chat' returned str" in record.message
    assert "wake.append(AgentMessage(…))" in record.message


async def test_a_model_that_returns_no_reply_is_refused(sqlite_url: str) -> None:
    attempts: list[int] = []

    async def text(request: ModelRequest) -> Any:
        attempts.append(request.round)
        return "hi"

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=text)

    async with stage(sqlite_url, handler) as on:
        with pytest.raises(WakeFailed, match=r"returned str, not ModelReply: return ModelReply\(content=text\)"):
            await on.talk().ask(UserMessage("x"), timeout=30)
    assert attempts == [1]


async def test_a_model_that_is_no_async_function_runs_in_a_thread(sqlite_url: str) -> None:
    threads: list[int] = []

    def blocking(request: ModelRequest) -> ModelReply:
        threads.append(threading.get_ident())
        request.stream("h")
        time.sleep(0.05)
        return ModelReply(content="hi")

    async def later(request: ModelRequest, text: str) -> ModelReply:
        return ModelReply(content=text)

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=blocking)
        await run_loop(wake, model=lambda request: later(request, "later"))

    async with stage(sqlite_url, handler) as on:
        reply = await on.talk().ask(UserMessage("x"), timeout=30)
    assert [each.text for each in reply.events if isinstance(each, AgentMessage)] == ["hi", "later"]
    assert threads != [threading.get_ident()]


# -- the wrong context, the wrong kind, a blocked loop


async def test_an_activity_s_context_names_what_schedules(sqlite_url: str) -> None:
    attempts: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        assert not hasattr(wake.context, "schedule_timer")
        await wake.context.schedule_activity("work")  # type: ignore[attr-defined]

    async with stage(sqlite_url, handler) as on:
        with pytest.raises(
            WakeFailed, match=r"no 'schedule_activity': only orchestrations .* plain function"
        ) as failed:
            await on.talk().ask(UserMessage("x"), timeout=30)
        assert failed.value.error_type == "ActivityMisuse"
        assert attempts == [1]


async def test_an_id_of_another_kind_is_refused_with_both_kinds(url: str) -> None:
    other = make(kind="other")

    async def instance(ctx: affinity.OrchestrationContext) -> None:
        await ctx.schedule_wait("end")

    async with stage(url, echo, other) as on:
        on.app.orchestration(instance)
        await on.talk().ask(UserMessage("x"), timeout=30)
        with pytest.raises(ConversationKindMismatch, match="it is of kind 'chat', not 'other': connect with"):
            await on.talk("c", other).send(UserMessage("x"))
        await on.client.start(instance, instance_id="i")
        with pytest.raises(ConversationKindMismatch, match="another orchestration has this id: use another id"):
            await on.talk("i").send(UserMessage("x"))
        with pytest.raises(InvalidOptions, match=r"'chat' defines no conversations: give the affinity\.Conversations"):
            on.client.conversation("chat", "c")  # type: ignore[arg-type]


async def test_a_handler_that_blocks_the_loop_is_named_with_the_remedy(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def blocks_the_loop(wake: Wake, chat: Chat) -> None:
        time.sleep(2.5)

    async with stage(sqlite_url, blocks_the_loop) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)

        async def warned() -> bool:
            return "has been blocked" in caplog.text

        await until(warned)
    assert "a handler blocks it" in caplog.text
    assert "anyio.to_thread.run_sync(function)" in caplog.text
    assert "in blocks_the_loop" in caplog.text
