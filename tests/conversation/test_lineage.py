"""The lineage of conversations: repeated calls, inherited usage, exports that were changed or cut off."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_hex
from typing import Any, get_args

import anyio
import pytest

import affinity
from affinity import SessionStore
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from affinity.conversation import wake as waking
from affinity.conversation.handle import ConversationHandle
from affinity.conversation.journal import JournalQuery
from affinity.conversation.store.contract import journals_of
from affinity.errors import (
    ConnectionLost,
    Contention,
    ConversationExists,
    EntriesRemoved,
    InvalidInput,
    SessionRecordRefused,
    UnknownConversation,
    UnknownEntry,
    WakeFailed,
)
from affinity.provider.contract import Quotas
from affinity.session import SessionRecord, SessionState
from affinity.session.transfer import ImportTimes
from tests.conversation.application import Chat, Stage, make, stage
from tests.conversation.lineage_helpers import LONG, say, texts

pytestmark = pytest.mark.anyio


@pytest.fixture
async def idle(url: str) -> Any:
    """A client, and no worker."""
    async with stage(url, workers=0) as found:
        yield found


async def summarise(_: Sequence[JournalEntry]) -> str:
    """A summary."""
    return "short"


CALLS: dict[str, dict[str, Any]] = {
    "fork": {"extras": {"x": 1}, "operator": "o"},
    "detach": {"beside": True},
    "merge": {"other": "b", "keep": "left", "state": Chat(wakes=3)},
    "compress": {"summarise": summarise, "state": Chat(wakes=3)},
}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("fork", {"at": 0}),
    ("fork", {"extras": {"x": 2}}),
    ("fork", {"extras": None}),
    ("fork", {"operator": None}),
    ("fork", {"beside": True}),
    ("detach", {"beside": False}),
    ("detach", {"extras": {"x": 1}}),
    ("detach", {"at": 0}),
    ("merge", {"other": "c"}),
    ("merge", {"keep": "right"}),
    ("merge", {"keep": None}),
    ("merge", {"state": Chat(wakes=4)}),
    ("merge", {"state": None}),
    ("merge", {"extras": {"x": 1}}),
    ("compress", {"state": Chat(wakes=4)}),
    ("compress", {"state": None}),
    ("compress", {"beside": True}),
    ("compress", {"operator": "o"}),
]


@dataclass
class Made:
    """Four conversations, and a call for each verb."""

    idle: Stage

    async def call(self, verb: str, source: str = "a", **changed: Any) -> Any:
        """The call that makes the conversation that is named after the verb, with some options changed."""
        talk, options = self.idle.talk(source), {**CALLS[verb], **changed}
        if verb == "merge":
            return await talk.merge(options.pop("other"), into=verb, **options)
        if verb == "compress":
            return await talk.compress(into=verb, **options)
        return await getattr(talk, verb)(verb, **options)

    @classmethod
    async def begin(cls, idle: Stage) -> Made:
        """Make each of them once."""
        for name in "abc":
            await idle.talk(name).send(UserMessage(f"one {name}"))
        made = cls(idle)
        for verb in CALLS:
            await made.call(verb)
        return made


async def test_a_repeated_call_gives_what_it_has_made_and_each_other_call_is_refused(idle: Stage) -> None:
    """Another verb, source or option. What was made has gone on, and that changes nothing."""
    made = await Made.begin(idle)
    for verb in CALLS:
        await idle.talk(verb).send(UserMessage("two"))
        assert (await texts(await made.call(verb)))[-1] == "two"
        with pytest.raises(ConversationExists):
            await made.call(verb, source="c")
        for other in CALLS.keys() - {verb}:
            with pytest.raises(ConversationExists):
                await (idle.talk("a").fork(verb) if other == "fork" else idle.talk("a").detach(verb, at=0))
    for verb, changed in OTHERS:
        with pytest.raises(ConversationExists):
            await made.call(verb, **changed)


async def test_a_source_that_has_gone_on_is_another_position(idle: Stage) -> None:
    """With a position the call is the same. The error says which entry the one that is there goes on from."""
    made = await Made.begin(idle)
    await idle.talk("a").send(UserMessage("two"))
    for verb in CALLS:
        with pytest.raises(
            ConversationExists, match="entry 1 of 'a', which has entry 2" if verb[0] in "fd" else "in use"
        ):
            await made.call(verb)
    assert await texts(await made.call("fork", at=1)) == await texts(await made.call("detach", at=1)) == ["one a"]


async def test_a_merge_whose_right_side_has_gone_on_is_another_one(idle: Stage) -> None:
    made = await Made.begin(idle)
    await idle.talk("b").send(UserMessage("two"))
    with pytest.raises(ConversationExists):
        await made.call("merge")


async def test_a_lost_reply_is_no_second_call(idle: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends it again itself; the source has gone on."""
    talk, provider = idle.talk("a"), idle.client._provider
    await talk.send(UserMessage("one"))
    create, lost = journals_of(provider).create_journals, list[bool]()

    async def create_and_lose(creations: Any) -> Any:
        found = await create(creations)
        if not lost:
            lost.append(True)
            await talk.send(UserMessage("two"))
            raise ConnectionLost("the reply is lost")
        return found

    monkeypatch.setattr(provider, "create_journals", create_and_lose)
    assert await texts(await talk.fork("f")) == ["one"]


