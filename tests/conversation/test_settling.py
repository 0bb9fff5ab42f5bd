"""`ask` that waits until a conversation has nothing left to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    ConfirmationAnswer,
    Reply,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
)
from affinity.errors import ConversationTerminated, InvalidInput, WaitTimeout, WakeFailed
from affinity.testing import Env
from tests.conversation.application import Chat, Handler, make, stage, until

pytestmark = pytest.mark.anyio

PATIENCE = 60.0

DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Of an `Env`; None: SQLite."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_shared")


@asynccontextmanager
async def talk_to(server: str | None, handler: Handler) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
    """A conversation whose days pass without a wait."""
    chats, app = make(handler, retry=RetryPolicy(max_attempts=1)), affinity.App("settling")
    app.include(chats)
    async with Env(app, url=server) as env:
        yield env, env.client.conversation(chats, "c")


async def nudge(wake: Wake, chat: Chat) -> None:
    """Come back twice."""
    chat.wakes += 1
    wake.append(AgentMessage(f"wake {chat.wakes}"))
    if chat.wakes < 3:
        wake.revisit(DAY, key="nudge")


async def test_it_waits_for_revisits(server: str | None) -> None:
    async with talk_to(server, nudge) as (env, talk):
        first = await talk.ask(UserMessage("go"), event_id="m-1")
        assert (first.text, first.stop_reason) == ("wake 1", "revisit")
        last = await talk.ask(UserMessage("go"), event_id="m-1", until="settled")
        assert (last.text, last.stop_reason, last.seq) == ("wake 3", "end_turn", first.seq)
        assert last.wake_id != first.wake_id
        assert {entry.wake_id for entry in last.entries} == {last.wake_id}
        assert env.now() - env.started >= 2 * DAY


async def test_a_conversation_that_was_cut_off_has_settled(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        wake.note_truncated()

    async with stage(sqlite_url, handler) as on:
        reply = await on.talk().ask(UserMessage("go"), until="settled", timeout=PATIENCE)
        assert reply.stop_reason == "truncated"


async def test_it_waits_for_an_answer_and_for_further_inputs(url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ConfirmationAnswer):
                wake.append(AgentMessage(f"allowed: {event.allowed}"))
            else:
                wake.require(ToolConfirmation("refund"))

    async with stage(url, handler) as on:
        talk, replies = on.talk(), list[Reply]()

        async def ask() -> None:
            replies.append(await talk.ask(UserMessage("go"), until="settled", timeout=PATIENCE))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            for allowed in (True, False):
                (request,) = await until(talk.requests)
                if allowed:
                    await talk.send(UserMessage("more"))
                    await until(lambda: _two(talk))
                assert not replies
                await talk.answer(request.request_id, allowed=allowed)
                await until(partial(_without, talk, request.request_id))
        assert replies[0].text == "allowed: False"


async def _two(talk: affinity.ConversationHandle) -> bool:
    return len(await talk.requests()) == 2


async def _without(talk: affinity.ConversationHandle, request_id: str) -> bool:
    return request_id not in [each.request_id for each in await talk.requests()]


def family(may_end: anyio.Event) -> tuple[Any, Any]:
    """A parent that gives work to a child, and the child, which works until it may end."""

    async def work(wake: Wake, chat: Chat) -> None:
        await may_end.wait()
        wake.append(AgentMessage("42"))

    async def delegate(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"the child says {event.result}"))
            elif isinstance(event, UserMessage):
                await wake.delegate(child, f"{wake.conversation_id}/child", event)

    child = make(work, kind="child")
    return make(delegate), child


async def test_it_waits_for_children(url: str) -> None:
    may_end = anyio.Event()
    parent, child = family(may_end)
    async with stage(url, parent, child) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("go"), event_id="m-1", timeout=PATIENCE)
        assert first.stop_reason == "end_turn"
        with pytest.raises(WaitTimeout, match=r"has not settled within 0\.3 s: .*child 'c/child' \(running\)"):
            await talk.ask(UserMessage("go"), event_id="m-1", until="settled", timeout=0.3)
        fork = await talk.fork("fork")
        assert (await fork.ask(UserMessage("go"), event_id="f-1", timeout=PATIENCE)).stop_reason == "end_turn"
        may_end.set()
        last = await talk.ask(UserMessage("go"), event_id="m-1", until="settled", timeout=PATIENCE)
        assert last.text == "the child says 42"
        last = await fork.ask(UserMessage("go"), event_id="f-1", until="settled", timeout=PATIENCE)
        assert last.text == "the child says 42"


async def test_a_fork_does_not_wait_for_the_children_of_its_origin(url: str) -> None:
    may_end = anyio.Event()
    parent, child = family(may_end)
    async with stage(url, parent, child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        fork = await talk.fork("fork")
        reply = await fork.ask(UserInterrupt(), until="settled", timeout=PATIENCE)
        assert reply.stop_reason == "end_turn"
        may_end.set()


async def test_a_later_wake_that_fails_for_good_is_raised(server: str | None) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.due:
            raise OSError("no")
        wake.revisit(DAY, key="nudge")

    async with talk_to(server, handler) as (_, talk):
        with pytest.raises(WakeFailed, match="no"):
            await talk.ask(UserMessage("go"), until="settled")


async def test_the_end_of_the_conversation_ends_the_wait(url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        wake.require(ToolConfirmation("refund"))

    async with stage(url, handler) as on:
        talk = on.talk()

        async def ask() -> None:
            with pytest.raises(ConversationTerminated):
                await talk.ask(UserMessage("go"), until="settled", timeout=PATIENCE)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(talk.requests)
            await talk.terminate()


async def test_the_message_names_what_it_waits_for(url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        wake.revisit(DAY, key="nudge")

    async with stage(url, handler) as on:
        await on.talk().ask(UserMessage("go"), event_id="m-1", timeout=PATIENCE)
        with pytest.raises(WaitTimeout, match=r"has not settled within .*waits for a revisit, due at") as error:
            await on.talk().ask(UserMessage("go"), event_id="m-1", until="settled", timeout=0.3)
        assert error.value.waits_for is not None
        assert error.value.waits_for.code == "revisit"


async def test_another_word_is_refused(sqlite_url: str) -> None:
    async with stage(sqlite_url, workers=0) as on:
        with pytest.raises(InvalidInput, match=r"'wake' .*'settled', not 'done'"):
            await on.talk().ask(UserMessage("go"), until="done")  # type: ignore[arg-type]
        assert not [each async for each in on.client.list_conversations()]
