"""Conversations whose instance an operator has ended, and journals that retention has pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import anyio
import pytest

import affinity
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    ConfirmationAnswer,
    ConversationStatusChanged,
    DefineOutcome,
    JournalEntry,
    ToolConfirmation,
    UserMessage,
    running,
)
from affinity.conversation.journal import JournalFilter, JournalInfo, JournalPruning, JournalRetention, JournalWrite
from affinity.conversation.journals import Journals
from affinity.conversation.store.contract import journals_of
from affinity.conversation.writing import WakeWriting
from affinity.errors import (
    ConversationTerminated,
    EntriesRemoved,
    UnknownConversation,
    UnknownEntry,
    WaitTimeout,
    WakeFailed,
)
from affinity.limits import MAX_BATCH_BYTES
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


async def test_a_conversation_whose_instance_was_cancelled_is_terminated(url: str) -> None:
    """The journal is closed and says why; its children go on, until they are terminated too."""
    child = make(echo, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)

    async with stage(url, handler, child) as on:
        talk, below = on.talk(), on.talk("c/child", child)
        await talk.ask(UserMessage("one"), timeout=30)
        await until(lambda: talk.history(kinds=["child.ended"]))
        await on.client.cancel("c")
        assert await until(lambda: status(talk, "terminated"))
        await talk.terminate(reason="closed")
        assert await below.status() == "idle"
        await talk.terminate(reason="closed", cascade=True)
        (info,) = [each async for each in on.client.list_conversations(prefix="c", terminated=True, kind="chat")]
        assert info.conversation_id == "c"
        assert await until(lambda: status(below, "terminated"))
        (changed,) = await talk.history(kinds=["conversation.status_changed"])
        assert changed.event == ConversationStatusChanged("terminated", "its instance was cancelled")
        await talk.terminate()
        assert len(await talk.history(kinds=["conversation.status_changed"])) == 1
        await on.client.delete("c", force=True)
        with pytest.raises(ConversationTerminated):  # for good
            await talk.send(UserMessage("two"))


async def test_a_termination_drops_requests_and_revisits(url: str) -> None:
    """Nothing waits for an answer that would be refused, and retention removes the entries."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.require(ToolConfirmation("refund"))
        wake.revisit(3600, key="later")

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        await talk.terminate()
        assert ([*await talk.requests()], [*await talk.revisits()]) == ([], [])
        assert [one async for one in on.client.list_conversations(with_requests=True)] == []
        await on.client.prune_conversations(max_entries=0)
        info = await on.client.get_conversation("c")
        assert info.first_seq == info.last_seq + 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_feed_ends_with_an_instance_that_an_operator_cancels(url: str, stream: bool) -> None:
    async with stage(url, echo) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        seen: list[str] = []
        with anyio.fail_after(60):
            async with talk.events(follow=True, stream=stream) as feed:
                async for item in feed:
                    seen.append(item.kind if isinstance(item, JournalEntry) else "")
                    if seen[-1] == "conversation.idle":
                        await on.client.cancel("c")
        assert seen == [each.kind for each in await talk.history()]


async def test_a_feed_goes_on_when_an_operator_has_deleted_the_instance(url: str) -> None:
    """The next event creates it again."""
    async with stage(url, echo) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("one"), timeout=30)
        await on.client.delete("c", force=True)
        said: list[str] = []
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group, talk.events(after=reply.processed, follow=True) as feed:
                async for item in feed:
                    if isinstance(item, JournalEntry) and isinstance(item.event, AgentMessage):
                        said.append(item.event.text)
                    if len(said) == 2:
                        break
                    if isinstance(item, JournalEntry) and item.kind == "conversation.idle":
                        group.start_soon(_send_later, talk)
        assert said == ["re: one", "re: two"]


async def _send_later(talk: affinity.ConversationHandle) -> None:
    await anyio.sleep(2.5)  # the feed reads once a second
    await talk.send(UserMessage("two"))


async def test_a_child_that_is_deleted_ends_its_delegations(url: str) -> None:
    """The parent is notified before the child is removed, also of what no wake of the child has read."""
    begun = anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        begun.set()
        await anyio.sleep_forever()

    child = make(work, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(event.outcome))

    async with stage(url, handler, child) as on:
        talk, below = on.talk(), on.talk("c/child", child)
        await talk.ask(UserMessage("one"), timeout=30)
        await begun.wait()
        await talk.ask(UserMessage("two"), timeout=30)
        assert await below.delete(timeout=60) is True

        async def outcomes() -> bool:
            return len(await talk.history(kinds=["child.ended"])) == 2

        assert await until(outcomes)
        assert [each.event.outcome for each in await talk.history(kinds=["child.ended"])] == ["terminated"] * 2  # type: ignore[attr-defined]
        with pytest.raises(UnknownConversation):
            await below.status()
        assert await below.delete() is False


