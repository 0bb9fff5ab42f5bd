"""The handle of a conversation, on an SQLite file, and a test that plays the worker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from affinity import Client, ConversationHandle
from affinity.client import changes
from affinity.conversation import (
    AgentMessage,
    ConfirmationAnswer,
    ConversationIdle,
    CustomToolResult,
    FeedItem,
    JournalEntry,
    Retracted,
    SpanCompleted,
    SpanStarted,
    Streamed,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
)
from affinity.conversation.events import EventTypes, JournalEvent, SpanError
from affinity.conversation.journal import JournalWrite, NewEntry, NewRequest, StreamPart, WakeEnd
from affinity.conversation.kinds import ConversationKind, ConversationLimits
from affinity.conversation.store.contract import journals_of
from affinity.errors import (
    ConversationKindMismatch,
    ConversationTerminated,
    EventIdConflict,
    InvalidId,
    InvalidInput,
    RequestNotPending,
    UnknownConversation,
    UnknownEntry,
    WaitTimeout,
    WakeFailed,
)
from affinity.provider.contract import Provider
from tests.client.conftest import Puppet

TYPES = EventTypes()
SUPPORT = ConversationKind(name="support", types=TYPES, limits=ConversationLimits())
SALES = ConversationKind(name="sales", types=TYPES, limits=ConversationLimits())


@pytest.fixture
async def talk(client: Client) -> ConversationHandle:
    return ConversationHandle(client, SUPPORT, "chat-7")


class Agent:
    """Plays the wakes of a conversation."""

    def __init__(self, provider: Provider, puppet: Puppet) -> None:
        self.journals = provider
        self.puppet = puppet
        self.wakes = 0

    async def wake(self, *events: JournalEvent, fails: str = "", requires: Sequence[str] = (), upto: int = 0) -> str:
        """Process all inputs, or inputs up to a number, with these events; or fail for good. Its id."""
        self.wakes += 1
        (work,) = await journals_of(self.journals).get_pending(["chat-7"], limit=100)
        assert work is not None
        read = upto or max([each.seq for each in work.inputs], default=work.processed)
        error = SpanError(type="OSError", message=fails) if fails else None
        ended = SpanCompleted("wake", "support", "error" if fails else "ok")
        idle = ConversationIdle(
            "failed" if fails else "requires_action" if requires else "end_turn", [*requires], error
        )
        wake_id = f"w{self.wakes}"
        write = JournalWrite(
            session_id="chat-7",
            journal_id=work.journal_id,
            base=work.processed,
            processed=work.processed if fails else read,
            wake_id=wake_id,
            entries=[self._entry(each, wake_id) for each in (SpanStarted("wake", "support"), *events, ended, idle)],
            requests=[
                NewRequest(request_id=each.request_id, kind=each.kind, payload=TYPES.encode(each))
                for each in events
                if isinstance(each, ToolConfirmation)
            ],
            clear_stream=True,
            attempt=1,
            end=WakeEnd(
                outcome="failed" if fails else "done",
                reason=idle.stop_reason,
                read=read,
                error=None if error is None else error.model_dump_json(),
            ),
        )
        await self.puppet.write(write)
        await self.journals.notify_changes(["chat-7"])
        return wake_id

    async def count(self) -> int:
        """Of inputs that are not processed."""
        (work,) = await journals_of(self.journals).get_pending(["chat-7"], limit=1000)
        return 0 if work is None else len(work.inputs)

    async def stream(self, wake_id: str, number: int, text: str, *, attempt: int = 1) -> None:
        (work,) = await journals_of(self.journals).get_pending(["chat-7"], limit=1)
        assert work is not None
        part = StreamPart(
            session_id="chat-7",
            journal_id=work.journal_id,
            wake_id=wake_id,
            attempt=attempt,
            number=number,
            payload=f'"{text}"',
        )
        await journals_of(self.journals).write_stream([part])

    def _entry(self, event: JournalEvent, wake_id: str) -> NewEntry:
        return NewEntry(kind=event.kind, payload=TYPES.encode(event), wake_id=wake_id)


@pytest.fixture
def agent(provider: Provider, puppet: Puppet) -> Agent:
    return Agent(provider, puppet)


async def test_the_same_event_id_is_one_event(talk: ConversationHandle) -> None:
    first = await talk.send(UserMessage("a"), event_id="m-1")
    again = await talk.send(UserMessage("a"), event_id="m-1")
    with pytest.raises(EventIdConflict, match="give each event its own id"):
        await talk.send(UserMessage("changed"), event_id="m-1")
    other = await talk.send(UserMessage("b"))
    assert (first, again, other) == (1, 1, 2)
    entries = await talk.history()
    assert [(each.seq, each.event_id) for each in entries] == [(1, "m-1"), (2, entries[1].event_id)]
    assert [each.event for each in entries] == [UserMessage("a"), UserMessage("b")]


async def test_an_ask_gives_what_its_wake_has_written(talk: ConversationHandle, agent: Agent) -> None:
    async with anyio.create_task_group() as tasks:

        async def answer() -> None:
            while not await agent.count():
                await anyio.sleep(0.01)
            await agent.wake(AgentMessage("hello"))

        tasks.start_soon(answer)
        reply = await talk.ask(UserMessage("hi"), event_id="m-1", timeout=30)
    assert (reply.seq, reply.wake_id, reply.text, reply.stop_reason) == (1, "w1", "hello", "end_turn")
    assert reply.events == [AgentMessage("hello")]
    again = await talk.ask(UserMessage("hi"), event_id="m-1", timeout=30)
    assert (again.wake_id, again.text) == ("w1", "hello")
    assert (await talk.reply(1, timeout=30)).text == "hello"


async def test_many_asks_share_few_calls(client: Client, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all waiting askers none polls: with a hint all of them read together."""
    counts = {"append_journal": 0, "read_journal": 0}
    for name in counts:
        verb = getattr(agent.journals, name)

        async def counted(*args: object, name: str = name, verb: Any = verb, **more: object) -> object:
            counts[name] += 1
            return await verb(*args, **more)

        monkeypatch.setattr(agent.journals, name, counted)
    talk = ConversationHandle(client, SUPPORT, "chat-7")
    replies: list[int] = []

    async def ask(number: int) -> None:
        replies.append((await talk.ask(UserMessage(str(number)), event_id=f"m-{number}", timeout=60)).seq)

    async with anyio.create_task_group() as tasks:
        for number in range(300):
            tasks.start_soon(ask, number)
        with anyio.fail_after(30):
            while await agent.count() < 300:
                await anyio.sleep(0.05)
        await agent.wake(AgentMessage("all"), upto=300)
    assert sorted(replies) == list(range(1, 301))
    assert counts["append_journal"] <= 3
    assert counts["read_journal"] <= 12


