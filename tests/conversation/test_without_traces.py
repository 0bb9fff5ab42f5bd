"""Traces are for readers, and nothing depends on them: conversations whose journals have none."""

from __future__ import annotations

import pytest

import affinity
from affinity import RetryPolicy
from affinity.conversation import AgentMessage, DeadLetters, JournalEntry, Reply, ToolConfirmation, UserMessage
from affinity.errors import WakeFailed
from tests.conversation.application import Chat, stage, status, until
from tests.support.statements import execute

pytestmark = pytest.mark.anyio


async def test_a_conversation_goes_on_when_its_trace_is_deleted(url: str) -> None:
    """It replies, streams, is forked with its requests, sets aside what has failed for good, and retries that."""
    broken = True

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if broken and ("poison" in [event.text for event in wake.events if isinstance(event, UserMessage)] or wake.due):
            raise ValueError("poison")
        for event in wake.events:
            if isinstance(event, UserMessage):
                wake.append(AgentMessage(f"re: {event.text}"))
                if event.text == "tea":
                    wake.require(ToolConfirmation("brew"))
                    wake.revisit(0.01, key="nudge")

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("tea"), event_id="m-1", timeout=30)
        await until(lambda: status(talk, "failed"))  # at the revisit
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("poison"), event_id="m-2", timeout=30)
        execute(url, "DELETE FROM journal_entries WHERE kind IN ('span.started', 'span.completed')")
        assert not await talk.history(kinds=["span.started", "span.completed"])

        again = await talk.reply(reply.seq, timeout=30)
        assert (again.text, again.wake_id, again.stop_reason) == (reply.text, reply.wake_id, reply.stop_reason)
        items = [item async for item in talk.stream_reply(event_id="m-1")]
        assert [each for each in items if isinstance(each, JournalEntry)] == list(again.entries)
        assert isinstance(items[-1], Reply)
        with pytest.raises(WakeFailed):
            async for _ in talk.stream_reply(event_id="m-2"):
                pass
        (request,) = await talk.requests()
        fork = await talk.fork("fork", at=again.entries[-1].seq)
        assert [each.request_id for each in await fork.requests()] == [request.request_id]

        assert (await talk.ask(UserMessage("two"), timeout=30)).text == "re: two"
        records = [each.event for each in await talk.history(kinds=[DeadLetters])]
        assert [key for each in records if isinstance(each, DeadLetters) for key in each.revisits] == ["nudge"]
        assert await talk.revisits() == []
        (letter,) = await talk.dead_letters()
        broken = False
        assert (await talk.reply(await talk.retry(letter.seq), timeout=30)).text == "re: poison"
