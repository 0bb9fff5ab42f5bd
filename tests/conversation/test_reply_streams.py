"""What belongs to one input, as it comes: `ConversationHandle.stream_reply`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import cycle
from typing import Any

import anyio
import pytest

import affinity
from affinity import ConversationHandle, RetryPolicy, Wake
from affinity.conversation import (
    AgentMessage,
    Heartbeat,
    JournalEntry,
    Reply,
    ReplyItem,
    ReplyStream,
    Retracted,
    Streamed,
    UserInterrupt,
    UserMessage,
)
from affinity.errors import ConversationTerminated, InvalidInput, UnknownEntry, WakeFailed, WakeMisuse
from tests.conversation.application import Chat, stage

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


class Speaker:
    """A handler that says "<text" of the messages of a wake, waits until they may end, says ">", and answers them."""

    def __init__(self) -> None:
        self.begun: dict[str, anyio.Event] = defaultdict(anyio.Event)
        self.may_end: dict[str, anyio.Event] = defaultdict(anyio.Event)

    async def speak(self, wake: Wake, chat: Chat) -> None:
        texts = [event.text for event in wake.events if isinstance(event, UserMessage)]
        for text in texts:
            wake.stream(f"<{text}")
            self.begun[text].set()
            await self.may_end[text].wait()
            wake.stream(">")
            wake.append(AgentMessage(f"re: {text}", {"tokens": len(text)}))


async def take(stream: ReplyStream, found: list[ReplyItem], until: Callable[[ReplyItem], bool] | None = None) -> None:
    """Take the items, as far as the first that is wanted."""
    async for item in stream:
        found.append(item)
        if until is not None and until(item):
            return


def streamed(items: list[ReplyItem]) -> str:
    return "".join(item.text for item in items if isinstance(item, Streamed))


def is_streamed(item: ReplyItem) -> bool:
    return isinstance(item, Streamed)


def form(item: ReplyItem) -> Any:
    """What is the same however a stream is read."""
    return (item.seq, item.text) if isinstance(item, Reply) else item


async def first_part(talk: ConversationHandle, after: int) -> None:
    """Until a feed has seen one."""
    async with talk.events(after=after, follow=True) as feed:
        async for item in feed:
            if isinstance(item, Streamed):
                return


async def test_parts_and_entries_come_and_then_the_reply(url: str) -> None:
    speaker, found = Speaker(), list[ReplyItem]()
    async with stage(url, speaker.speak) as on:
        with anyio.fail_after(PATIENCE):
            async for item in on.talk().stream_reply(UserMessage("one"), event_id="m-1"):
                found.append(item)
                if isinstance(item, Streamed):
                    speaker.may_end["one"].set()
        reply = found[-1]
        assert isinstance(reply, Reply)
        assert (reply.text, reply.usage, reply.stop_reason) == ("re: one", {"tokens": 3}, "end_turn")
        assert found[0].kind == "stream.part"
        assert found.index(next(each for each in found if isinstance(each, Retracted))) < found.index(
            next(each for each in found if isinstance(each, JournalEntry))
        )
        assert [item for item in found if isinstance(item, JournalEntry)] == list(reply.entries)
        assert [item.kind for item in found if isinstance(item, Retracted | Reply)] == ["stream.retracted", "reply"]
        assert '"text":"re: one"' in reply.to_json()
        again = [item async for item in on.talk().stream_reply(UserMessage("one"), event_id="m-1")]
        assert [form(item) for item in again] == [*reply.entries, form(reply)]


@pytest.mark.usefixtures("maybe_traced")
async def test_nothing_of_other_wakes_comes(url: str) -> None:
    """Neither of the wake that runs when the event is sent, nor of inputs that others send, before and behind it."""
    speaker, found = Speaker(), list[ReplyItem]()
    async with stage(url, speaker.speak) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("one"))
        await speaker.begun["one"].wait()
        stream = talk.stream_reply(UserMessage("two"), event_id="m-2")
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(take, stream, found)
                await first_part(talk, seq)  # of the other wake, while the event is there
                while not await talk.history(pending=True, after=seq):
                    await anyio.sleep(0.01)
                speaker.may_end["one"].set()
                await speaker.begun["two"].wait()
                await talk.send(UserMessage("three"))
                speaker.may_end["three"].set()
                while not streamed(found):
                    await anyio.sleep(0.01)
                speaker.may_end["two"].set()
        reply = found[-1]
        assert isinstance(reply, Reply)
        assert reply.text == "re: two"
        assert streamed(found).startswith("<two")
        assert {item.wake_id for item in found if not isinstance(item, Heartbeat)} == {reply.wake_id}


@pytest.mark.usefixtures("maybe_traced")
async def test_what_a_running_wake_has_committed_comes_to_its_inputs_only(url: str) -> None:
    """Before the wake ends, although it streams nothing; also from a position behind some of it."""
    committed: dict[str, anyio.Event] = defaultdict(anyio.Event)
    may_go_on: dict[str, anyio.Event] = defaultdict(anyio.Event)

    async def handler(wake: Wake, chat: Chat) -> None:
        (text,) = [event.text for event in wake.events if isinstance(event, UserMessage)]
        for part in ("first", "second"):
            wake.append(AgentMessage(f"{part} of {text}"))
            await wake.commit()
            committed[f"{part} of {text}"].set()
            await may_go_on[f"{part} of {text}"].wait()

    def shown(items: list[ReplyItem]) -> list[str]:
        events = [item.event for item in items if isinstance(item, JournalEntry)]
        return [event.text for event in events if isinstance(event, AgentMessage)]

    async with stage(url, handler) as on:
        talk, first, second, rest = on.talk(), list[ReplyItem](), list[ReplyItem](), list[ReplyItem]()
        stream = talk.stream_reply(UserMessage("one"), event_id="m-1")
        with anyio.fail_after(PATIENCE):
            await take(stream, first, lambda _: shown(first) == ["first of one"])
            await talk.send(UserMessage("two"), event_id="m-2")
            async with anyio.create_task_group() as group:
                group.start_soon(take, talk.stream_reply(event_id="m-2"), second)
                group.start_soon(take, talk.stream_reply(event_id="m-1", after=stream.position), rest)
                may_go_on["first of one"].set()
                await take(stream, first, lambda _: shown(first)[1:] == ["second of one"])
                for text in ("second of one", "first of two", "second of two"):
                    await committed[text].wait()
                    may_go_on[text].set()
                await take(stream, first)
        assert shown(first) == ["first of one", "second of one"]
        assert shown(rest) == ["second of one"]
        assert shown(second) == ["first of two", "second of two"]
        assert [each[-1].kind for each in (first, rest, second)] == ["reply"] * 3


async def test_a_wait_may_be_cancelled_and_begun_again(url: str) -> None:
    speaker, found = Speaker(), list[ReplyItem]()
    async with stage(url, speaker.speak) as on:
        stream = on.talk().stream_reply(UserMessage("one"))
        with anyio.fail_after(PATIENCE):
            for seconds in cycle((0, 0.001, 0.003, 0.01, 0.1)):
                with anyio.move_on_after(seconds):
                    found.append(await anext(stream))
                if any(map(is_streamed, found)):
                    speaker.may_end["one"].set()
                if found and isinstance(found[-1], Reply):
                    break
        parts = [item.number for item in found if isinstance(item, Streamed)]
        assert parts == [*range(1, len(parts) + 1)]
        assert isinstance(found[-1], Reply)
        assert [item for item in found if isinstance(item, JournalEntry)] == list(found[-1].entries)
        assert len(await on.talk().history(kinds=[UserMessage])) == 1
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_heartbeats_come_while_nothing_else_does(url: str) -> None:
    speaker, kinds = Speaker(), list[str]()
    async with stage(url, speaker.speak) as on:
        with anyio.fail_after(PATIENCE):
            async for item in on.talk().stream_reply(UserMessage("one"), heartbeat=0.01):
                kinds.append(item.kind)
                if isinstance(item, Heartbeat) and kinds.count("heartbeat") == 3:
                    assert item.to_json() == '{"kind":"heartbeat"}'
                    speaker.may_end["one"].set()
        assert kinds[-1] == "reply"


async def test_it_goes_on_in_another_process_from_a_position_within_a_stream(url: str) -> None:
    speaker, found = Speaker(), list[ReplyItem]()
    async with stage(url, speaker.speak) as on:
        with anyio.fail_after(PATIENCE):
            async with on.talk().stream_reply(UserMessage("one"), event_id="m-1") as stream:
                await take(stream, found, is_streamed)
            position = stream.position
            assert position.count(".") >= 3
            async with affinity.Client(url) as other:
                talk = other.conversation(on.conversations, "c")
                rest = talk.stream_reply(event_id="m-1", after=position)
                assert rest.position == position
                speaker.may_end["one"].set()
                await take(rest, found)
        parts = [item.number for item in found if isinstance(item, Streamed)]
        assert parts == [*range(1, len(parts) + 1)]
        assert sum(isinstance(item, Retracted) for item in found) == 1
        assert isinstance(found[-1], Reply)
        assert [item for item in found if isinstance(item, JournalEntry)] == list(found[-1].entries)


async def test_it_goes_on_from_each_position_of_a_reply_that_is_there(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("zero"), timeout=PATIENCE)
        places, found = list[str](), list[ReplyItem]()
        async for item in (stream := talk.stream_reply(UserMessage("one"), event_id="m-1")):
            found.append(item)
            places.append(stream.position)
        await talk.ask(UserMessage("later"), timeout=PATIENCE)
        assert len(found) > 4
        for number, place in enumerate(places, 1):
            rest = [form(item) async for item in talk.stream_reply(UserMessage("one"), event_id="m-1", after=place)]
            assert rest == [form(item) for item in (found[number:] or found[-1:])]


async def test_a_stream_that_is_left_leaves_nothing_open(url: str) -> None:
    speaker = Speaker()
    async with stage(url, speaker.speak) as on:
        stream = on.talk().stream_reply(UserMessage("one"))
        found: list[ReplyItem] = []
        with anyio.fail_after(PATIENCE):
            await take(stream, found, is_streamed)
            assert len(on.client.journals._changes._changes) == 1
            await stream.aclose()
            assert not on.client.journals._changes._changes
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        speaker.may_end["one"].set()


async def test_a_wake_that_fails_for_good_is_raised_and_a_later_one_is_followed(url: str) -> None:
    fails = True

    async def handler(wake: Wake, chat: Chat) -> None:
        if fails:
            raise OSError("no")
        wake.append(AgentMessage("at last"))

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk, found = on.talk(), list[ReplyItem]()
        stream = talk.stream_reply(UserMessage("one"), event_id="m-1")
        with anyio.fail_after(PATIENCE), pytest.raises(WakeFailed, match="no"):
            await take(stream, found)
        assert [item.kind for item in found] == ["span.started", "span.completed", "conversation.idle"]
        for after in (0, stream.position):
            with anyio.fail_after(PATIENCE), pytest.raises(WakeFailed, match="no"):
                await take(talk.stream_reply(event_id="m-1", after=after), [])
        fails = False
        await talk.resume()
        rest: list[ReplyItem] = []
        with anyio.fail_after(PATIENCE):
            await take(talk.stream_reply(event_id="m-1", after=stream.position), rest)
        assert isinstance(rest[-1], Reply)
        assert rest[-1].text == "at last"
        assert [item for item in rest if isinstance(item, JournalEntry)] == list(rest[-1].entries)


async def test_an_attempt_that_did_not_have_the_input_is_another_s(url: str) -> None:
    """The next attempt of its wake has it."""
    begun, sent = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        wake.stream(f"attempt {wake.attempt}")
        if wake.attempt == 1:
            begun.set()
            await sent.wait()
            raise OSError("no")
        wake.append(AgentMessage(",".join(event.text for event in wake.events if isinstance(event, UserMessage))))

    async with stage(url, handler, retry=RetryPolicy(max_attempts=3, initial_interval=0.01)) as on:
        talk, found = on.talk(), list[ReplyItem]()
        with anyio.fail_after(PATIENCE):
            seq = await talk.send(UserMessage("one"))
            await begun.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(take, talk.stream_reply(UserMessage("two"), event_id="m-2"), found)
                while not await talk.history(pending=True, after=seq):
                    await anyio.sleep(0.01)
                sent.set()
        reply = found[-1]
        assert isinstance(reply, Reply)
        assert reply.text == "one,two"
        assert "attempt 1" not in streamed(found)
        starts = [item.event for item in found if isinstance(item, JournalEntry) and item.kind == "span.started"]
        assert [getattr(event, "attempt", 0) for event in starts] == [2]


async def test_the_end_of_the_conversation_ends_the_wait(url: str) -> None:
    speaker = Speaker()
    async with stage(url, speaker.speak) as on:
        talk = on.talk()
        stream = talk.stream_reply(UserMessage("one"), event_id="m-1")
        with anyio.fail_after(PATIENCE):
            await take(stream, [], is_streamed)
            await talk.terminate()
            with pytest.raises(ConversationTerminated):
                await take(stream, [])


async def test_an_interrupt_is_followed_like_a_message(url: str) -> None:
    speaker = Speaker()
    async with stage(url, speaker.speak) as on:
        talk, found = on.talk(), list[ReplyItem]()
        with anyio.fail_after(PATIENCE):
            await talk.send(UserMessage("one"))
            await speaker.begun["one"].wait()
            speaker.may_end["one"].set()
            await take(talk.stream_reply(UserInterrupt(), event_id="stop"), found)
        assert isinstance(found[-1], Reply)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, "event_id="),
        ({"event_id": "m-1", "heartbeat": 0}, "positive number of seconds"),
        ({"event_id": "m-1", "heartbeat": float("nan")}, "positive number of seconds"),
        ({"event_id": "m-1", "after": "x"}, "position"),
    ],
)
async def test_what_cannot_be_followed_is_refused(sqlite_url: str, options: dict[str, Any], remedy: str) -> None:
    async with stage(sqlite_url, workers=0) as on:
        with pytest.raises(InvalidInput, match=remedy):
            on.talk().stream_reply(**options)


async def test_an_event_that_was_never_sent_is_not_waited_for(url: str) -> None:
    async with stage(url, workers=0) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"), event_id="m-1")
        with pytest.raises(UnknownEntry):
            await anext(talk.stream_reply(event_id="m-2"))


async def test_a_handler_cannot_follow_its_own_conversation(sqlite_url: str) -> None:
    client: list[affinity.Client] = []
    caught: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        talk = client[0].conversation(conversations[0], wake.conversation_id)
        try:
            await anext(talk.stream_reply(UserMessage("again")))
        except WakeMisuse as error:
            caught.append(str(error))

    conversations: list[Any] = []
    async with stage(sqlite_url, handler) as on:
        client.append(on.client)
        conversations.append(on.conversations)
        await on.talk().ask(UserMessage("one"), timeout=PATIENCE)
        assert len(caught) == 1
        assert "its own conversation" in caught[0]
