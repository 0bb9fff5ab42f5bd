"""Events, ingress, wakes and revisits of agent sessions, which are conversations here; one test for each promise."""

from __future__ import annotations

import anyio
import pytest

import affinity
from affinity import Wake
from affinity.conversation import ConversationIdle, DefineOutcome, UserInterrupt, UserMessage
from affinity.conversation.events import BUILT_IN, kind_of
from affinity.conversation.kinds import SIGNAL
from affinity.errors import (
    ConversationKindMismatch,
    UnknownConversation,
    UnknownEntry,
)
from tests.conversation.application import Chat, kinds, make, stage, until
from tests.conversation.request_handler import asks, said, says

pytestmark = pytest.mark.anyio


# -- events


def test_built_in_events_have_seven_families() -> None:
    families = {kind_of(each).split(".")[0] for each in BUILT_IN}
    assert families == {"user", "conversation", "span", "agent", "child", "run", "call"}


async def test_each_event_of_a_user_wakes_the_session(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        for event in (UserMessage("x"), DefineOutcome("tea"), UserInterrupt("stop")):
            seq = await talk.send(event)
            assert (await talk.reply(seq, timeout=30)).text == f"received {event.kind}"


async def test_an_event_is_pending_until_a_wake_has_processed_it(sqlite_url: str) -> None:
    async with affinity.Client(sqlite_url) as client:
        talk = client.conversation(make(), "c")
        seq = await talk.send(UserMessage("x"))
        assert [each.seq for each in await talk.history(pending=True)] == [seq]
        assert await talk.status() == "running"
    async with stage(sqlite_url) as on:
        await on.talk().reply(seq, timeout=30)
        assert await on.talk().history(pending=True) == []


async def test_an_interrupt_before_the_next_wake_clears_the_requests(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("confirm"), timeout=30)
        await talk.ask(UserMessage("custom"), timeout=30)
        assert len(await talk.requests()) == 2
        seq = await talk.interrupt()
        assert await talk.requests() == []
        assert (await talk.reply(seq, timeout=30)).stop_reason == "end_turn"


async def test_an_interrupt_drops_the_revisits_before_the_run(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("later"), timeout=30)
        seq = await talk.interrupt()
        assert await talk.revisits() == []
        await talk.reply(seq, timeout=30)
        await anyio.sleep(0.5)
        assert not any(text.startswith("revisit") for text in await said(talk))


async def test_an_interrupt_is_followed_by_a_run_that_sees_it(sqlite_url: str) -> None:
    seen: list[str | None] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        seen.append(None if wake.interrupt is None else wake.interrupt.reason)

    async with stage(sqlite_url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("x"), timeout=30)
        seq = await talk.interrupt(reason="other way")
        await talk.reply(seq, timeout=30)
        assert seen == [None, "other way"]


async def test_a_wake_up_carries_no_content_since_the_session_has_it(sqlite_url: str) -> None:
    """The instance knows numbers; what was said is in the journal alone."""
    async with stage(sqlite_url) as on:
        await on.talk().ask(UserMessage("a secret"), timeout=30)
        events = await on.client.history("c")
        assert len(events) > 3
        assert "a secret" not in str(events)


async def test_the_handler_reads_what_was_processed_lately(sqlite_url: str) -> None:
    found: list[list[str]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        found.append(kinds(await wake.history(last=2)))

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        await on.talk().ask(UserMessage("two"), timeout=30)
        assert found == [["user.message"], ["conversation.idle", "user.message"]]


async def test_the_handler_reads_around_an_anchor(sqlite_url: str) -> None:
    found: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.pending[0].event_id == "second":
            found.extend([each.seq for each in await wake.history(around="first", limit=3)])
            with pytest.raises(UnknownEntry):
                await wake.history(around="never")

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)
        await on.talk().ask(UserMessage("one"), event_id="first", timeout=30)
        await on.talk().ask(UserMessage("two"), event_id="second", timeout=30)
        assert found == [4, 5, 6]


async def test_the_handler_reads_events_of_some_kinds_only(sqlite_url: str) -> None:
    found: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        found[:] = kinds(await wake.history(kinds=["user.message", "conversation.idle"]))

    async with stage(sqlite_url, handler) as on:
        for text in ("one", "two"):
            await on.talk().ask(UserMessage(text), timeout=30)
        assert found == ["user.message", "conversation.idle", "user.message"]


async def test_tools_read_other_sessions_of_the_same_agent(sqlite_url: str) -> None:
    found: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.conversation_id == "reader":
            found.extend(kinds(await wake.read("other", kinds=["user.message"])))
            with pytest.raises(UnknownConversation):
                await wake.read("missing")

    async with stage(sqlite_url, handler) as on:
        await on.talk("other").ask(UserMessage("x"), timeout=30)
        await on.talk("reader").ask(UserMessage("x"), timeout=30)
        assert found == ["user.message"]


async def test_tools_read_no_sessions_of_another_agent(sqlite_url: str) -> None:
    refused: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        with pytest.raises(ConversationKindMismatch) as caught:
            await wake.read("other")
        refused.append(caught.value.conversation_id)

    other = make(kind="other")
    async with stage(sqlite_url, handler, other) as on:
        await on.talk("other", other).ask(UserMessage("x"), timeout=30)
        await on.talk("reader").ask(UserMessage("x"), timeout=30)
        assert refused == ["other"]


# -- ingress and wakes


async def test_callers_append_and_the_orchestration_takes_what_is_pending(sqlite_url: str) -> None:
    async with affinity.Client(sqlite_url) as client:
        talk = client.conversation(make(), "c")
        seqs = [await talk.send(UserMessage(text)) for text in ("one", "two", "three")]
    async with stage(sqlite_url) as on:
        replies = [await on.talk().reply(seq, timeout=30) for seq in seqs]
        assert len({each.wake_id for each in replies}) == 1
        assert (await on.state()).received == ["one", "two", "three"]


async def test_with_nothing_pending_and_nothing_due_a_wake_does_nothing(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("x"), timeout=30)
        (before,) = await talk.history(last=1)
        for _ in range(3):
            await on.client.raise_event(talk.conversation_id, SIGNAL, {"type": "resume"})
        await anyio.sleep(0.3)
        assert await talk.history(after=before.seq) == []
        assert (await on.state()).wakes == 1


async def test_otherwise_it_is_one_bounded_run(sqlite_url: str) -> None:
    batches: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        batches.append(len(wake.pending))

    async with affinity.Client(sqlite_url) as client:
        talk = client.conversation(make(), "c")
        for number in range(5):
            last = await talk.send(UserMessage(str(number)))
    async with stage(sqlite_url, handler, limits=affinity.ConversationLimits(inputs=2)) as on:
        reply = await on.talk().reply(last, timeout=30)
        assert batches == [2, 2, 1]
        assert reply.stop_reason == "end_turn"
        idle = [each.event for each in await on.talk().history(kinds=["conversation.idle"])]
        assert [each.stop_reason for each in idle if isinstance(each, ConversationIdle)] == ["more", "more", "end_turn"]


async def test_at_most_one_wake_of_a_session_runs_at_a_time(sqlite_url: str) -> None:
    running = most = 0

    async def handler(wake: Wake, chat: Chat) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.02)
        running -= 1

    async with stage(sqlite_url, handler, workers=2) as on:
        seqs: list[int] = []

        async def send(number: int) -> None:
            seqs.append(await on.talk().send(UserMessage(str(number))))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(send, number)
        await on.talk().reply(max(seqs), timeout=30)
        assert most == 1


