"""What cannot be decoded is a typed error wherever it is read, and nothing of it is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from affinity import App, Client, Conversations, PayloadContext, Wake, Worker, migrate
from affinity.conversation import (
    AgentMessage,
    JournalEntry,
    UserMessage,
    attempt,
    events,
    follow,
    inbox,
    journal,
    kept_state,
    known_wakes,
    reply,
    step_errors,
    stream,
    transfer,
    usage,
    views,
    writing,
)
from affinity.conversation.step_keys import GIVEN
from affinity.errors import PayloadUnreadable
from affinity.payloads.pipeline import KeptText
from affinity.records import parse_stored
from affinity.testing import Env
from tests.payloads.xor import XorCodec

BAD: Any = KeptText.at(PayloadUnreadable("encrypted, key 7"), "stored", "entry", "c1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENTRY = journal.Entry(
    seq=1, kind="user.message", payload=BAD, event_id=None, wake_id=None, is_input=True, recorded_at=NOW
)
REQUEST = journal.Request("r", "tool", BAD, None, NOW, None)
REVISIT = journal.Revisit("k", NOW, 0, "why", BAD, None)
STEP = journal.Step("w", GIVEN, "", BAD)


def wake(error: Any) -> journal.JournalWake:
    fields: dict[str, Any] = dict.fromkeys(journal.JournalWake._fields)
    return journal.JournalWake(**fields | {"error": error})


def work(**fields: Any) -> Any:
    none = SimpleNamespace(inputs=[], due=[], requests=[], delegations=[], steps=[], wake_id="w")
    return SimpleNamespace(**vars(none) | fields)


def ended_delegations() -> object:
    item = ENTRY._replace(kind=next(iter(writing.ENDS)))
    of = SimpleNamespace(work=work(inputs=[item]), processed=1)
    return writing.WakeWriting.ended_delegations.fget(of)  # type: ignore[attr-defined]


async def keys_of_revisits() -> object:
    async def read(query: object) -> object:
        return SimpleNamespace(entries=[ENTRY])

    of = SimpleNamespace(writing=SimpleNamespace(session_id="c1"), journals=SimpleNamespace(read=read))
    return await attempt.Attempt._revisits_of(of, "w")  # type: ignore[arg-type]


READS: dict[str, Callable[[], Any]] = {
    "any": lambda: parse_stored(BAD),
    "event": lambda: events.EventTypes().decode("user.message", BAD),
    "event of no class": lambda: events.EventTypes().decode("other", BAD),
    "fields": lambda: follow.fields_of(ENTRY),
    "stream": lambda: stream.read_part(
        journal.StreamPart(session_id="c1", journal_id=1, wake_id="w", attempt=1, number=1, payload=BAD)
    ),
    "ends of delegations": ended_delegations,
    "state of a step": lambda: kept_state.KeptState._read(SimpleNamespace(), STEP, None),  # type: ignore[arg-type]
    "keys of revisits": keys_of_revisits,
    "what a wake was given": lambda: known_wakes.as_given({"wake": "w"}, work(steps=[STEP])),
    "exported entry": lambda: transfer.entry_line(ENTRY),
    "exported request": lambda: transfer.waiting_lines(work(), [REQUEST], []),
    "exported revisit": lambda: transfer.waiting_lines(work(), [], [REVISIT]),
    "extras": lambda: transfer.shown_extras(BAD),
    "carried usage": lambda: usage._carried(SimpleNamespace(extras=BAD)),  # type: ignore[arg-type]
    "failed wake": lambda: reply.failure_of("c1", wake(BAD)),
    "ended wake": lambda: views.wake_of(wake(BAD)),
    "revisit": lambda: views.revisit_of(REVISIT),
    "failed step": lambda: step_errors.from_row("c1", BAD),
}


@pytest.mark.parametrize("read", READS)
async def test_each_read_gives_the_typed_error(read: str) -> None:
    async def run() -> None:
        found = READS[read]()
        if hasattr(found, "__await__"):
            await found

    with pytest.raises(PayloadUnreadable, match=r"^encrypted, key 7$"):
        await run()


def test_a_listing_of_requests_shows_the_others() -> None:
    """One that cannot be read says why."""
    assert inbox._request_of(REQUEST).event == {"unreadable": "encrypted, key 7", "kind": "tool"}


@dataclasses.dataclass
class Chat:
    seen: int = 0


chats = Conversations(Chat, kind="chats")


@chats.on_wake
async def respond(wake: Wake, chat: Chat) -> None:
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.seen += 1
            wake.append(AgentMessage(f"heard {event.text} as {chat.seen}"))


app = App("unreadable")
app.include(chats)


class Without(XorCodec):
    """Has not the key of the payloads of one field."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        if context.field == self.field:
            raise PayloadUnreadable(f"encrypted, key of {context.field}")
        return await super().decode(data, context)


@pytest.mark.slow_cases("new-entry|sqlite-state")
@pytest.mark.parametrize("field", ["entry", "state"])
async def test_a_wake_of_which_something_cannot_be_read_waits(env_url: str | None, field: str) -> None:
    """It does not fail, so that a worker with the key runs it."""
    async with Env(app, url=env_url, codec=XorCodec()) as env:
        talk = env.client.conversation(chats, "c1")
        assert (await talk.ask(UserMessage("one"))).text == "heard one as 1"
        await env.drain(0)
        env._codec = Without(field)
        await env._start_worker("wrong")
        await talk.send(UserMessage("two"))
        await env.advance(300.0)
        assert not await talk.dead_letters()
        await env.drain("wrong")
        env._codec = XorCodec()
        await env._start_worker("right")
        assert (await talk.ask(UserMessage("three"))).text == "heard three as 3"


async def test_a_feed_goes_on_where_it_could_not_read(any_url: str) -> None:
    await migrate(any_url)
    codec = XorCodec()
    async with Worker(app, any_url, codec=codec), Client(any_url, codec=codec) as client:
        await client.conversation(chats, "c1").ask(UserMessage("one"), timeout=30)
        whole = [item async for item in client.conversation(chats, "c1").events(follow=False)]
        async with Client(any_url) as blind:
            feed = blind.conversation(chats, "c1").events(follow=False)
            with anyio.fail_after(30), pytest.raises(PayloadUnreadable, match=r"^encrypted, xor 90$"):
                await anext(feed)
            position = feed.position
            await feed.aclose()
        rest = [item async for item in client.conversation(chats, "c1").events(follow=False, after=position)]
        assert [item.seq for item in rest if isinstance(item, JournalEntry)] == [
            item.seq for item in whole if isinstance(item, JournalEntry)
        ]