async def test_a_child_without_its_parent_is_deleted_immediately(url: str) -> None:
    child = make(echo, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, f"c/{event.text}", event)

    async with stage(url, handler, child) as on:
        for name in ("one", "two", "three"):
            await on.talk().ask(UserMessage(name), timeout=30)

        async def ended() -> bool:
            return len(await on.talk().history(kinds=["child.ended"])) == 3

        await until(ended)
    async with affinity.Client(url) as client:  # no worker runs
        below = client.conversation(child, "c/one")
        with pytest.raises(
            WaitTimeout, match=r"is terminated, but .*: 'c/one' waits for a worker: none is alive"
        ) as refused:
            await below.delete(timeout=0.2)
        assert refused.value.waits_for is not None
        assert refused.value.waits_for.code == "no_worker"
        assert await below.status() == "terminated"
        await client.delete("c/one", force=True)
        assert await below.delete() is True
        assert await client.conversation(on.conversations, "c").delete() is True
        assert await client.conversation(child, "c/two").delete() is True


async def test_the_parent_is_notified_by_an_instance_that_was_created_again(url: str) -> None:
    """An operator has deleted the instance of the child before a wake of it has committed."""
    begun = anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        begun.set()
        await anyio.sleep_forever()

    child = make(work, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)

    async with stage(url, handler, child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        await begun.wait()
        await on.client.delete("c/child", force=True)
        await on.talk("c/child", child).terminate()
        (ended,) = await until(lambda: talk.history(kinds=["child.ended"]))
        assert isinstance(ended.event, ChildEnded)
        assert ended.event.outcome == "terminated"


async def test_an_ask_waits_for_the_attempt_that_was_requested(url: str) -> None:
    """Not for the one that has failed; the call fails as the new attempt does."""
    go = anyio.Event()
    runs = 0

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        nonlocal runs, go
        runs += 1
        if runs == 1:
            raise ValueError("first")
        await go.wait()
        if runs == 2:
            raise ValueError("second")
        await echo(wake, chat)

    async with stage(url, handler, retry=affinity.RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        for number, expected in enumerate(["first", "second"]):
            if number:
                await talk.resume()
                with pytest.raises(WaitTimeout):
                    await talk.ask(UserMessage("one"), event_id="m-1", timeout=0.5)
                go.set()
            with pytest.raises(WakeFailed, match=expected):
                await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        go = anyio.Event()
        await talk.resume()
        with pytest.raises(WaitTimeout):
            await talk.ask(UserMessage("one"), event_id="m-1", timeout=0.5)
        go.set()
        assert "re: one" in str((await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)).events)


async def _cancel(client: affinity.Client) -> None:
    await anyio.sleep(0.2)
    await client.cancel("c")


async def test_a_reply_that_retention_has_removed_is_not_that_of_a_later_wake(url: str) -> None:
    async with stage(url, echo) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), timeout=30)
        second = await talk.ask(UserMessage("two"), timeout=30)
        async with aclosing(await open_provider(url)) as provider:
            pruned = await journals_of(provider).prune_journals(JournalRetention(entries=4), limit=100)
            assert pruned == JournalPruning(entries=6, after=None)
        with pytest.raises(UnknownEntry):
            await talk.reply(first.seq, timeout=30)
        assert (await talk.reply(second.seq, timeout=30)).text == "re: two"


async def test_a_feed_says_that_retention_has_removed_what_it_has_not_read(url: str) -> None:
    async with stage(url, echo) as on:
        talk = on.talk()
        for text in ("one", "two", "three"):
            await talk.ask(UserMessage(text), timeout=30)
        async with talk.events(follow=True) as late, talk.events(after=10, follow=True, stream=False) as current:
            assert (await anext(late)).kind == "user.message"
            assert await on.client.prune_conversations(max_entries=5) == 10
            assert (await anext(current)).kind == "user.message"
            assert [(await anext(late)).kind for _ in range(14)][-1] == "conversation.idle"  # of the page that it had
        for follow in (False, True):
            feed = talk.events(after=7, follow=follow)
            with pytest.raises(EntriesRemoved, match="entries 8 to 10") as raised:
                await anext(feed)
            assert raised.value.first_seq == 11
            assert feed.position == "7"
        seqs = [each.seq for each in [item async for item in talk.events()] if isinstance(each, JournalEntry)]
        assert seqs == [11, 12, 13, 14, 15]
        with pytest.raises(EntriesRemoved):
            await talk.reply(1, timeout=30)


