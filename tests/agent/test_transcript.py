"""The order in which a model reads what is in a journal that was made from others."""

from __future__ import annotations

import pytest

import affinity
from affinity.agent.transcript import in_order
from affinity.conversation import SpanStarted, UserMessage
from affinity.conversation.journal import JournalRetention
from tests.conversation.application import stage
from tests.conversation.lineage_helpers import say, words

pytestmark = pytest.mark.anyio


async def order(talk: affinity.ConversationHandle) -> list[str]:
    return words(in_order(await talk.history(), ()))


async def test_messages_that_a_merge_has_copied_stand_before_their_answers(url: str) -> None:
    """The copied spans have the numbers of the other conversation. Also in an import of the merge."""
    async with stage(url) as on:
        left, right = on.talk("left"), on.talk("right")
        for text in ("one", "two", "three"):
            await say(left, text)
        for text in ("four", "five"):
            await say(right, text)
        merged, copy = await left.merge("right", into="merged"), on.talk("copy")
        await say(merged, "six")
        await copy.import_([line async for line in merged.export()])
        said = ["one", "two", "three", "four", "five", "six"]
        for talk in (merged, copy):
            assert await order(talk) == [text for each in said for text in (each, f"re: {each}")]


async def test_an_import_has_the_numbers_that_its_entries_have_now(url: str) -> None:
    """Retention has removed the first entries of the exported conversation."""
    async with stage(url) as on:
        talk, copy = on.talk(), on.talk("copy")
        for text in ("one", "two", "three"):
            await say(talk, text)
        await on.client.journals.prune(JournalRetention(entries=10), 0, dry_run=False)
        await copy.import_([line async for line in talk.export()])
        inputs = [each.seq for each in await copy.history(kinds=[UserMessage])]
        begins = [each.event for each in await copy.history(kinds=[SpanStarted])]
        assert [each.read for each in begins if isinstance(each, SpanStarted)] == inputs == [1, 6]
        assert await order(copy) == ["two", "re: two", "three", "re: three"]
