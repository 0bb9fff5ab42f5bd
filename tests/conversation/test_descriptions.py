"""Title, owner and labels of conversations: set, changed, listed, copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import affinity
from affinity import Wake
from affinity.conversation import JournalEntry, UserMessage
from affinity.conversation.journal import Description
from affinity.errors import (
    ConversationExists,
    ConversationKindMismatch,
    InvalidId,
    InvalidOptions,
    PayloadTooLarge,
    QuotaExceeded,
    UnknownConversation,
)
from affinity.limits import MAX_LABELS, MAX_TITLE_BYTES
from affinity.provider.contract import Quotas
from tests.conversation.application import Chat, Stage, make, stage
from tests.conversation.lineage_helpers import LONG, texts

pytestmark = pytest.mark.anyio

ABOUT: Description = {"title": "Where is my order?", "owner": "ann", "labels": {"team": "eu", "tier": "gold"}}
NONE: Description = {"title": None, "owner": None, "labels": {}}


@pytest.fixture
async def idle(url: str) -> Any:
    """A client, and no worker."""
    async with stage(url, workers=0) as found:
        yield found


async def about(on: Stage, name: str = "c") -> Description:
    info = await on.client.get_conversation(name)
    return {"title": info.title, "owner": info.owner, "labels": dict(info.labels)}


async def listed(client: affinity.Client, **where: Any) -> set[str]:
    return {each.conversation_id async for each in client.list_conversations(**where)}


async def test_the_first_event_gives_the_description(idle: Stage) -> None:
    """A later one, also of a client that has not seen the conversation, leaves it as it is."""
    talk = idle.talk()
    await talk.send(UserMessage("hi"), **ABOUT)
    await talk.send(UserMessage("again"), title="other")
    async with affinity.Client(idle.url) as client:
        await client.conversation(idle.conversations, "c").send(UserMessage("and again"), title="other", labels={})
    assert await about(idle) == ABOUT
    await idle.talk("plain").send(UserMessage("hi"))
    assert await about(idle, "plain") == NONE


async def test_a_question_and_a_stream_give_it_too(url: str) -> None:
    async with stage(url) as on:
        assert (await on.talk("a").ask(UserMessage("hi"), timeout=LONG, title="asked")).text == "re: hi"
        async for _ in on.talk("s").stream_reply(UserMessage("hi"), owner="bob"):
            pass
        assert await about(on, "a") == {**NONE, "title": "asked"}
        assert await about(on, "s") == {**NONE, "owner": "bob"}


async def test_a_conversation_is_created_before_its_first_event(url: str) -> None:
    """It is listed, waits, and answers its first event as any other."""
    async with stage(url) as on:
        talk = on.talk()
        await talk.create(**ABOUT)
        info = await on.client.get_conversation("c")
        assert (info.last_seq, info.status, info.title) == (0, "idle", ABOUT["title"])
        assert (await talk.ask(UserMessage("hi"), timeout=LONG)).text == "re: hi"
        assert await texts(talk) == ["hi", "re: hi"]
        await talk.create(**ABOUT)
        assert (await talk.ask(UserMessage("more"), timeout=LONG, title="other")).text == "re: more"
        assert await about(on) == ABOUT
        await talk.terminate()
        await talk.create(**ABOUT)


async def test_a_created_conversation_is_not_created_again_with_other_values(idle: Stage) -> None:
    talk = idle.talk()
    await talk.create(title="a")
    await talk.create(title="a", owner=None, labels={})
    others: tuple[Description, ...] = (
        {},
        {"title": "b"},
        {"title": "a", "owner": "ann"},
        {"title": "a", "labels": {"x": "y"}},
    )
    for other in others:
        with pytest.raises(ConversationExists, match=r"describe\(\) changes them"):
            await talk.create(**other)
    assert await about(idle) == {**NONE, "title": "a"}
    with pytest.raises(ConversationKindMismatch, match="of kind 'chat', not 'other'"):
        await idle.talk("c", make(kind="other")).create(title="a")
    await idle.talk("sent").send(UserMessage("hi"))
    await idle.talk("sent").create()
    async with idle.conversations.open("state", store=idle.client.session_store):
        pass
    with pytest.raises(ConversationExists, match="in use"):
        await idle.talk("state").create()
    await idle.client.set_quotas(Quotas(instances=2))
    with pytest.raises(QuotaExceeded):
        await idle.talk("d").create()


async def test_it_is_changed_by_one_call(idle: Stage) -> None:
    """What is given changes, also when it is terminated; nothing is sent to the handler."""
    talk = idle.talk()
    await talk.send(UserMessage("hi"), **ABOUT)
    await talk.describe(title="Refund")
    assert await about(idle) == {**ABOUT, "title": "Refund"}
    await talk.describe(owner=None, labels={"tier": "gold"})
    assert await about(idle) == {"title": "Refund", "owner": None, "labels": {"tier": "gold"}}
    await talk.terminate()
    await talk.describe(**ABOUT)
    assert await about(idle) == ABOUT
    with pytest.raises(UnknownConversation):
        await idle.talk("none").describe(title="x")
    with pytest.raises(ConversationKindMismatch):
        await idle.talk("c", make(kind="other")).describe(title="x")


async def test_one_that_begins_meanwhile_is_changed(idle: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was deleted when it was to be changed, and is there again when the reason is looked for."""
    talk, change = idle.talk(), idle.client.journals.describe

    async def begun_then(*arguments: Any) -> bool:
        changed = await change(*arguments)
        await talk.send(UserMessage("hi"))
        return changed

    monkeypatch.setattr(idle.client.journals, "describe", begun_then)
    await talk.describe(title="Refund")
    assert await about(idle) == {**NONE, "title": "Refund"}