async def test_a_repeated_import_is_one(idle: Stage) -> None:
    """Another export, of another source or of a later time, is another one."""
    a, b = idle.talk("a"), idle.talk("b")
    for talk in (a, b):
        await talk.send(UserMessage(f"one {talk.conversation_id}"))
    exports = [[line async for line in talk.export()] for talk in (a, b)]
    await a.send(UserMessage("two"))
    exports.append([line async for line in a.export()])
    for _ in range(2):
        await idle.talk("i").import_(exports[0])
    changed = [line.replace("one a", "one x") for line in exports[0]]
    others: list[tuple[list[str], ImportTimes]] = [(lines, "kept") for lines in (exports[1], exports[2], changed)]
    for lines, times in [*others, (exports[0], "now")]:
        with pytest.raises(ConversationExists):
            await idle.talk("i").import_(lines, times=times)
    with pytest.raises(InvalidInput, match="'_'"):
        await a.fork("f", extras={"_": 1})
    assert "_" not in (await idle.talk("i").ancestors())[0].extras


async def test_a_wake_does_not_fork_into_a_record(url: str) -> None:
    """It fails with the reason, and not as one that never comes to an end."""

    async def branch(wake: affinity.Wake, _: Chat) -> None:
        await wake.fork("used")

    async with stage(url, branch, retry=affinity.RetryPolicy(max_attempts=1)) as found:
        async with found.conversations.open("used", store=found.client.session_store) as chat:
            chat.wakes = 1
        with pytest.raises(WakeFailed, match="ConversationExists"):
            await found.talk("a").ask(UserMessage("go"), timeout=LONG)


@pytest.mark.parametrize("made", ["delegate", "fork"])
async def test_a_wake_forks_into_no_id_that_something_else_has(url: str, made: str) -> None:
    """An instance that is no conversation, or a child that the wake itself begins. The first attempt says which id."""
    attempts: list[int] = []

    async def branch(wake: affinity.Wake, _: Chat) -> None:
        attempts.append(wake.attempt)
        match wake.events:
            case [UserMessage(text="instance")]:
                await wake.fork("plain")
            case [UserMessage(text="child")] if made == "delegate":
                await wake.delegate(conversations, "child", UserMessage("go"))
                await wake.fork("child")
            case [UserMessage(text="child")]:
                await wake.fork("child")
                await wake.delegate(conversations, "child", UserMessage("go"))

    conversations = make(branch, retry=affinity.RetryPolicy(max_attempts=1))
    async with stage(url, conversations) as found:
        await found.client.start("no such orchestration", instance_id="plain")
        for text, problem in (("instance", "ConversationExists.*'plain'"), ("child", "'child'")):
            with pytest.raises(WakeFailed, match=problem):
                await found.talk(text).ask(UserMessage(text), timeout=LONG)
        assert attempts == [1, 1]


