"""Children: conversations that a wake gives work to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import anyio
import pytest
from pydantic import JsonValue

import affinity
from affinity import RetryPolicy
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    ConfirmationAnswer,
    ConversationIdle,
    JournalEvent,
    PendingRequest,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
    attempt,
    writing,
)
from affinity.conversation.journal import JournalWrite
from affinity.conversation.writing import WakeWriting
from affinity.errors import (
    AffinityError,
    ConversationKindMismatch,
    ConversationTerminated,
    NotAParent,
    NotSerializable,
    PayloadTooLarge,
    UnknownConversation,
    UnknownEntry,
)
from affinity.limits import MAX_EVENT_BYTES
from tests.conversation.application import Chat, Handler, Stage, kinds, make, stage, status, until

pytestmark = pytest.mark.anyio


class Brief(JournalEvent):
    topic: str
    kind: Literal["user.brief"] = "user.brief"


def research(handler: Handler, **options: object) -> affinity.Conversations[Chat]:
    return make(handler, kind="research", events=[Brief], **options)


def parent_of(child: affinity.Conversations[Chat], **options: Any) -> Handler:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, f"{wake.conversation_id}/{event.text}", Brief(event.text), **options)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.child} {event.outcome} {event.result} {event.cycles}"))

    return handler


@pytest.mark.parametrize("commits_in", ["_check_child", "_inherited"])
async def test_a_commit_while_work_is_given_takes_no_half_of_it(
    url: str, commits_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a tool that ends while another one delegates."""
    read = getattr(affinity.Wake, commits_in)

    async def commit_too(wake: affinity.Wake, *args: Any) -> Any:
        found = await read(wake, *args)
        wake.append(AgentMessage("so far"))
        await wake.commit()
        return found

    monkeypatch.setattr(affinity.Wake, commits_in, commit_too)
    child = research(answers)
    async with stage(url, parent_of(child), child) as on:
        await on.talk().send(UserMessage("tea"))

        async def has_ended() -> bool:
            return bool(await on.talk().history(kinds=[ChildEnded]))

        await until(has_ended)


async def answers(wake: affinity.Wake, chat: Chat) -> None:
    for event in wake.events:
        if isinstance(event, Brief):
            chat.received.append(event.topic)
            wake.append(AgentMessage(f"about {event.topic}"))


async def said(talk: affinity.ConversationHandle) -> list[JsonValue]:
    events = [each.event for each in await talk.history(kinds=["agent.message"])]
    return [event.text for event in events if isinstance(event, AgentMessage)]


async def test_a_child_has_its_own_journal_and_state_and_its_end_is_an_event_of_the_parent(url: str) -> None:
    child = research(answers)
    async with stage(url, parent_of(child), child) as on:
        talk = on.talk("chat-7")
        reply = await talk.ask(UserMessage("tea"), timeout=30)
        assert "child.delegated" in kinds(reply.entries)
        assert await until(lambda: said(talk)) == ["chat-7/tea completed about tea 1"]
        below = on.talk("chat-7/tea", child)
        assert [each.event for each in await below.history(kinds=["user.brief"])] == [Brief("tea")]
        (info,) = [each async for each in on.client.list_conversations(parent="chat-7")]
        assert (info.conversation_id, info.kind, info.parent) == ("chat-7/tea", "research", "chat-7")
        async with child.open("chat-7/tea", store=on.client.session_store) as chat:
            assert chat.received == ["tea"]
        assert (await on.state("chat-7")).received == []
        assert (await on.client.session_manager.show("chat-7/tea")).metadata.parent == "chat-7"


