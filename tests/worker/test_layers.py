"""What a layer above the worker can use: parked activities, reads ahead, withdrawn participants, its own functions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.conversation.access import journals_in
from affinity.conversation.journal import (
    Appended,
    JournalAppend,
    JournalQuery,
    JournalStart,
    JournalWrite,
    NewEntry,
    WakeEnd,
)
from affinity.errors import InvalidApp, InvalidOptions
from affinity.orchestration.definitions import Prefetch
from affinity.orchestration.events import EventRaised, OrchestrationStarted
from affinity.orchestration.wire import ANY_EXECUTION, encode_message
from affinity.provider import open_provider

pytestmark = pytest.mark.anyio

LETTER: Final = "letter"
ANNOUNCED: Final = encode_message(ANY_EXECUTION, EventRaised(name="letter", data="null"))
STARTED: Final = encode_message(ANY_EXECUTION, OrchestrationStarted(name="post.mailbox", version="", input="null"))


@dataclass(eq=False)
class Reading:
    """The participant of an activity that has read letters: adds one entry, and moves the watermark."""

    write: JournalWrite
    mailboxes: Mailboxes
    outcomes: list[bool] = field(default_factory=list)

    async def prepare(self) -> JournalWrite:
        return self.write

    def settled(self, applied: bool) -> None:
        self.outcomes.append(applied)
        if applied:
            self.mailboxes.committed.set()


@dataclass(eq=False)
class Mailboxes:
    """A layer of one orchestration and one activity: a mailbox reads the letters that come to its journal."""

    kind: str = "post"
    _noun: str = "mailboxes"
    read: list[list[str]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    reads_of_database: list[Sequence[str]] = field(default_factory=list)
    own_reads: list[int] = field(default_factory=list)
    """Reads of the database for each run, from when its code began."""
    committed: anyio.Event = field(default_factory=anyio.Event)

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        """See `SessionListener`."""

    async def sweep(self) -> None:
        """See `SessionListener`."""

    def _sources(self) -> Sequence[Callable[..., Any]]:
        return [self.run]

    def _functions(self) -> App:
        app = App(self.kind)
        app.activity(name="post.read", prefetch=Prefetch("conversation", 10))(self.run)

        @app.orchestration(name="post.mailbox")
        async def mailbox(ctx: OrchestrationContext) -> None:
            texts: list[str] = []
            while "last" not in texts:
                texts = await ctx.schedule_activity("post.read").on_session(ctx.instance_id)._park()

        return app

    async def run(self, ctx: ActivityContext) -> list[str]:
        begun = len(self.reads_of_database)
        journals = journals_in(ctx)
        assert journals is not None
        work = await journals.get_pending(ctx.instance_id, 10)
        assert work is not None
        self.own_reads.append(len(self.reads_of_database) - begun)
        texts = [json.loads(each.payload)["text"] for each in work.inputs]
        self.read.append(texts)
        if "torn" in texts:
            self._enlist(ctx, work.journal_id, work.processed, work.inputs[-1].seq, "draft")
            ctx._withdraw(ValueError("torn"), retried=False)
        self._enlist(ctx, work.journal_id, work.processed, work.inputs[-1].seq, "read")
        return texts

    def _enlist(self, ctx: ActivityContext, journal_id: int, base: int, processed: int, text: str) -> None:
        write = JournalWrite(
            session_id=ctx.instance_id,
            journal_id=journal_id,
            base=base,
            processed=processed,
            wake_id=f"run {len(self.read)}",
            entries=[NewEntry(kind=text, payload="{}")],
            end=WakeEnd(read=processed),
        )
        self.readings.append(Reading(write, self))
        ctx._enlist(self.readings[-1])


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.fixture
async def post(kept_url: str, monkeypatch: pytest.MonkeyPatch) -> Mailboxes:
    """Counts the reads of pending inputs, which do not grow old on a slow machine."""
    post = Mailboxes()
    opened = await open_provider(kept_url)
    await opened.aclose()
    provider: Any = type(opened)
    get_pending = provider.get_pending

    async def counted(self: Any, session_ids: Sequence[str], **options: Any) -> Any:
        post.reads_of_database.append(session_ids)
        return await get_pending(self, session_ids, **options)

    monkeypatch.setattr(provider, "get_pending", counted)
    monkeypatch.setattr("affinity.conversation.worker.READ_AHEAD_SECONDS", 60.0)
    return post


async def send(client: Client, text: str) -> Appended:
    """Send a letter; the first one makes the mailbox."""
    entry = NewEntry(
        kind=LETTER, payload=json.dumps({"text": text}), event_id=client.journals.new_event_id(), is_input=True
    )
    start = JournalStart(name="post.mailbox", start=STARTED, generation="g")
    return await client.journals.append(
        JournalAppend(session_id="m", kind="post", entry=entry, message=ANNOUNCED, start=start)
    )


def serving(post: Mailboxes, url: str) -> Worker:
    app = App("post office")
    app.include(post)
    return Worker(app, url, RuntimeOptions.make(poll_interval=0.2))


async def kinds(client: Client) -> list[str]:
    page = await client.journals.read(JournalQuery(session_id="m"))
    assert page is not None
    return [each.kind for each in page.entries]


async def test_an_input_queues_a_parked_activity_without_a_turn_of_its_instance(
    kept_url: str, client: Client, post: Mailboxes
) -> None:
    """And what the activity reads first was read for it: by the fetch, or before its code ran."""
    async with serving(post, kept_url):
        assert not (await send(client, "one")).unparked
        for text in ("two", "last"):
            await post.committed.wait()
            post.committed = anyio.Event()
            assert (await send(client, text)).unparked
        await client.wait("m", timeout=30)
    assert post.read == [["one"], ["two"], ["last"]]
    assert post.own_reads == [0, 0, 0]
    events = [each.type for each in await client.history("m")]
    assert events.count("activity_scheduled") == 3
    assert events.count("event_raised") == 1  # of the first letter: nothing was parked
    assert await kinds(client) == [LETTER, "read"] * 3


async def test_a_result_commits_without_the_participants_that_were_withdrawn(
    kept_url: str, client: Client, post: Mailboxes
) -> None:
    async with serving(post, kept_url):
        await send(client, "torn")
        await post.committed.wait()
    assert [each.outcomes for each in post.readings] == [[False], [True]]
    assert await kinds(client) == [LETTER, "read"]


@pytest.mark.parametrize("wrong", [-1, True, "1"])
def test_an_activity_reads_a_number_of_inputs_ahead(wrong: Any) -> None:
    with pytest.raises(InvalidOptions, match="prefetch must be an integer from 0"):
        App("post office").activity(prefetch=Prefetch("conversation", wrong))(Mailboxes().run)


def test_a_layer_is_registered_under_its_noun() -> None:
    """An app has one of each kind; another layer may use the same kind."""
    app = App("post office")
    app.include(Mailboxes())
    assert list(app.registered()["mailboxes"]) == ["post"]
    with pytest.raises(InvalidApp, match="two handlers for mailboxes of kind 'post'"):
        app.include(Mailboxes())
    other = Mailboxes(_noun="parcels")
    other._functions = App  # type: ignore[method-assign]
    app.include(other)
    assert {*app.registered()} == {"orchestrations", "activities", "mailboxes", "parcels"}