async def test_what_a_wake_makes_conversations_with_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of all that one commit makes are in one document; a single one may be as large as any."""
    monkeypatch.setattr(waking, "MAX_STATE_BYTES", 10_000)

    async def branch(wake: affinity.Wake, _: Chat) -> None:
        for number, event in enumerate(wake.events):
            for part in range(2 if isinstance(event, UserMessage) and event.text == "two" else 1):
                state = Chat(received=[token_hex(6_000)])
                await wake.compress(into=f"{wake.conversation_id}-{number}-{part}", summarise=summarise, state=state)

    async with stage(url, branch, retry=affinity.RetryPolicy(max_attempts=1)) as found:
        await found.talk("a").ask(UserMessage("one"), timeout=LONG)
        with pytest.raises(WakeFailed, match=r"PayloadTooLarge.*over the limit of 10000"):
            await found.talk("b").ask(UserMessage("two"), timeout=LONG)
        assert (await found.state("a-0-0")).received


async def test_no_quota_refuses_what_a_wake_forks(url: str) -> None:
    async def branch(wake: affinity.Wake, _: Chat) -> None:
        if wake.conversation_id == "a":
            await wake.fork("f1")
            await wake.fork("f2")
        wake.append(AgentMessage("done"))

    async with stage(url, branch) as found:
        await found.client.set_quotas(Quotas(instances=2))
        await say(found.talk("a"), "go")
        assert await texts(found.talk("f1")) == await texts(found.talk("f2")) == ["go", "done"]


async def test_usage_is_carried_on_and_no_extras_change_it(url: str) -> None:
    async def spend(wake: affinity.Wake, _: Chat) -> None:
        wake.append(AgentMessage("done", {"tokens": 10}))

    async with stage(url, spend) as found:
        await say(found.talk("a"), "one")
        short = await found.talk("a").compress(into="s", summarise=summarise)
        detached = await short.detach("d", extras={"usage": {"tokens": 1}, "usage_by_writer": 1})
        fork = await short.fork("f", extras={"usage": {"tokens": "many"}})
        imported = found.talk("i")
        await imported.import_([line async for line in fork.export()])
        for talk in (short, detached, fork, await detached.detach("e"), imported):
            assert await talk.usage() == {"tokens": 10}


async def test_extras_are_no_usage_of_a_conversation_without_any(idle: Stage) -> None:
    await idle.talk("a").send(UserMessage("one"))
    detached = await idle.talk("a").detach("d", extras={"usage_by_writer": 1})
    assert await (await detached.detach("e")).usage() == {}


async def test_usage_counts_each_entry_once(url: str) -> None:
    """Also of what several compressions have left out, at any time, and of what else of it is there."""

    async def spend(wake: affinity.Wake, _: Chat) -> None:
        wake.append(AgentMessage("done", {"tokens": 10}))

    async def summarise_with_model(_: Sequence[JournalEntry]) -> AgentMessage:
        return AgentMessage("short", {"tokens": 1})

    async with stage(url, spend) as found:
        a = found.talk("a")
        await say(a, "one")
        fork = await a.fork("f")
        first = await a.compress(into="s1", summarise=summarise)
        same = await a.compress(into="s2", summarise=summarise_with_model)
        await say(a, "two")
        later = await a.compress(into="s3", summarise=summarise)
        imported = found.talk("i")
        await imported.import_([line async for line in first.export()])
        await say(fork, "other")
        pairs = {
            (first, same): 11,
            (first, later): 20,
            (later, first): 20,
            (a, first): 20,
            (first, a): 20,
            (fork, later): 30,
            (await later.detach("d"), first): 20,
            (imported, a): 20,
            (await fork.compress(into="s4", summarise=summarise), same): 21,
        }
        for number, ((left, right), tokens) in enumerate(pairs.items()):
            merged = await left.merge(right.conversation_id, into=f"m{number}")
            assert await merged.usage() == {"tokens": tokens}
            short = await merged.compress(into=f"c{number}", summarise=summarise)
            assert await (await short.detach(f"e{number}")).usage() == {"tokens": tokens}
            copy = found.talk(f"i{number}")
            await copy.import_([line async for line in short.export()])
            await say(copy, "more")
            assert await copy.usage() == {"tokens": tokens + 10}


@pytest.mark.nightly_cases("new")
async def test_usage_of_a_long_loop_of_compressions(url: str) -> None:
    """The inherited usage does not grow with the rounds, and counts once in a merge all the same."""

    async def spend(wake: affinity.Wake, _: Chat) -> None:
        wake.append(AgentMessage("done", {"tokens": 1}))

    async with stage(url, spend) as found:
        talk = found.talk("a")
        for number in range(40):
            await say(talk, "go")
            talk = await talk.compress(into=f"s{number}", summarise=summarise)
        assert await talk.usage() == {"tokens": 40}
        one, other = [await talk.compress(into=name, summarise=summarise) for name in ("one", "other")]
        merged = await one.merge("other", into="merged")
        assert await merged.usage() == {"tokens": 40}
        assert len(json.dumps(dict((await other.ancestors())[0].extras))) < 2_000


async def test_a_state_is_exported_with_its_entries(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake that ends between the two reads."""
    async with stage(url) as found:
        talk, store = found.talk("a"), type(found.client.session_store)
        await say(talk, "one")
        load, left = store.load, ["two"]

        async def late(self: Any, session_id: str) -> Any:
            record = await load(self, session_id)
            if left:
                await say(talk, left.pop())
            return record

        monkeypatch.setattr(store, "load", late)
        lines = [json.loads(line) async for line in talk.export()]
        (record,) = [line["record"] for line in lines if "record" in line]
        assert record["state"]["received"] == ["one", "two"]
        assert left == []