async def test_a_child_is_addressed_by_its_direct_parent_only(url: str) -> None:
    child = research(answers)
    outcomes: dict[str, type[AffinityError]] = {}

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                try:
                    await wake.delegate(child, event.text, Brief("x"))
                except AffinityError as error:
                    outcomes[f"{wake.conversation_id} {event.text}"] = type(error)

    async with stage(url, handler, child) as on:
        await on.talk("a").ask(UserMessage("a/child"), timeout=30)
        await until(lambda: status(on.talk("a/child", child), "idle"))
        await on.talk("stranger", child).ask(Brief("x"), timeout=30)
        await on.talk("b").ask(UserMessage("a/child"), timeout=30)
        await on.talk("b").ask(UserMessage("stranger"), timeout=30)
        await on.talk("b").ask(UserMessage("a"), timeout=30)
        await on.talk("b").ask(UserMessage("b"), timeout=30)
        await on.talk("a").ask(UserMessage("a/other"), timeout=30)
        await on.talk("a/child", child).terminate()
        await on.client.cancel("a/other")
        await until(lambda: status(on.talk("a/other", child), "terminated"))
        for name in ("child", "other"):
            await on.talk("a").ask(UserMessage(f"a/{name}"), timeout=30)
        assert outcomes == {
            "b a/child": NotAParent,
            "b stranger": NotAParent,
            "b a": ConversationKindMismatch,
            "b b": NotAParent,
            "a a/child": ConversationTerminated,
            "a a/other": ConversationTerminated,
        }


@pytest.mark.parametrize("how", ["terminate", "cancel", "taken"])
async def test_a_delegation_that_the_commit_refuses_comes_back(url: str, how: str) -> None:
    """The child could take the work when the wake looked, and cannot when it commits."""
    child, other = research(answers), make(kind="other")
    ended: list[ChildEnded] = []

    async def end() -> None:
        if how == "terminate":
            await on.talk("c/tea", child).terminate()
        elif how == "cancel":
            await on.client.cancel("c/tea")
            await until(lambda: status(on.talk("c/tea", child), "terminated"))
        else:
            await on.talk("c/tea", other).send(UserMessage("first"))

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                wake.append(AgentMessage(await wake.delegate(child, "c/tea", Brief("tea"))))
                if event.text == "second":
                    await end()
            elif isinstance(event, ChildEnded):
                ended.append(event)

    async def has_ended() -> bool:
        return bool(ended)

    async with stage(url, handler, child, other) as on:
        talk = on.talk()
        if how != "taken":
            await talk.ask(UserMessage("first"), timeout=30)
            await until(has_ended)
            ended.clear()
        delegation = (await talk.ask(UserMessage("second"), timeout=30)).text
        await until(has_ended)
        assert [(each.child, each.delegation, each.outcome) for each in ended] == [("c/tea", delegation, "failed")]
        assert ended[0].error is not None
        outcome = "other_kind" if how == "taken" else "closed"
        assert (ended[0].error.type, ended[0].error.message) == ("DelegationRefused", outcome)
        assert await until(lambda: status(talk, "idle"))
        assert len([each for each in await talk.history(kinds=["child.ended"]) if each.event == ended[0]]) == 1