async def test_readers_of_other_clients_are_notified_of_an_event(
    url: str, talk: ConversationHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although no worker runs; and not only by the look that each client takes once a second."""
    monkeypatch.setattr(changes, "SAFETY_SECONDS", 60.0)
    await talk.send(UserMessage("first"))
    async with Client(url) as other:
        feed = ConversationHandle(other, SUPPORT, "chat-7").events(follow=True)
        with anyio.fail_after(30):
            assert _form(await anext(feed)) == 1
            await talk.send(UserMessage("second"))
            assert _form(await anext(feed)) == 2


async def test_a_wake_that_failed_for_good_is_raised_by_ask(talk: ConversationHandle, agent: Agent) -> None:
    seq = await talk.send(UserMessage("hi"), event_id="m-1")
    await agent.wake(fails="no model")
    with pytest.raises(WakeFailed, match="no model") as caught:
        await talk.ask(UserMessage("hi"), event_id="m-1", timeout=30)
    assert caught.value.error_type == "OSError"
    await agent.journals.notify_changes(["chat-7"])
    await talk.resume()
    await agent.wake(AgentMessage("now"))
    assert (await talk.reply(seq, timeout=30)).text == "now"


async def test_no_reply_in_time(talk: ConversationHandle) -> None:
    with pytest.raises(WaitTimeout, match="chat-7"):
        await talk.ask(UserMessage("hi"), timeout=0.05)
    assert len(await talk.history()) == 1


async def test_a_request_is_answered_once_and_never_late(talk: ConversationHandle, agent: Agent) -> None:
    await talk.send(UserMessage("refund me"))
    request = ToolConfirmation("refund", {"amount": 3}, request_id="r1")
    await agent.wake(request, requires=["r1"])
    reply = await talk.reply(1, timeout=30)
    assert reply.requires_action
    assert reply.requests == [request]
    assert [(each.request_id, each.event) for each in await talk.requests()] == [("r1", request)]
    assert await talk.status() == "requires_action"
    with pytest.raises(RequestNotPending):
        await talk.answer("r1", result=3)  # of the other kind
    with pytest.raises(RequestNotPending):
        await talk.answer("r2", allowed=True)
    with pytest.raises(InvalidInput):
        await talk.answer("r1")
    answered = await talk.answer("r1", allowed=True, event_id="a-1")
    assert await talk.answer("r1", allowed=True, event_id="a-1") == answered
    with pytest.raises(RequestNotPending):
        await talk.answer("r1", allowed=False)
    (entry,) = await talk.history(pending=True)
    assert entry.event == ConfirmationAnswer(request_id="r1", allowed=True)
    assert await talk.requests() == []
    assert await talk.status() == "running"


async def test_an_interrupt_drops_requests(talk: ConversationHandle, agent: Agent) -> None:
    await talk.send(UserMessage("refund me"))
    await agent.wake(ToolConfirmation("refund", request_id="r1"), requires=["r1"])
    seq = await talk.interrupt(reason="never mind", event_id="i-1")
    assert await talk.interrupt(reason="never mind", event_id="i-1") == seq
    assert await talk.requests() == []
    with pytest.raises(RequestNotPending):
        await talk.answer("r1", allowed=True)
    (entry,) = await talk.history(pending=True)
    assert entry.event == UserInterrupt(reason="never mind")


async def test_a_terminated_conversation_refuses_events(talk: ConversationHandle) -> None:
    await talk.send(UserMessage("hi"), event_id="m-1")
    await talk.terminate(reason="done")
    await talk.terminate()
    for send in (
        partial(talk.send, UserMessage("more")),
        partial(talk.interrupt),
        partial(talk.resume),
        partial(talk.ask, UserMessage("hi"), event_id="m-1", timeout=30),
    ):
        with pytest.raises(ConversationTerminated):
            await send()
    assert await talk.send(UserMessage("hi"), event_id="m-1") == 1  # it was sent before
    assert await talk.status() == "terminated"
    assert (await talk.history())[-1].kind == "conversation.status_changed"


async def test_what_is_not_there_or_of_another_kind(client: Client, talk: ConversationHandle) -> None:
    for call in (
        talk.history,
        talk.status,
        talk.interrupt,
        talk.resume,
        talk.terminate,
        partial(talk.answer, "r1", allowed=True),
        partial(talk.reply, 1),
        partial(anext, talk.events(follow=False)),
    ):
        with pytest.raises(UnknownConversation):
            await call()
    assert await talk.requests() == []
    assert await talk.revisits() == []
    assert not await talk.delete()
    await talk.send(UserMessage("hi"))
    with pytest.raises(ConversationKindMismatch):
        await ConversationHandle(client, SALES, "chat-7").send(UserMessage("hi"))
    await client.start("other", instance_id="taken")
    with pytest.raises(ConversationKindMismatch):
        await ConversationHandle(client, SUPPORT, "taken").send(UserMessage("hi"))


async def test_what_may_not_be_sent(talk: ConversationHandle) -> None:
    with pytest.raises(InvalidInput, match="wakes only"):
        await talk.send(AgentMessage("I am the agent"))
    with pytest.raises(InvalidId):
        await talk.send(UserMessage("hi"), event_id="x" * 300)
    with pytest.raises(UnknownConversation):
        await talk.send(CustomToolResult(request_id="r", result=1))


async def test_pages_of_the_history(talk: ConversationHandle, agent: Agent) -> None:
    for number in range(1, 11):
        await talk.send(UserMessage(str(number)), event_id=f"m-{number}")
    wake_id = await agent.wake(AgentMessage("a"), upto=4)  # entries 11 to 14

    def seqs(entries: Sequence[JournalEntry]) -> list[int]:
        return [each.seq for each in entries]

    assert seqs(await talk.history(limit=3)) == [1, 2, 3]
    assert seqs(await talk.history(after=3, limit=3)) == [4, 5, 6]
    assert seqs(await talk.history(before=4)) == [1, 2, 3]
    assert seqs(await talk.history(last=3)) == [12, 13, 14]
    assert seqs(await talk.history(around=5, limit=3)) == [4, 5, 6]
    assert seqs(await talk.history(around="m-5", limit=5)) == [3, 4, 5, 6, 7]
    assert seqs(await talk.history(pending=True)) == [5, 6, 7, 8, 9, 10]
    assert seqs(await talk.history(wake=wake_id)) == [11, 12, 13, 14]
    assert seqs(await talk.history(kinds=[AgentMessage, "conversation.idle"])) == [12, 14]
    for anchor in (99, "m-99"):
        with pytest.raises(UnknownEntry):
            await talk.history(around=anchor)
    for wrong in ({"limit": 0}, {"limit": 10_000}, {"around": 1, "last": 2}):
        with pytest.raises(InvalidInput):
            await talk.history(**wrong)  # type: ignore[arg-type]
    assert [each.kind for each in await talk.trace(wake_id)] == [
        "span.started",
        "agent.message",
        "span.completed",
        "conversation.idle",
    ]
    with pytest.raises(UnknownEntry):
        await talk.trace("w99")


async def test_a_feed_shows_entries_and_streams_in_order_and_goes_on_anywhere(
    talk: ConversationHandle, agent: Agent
) -> None:
    await talk.send(UserMessage("hi"))
    feed = talk.events(follow=True)
    forms: list[object] = []
    positions: list[str] = []

    async def take(count: int) -> None:
        with anyio.fail_after(30):
            for _ in range(count):
                forms.append(_form(await anext(feed)))
                positions.append(feed.position)

    await take(1)
    await agent.stream("w0", 1, "to")
    await take(1)
    await agent.stream("w0", 2, "ken")
    await take(1)
    await agent.stream("w1", 1, "again")  # of another wake: as after a crash
    await take(2)
    await agent.wake(AgentMessage("again"))
    await take(5)
    assert forms == [1, "to", "ken", ("w0", False), "again", ("w1", True), 2, 3, 4, 5]
    for number, position in enumerate(positions):
        later = talk.events(after=position)
        expected = [each for each in forms[number + 1 :] if isinstance(each, int)]
        assert [form for item in [i async for i in later] if isinstance(form := _form(item), int)] == expected
    only = [item async for item in talk.events(kinds=[AgentMessage])]
    assert [_form(item) for item in only] == [3]


async def test_a_feed_ends_with_its_conversation(talk: ConversationHandle, agent: Agent) -> None:
    await talk.send(UserMessage("hi"))
    items: list[object] = []

    async def follow() -> None:
        async with talk.events(follow=True) as feed:
            async for item in feed:
                items.append(_form(item))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await talk.terminate()
        await agent.puppet.end("chat-7")
        await agent.journals.notify_changes(["chat-7"])
        with anyio.fail_after(30):
            while len(items) < 2:
                await anyio.sleep(0.01)
    assert items == [1, 2]


async def test_a_feed_of_a_conversation_that_is_deleted_raises(talk: ConversationHandle) -> None:
    await talk.send(UserMessage("hi"))
    feed = talk.events(follow=True)
    await anext(feed)
    assert await talk.delete()
    with pytest.raises(UnknownConversation), anyio.fail_after(30):
        await anext(feed)
    assert await talk.send(UserMessage("hi")) == 1  # another one begins
    with pytest.raises(UnknownEntry):
        await talk.reply(7, timeout=30)


async def test_a_feed_from_behind_the_end_raises(talk: ConversationHandle) -> None:
    """Another conversation has begun since; a feed from exactly the end goes on."""
    for number in range(3):
        await talk.send(UserMessage(f"{number}"))
    position = talk.events(after=3).position
    at_end = talk.events(after=position, follow=True)
    await talk.send(UserMessage("more"))
    with anyio.fail_after(30):
        assert (await anext(at_end)).seq == 4  # type: ignore[union-attr]
    await at_end.aclose()
    assert [each async for each in talk.events(after=4)] == []
    assert await talk.delete()
    await talk.send(UserMessage("again"))
    for follow in (False, True):
        with pytest.raises(UnknownEntry, match="ends with entry 1, before position 3"), anyio.fail_after(30):
            await anext(talk.events(after=position, follow=follow))


async def test_listings(client: Client, talk: ConversationHandle) -> None:
    await talk.send(UserMessage("hi"))
    for number in range(5):
        await ConversationHandle(client, SALES, f"deal-{number}").send(UserMessage("hi"))
    assert [each.conversation_id async for each in client.list_conversations(kind="support")] == ["chat-7"]
    page = await client.list_conversations(kind="sales").page(limit=3)
    rest = await client.list_conversations(kind="sales").page(page.next, limit=3)
    assert [each.conversation_id for each in (*page.items, *rest.items)] == [f"deal-{n}" for n in (4, 3, 2, 1, 0)]
    assert rest.next is None
    assert [each.conversation_id async for each in client.list_conversations(prefix="deal-1")] == ["deal-1"]
    assert [each async for each in client.list_conversations(with_requests=True)] == []


def _form(item: FeedItem) -> object:
    if isinstance(item, JournalEntry):
        return item.seq
    if isinstance(item, Streamed):
        return item.text
    assert isinstance(item, Retracted)
    return item.wake_id, item.replaced


async def test_old_entries_are_removed(client: Client, agent: Agent, talk: ConversationHandle) -> None:
    """In one call, with the number so far after each step; bounds that cannot be meant are refused."""
    for number in range(3):
        await talk.send(UserMessage(f"{number}"))
        await agent.wake(AgentMessage("hello"))
    steps: list[int] = []
    assert await client.prune_conversations(max_entries=5, dry_run=True) == 10
    assert await client.prune_conversations(older_than=60.0, max_bytes=10**9, progress=steps.append) == 0
    assert await client.prune_conversations(max_entries=5, progress=steps.append) == 10
    assert steps == [0, 10]
    assert [each.seq for each in await talk.history()] == [11, 12, 13, 14, 15]
    for bounds in ({}, {"max_entries": -1}, {"max_bytes": True}, {"older_than": -1.0}):
        with pytest.raises(InvalidInput):
            await client.prune_conversations(**bounds)
