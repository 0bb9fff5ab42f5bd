"""Listings of conversations: what each does now, and what waits in it."""

from __future__ import annotations

from typing import get_args

import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.conversation import ConversationStatus, ToolConfirmation, UserMessage
from affinity.errors import InvalidInput, UnknownConversation, WakeFailed
from tests.conversation.application import Chat, make, stage, status, until

pytestmark = pytest.mark.anyio


async def test_conversations_are_listed_by_what_they_do_now(url: str) -> None:
    entered = anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        match wake.events[-1]:
            case UserMessage(content="ask"):
                wake.require(ToolConfirmation("pay"))
            case UserMessage(content="later"):
                wake.revisit(3_600)
            case UserMessage(content="raise"):
                raise ValueError("no")
            case UserMessage(content="wait"):
                entered.set()
                await anyio.sleep_forever()

    patient = make(handler, kind="patient", retry=RetryPolicy(max_attempts=2, initial_interval=60.0))
    async with stage(url, handler, patient, retry=RetryPolicy(max_attempts=1)) as on:
        for name, text in (("idle", "x"), ("requires_action", "ask"), ("waiting", "later"), ("terminated", "x")):
            await on.talk(name).ask(UserMessage(text), timeout=30)
        await on.talk("terminated").terminate()
        with pytest.raises(WakeFailed):
            await on.talk("failed").ask(UserMessage("raise"), timeout=30)
        await on.talk("rescheduling", patient).send(UserMessage("raise"))
        await until(lambda: status(on.talk("rescheduling", patient), "rescheduling"))
        await on.talk("running").send(UserMessage("wait"))
        await entered.wait()
        names: tuple[ConversationStatus, ...] = get_args(ConversationStatus)
        found = {each.conversation_id: each async for each in on.client.list_conversations()}
        assert {name: each.status for name, each in found.items()} == {name: name for name in names}
        waiting = {name: each.pending_from for name, each in found.items() if each.pending_from is not None}
        assert waiting == {"failed": 1, "rescheduling": 1, "running": 1}
        for name in names:
            assert [each async for each in on.client.list_conversations(status=name)] == [found[name]]
            assert await on.client.get_conversation(name) == found[name]
            assert await on.talk(name).status() == name


async def test_what_no_listing_has_is_refused(sqlite_url: str) -> None:
    await affinity.migrate(sqlite_url)
    async with affinity.Client(sqlite_url) as client:
        with pytest.raises(InvalidInput, match="status = 'ended': must be one of idle, running"):
            await client.list_conversations(status="ended")  # type: ignore[arg-type]
        with pytest.raises(UnknownConversation):
            await client.get_conversation("none")