async def test_a_state_is_exported_with_the_entries_of_a_part(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake that commits a part between the two reads, and goes on."""
    app = affinity.App("parts")
    talks = affinity.Conversations(Chat, kind="parts")
    committed, ended = anyio.Event(), anyio.Event()

    @talks.on_wake
    async def handle(wake: affinity.Wake, chat: Chat) -> None:
        chat.received += [event.text for event in wake.events if isinstance(event, UserMessage)]
        wake.append(AgentMessage("so far"))
        await wake.commit()
        if len(chat.received) > 1:
            committed.set()
            await ended.wait()

    app.include(talks)
    async with affinity.Client(url) as client, affinity.Worker(app, url):
        talk, store = client.conversation(talks, "a"), type(client.session_store)
        await say(talk, "one")
        load = store.load

        async def late(self: Any, session_id: str) -> Any:
            record = await load(self, session_id)
            if not committed.is_set():
                await talk.send(UserMessage("two"))
                await committed.wait()
            return record

        monkeypatch.setattr(store, "load", late)
        lines = [json.loads(line) async for line in talk.export()]
        ended.set()
    (record,) = [line["record"] for line in lines if "record" in line]
    assert record["state"]["received"] == ["one", "two"]
    assert [line["entry"]["kind"] for line in lines if "entry" in line][-1] == "agent.message"


async def test_inputs_do_not_keep_an_export_from_its_begin(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come all the time; only wakes change the state."""
    async with stage(url, workers=0) as found:
        talk, store = found.talk("a"), type(found.client.session_store)
        await talk.send(UserMessage("one"))
        load, loads = store.load, list[str]()

        async def late(self: Any, session_id: str) -> Any:
            record = await load(self, session_id)
            loads.append(session_id)
            await talk.send(UserMessage("more"))
            return record

        monkeypatch.setattr(store, "load", late)
        with anyio.fail_after(30):
            assert len([line async for line in talk.export()]) == 3
        assert loads == ["a"]


async def test_an_export_gives_up_when_wakes_do_not_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(url) as found:
        talk, store = found.talk("a"), type(found.client.session_store)
        await say(talk, "one")
        load = store.load

        async def late(self: Any, session_id: str) -> Any:
            record = await load(self, session_id)
            await say(talk, "more")
            return record

        monkeypatch.setattr(store, "load", late)
        with anyio.fail_after(60), pytest.raises(Contention, match="ran a wake in each of 10 attempts"):
            [line async for line in talk.export()]


async def test_an_export_of_a_conversation_that_is_made_again_meanwhile_fails(idle: Stage) -> None:
    """Its lines would be of two conversations."""
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    lines = talk.export()
    head = json.loads(await anext(lines))
    await talk.delete()
    await talk.send(UserMessage("other"))
    assert head["conversation"]["last_seq"] == 1
    with pytest.raises(UnknownConversation, match="another one has its id"):
        await anext(lines)


async def test_a_number_of_the_source_is_none_of_the_fork(idle: Stage) -> None:
    """Nor a position. The error says of which conversation it is, also where that was deleted since."""
    source = idle.talk("a")
    number = await source.send(UserMessage("one"))
    fork = await source.fork("b")
    own = await fork.send(UserMessage("two"))
    with pytest.raises(
        UnknownEntry, match="entry 1 is of the conversation that this one was made from, 'a': ask there"
    ):
        await fork.reply(number, timeout=30)
    with pytest.raises(UnknownEntry, match="position 1 is of the conversation that this one was made from, 'a'"):
        [item async for item in fork.events(after=number)]
    with pytest.raises(UnknownConversation, match="or the number is of another conversation"):
        await source.reply(own, timeout=30)
    await source.delete()
    with pytest.raises(UnknownEntry, match="which was deleted since"):
        await fork.reply(number, timeout=30)


async def test_an_export_that_retention_overtakes_fails(url: str) -> None:
    """An import of its lines would be refused: the first entries are missing."""
    async with stage(url) as found:
        talk = found.talk("a")
        await say(talk, "one")
        lines = talk.export()
        assert "conversation" in await anext(lines)
        assert "record" in await anext(lines)
        assert await found.client.prune_conversations(max_entries=1)
        with pytest.raises(EntriesRemoved):
            [line async for line in lines]


async def test_an_export_that_was_changed_is_refused(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"), event_id="e1")
    await talk.send(UserMessage("two"), event_id="e2")
    head, first, last = [line async for line in talk.export()]

    def changed(**fields: Any) -> str:
        entry = json.loads(last)["entry"] | fields
        return json.dumps({"entry": entry})

    for lines, problem in (
        ([head, first], "ends with entry 1, of 2: it is cut off"),
        ([head], "ends with entry 0, of 2: it is cut off"),
        ([head, last, first], "line 3 .* entry 1 comes behind entry 2"),
        ([head, first, last, last], "line 4 .* entry 2 comes behind entry 2"),
        ([head, first, changed(event_id="e1")], "line 3 .* 'e1' comes twice"),
        ([head, first, changed(event_id="x" * 300)], "line 3 .* over the limit of 256"),
        ([head, first, changed(wake_id="\0")], "line 3 .* control character"),
        ([head, first, changed(kind="")], "line 3 .* an event's kind"),
        ([head, first, changed(payload={"text": "x" * 3_000_000})], "line 3 .* over the limit of"),
        ([head, first, changed(recorded_at="9999-12-31T23:59:59.999999-12:00")], "line 3 .* recorded_at"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            await idle.talk("b").import_(lines)
    await idle.talk("b").import_([head, first, last])
    assert await texts(idle.talk("b")) == ["one", "two"]


async def test_what_has_large_extras_is_imported(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    fork = await talk.fork("b", extras={"x": "y" * 16_350})
    await idle.talk("c").import_([line async for line in fork.export()])
    again = [line async for line in idle.talk("c").export()]
    await idle.talk("d").import_(again)
    assert (await idle.talk("d").ancestors())[0].extras["x"] == "y" * 16_350


# --- the record of state ----------------------------------------------------------------------------------------------


async def export_with(idle: Stage, **fields: Any) -> list[str]:
    """The export of a conversation with a message and a state, whose record has these fields."""
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    async with idle.conversations.open("a", store=idle.client.session_store) as chat:
        chat.wakes = 1
    lines = [json.loads(line) async for line in talk.export()]
    return [json.dumps({"record": line["record"] | fields} if "record" in line else line) for line in lines]


@pytest.mark.parametrize("times", get_args(ImportTimes))
async def test_an_import_keeps_the_times_of_the_record_and_of_the_entries_or_neither(
    idle: Stage, times: ImportTimes
) -> None:
    then = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    about = {"created_at": then.isoformat(), "updated_at": (then + timedelta(days=1)).isoformat()}
    head, record, entry = await export_with(idle, **about)
    entry = json.dumps({"entry": json.loads(entry)["entry"] | {"recorded_at": then.isoformat()}})
    await idle.talk("b").import_([head, record, entry], times=times)
    made = await idle.client.session_manager.show("b")
    (first,) = await idle.talk("b").history()
    found = [made.created_at, made.updated_at, first.recorded_at]
    if times == "kept":
        assert found == [then, then + timedelta(days=1), then]
    else:
        assert min(found) > datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(InvalidInput, match="times = 'later': must be one of kept, now"):
        await idle.talk("c").import_([head, record, entry], times="later")  # type: ignore[arg-type]


async def test_a_time_in_the_future_becomes_that_of_the_import(idle: Stage) -> None:
    lines = await export_with(idle, updated_at="2999-01-01T00:00:00Z")
    await idle.talk("b").import_(lines)
    assert (await idle.client.session_manager.show("b")).updated_at < datetime.now(UTC) + timedelta(hours=1)


async def test_a_record_that_could_not_be_loaded_is_not_imported(idle: Stage) -> None:
    """Its kind is always known; its type is where the handle was made with the `Conversations`."""
    kind_alone = ConversationHandle(idle.client, idle.conversations.spec, "k")
    damaged = await export_with(idle, state={"wakes": "many"})
    for to, lines, reason in (
        (idle.talk("b"), damaged, "wakes: Input should be a valid integer"),
        (idle.talk("b"), await export_with(idle, schema_version=2), "no migration from schema version 2 to 1"),
        (idle.talk("b"), await export_with(idle, kind="other"), "of kind 'other', not 'chat'"),
        (kind_alone, await export_with(idle, kind="other"), "of kind 'other', not 'chat'"),
    ):
        with pytest.raises(SessionRecordRefused, match=f"{to.conversation_id!r}.*{reason}.*mend") as refused:
            await to.import_(lines)
        assert refused.value.session_id == to.conversation_id
    assert [each.conversation_id async for each in idle.client.list_conversations()] == ["a"]
    await kind_alone.import_(damaged)


async def damage(idle: Stage, **fields: Any) -> None:
    """Write what the code cannot load into the record of a conversation."""
    store = idle.client.session_store
    record = await store.load("a")
    assert record is not None
    about = {"encoding": record.encoding, "schema_version": record.schema_version, "metadata": record.metadata}
    await store.save(SessionState(session_id="a", **{**about, "state": record.state, **fields}))


@pytest.mark.parametrize("made", ["fork", "fork at the end", "detach", "merge"])
async def test_a_record_that_could_not_be_loaded_is_not_copied(idle: Stage, made: str) -> None:
    """By its schema version: from this one no migration leads to the code."""
    await export_with(idle)
    await damage(idle, schema_version=0)
    talk = idle.talk("a")
    await (await talk.fork("other", at=0)).send(UserMessage("two"))
    calls: dict[str, Callable[..., Awaitable[Any]]] = {
        "fork": partial(talk.fork, "b"),
        "fork at the end": partial(talk.fork, "b", at=1),
        "detach": partial(talk.detach, "b"),
        "merge": partial(talk.merge, "other", into="b"),
    }
    with pytest.raises(SessionRecordRefused, match=r"'a' could not be loaded.*mend the record"):
        await calls[made]()
    assert not await idle.client.journals.read(JournalQuery(session_id="b", limit=1))
    await talk.fork("b", at=0)  # with a state of its own


@pytest.mark.parametrize("made", ["fork", "detach"])
async def test_a_copied_state_is_not_read(idle: Stage, monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    """It may be large, and was checked when it was written."""
    await export_with(idle)
    talk = idle.talk("a")
    loads: list[str] = []
    store = type(idle.client.session_store)  # each handle has a store of its own
    load = store.load

    async def count(self: SessionStore, session_id: str) -> SessionRecord | None:
        loads.append(session_id)
        return await load(self, session_id)

    monkeypatch.setattr(store, "load", count)
    await {"fork": talk.fork, "detach": talk.detach}[made]("b")
    assert loads == []
    monkeypatch.undo()
    assert (await idle.client.session_manager.show("b")).state == (await idle.client.session_manager.show("a")).state


async def test_a_record_of_later_code_is_copied(idle: Stage) -> None:
    """Workers with that code load the copy, as they load the original."""
    await export_with(idle)
    await damage(idle, schema_version=2)
    await idle.talk("a").fork("b")
    assert (await idle.client.session_manager.show("b")).schema_version == 2