async def test_a_feed_that_is_overtaken_by_retention_says_so(url: str) -> None:
    async with stage(url, echo) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        async with talk.events(follow=True) as feed:
            for _ in range(5):
                await anext(feed)
            for text in ("two", "three"):
                await talk.ask(UserMessage(text), timeout=30)
            await on.client.prune_conversations(max_entries=5)
            with pytest.raises(EntriesRemoved, match="entries 6 to 10"), anyio.fail_after(30):
                await anext(feed)


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
        for resumes in (False, True):
            await on.client.delete("c", force=True)
            assert await talk.status() == "idle"
            if resumes:
                assert await talk.resume()
            else:
                assert (await talk.reply(await talk.interrupt(), timeout=30)).text == "interrupted: True"
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
        scheduled, *_ = [each.event_id for each in history if each.type == "activity_scheduled"]
        for number in range(2):
            await on.client.reset("c", to_event=scheduled)
            assert (await talk.ask(UserMessage(f"{number}"), timeout=30)).text == f"re: {number}"
            assert (await on.state()).received[-1] == f"{number}"
        wakes = [each.wake_id for each in await talk.history(kinds=["span.completed"])]
        assert len(wakes) == len(set(wakes)) == 3


@pytest.mark.parametrize("way", ["reset", "delete", "reset and interrupt"])
async def test_a_delegation_that_an_operator_takes_from_the_instance_of_its_child_ends(url: str, way: str) -> None:
    """Once, with what the child makes of it after a request, or after the end of a child of its own."""

    async def ask_person(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt or any(isinstance(event, ConfirmationAnswer) for event in wake.events):
            wake.append(AgentMessage("done"))
        else:
            wake.require(ToolConfirmation("tool"))

    inner = make(ask_person, kind="inner")

    async def pass_on(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(inner, "c/child/inner", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"inner {event.result}"))

    child = make(pass_on, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.outcome} {event.result}"))

    async with stage(url, handler, child, inner) as on:
        talk, below = on.talk(), on.talk("c/child/inner", inner)
        await talk.ask(UserMessage("one"), timeout=30)
        (request,) = await until(below.requests)
        for name in ("c/child", "c/child/inner"):
            if way == "delete":
                await on.client.delete(name, force=True)
            else:
                await on.client.reset(name, to_event=1)
        if way == "delete":
            await on.talk("c/child", child).interrupt()  # creates the instance again
        if way == "reset and interrupt":
            await below.interrupt(cancel_running=True)
        else:
            await below.answer(request.request_id, allowed=True)
        (said,) = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said.event == AgentMessage("completed inner done")
        assert len(await talk.history(kinds=["child.ended"])) == 1


async def test_the_end_of_a_delegation_waits_for_an_instance(url: str) -> None:
    """An operator has deleted the parent's: the next event creates it again, and the end is read with it."""
    entered, go = anyio.Event(), anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()

    child = make(work, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage) and event.text == "work":
                await wake.delegate(child, "c/child", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(event.outcome))

    async with stage(url, handler, child) as on:
        talk, below = on.talk(), on.talk("c/child", child)
        await talk.ask(UserMessage("work"), timeout=30)
        await entered.wait()
        await on.client.delete("c", force=True)
        go.set()
        await until(lambda: below.history(kinds=["conversation.idle"]))
        assert (await talk.ask(UserMessage("go on"), timeout=30)).text == "completed"


async def test_a_child_ends_delegations_behind_many_inputs(url: str) -> None:
    """Also delegations that the last wake does not read with the others, for their size."""
    entered = anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        entered.set()
        await anyio.sleep_forever()

    child = make(work, kind="child")
    ended: list[str] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)
            elif isinstance(event, ChildEnded):
                ended.append(event.outcome)

    async def have_ended() -> bool:
        return ended == ["terminated", "terminated"]

    async with stage(url, handler, child) as on:
        talk, below = on.talk(), on.talk("c/child", child)
        await talk.ask(UserMessage("first"), timeout=30)
        await entered.wait()
        for _ in range(MAX_BATCH_BYTES // 1_000_000 + 1):
            await below.send(UserMessage("x" * 1_000_000))
        await talk.ask(UserMessage("second"), timeout=30)
        await below.terminate()
        assert await until(have_ended)


async def test_an_input_of_a_new_journal_is_not_lost_while_a_revisit_waits(url: str) -> None:
    """It comes while the first wake of the journal runs; its numbers are smaller than in the journal before."""
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage) and event.text == "new":
                entered.set()
                await go.wait()
                wake.revisit(3600)
        await echo(wake, chat)

    async with stage(url, handler) as on:
        talk = on.talk()
        for text in ("one", "two"):
            await talk.ask(UserMessage(text), timeout=30)
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        await talk.send(UserMessage("new"))
        await entered.wait()
        seq = await talk.send(UserMessage("newer"))
        await until(lambda: _is_received(on.client))
        go.set()
        assert (await talk.reply(seq, timeout=30)).text == "re: newer"