async def test_a_child_gives_a_result(sqlite_url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.append(AgentMessage("aside"))
        wake.revisit(60)
        wake.finish({"answer": 42})

    child = research(handler)
    async with stage(sqlite_url, parent_of(child), child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        assert await until(lambda: said(talk)) == ["c/tea completed {'answer': 42} 1"]


@pytest.mark.parametrize(
    ("result", "expected"), [(("a", 1), "['a', 1]"), (math.nan, None), ([[]] * 500_000, None), ("x", "x")]
)
async def test_a_result_is_checked_where_it_is_given(sqlite_url: str, result: Any, expected: str | None) -> None:
    """One that the end of the delegation cannot have is an error of `finish`; the wake goes on."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if expected is None:
            with pytest.raises((PayloadTooLarge, NotSerializable)):
                wake.finish(result)
            wake.finish()
        else:
            wake.finish(result)

    child = research(handler, retry=RetryPolicy(max_attempts=1))
    async with stage(sqlite_url, parent_of(child), child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        assert await until(lambda: said(talk)) == [f"c/tea completed {expected} 1"]


async def test_a_result_of_many_levels_is_checked_where_it_is_given(sqlite_url: str) -> None:
    refused: list[str] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        deep: JsonValue = 1
        for _ in range(180):
            deep = [deep]
        with pytest.raises(PayloadTooLarge, match="nested") as caught:
            wake.finish(deep)
        refused.append(str(caught.value))

    async with stage(sqlite_url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert refused


async def test_a_message_of_any_size_ends_a_delegation(url: str) -> None:
    """The end has the message, and a little more."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.append(AgentMessage("x" * (MAX_EVENT_BYTES - 120)))

    child = research(handler, retry=RetryPolicy(max_attempts=1))

    async def brief(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "c/x", Brief("x"))
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.outcome} {len(str(event.result))}"))

    async with stage(url, brief, child) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert await until(lambda: said(on.talk())) == [f"completed {MAX_EVENT_BYTES - 120}"]


async def test_the_ends_of_many_delegations_have_a_bounded_size(url: str) -> None:
    """One transaction writes all of them."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.finish("x" * 1_000_000)

    child = research(handler, retry=RetryPolicy(max_attempts=1))
    ends: list[ChildEnded] = []

    async def brief(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                for _ in range(20):
                    await wake.delegate(child, "c/x", Brief("x"))
            elif isinstance(event, ChildEnded):
                ends.append(event)

    async def has_all() -> bool:
        return len(ends) == 20

    async with stage(url, brief, child) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        await until(has_all)
    assert len({each.delegation for each in ends}) == 20
    assert sum(len(str(each.result)) for each in ends if each.outcome == "completed") == 8_000_000
    refused = [each for each in ends if each.outcome == "failed"]
    assert [(each.result, each.error and each.error.type) for each in refused] == [(None, "PayloadTooLarge")] * 12


async def test_cycles_that_are_used_up_are_said_to_be_the_end(sqlite_url: str) -> None:
    """The revisits of the child are dropped: it does not wait for one."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.revisit(60)

    child = research(handler)
    async with stage(sqlite_url, parent_of(child, max_cycles=1), child) as on:
        await on.talk().ask(UserMessage("tea"), timeout=30)
        assert await until(lambda: said(on.talk())) == ["c/tea max_cycles None 1"]
        below = on.talk("c/tea", child)
        (idle,) = await below.history(kinds=["conversation.idle"])
        assert idle.event == ConversationIdle("end_turn")
        assert await below.revisits() == []


async def test_a_delegation_has_bounded_cycles(url: str) -> None:
    async def endless(wake: affinity.Wake, chat: Chat) -> None:
        chat.wakes += 1
        wake.append(AgentMessage(f"wake {chat.wakes}"))
        wake.revisit(0.01)

    child = research(endless)
    async with stage(url, parent_of(child, max_cycles=3), child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        assert await until(lambda: said(talk)) == ["c/tea max_cycles wake 3 3"]
        below = on.talk("c/tea", child)
        assert await below.revisits() == []
        assert await until(lambda: status(below, "idle"))
        assert len(await said(below)) == 3
        await talk.ask(UserMessage("tea"), timeout=30)  # goes on, for three more

        async def both() -> bool:
            return len(await said(talk)) == 2

        assert await until(both)
        assert len(await said(below)) == 6


async def test_a_request_of_a_child_without_cycles_expires(url: str) -> None:
    """Its refusal is an input, as an answer is."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, Brief):
                wake.require(ToolConfirmation("tool"), expires_in=2)
            elif isinstance(event, ConfirmationAnswer):
                wake.append(AgentMessage(f"expired {event.expired}"))

    child = research(handler)
    async with stage(url, parent_of(child, max_cycles=2), child) as on:
        talk = on.talk("c/tea", child)
        await on.talk().ask(UserMessage("tea"), timeout=30)
        await until(lambda: talk.history(kinds=["agent.tool_confirmation"]))
        await talk.send(UserMessage("more"))
        assert await until(lambda: said(on.talk())) == ["c/tea max_cycles None 2"]
        assert await until(lambda: said(talk)) == ["expired True"]


async def test_the_failure_of_a_child_is_an_event_of_the_parent(url: str) -> None:
    async def broken(wake: affinity.Wake, chat: Chat) -> None:
        raise ValueError("broken")

    child = research(broken, retry=RetryPolicy(max_attempts=2, initial_interval=0.01))
    async with stage(url, parent_of(child), child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        assert await until(lambda: said(talk)) == ["c/tea failed None 0"]
        (ended,) = [each.event for each in await talk.history(kinds=["child.ended"])]
        assert isinstance(ended, ChildEnded)
        assert ended.error is not None
        assert (ended.error.type, ended.error.message) == ("ValueError", "broken")


async def test_a_child_that_waits_for_an_answer_has_not_ended(sqlite_url: str) -> None:
    async def asks(wake: affinity.Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], Brief):
            wake.require(ToolConfirmation("search"))
        else:
            wake.append(AgentMessage("searched"))

    child = research(asks)
    async with stage(sqlite_url, parent_of(child), child) as on:
        talk, below = on.talk(), on.talk("c/tea", child)
        await talk.ask(UserMessage("tea"), timeout=30)
        (request,) = await until(lambda: _requests(below))
        assert await said(talk) == []
        await below.answer(request.request_id, allowed=True)
        assert await until(lambda: said(talk)) == ["c/tea completed searched 2"]


class Leaf:
    """Conversations whose wakes wait until they are let go, and then finish with their topic."""

    def __init__(self) -> None:
        self.go: dict[str, anyio.Event] = {}
        self.conversations = make(self._work, kind="leaf", events=[Brief])

    def event(self, topic: str) -> anyio.Event:
        """Set: the wake with this topic may end."""
        return self.go.setdefault(topic, anyio.Event())

    async def _work(self, wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, Brief):
                await self.event(event.topic).wait()
                wake.finish(event.topic)


def middle_of(leaf: affinity.Conversations[Chat], topics: Sequence[str]) -> affinity.Conversations[Chat]:
    """Conversations that give their work to one leaf for each topic, and say what these have given."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, Brief):
                for topic in topics:
                    await wake.delegate(leaf, f"{wake.conversation_id}/{topic}", Brief(topic))
            elif isinstance(event, ChildEnded):
                chat.received.append(f"{event.outcome} {event.result}")
        wake.append(AgentMessage(", ".join(chat.received)))

    return make(handler, kind="middle", events=[Brief])


async def waits_for(middle: affinity.ConversationHandle, number: int) -> None:
    """Wait until the conversation has had the ends of so many of its delegations."""

    async def has_ended() -> bool:
        replies = [each.seq for each in await middle.history(kinds=["conversation.idle"])]
        ends = [each.seq for each in await middle.history(kinds=["child.ended"])]
        return len(ends) == number and replies[-1] > ends[-1]

    await until(has_ended)


async def test_a_child_that_has_delegated_has_not_ended(url: str) -> None:
    """It ends with the last of its own delegations, however these end."""
    leaf = Leaf()
    middle = middle_of(leaf.conversations, ["one", "two", "three"])
    async with stage(url, parent_of(middle), middle, leaf.conversations) as on:
        talk, below = on.talk(), on.talk("c/tea", middle)
        await talk.ask(UserMessage("tea"), timeout=30)
        leaf.event("two").set()
        await waits_for(below, 1)
        await until(partial(status, on.talk("c/tea/one", leaf.conversations), "running"))
        await on.talk("c/tea/one", leaf.conversations).terminate()
        await waits_for(below, 2)
        assert await said(talk) == []
        leaf.event("three").set()
        assert await until(lambda: said(talk)) == [
            "c/tea completed completed two, terminated None, completed three 4",
        ]


async def test_the_result_of_a_child_of_a_child_of_a_child_reaches_the_top(url: str) -> None:
    """Also when one on the way is interrupted meanwhile, which drops no delegation."""
    leaf = Leaf()
    inner = middle_of(leaf.conversations, ["leaf"])

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, Brief):
                await wake.delegate(inner, "c/tea/inner", event)
            elif isinstance(event, ChildEnded):
                wake.finish(event.result)

    outer = make(handler, kind="outer", events=[Brief])
    async with stage(url, parent_of(outer), outer, inner, leaf.conversations) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        for name, each in (("c/tea/inner", inner), ("c/tea", outer)):
            below = on.talk(name, each)
            await until(partial(_has_delegated, below))
            for _ in range(2):
                await below.reply(await below.interrupt(cancel_running=True), timeout=30)
        await talk.ask(UserInterrupt("go on"), timeout=30)
        assert await said(talk) == []
        leaf.event("leaf").set()
        (text,) = await until(lambda: said(talk))
        assert str(text).startswith("c/tea completed completed leaf")


async def _has_delegated(talk: affinity.ConversationHandle) -> bool:
    try:
        return bool(await talk.history(kinds=["child.delegated"]))
    except UnknownConversation:
        return False


async def test_a_child_that_finishes_has_ended_though_it_has_delegated(url: str) -> None:
    leaf = Leaf()

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, Brief):
                await wake.delegate(leaf.conversations, "c/tea/leaf", Brief("leaf"))
                wake.finish("enough")

    middle = make(handler, kind="middle", events=[Brief])
    async with stage(url, parent_of(middle), middle, leaf.conversations) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        assert await until(lambda: said(talk)) == ["c/tea completed enough 1"]
        leaf.event("leaf").set()
        await waits_for(on.talk("c/tea", middle), 1)
        assert len(await said(talk)) == 1


