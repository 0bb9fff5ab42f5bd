"""Reads of journals: anchors and their bounds, pages that share a call, replies to earlier events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import affinity
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import (
    ConversationExists,
    ConversationTerminated,
    InvalidInput,
    UnknownConversation,
    UnknownEntry,
)
from affinity.session import SessionRecord
from affinity.session.stores import RetryingStore
from tests.conversation.application import Chat, stage, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "where",
    [
        {"after": 2**70},
        {"before": -1},
        {"around": 2**63 - 1},
        {"around": 1.5},
        {"after": "x\0"},
        {"before": "\ud800"},
        {"around": ""},
        {"wake": "x\0"},
        {"kinds": ["user.message\nagent.message"]},
        {"kinds": [""]},
        {"limit": 1.5},
        {"last": "3"},
    ],
)
async def test_what_no_entry_can_have_is_refused_where_it_is_given(url: str, where: dict[str, Any]) -> None:
    async with stage(url, workers=0) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"), event_id="m-1")
        with pytest.raises(InvalidInput):
            await talk.history(**where)


async def test_the_same_of_replies_answers_forks_and_feeds(url: str) -> None:
    async with stage(url, workers=0) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"), event_id="m-1")
        with pytest.raises(InvalidInput):
            await talk.reply(2**70)
        with pytest.raises(InvalidInput):
            await talk.answer("x\0", allowed=True)
        with pytest.raises(InvalidInput):
            talk.events(kinds=["x\0"])
        for at in (True, 1.5, "m-1", 2**70):
            with pytest.raises(UnknownEntry):
                await talk.fork("f", at=at)  # type: ignore[arg-type]


async def test_a_page_that_finds_no_room_in_a_shared_call_is_read_again(url: str) -> None:
    async with stage(url, workers=0) as on:
        small, large = on.talk("small"), on.talk("large")
        await small.send(UserMessage("one"), event_id="m-1")
        for _ in range(17):
            await large.send(UserMessage("x" * 1_000_000))
        found: dict[str, int] = {}

        async def count(name: str, talk: affinity.ConversationHandle, **where: Any) -> None:
            found[name] = len(await talk.history(**where))

        async with anyio.create_task_group() as group:
            group.start_soon(count, "large", large)  # takes all the bytes of the call
            group.start_soon(count, "all", small)
        async with anyio.create_task_group() as group:
            group.start_soon(count, "large", large)
            group.start_soon(lambda: count("anchor", small, around="m-1"))
        assert (found["all"], found["anchor"]) == (1, 1)


def answering(started: anyio.Event, release: anyio.Event) -> Callable[[affinity.Wake, Chat], Awaitable[None]]:
    """A handler that answers each message, "slow" when it is released."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            assert isinstance(event, UserMessage)
            if event.text == "slow":
                started.set()
                await release.wait()
            wake.append(AgentMessage(f"re: {event.text}"))

    return handler


async def test_an_ask_gets_no_reply_of_a_conversation_that_was_begun_again(url: str) -> None:
    started = anyio.Event()
    async with stage(url, answering(started, anyio.Event())) as on:
        talk = on.talk()

        async def ask() -> None:
            # Terminated: its instance was deleted, and its journal not yet.
            with pytest.raises((UnknownConversation, ConversationTerminated)):
                await talk.ask(UserMessage("slow"), timeout=60)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await started.wait()
            await talk.delete()
            await talk.send(UserMessage("other"))


async def test_a_fork_without_the_reply_does_not_wait_for_it(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("one"), event_id="m-1")
        await talk.reply(seq, timeout=60)
        for at in (seq, seq + 2):  # the reply is cut off, or in two
            fork = await talk.fork(f"fork-{at}", at=at)
            with pytest.raises(UnknownEntry):
                await fork.ask(UserMessage("one"), event_id="m-1", timeout=60)