async def test_conversations_are_listed_by_owner_and_labels(idle: Stage) -> None:
    for name, owner, labels in (
        ("a", "ann", {"team": "eu"}),
        ("b", "ann", {"team": "us"}),
        ("c", "bob", {"team": "eu"}),
    ):
        await idle.talk(name).create(owner=owner, labels=labels)
    assert await listed(idle.client, owner="ann") == {"a", "b"}
    assert await listed(idle.client, labels={"team": "eu"}) == {"a", "c"}
    assert await listed(idle.client, labels={"team": "eu"}, owner="ann") == {"a"}
    assert await listed(idle.client, labels={"team": "eu"}, status="running") == set()
    await idle.talk("a").describe(owner="bob")
    assert await listed(idle.client, owner="ann") == {"b"}


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"title": "é" * (MAX_TITLE_BYTES // 2) + "x"}, PayloadTooLarge),
        ({"title": "a\x00b"}, InvalidId),
        ({"title": 7}, InvalidId),
        ({"owner": ""}, InvalidId),
        ({"owner": "x" * 257}, InvalidId),
        ({"labels": {str(n): "x" for n in range(MAX_LABELS + 1)}}, InvalidOptions),
        ({"labels": {"a": ""}}, InvalidId),
        ({"labels": {"a": "b\n"}}, InvalidId),
        ({"titel": "misspelt"}, TypeError),
    ],
)
async def test_values_out_of_bounds_are_refused(idle: Stage, values: Any, error: type[Exception]) -> None:
    """By each call, and nothing is written."""
    talk = idle.talk()
    for call in (talk.send(UserMessage("hi"), **values), talk.create(**values), talk.describe(**values)):
        with pytest.raises(error):
            await call
    assert await listed(idle.client) == set()


async def test_the_largest_values_are_kept(idle: Stage) -> None:
    largest: Description = {
        "title": "é" * (MAX_TITLE_BYTES // 2),
        "owner": "o" * 256,
        "labels": {f"{n:0256}": "é" * 128 for n in range(MAX_LABELS)},
    }
    await idle.talk().create(**largest)
    assert await about(idle) == largest
    assert await listed(idle.client, labels=largest["labels"], owner=largest["owner"]) == {"c"}


async def test_conversations_that_are_made_from_others_have_it(idle: Stage) -> None:
    """Forks, detached copies and compressions have the description of their source, merges the one of the left side;
    later changes are not shared.
    """

    async def summarise(_: Sequence[JournalEntry]) -> str:
        return "short"

    left, right = idle.talk("left"), idle.talk("right")
    await left.send(UserMessage("hi"), **ABOUT)
    await right.send(UserMessage("ho"), title="right")
    await left.fork("fork")
    await left.detach("detached", at=0)
    await left.compress(into="short", summarise=summarise)
    await left.merge("right", into="merged")
    await left.describe(title="changed")
    for name in ("fork", "detached", "short", "merged"):
        assert await about(idle, name) == ABOUT, name
    assert await listed(idle.client, labels={"tier": "gold"}, owner="ann") == {
        "left", "fork", "detached", "short", "merged"
    }  # fmt: skip


async def test_a_wake_forks_with_it(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Any) -> None:
        await wake.fork("fork")

    async with stage(url, handler) as on:
        await on.talk().ask(UserMessage("hi"), timeout=LONG, **ABOUT)
        assert await about(on, "fork") == ABOUT


async def test_an_export_has_it(idle: Stage) -> None:
    """As it is, and of a release without it there is none; one out of bounds is refused."""
    talk = idle.talk()
    await talk.send(UserMessage("hi"), **ABOUT)
    lines = [line async for line in talk.export()]
    await idle.talk("copy").import_(lines)
    assert await about(idle, "copy") == ABOUT
    head = lines[0].replace('"title":"Where is my order?","owner":"ann","labels":{"team":"eu","tier":"gold"},', "")
    assert head != lines[0]
    await idle.talk("old").import_([head, *lines[1:]])
    assert await about(idle, "old") == NONE
    with pytest.raises(affinity.errors.InvalidInput, match=r"line 1 .*owner"):
        await idle.talk("bad").import_([lines[0].replace('"ann"', '""'), *lines[1:]])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"title": None, "owner": "ann", "labels": {"team": "eu", "tier": "gold"}}),
        (
            {"title": "Search", "owner": None, "labels": {"team": "us"}},
            {"title": "Search", "owner": None, "labels": {"team": "us"}},
        ),
    ],
)
async def test_a_child_has_owner_and_labels_of_its_parent(url: str, given: Description, expected: Description) -> None:
    """Unless the parent gives others; a child that is there keeps its own."""
    child = make(kind="child")

    async def handler(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                with pytest.raises(InvalidId):
                    await wake.delegate(child, "c/child", event, owner="")
                await wake.delegate(child, "c/child", event, **given)

    async with stage(url, handler, child) as on:
        await on.talk().ask(UserMessage("go"), timeout=30, **ABOUT)
        assert await about(on, "c/child") == expected
        await on.talk().describe(owner="bob", labels={})
        given = {"owner": "eve"}
        await on.talk().ask(UserMessage("go on"), timeout=30)
        assert await about(on, "c/child") == expected