async def _requests(talk: affinity.ConversationHandle) -> list[PendingRequest[Any]]:
    try:
        return [*await talk.requests()]
    except UnknownConversation:
        return []


@pytest.mark.parametrize("cascade", [True, False])
async def test_an_interrupt_cascades_by_choice(url: str, cascade: bool) -> None:
    async def waits(wake: affinity.Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], Brief):
            wake.require(ToolConfirmation("search"))
        chat.received += kinds(wake.pending)

    child = research(waits)
    async with stage(url, parent_of(child), child) as on:
        talk, below = on.talk(), on.talk("c/tea", child)
        await talk.ask(UserMessage("tea"), timeout=30)
        await until(lambda: _requests(below))
        seq = await talk.send(UserInterrupt("stop", cascade=cascade))
        await talk.reply(seq, timeout=30)
        if cascade:
            assert await until(lambda: status(below, "idle"))
            (passed,) = await below.history(kinds=["user.interrupt"])
            assert passed.event == UserInterrupt("stop", cascade=True)
        else:
            assert await below.status() == "requires_action"


@pytest.mark.parametrize("cascade", [True, False])
async def test_termination_cascades_by_choice(url: str, cascade: bool) -> None:
    child = research(answers)
    async with stage(url, parent_of(child), child) as on:
        talk, below = on.talk(), on.talk("c/tea", child)
        await talk.ask(UserMessage("tea"), timeout=30)
        await until(lambda: said(talk))
        await talk.terminate(cascade=cascade)

        async def ended() -> bool:
            return (await on.client.status("c")).finished

        assert await until(ended)
        assert (await below.status() == "terminated") is cascade


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two children in a step; the number of appends of each write of the parent that has any."""
    found: list[int] = []
    prepare = WakeWriting.prepare

    async def counted(self: WakeWriting) -> JournalWrite:
        write = await prepare(self)
        if write.appends and self.session_id == "c":
            found.append(len(write.appends))
        return write

    monkeypatch.setattr(attempt, "MAX_STEP_CHILDREN", 2)
    monkeypatch.setattr(WakeWriting, "prepare", counted)
    return found


async def many(wake: affinity.Wake, chat: Chat) -> None:
    """Five children, each with a task that does not end."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            for number in range(5):
                await wake.delegate(patient, f"c/{number}", Brief("tea"))
        elif isinstance(event, UserInterrupt):
            wake.append(AgentMessage("interrupted"))