# -- revisits


async def test_a_run_asks_for_another_run_later(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("later"), timeout=30)
        assert reply.stop_reason == "revisit"
        assert await until(says(talk, "revisit later to look again"))
        assert len({each.wake_id for each in await talk.history(kinds=["span.started"])}) == 2


async def test_the_same_session_goes_on_across_revisits(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        chat.wakes += 1
        chat.received += [each.key for each in wake.due] or ["asked"]
        if chat.wakes < 4:
            wake.revisit(0.01, key=f"n{chat.wakes}")

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)

        async def done() -> bool:
            return (await on.state()).wakes == 4

        assert await until(done)
        assert (await on.state()).received == ["asked", "n1", "n2", "n3"]


async def test_an_event_activates_immediately_and_a_revisit_later(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("later"), timeout=30)
        await talk.ask(UserMessage("now"), timeout=30)
        assert await said(talk) == ["received user.message"]
        assert await until(says(talk, "revisit later to look again"))


async def test_no_hidden_process_changes_a_session(sqlite_url: str) -> None:
    """Each entry is an input, or of a wake with its span."""
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("later"), timeout=30)
        await until(says(talk, "revisit later to look again"))
        spans = {each.wake_id for each in await talk.history(kinds=["span.started"])}
        for entry in await talk.history():
            assert entry.wake_id in spans or entry.kind.startswith("user.")


async def test_no_second_log_coordinates_a_session(url: str) -> None:
    """The instance and its history are removed, with what they know: all that has to be done is in the journal."""
    async with stage(url) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
    async with affinity.Client(url) as client:
        talk = client.conversation(make(), "c")
        waiting = await talk.send(UserMessage("two"))
        await client.delete("c", force=True)
        assert [each.seq for each in await talk.history(pending=True)] == [waiting]
        last = await talk.send(UserMessage("three"))
    async with stage(url) as on:
        await on.talk().reply(last, timeout=30)
        assert (await on.state()).received == ["one", "two", "three"]
        entries = await on.talk().history()
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
