"""Conversations whose instance an operator has ended, and journals of which retention has removed entries."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

import affinity
from affinity import AgentMessage, UserMessage
from affinity.conversation import ChildEnded
from affinity.errors import ConversationTerminated, UnknownConversation, UnknownEntry
from affinity.journal import JournalPruning, JournalRetention
from affinity.provider import open_provider
from tests.conversation.application import Chat, echo, make, stage, status, until

pytestmark = pytest.mark.anyio


async def test_an_ask_ends_when_an_operator_cancels_the_instance(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        await anyio.sleep_forever()

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"), event_id="m-1")
        await until(lambda: status(talk, "running"))
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel, on.client)
            with anyio.fail_after(60), pytest.raises(ConversationTerminated):
                await talk.ask(UserMessage("one"), event_id="m-1")
        with pytest.raises(ConversationTerminated):
            await talk.send(UserMessage("two"))


async def test_a_parent_learns_that_an_operator_has_cancelled_its_child(url: str) -> None:
    async def work(wake: affinity.Wake, chat: Chat) -> None:
        await anyio.sleep_forever()

    child = make(work, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(event.outcome))

    async with stage(url, handler, child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        await until(lambda: status(on.talk("c/child", child), "running"))
        await until(lambda: on.client.activities("c/child"))
        await on.client.cancel("c/child")
        (said,) = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said.event == AgentMessage("terminated")
        assert await until(lambda: status(on.talk("c/child", child), "terminated"))


async def _cancel(client: affinity.Client) -> None:
    await anyio.sleep(0.2)
    await client.cancel("c")


async def test_a_reply_that_retention_has_removed_is_not_that_of_a_later_wake(url: str) -> None:
    async with stage(url, echo) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), timeout=30)
        second = await talk.ask(UserMessage("two"), timeout=30)
        async with aclosing(await open_provider(url)) as provider:
            pruned = await provider.prune_journals(JournalRetention(entries=4), limit=100)
            assert pruned == JournalPruning(entries=6, after=None)
        with pytest.raises(UnknownEntry):
            await talk.reply(first.seq, timeout=30)
        assert (await talk.reply(second.seq, timeout=30)).text == "re: two"


async def test_signals_that_lead_to_no_wake_do_not_delay_a_revisit(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.pending:
            wake.revisit(2.0, key="nudge")
        for _ in wake.due:
            wake.append(AgentMessage("due"))

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        with anyio.fail_after(30):
            while not await talk.history(kinds=["agent.message"]):
                await on.client.raise_event("c", "conversation", {"type": "unknown"})
                await anyio.sleep(0.3)


async def test_a_conversation_goes_on_when_an_operator_has_deleted_its_instance(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        await echo(wake, chat)
        wake.append(AgentMessage(f"interrupted: {wake.interrupt is not None}"))

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        for call in (talk.interrupt, talk.resume):
            await on.client.delete("c", force=True)
            assert await talk.status() == "idle"
            if (seq := await call()) is not None:
                assert (await talk.reply(seq, timeout=30)).text == "interrupted: True"
            await on.client.status("c")
        await on.client.delete("c", force=True)
        await talk.terminate()
        assert await talk.status() == "terminated"
        with pytest.raises(ConversationTerminated):
            await talk.send(UserMessage("two"))
        with pytest.raises(UnknownConversation):
            await on.talk("other").interrupt()


async def test_a_wake_that_a_reset_runs_again_has_an_id_of_its_own(url: str) -> None:
    async with stage(url, echo) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        history = await on.client.history("c")
        (scheduled,) = [each.event_id for each in history if each.type == "activity_scheduled"]
        for number in range(2):
            await on.client.reset("c", to_event=scheduled)
            assert (await talk.ask(UserMessage(f"{number}"), timeout=30)).text == f"re: {number}"
            assert (await on.state()).received[-1] == f"{number}"
        wakes = [each.wake_id for each in await talk.history(kinds=["span.completed"])]
        assert len(wakes) == len(set(wakes)) == 3