async def waits(wake: affinity.Wake, chat: Chat) -> None:
    if isinstance(wake.events[0], Brief):
        wake.require(ToolConfirmation("search"))


patient = research(waits)


async def five(on: Stage) -> list[affinity.ConversationHandle]:
    """The children of `many`, who wait for an answer."""
    await on.talk().ask(UserMessage("tea"), timeout=30)
    below = [on.talk(f"c/{number}", patient) for number in range(5)]
    for child in below:
        await until(partial(status, child, "requires_action"))
    return below


@pytest.mark.parametrize("size", [10, 100_000])
async def test_many_children_are_interrupted_in_steps(
    url: str, transactions: list[int], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Each transaction has a bounded number of them, and of bytes; each child is interrupted once."""
    monkeypatch.setattr(attempt, "MAX_BATCH_BYTES", 300_000)
    async with stage(url, many, patient) as on:
        below = await five(on)
        transactions.clear()
        seq = await on.talk().interrupt(reason="x" * size, cascade=True)
        assert (await on.talk().reply(seq, timeout=30)).text == "interrupted"
        for child in below:
            await until(partial(status, child, "idle"))
            (passed,) = await child.history(kinds=["user.interrupt"])
            assert passed.event == UserInterrupt("x" * size, cascade=True)
        assert transactions == ([2, 2, 1] if size == 10 else [1, 1, 1, 1, 1])


async def test_an_interrupt_between_the_steps_of_another_reaches_all_children(
    url: str, transactions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, sent = WakeWriting.prepare, anyio.Event()

    async def interrupted(self: WakeWriting) -> JournalWrite:
        write = await prepare(self)
        if self.session_id == "c" and not sent.is_set() and any(each.drops for each in write.appends):
            sent.set()
            await on.talk().interrupt(reason="second", cascade=True)
        return write

    async with stage(url, many, patient) as on:
        below = await five(on)
        monkeypatch.setattr(WakeWriting, "prepare", interrupted)
        seq = await on.talk().interrupt(reason="first", cascade=True)
        await on.talk().reply(seq, timeout=30)
        for child in below:
            passed = await until(partial(child.history, kinds=["user.interrupt"], last=1))
            assert passed[0].event == UserInterrupt("second", cascade=True)
        assert [len(await child.history(kinds=["user.interrupt"])) for child in below] == [1, 1, 1, 2, 2]


async def test_many_children_are_terminated_in_steps(url: str, transactions: list[int]) -> None:
    """Also when an operator has ended one of them already."""
    async with stage(url, many, patient) as on:
        below = await five(on)
        await on.client.cancel("c/3")
        await until(lambda: status(below[3], "terminated"))
        transactions.clear()
        await on.talk().terminate(cascade=True)
        for child in below:
            assert await until(partial(status, child, "terminated"))

        async def ended() -> bool:
            return (await on.client.status("c")).finished

        assert await until(ended)
        assert transactions == [2, 2]
        assert [len(await child.history(kinds=["conversation.status_changed"])) for child in below] == [1] * 5


async def test_the_work_of_children_counts_for_the_size_of_a_wake(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[type[Exception]] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                for number in range(2):
                    try:
                        await wake.delegate(child, f"c/{number}", Brief("x" * 600_000))
                    except PayloadTooLarge as error:
                        outcomes.append(type(error))

    child = research(answers)
    monkeypatch.setattr(writing, "MAX_BATCH_BYTES", 2_000_000)
    async with stage(sqlite_url, handler, child) as on:
        reply = await on.talk().ask(UserMessage("tea"), timeout=30)
        assert outcomes == [PayloadTooLarge]
        assert kinds(reply.entries).count("child.delegated") == 1


async def test_the_termination_of_a_child_is_an_event_of_the_parent(url: str) -> None:
    async def waits(wake: affinity.Wake, chat: Chat) -> None:
        wake.require(ToolConfirmation("search"))

    child = research(waits)
    async with stage(url, parent_of(child), child) as on:
        talk, below = on.talk(), on.talk("c/tea", child)
        await talk.ask(UserMessage("tea"), timeout=30)
        await until(lambda: _requests(below))
        await below.terminate()
        assert await until(lambda: said(talk)) == ["c/tea terminated None 1"]


async def test_tools_read_conversations_of_the_same_kind_or_of_named_kinds(sqlite_url: str) -> None:
    outcomes: dict[str, object] = {}

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage) and event.text.startswith("read "):
                name = event.text.removeprefix("read ")
                try:
                    entries = await wake.read(name, kinds=["user.message", "user.brief"])
                    outcomes[name] = [each.seq for each in entries]
                except AffinityError as error:
                    outcomes[name] = type(error)

    named, other = make(kind="named"), make(kind="other")
    async with stage(sqlite_url, handler, named, other, readable=["named"]) as on:
        await on.talk("same").ask(UserMessage("hello"), timeout=30)
        await on.talk("n", named).ask(UserMessage("hello"), timeout=30)
        await on.talk("o", other).ask(UserMessage("hello"), timeout=30)
        for name in ("same", "n", "o", "unknown"):
            await on.talk("reader").ask(UserMessage(f"read {name}"), timeout=30)
        assert outcomes == {
            "same": [1],
            "n": [1],
            "o": ConversationKindMismatch,
            "unknown": UnknownConversation,
        }


async def test_history_is_read_around_an_anchor_and_an_unknown_one_is_an_error(sqlite_url: str) -> None:
    found: dict[str, list[int]] = {}
    errors: list[type[Exception]] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.pending[0].seq < 15:
            return
        found["around"] = [each.seq for each in await wake.history(around=6, limit=5)]
        found["after"] = [each.seq for each in await wake.history(after="m-2", limit=2)]
        found["before"] = [each.seq for each in await wake.history(before=6, limit=2)]
        found["last"] = [each.seq for each in await wake.history(last=1)]
        found["kinds"] = [each.seq for each in await wake.history(kinds=["user.message"])]
        found["wake"] = [each.seq for each in await wake.history(wake=(await wake.history(after=1))[0].wake_id)]
        for anchor in (999, "unknown"):
            try:
                await wake.history(around=anchor)
            except UnknownEntry as error:
                errors.append(type(error))

    async with stage(sqlite_url, handler) as on:
        talk = on.talk()
        for number in range(1, 6):
            await talk.ask(UserMessage("x"), event_id=f"m-{number}", timeout=30)
        # each exchange has an input and three entries of its wake: 1, 5, 9, 13, 17
        assert found == {
            "around": [4, 5, 6, 7, 8],
            "after": [6, 7],
            "before": [4, 5],
            "last": [17],
            "kinds": [1, 5, 9, 13, 17],
            "wake": [2, 3, 4],
        }
        assert errors == [UnknownEntry, UnknownEntry]


async def test_a_deletion_that_a_delegation_overtakes_notifies_the_parent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no child when the deletion begins; the parent makes it, and waits for its end."""

    async def requires(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, Brief):
                wake.require(affinity.conversation.ToolConfirmation(tool="ask", arguments={}))

    child = research(requires)
    async with stage(url, parent_of(child), child) as on:
        talk, below = on.talk("c"), on.talk("c/tea", child)
        delete = on.client.delete

        async def late(instance_id: str, **options: bool) -> None:
            monkeypatch.undo()
            await talk.ask(UserMessage("tea"), timeout=30)
            await until(partial(status, below, "requires_action"))
            await delete(instance_id, **options)

        monkeypatch.setattr(on.client, "delete", late)
        assert await below.delete()
        assert await until(lambda: said(talk)) == ["c/tea terminated None 1"]


async def test_a_copy_of_a_child_ends_a_delegation_when_its_own_have_ended(url: str) -> None:
    """An import has no parent. Inputs that wait in it may be of one, which is notified as by the child."""
    go = anyio.Event()

    async def answer_late(wake: affinity.Wake, chat: Chat) -> None:
        await go.wait()
        await answers(wake, chat)

    below = make(answer_late, kind="below", events=[Brief])

    async def pass_on(wake: affinity.Wake, chat: Chat) -> None:
        if wake.conversation_id == "c/tea":
            await anyio.sleep_forever()
        for event in wake.events:
            if isinstance(event, Brief):
                await wake.delegate(below, f"{wake.conversation_id}/below", event)

    child = research(pass_on)
    async with stage(url, parent_of(child), child, below) as on:
        talk, copy = on.talk("c"), on.talk("copy", child)
        await talk.ask(UserMessage("tea"), timeout=30)
        await copy.import_([line async for line in on.talk("c/tea", child).export()])
        await until(lambda: copy.history(kinds=["conversation.idle"]))
        assert await said(talk) == []
        go.set()
        assert await until(lambda: said(talk)) == ["copy completed None 2"]