async def test_a_merge_gives_no_reply_to_what_the_right_side_has_processed(url: str) -> None:
    async with stage(url) as on:
        left, right = on.talk("left"), on.talk("right")
        await left.ask(UserMessage("one"), event_id="m-1", timeout=60)
        for number in range(3):
            await right.ask(UserMessage(f"{number}"), event_id=f"r-{number}", timeout=60)
        merged = await left.merge("right", into="merged")
        assert (await merged.ask(UserMessage("one"), event_id="m-1", timeout=60)).text == "re: one"
        for number in range(3):
            with pytest.raises(UnknownEntry):
                await merged.ask(UserMessage(f"{number}"), event_id=f"r-{number}", timeout=60)
        assert (await merged.ask(UserMessage("new"), event_id="m-2", timeout=60)).text == "re: new"
        assert (await merged.ask(UserMessage("new"), event_id="m-2", timeout=60)).text == "re: new"


async def test_no_later_wake_replies_to_what_a_fork_was_cut_behind(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), event_id="m-1", timeout=60)
        seq = await talk.send(UserMessage("two"), event_id="m-2")
        await talk.reply(seq, timeout=60)
        for at in (seq, seq + 2):  # the reply is cut off, or in two
            fork = await talk.fork(f"fork-{at}", at=at)
            copy = on.talk(f"copy-{at}")
            await copy.import_([line async for line in fork.export()])
            for made in (fork, await fork.detach(f"detached-{at}"), copy):
                assert (await made.ask(UserMessage("three"), timeout=60)).text == "re: three"
                assert (await made.ask(UserMessage("one"), event_id="m-1", timeout=60)).text == "re: one"
                with pytest.raises(UnknownEntry):
                    await made.ask(UserMessage("two"), event_id="m-2", timeout=60)


async def test_a_copy_of_a_merge_gives_the_replies_that_the_merge_gives(url: str) -> None:
    """Wakes of the right side name the numbers that inputs had there."""
    started, release = anyio.Event(), anyio.Event()
    async with stage(url, answering(started, release)) as on:
        left, right = on.talk("left"), on.talk("right")
        await left.ask(UserMessage("one"), event_id="m-1", timeout=60)
        for number in range(5):
            await right.ask(UserMessage(f"{number}"), event_id=f"r-{number}", timeout=60)
        await left.send(UserMessage("slow"), event_id="m-2")  # waits in the merge of it
        await started.wait()
        merged = await left.merge("right", into="merged")
        copy, last = on.talk("copy"), on.talk("last")
        await copy.import_([line async for line in merged.export()])
        detached = await merged.detach("detached")
        await last.import_([line async for line in detached.export()])
        release.set()
        for made in (merged, detached, copy, last, await detached.fork("fork")):
            assert (await made.ask(UserMessage("one"), event_id="m-1", timeout=60)).text == "re: one"
            assert (await made.ask(UserMessage("slow"), event_id="m-2", timeout=60)).text == "re: slow"
            for number in range(5):
                with pytest.raises(UnknownEntry):
                    await made.ask(UserMessage(f"{number}"), event_id=f"r-{number}", timeout=60)
            assert (await made.ask(UserMessage("new"), event_id="m-3", timeout=60)).text == "re: new"
            assert (await made.ask(UserMessage("new"), event_id="m-3", timeout=60)).text == "re: new"
            for number in range(5):
                with pytest.raises(UnknownEntry):
                    await made.ask(UserMessage(f"{number}"), event_id=f"r-{number}", timeout=60)


async def test_the_reply_to_an_entry_that_is_no_input_is_not_waited_for(url: str) -> None:
    async with stage(url) as on:
        reply = await on.talk().ask(UserMessage("one"), timeout=60)
        with pytest.raises(UnknownEntry):
            await on.talk().reply(reply.entries[0].seq, timeout=60)
        copy = on.talk("copy")
        await copy.import_([line async for line in on.talk().export()])
        with pytest.raises(UnknownEntry):
            await copy.reply(reply.entries[-1].seq, timeout=60)