async def _is_received(client: affinity.Client) -> bool:
    """The event of the second input is in the history."""
    return [each.type for each in await client.history("c")].count("event_raised") == 2


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
async def test_a_cascade_reaches_a_child_whose_instance_was_deleted(url: str, how: str) -> None:
    """It is created again, as for a call of a client."""
    child = make(kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/child", event)

    async with stage(url, handler, child) as on:
        talk, below = on.talk(), on.talk("c/child", child)
        await talk.ask(UserMessage("one"), timeout=30)
        await until(lambda: talk.history(kinds=["child.ended"]))
        await on.client.delete("c/child", force=True)
        if how == "terminate":
            await talk.terminate(cascade=True)
            assert await until(lambda: status(below, "terminated"))
            await on.client.wait("c/child", timeout=30)
        else:
            await talk.interrupt(cascade=True)
            (interrupt,) = await until(lambda: below.history(kinds=["user.interrupt"]))
            await below.reply(interrupt.seq, timeout=30)


async def left(client: affinity.Client) -> list[str]:
    """Ids of the conversations and instances that are there."""
    conversations = [each.conversation_id async for each in client.list_conversations(prefix="c")]
    return [*conversations, *[each.instance_id async for each in client.list_instances(prefix="c")]]


class Delegating:
    """A parent whose wakes give each message to a child, and wait then; and the ends of its delegations."""

    def __init__(self) -> None:
        self.child = make(echo, kind="child")
        self.conversations = make(self._delegate)
        self.ended: list[ChildEnded] = []
        self.delegated, self.go = anyio.Event(), anyio.Event()

    async def _delegate(self, wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(self.child, f"c/{event.text}", event)
                if event.text != "first":
                    self.delegated.set()
                    await self.go.wait()
            elif isinstance(event, ChildEnded):
                self.ended.append(event)

    async def has_ended(self) -> bool:
        """Whether a delegation has."""
        return bool(self.ended)


async def test_a_cascade_does_not_recreate_a_child_that_is_deleted_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The termination of the parent has found the child, and commits after its deletion."""
    prepare, parent, deleted = WakeWriting.prepare, Delegating(), anyio.Event()

    async def delete_first(self: WakeWriting) -> JournalWrite:
        if self.session_id == "c" and any(each.closes for each in self.appends):
            assert await on.talk("c/first", parent.child).delete()
            deleted.set()
        return await prepare(self)

    async with stage(url, parent.conversations, parent.child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("first"), timeout=30)
        await until(parent.has_ended)
        monkeypatch.setattr(WakeWriting, "prepare", delete_first)
        await talk.terminate(cascade=True)
        await deleted.wait()
        await on.client.wait("c", timeout=30)
        assert await left(on.client) == ["c", "c"]
        await talk.delete(cascade=True)
        assert await left(on.client) == []


async def test_a_delegation_does_not_recreate_a_child_that_is_deleted_meanwhile(url: str) -> None:
    """It comes back to the parent, as one that the commit refuses."""
    parent = Delegating()
    async with stage(url, parent.conversations, parent.child) as on:
        talk, below = on.talk(), on.talk("c/again", parent.child)
        parent.go.set()
        await talk.ask(UserMessage("again"), timeout=30)
        await until(parent.has_ended)
        parent.ended.clear()
        parent.delegated, parent.go = anyio.Event(), anyio.Event()
        await talk.send(UserMessage("again"))
        await parent.delegated.wait()
        await below.delete()
        parent.go.set()
        await until(parent.has_ended)
        assert await left(on.client) == ["c", "c"]
        (ended,) = parent.ended
        assert (ended.outcome, ended.error and ended.error.type) == ("failed", "DelegationRefused")
        assert ended.error is not None
        assert ended.error.message == "unknown"


async def test_a_deletion_leaves_no_child_of_a_wake_under_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wake delegates to a new child, and would commit when the children have been listed."""
    parent = Delegating()
    list_journals = Journals.list

    async def list_before(self: Journals, where: JournalFilter, limit: int) -> Sequence[JournalInfo]:
        found = await list_journals(self, where, limit)
        if where.parent == "c":
            parent.go.set()
            with anyio.move_on_after(0.5):
                await until(lambda: talk.history(kinds=["child.delegated"], after=first.processed))
        return found

    async with stage(url, parent.conversations, parent.child) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("first"), timeout=30)
        await until(parent.has_ended)
        await talk.send(UserMessage("second"))
        await parent.delegated.wait()
        monkeypatch.setattr(Journals, "list", list_before)
        assert await talk.delete(cascade=True)
        monkeypatch.undo()
        assert await left(on.client) == []


async def test_the_end_of_a_delegation_is_for_the_conversation_that_has_delegated(url: str) -> None:
    """Not for one that has begun under its id since it was deleted, nor does it recreate the deleted one."""
    entered, go = anyio.Event(), anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()

    parent = Delegating()
    parent.child = make(work, kind="child")
    for begins_again in (False, True):
        entered, go = anyio.Event(), anyio.Event()
        async with stage(url, parent.conversations, parent.child) as on:
            talk, below = on.talk(), on.talk("c/first", parent.child)
            await talk.ask(UserMessage("first"), timeout=30)
            await entered.wait()
            await talk.delete()
            if begins_again:
                await talk.ask(DefineOutcome("hello"), timeout=30)
            go.set()
            await until(lambda below=below: below.history(kinds=["conversation.idle"]))  # type: ignore[misc]
            found = await left(on.client)
            assert ("c" in found) is begins_again
            if begins_again:
                await talk.ask(DefineOutcome("hello"), timeout=30)
                assert await talk.history(kinds=["child.ended"]) == []
                await talk.delete()
            await below.delete()
    assert parent.ended == []


async def test_an_event_during_a_deletion_leaves_no_instance(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It creates the instance again, which has no journal then."""
    delete = Journals.delete

    async def send_first(self: Journals, session_ids: Sequence[str]) -> Sequence[bool]:
        monkeypatch.undo()
        await on.talk().send(UserMessage("late"))
        return await delete(self, session_ids)

    async with stage(url, echo) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        monkeypatch.setattr(Journals, "delete", send_first)
        assert await on.talk().delete()
        assert await left(on.client) == []


async def test_what_has_ended_ends_again_after_a_reset(url: str) -> None:
    """Its journal is closed: nothing would wake it any more."""
    async with stage(url, echo) as on:
        talk, instance = on.talk(), on.client.handle("c")
        await talk.ask(UserMessage("hi"), timeout=30)
        await on.client.cancel("c")
        await until(lambda: status(talk, "terminated"))
        await on.client.wait_finished("c", timeout=30)
        await instance.reset(to_event=2)
        assert (await on.client.wait_finished("c", timeout=30)).status == "completed"
        assert await talk.status() == "terminated"


async def test_a_reset_does_not_undo_an_end_that_is_under_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last wake of a cancelled instance closes the journal behind a reset, and the instance ends."""
    closing, go, close = anyio.Event(), anyio.Event(), running._close_journal

    async def close_late(*args: Any) -> None:
        closing.set()
        await go.wait()
        await close(*args)

    async def close_in_flight(*args: Any) -> None:
        await asyncio.shield(asyncio.ensure_future(close_late(*args)))

    async with stage(url) as on:
        talk, instance = on.talk(), on.client.handle("c")
        await talk.ask(UserMessage("one"), timeout=30)
        before = len(await on.client.history("c"))
        monkeypatch.setattr(running, "_close_journal", close_in_flight)
        await instance.cancel()
        await closing.wait()
        await instance.reset(to_event=before)

        async def parks() -> bool:
            return len(await on.client.history("c")) == before + 3  # it has looked, and found nothing

        await until(parks)
        go.set()
        assert await until(lambda: status(talk, "terminated"))
        assert (await on.client.wait_finished("c", timeout=60)).status == "completed"


async def test_a_conversation_whose_record_is_deleted_before_its_end_is_read_begins_again(url: str) -> None:
    """The message that ends it waits for a worker, and is not for the next conversation of this id."""
    async with stage(url, workers=0) as on:
        talk = on.talk()
        await talk.send(UserMessage("old"))
        await talk.terminate()
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        seq = await talk.send(UserMessage("new"))
        async with affinity.Worker(on.app, url):
            assert (await talk.reply(seq, timeout=60)).text == "re: new"