async def test_an_import_of_a_journal_that_retention_has_cut_gives_the_same_replies(url: str) -> None:
    started, release = anyio.Event(), anyio.Event()
    async with stage(url, answering(started, release)) as on:
        talk = on.talk()
        for number in range(3):
            await talk.ask(UserMessage(f"{number}"), timeout=60)
        await talk.send(UserMessage("slow"), event_id="m-1")
        await started.wait()
        await talk.send(UserMessage("behind"), event_id="m-2")
        release.set()
        assert (await talk.ask(UserMessage("behind"), event_id="m-2", timeout=60)).text == "re: behind"
        await on.client.prune_conversations(max_entries=10)
        assert (await talk.history())[0].event_id == "m-1"
        copy = on.talk("copy")
        await copy.import_([line async for line in talk.export()])
        assert (await copy.ask(UserMessage("slow"), event_id="m-1", timeout=60)).text == "re: slow"
        assert (await copy.ask(UserMessage("behind"), event_id="m-2", timeout=60)).text == "re: behind"


async def test_an_id_that_something_else_was_copied_to_is_in_use(url: str) -> None:
    async with stage(url, workers=0) as on:
        one, other = on.talk("one"), on.talk("other")
        for talk in (one, other):
            await talk.send(UserMessage(talk.conversation_id))
        exports = [[line async for line in talk.export()] for talk in (one, other)]
        for _ in range(2):  # repeated, it is the same
            await on.talk("import").import_(exports[0])
            await one.detach("detached")
            await one.fork("fork", at=1)
        await one.fork("fork")
        with pytest.raises(ConversationExists):
            await one.fork("fork", at=0)
        with pytest.raises(ConversationExists):
            await on.talk("import").import_(exports[1])
        with pytest.raises(ConversationExists):
            await other.detach("detached")


async def test_what_has_large_extras_can_be_imported(url: str) -> None:
    async with stage(url, workers=0) as on:
        await on.talk().send(UserMessage("one"))
        fork = await on.talk().fork("fork", extras={"x": "y" * 16_000})
        await on.talk("copy").import_([line async for line in fork.export()])
        assert await until(lambda: on.talk("copy").history(pending=True))


async def test_state_and_entries_of_an_export_fit_each_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), event_id="m-1", timeout=60)
        load = RetryingStore.load

        async def load_late(store: RetryingStore, session_id: str) -> SessionRecord | None:
            record = await load(store, session_id)
            await talk.ask(UserMessage("two"), event_id="m-2", timeout=60)  # only the first call is a wake
            return record

        monkeypatch.setattr(RetryingStore, "load", load_late)
        lines = [line async for line in talk.export()]
        monkeypatch.undo()
        copy = on.talk("copy")
        await copy.import_(lines)
        assert (await on.state("copy")).received == ["one", "two"]
        assert len(await copy.history(kinds=["user.message"])) == 2


async def test_a_feed_that_follows_waits_for_the_first_event(url: str) -> None:
    async with stage(url) as on, anyio.create_task_group() as group:
        found: list[str] = []
        begun = anyio.Event()

        async def follow() -> None:
            async with on.talk().events(follow=True, stream=False) as feed:
                begun.set()
                async for item in feed:
                    found.append(item.kind)

        group.start_soon(follow)
        await begun.wait()
        await anyio.sleep(0.2)
        await on.talk().ask(UserMessage("one"), timeout=30)
        await on.talk().terminate()
        with anyio.fail_after(30):
            while "conversation.status_changed" not in found:
                await anyio.sleep(0.02)
        assert found[:3] == ["user.message", "span.started", "agent.message"]


async def test_a_feed_of_no_conversation_that_does_not_follow_or_goes_on_from_a_position_raises(url: str) -> None:
    async with stage(url, workers=0) as on:
        for feed in (on.talk().events(), on.talk().events(after=3, follow=True)):
            with pytest.raises(UnknownConversation):
                await anext(feed)
        await on.talk().send(UserMessage("one"))
        feed = on.talk().events(follow=True)
        assert (await anext(feed)).kind == "user.message"
        await on.talk().delete()
        with pytest.raises(UnknownConversation):
            await anext(feed)
