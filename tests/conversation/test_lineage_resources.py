"""Sandboxes of conversations that are forked and merged; one test for each promise. A sandbox is a `Resource`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import affinity
from affinity import RuntimeOptions
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import (
    ResourceClosed,
)
from tests.conversation.application import Chat, kinds, make, stage, until
from tests.conversation.lineage_helpers import LONG, say

pytestmark = pytest.mark.anyio


class Sandboxes:
    """Opens and closes, and notes it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.resource = affinity.Resource(open=self.open, close=self.close, name="sandbox")

    def open(self, key: str) -> dict[str, str]:
        """A sandbox with no files."""
        self.log.append(f"open {key}")
        return {}

    def close(self, key: str, _: dict[str, str]) -> None:
        """Its end."""
        self.log.append(f"close {key}")


@asynccontextmanager
async def with_sandboxes(url: str, sandboxes: Sandboxes, **options: Any) -> Any:
    """A stage whose handler does what the last message says in the sandbox."""

    async def act(wake: affinity.Wake, chat: Chat) -> None:
        command, *words = wake.events[-1].text.split()  # type: ignore[attr-defined]
        if command == "plain":
            wake.append(AgentMessage("ok"))
            return
        files = await wake.resource(sandboxes.resource)
        chat.received.append(command)
        if command == "write":
            files[words[0]] = wake.conversation_id
        elif command == "fail":
            raise ValueError("a 429")
        elif command == "close":
            await wake.close_resource(sandboxes.resource)
        wake.append(AgentMessage(",".join(f"{name}:{by}" for name, by in sorted(files.items())) or "empty"))

    async with stage(url, make(act, retry=affinity.RetryPolicy(max_attempts=1), **options)) as found:
        yield found


async def test_a_sandbox_is_opened_when_it_is_first_used(url: str) -> None:
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        talk = found.talk("a")
        assert await say(talk, "plain") == "ok"
        assert sandboxes.log == []
        await say(talk, "list")
        await say(talk, "list")
        assert sandboxes.log == ["open a"]
    await until(lambda: _is(sandboxes.log == ["open a", "close a"]))


async def _is(value: bool) -> bool:
    return value


async def test_a_fork_beside_shares_the_open_sandbox(url: str) -> None:
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        talk = found.talk("a")
        await say(talk, "write one")
        fork = await talk.fork("b", beside=True)
        assert await say(fork, "write two") == "one:a,two:b"
        further = await fork.fork("c")  # inherits the home
        detached = await fork.detach("d")
        assert await say(further, "list") == await say(detached, "list") == await say(talk, "list") == "one:a,two:b"
        short = await talk.compress(into="s", summarise=in_short, beside=True)
        assert await say(short, "list") == "one:a,two:b"
        assert sandboxes.log == ["open a"]
        assert [each.home for each in await further.ancestors()] == ["a", "a", None]
        assert (await found.state("b")).received == ["write", "write"]
        assert (await found.state("a")).received == ["write", "list"]


async def in_short(_: object) -> str:
    return "short"


async def test_a_fork_of_its_own_has_another_sandbox(url: str) -> None:
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        talk = found.talk("a")
        await say(talk, "write one")
        fork = await talk.fork("b")
        assert await say(fork, "list") == "empty"
        assert await say(await talk.compress(into="s", summarise=in_short), "list") == "empty"
        beside = await talk.fork("c", beside=True)
        assert await say(await beside.fork("d", beside=False), "list") == "empty"
        assert sandboxes.log == ["open a", "open b", "open s", "open d"]


async def test_the_last_conversation_that_shares_it_closes_it(url: str) -> None:
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        talk = found.talk("a")
        await say(talk, "list")
        fork = await talk.fork("b", beside=True)
        await say(fork, "list")
        await say(talk, "close")
        assert sandboxes.log == ["open a"]
        assert await say(fork, "list") == "empty"
        await say(fork, "close")
        assert sandboxes.log == ["open a", "close a"]


async def test_a_closed_sandbox_is_an_error_and_never_an_empty_one(url: str) -> None:
    """A sandbox is never lost silently: not in another process either, nor in a fork that is made afterwards."""
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        await say(found.talk("a"), "write one")
        await say(found.talk("a"), "close")
        await assert_closed(found.talk("a"))
    async with with_sandboxes(url, sandboxes) as found:
        await assert_closed(found.talk("a"))
        await assert_closed(await found.talk("a").fork("b"))
    assert sandboxes.log == ["open a", "close a"]


async def assert_closed(talk: affinity.ConversationHandle) -> None:
    with pytest.raises(affinity.errors.WakeFailed, match=ResourceClosed.__name__):
        await talk.ask(UserMessage("list"), timeout=LONG)


MERGES: list[tuple[str, str, dict[str, Any], str | None]] = [
    # left side, right side, options, the sandbox of the merge; None: refused
    ("open", "other", {}, None),
    ("other", "open", {}, None),
    ("beside", "other", {}, None),
    ("open", "other", {"keep": "left"}, "one:open"),
    ("open", "other", {"keep": "right"}, "two:other"),
    ("open", "none", {}, "one:open"),
    ("open", "new", {}, "one:open"),
    ("none", "open", {}, "one:open"),
    ("open", "beside", {}, "one:open"),
    ("beside", "open", {}, "one:open"),
    ("beside", "none", {}, "one:open"),
    ("none", "beside", {}, "one:open"),
    ("none", "new", {}, "empty"),
    ("none", "beside-none", {}, "empty"),
    ("none", "open", {"keep": "left"}, "empty"),
]
"""Two conversations with a sandbox each, forks beside one, and conversations without one."""


async def test_a_merge_has_the_sandbox_of_its_left_side(url: str) -> None:
    """A side without one is ignored, and two different ones are refused, unless a side is named."""
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        await say(found.talk("open"), "write one")
        await say(found.talk("other"), "write two")
        await say(found.talk("none"), "plain")
        await found.talk("new").send(UserMessage("plain"))
        await found.talk("open").fork("beside", beside=True)
        await found.talk("none").fork("beside-none", beside=True)
        for number, (left, right, options, sandbox) in enumerate(MERGES):
            if sandbox is None:
                with pytest.raises(affinity.errors.InvalidOptions, match="keep='left'"):
                    await found.talk(left).merge(right, into=f"m{number}", **options)
                continue
            merged = await found.talk(left).merge(right, into=f"m{number}", **options)
            assert await say(merged, "list") == sandbox, (left, right, options)


async def test_a_sandbox_that_is_gone_is_not_open(url: str) -> None:
    """Its worker has ended: the merge opens one of its own."""
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        for name in ("l", "r"):
            await say(found.talk(name), "write one")
    async with with_sandboxes(url, sandboxes) as found:
        merged = await found.talk("l").merge("r", into="m")
        assert await say(merged, "list") == "empty"


async def test_an_error_drops_the_state_and_keeps_the_sandbox(url: str) -> None:
    """Its files outlive the error."""
    sandboxes = Sandboxes()
    async with with_sandboxes(url, sandboxes) as found:
        talk = found.talk("a")
        await say(talk, "write one")
        with pytest.raises(affinity.errors.WakeFailed):
            await talk.ask(UserMessage("fail"), timeout=LONG)
        assert (await found.state("a")).received == ["write"]
        assert await say(talk, "list") == "one:a"
        assert sandboxes.log == ["open a"]


@pytest.mark.slow
async def test_a_fork_beside_follows_its_home_to_another_worker(url: str) -> None:
    sandboxes = Sandboxes()
    async with stage(url, workers=0) as before, with_sandboxes(url, sandboxes) as found:
        assert before.url == found.url
        talk = found.talk("a")
        await say(talk, "list")
        fork = await talk.fork("b", beside=True)
        await say(fork, "list")
        async with found.conversations.open("b", store=found.client.session_store) as chat:
            chat.received.append("by hand")  # its state in memory is of another epoch now, and the sandbox is not
        assert await say(fork, "list") == "empty"
        assert (await found.state("b")).received == ["list", "list", "by hand", "list"]
        await found.client.release_session("a")
        await until(lambda: _is(sandboxes.log == ["open a", "close a"]))
        assert await say(fork, "list") == "empty"
        assert (await found.state("b")).received == ["list", "list", "by hand", "list", "list"]
    assert sandboxes.log[:3] == ["open a", "close a", "open a"]


async def test_a_fork_beside_that_later_code_wrote_goes_to_a_worker_that_can_read_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the lease of its home, and without a failure."""
    old, later = make(schema_version=1), make(schema_version=2)
    later.migration(1, 2)(dict)
    options = RuntimeOptions(poll_interval=0.2)
    async with stage(url, later, options=options) as before:
        await say(before.talk("a"), "one")
        await say(await before.talk("a").fork("b", beside=True), "two")
    async with stage(url, old, options=options) as found:
        home, fork = found.talk("a"), found.talk("b")
        seq = await fork.send(UserMessage("three"))
        await until(lambda: _is("giving the session back" in caplog.text))
        async with stage(url, later, options=options):
            reply = await fork.reply(seq, timeout=LONG)
            assert (reply.text, kinds(reply.entries).count("span.started")) == ("re: three", 1)
            assert await say(home, "four") == "re: four"


async def test_without_a_session_there_is_no_sandbox() -> None:
    sandboxes = Sandboxes()
    async with make().open(None, allow_transient=True):
        pass
    opening = make().open(None, allow_transient=True)
    async with opening:
        with pytest.raises(affinity.errors.SessionError, match="belongs to a session"):
            await opening.resource(sandboxes.resource)


async def test_reading_a_result_waits_until_it_is_there(url: str) -> None:
    """`ConversationHandle.reply` of an input that no wake has processed. Its origin and its place are known before."""
    gate = anyio.Event()
    replies: list[str] = []

    async def slow(wake: affinity.Wake, _: Chat) -> None:
        await gate.wait()
        wake.append(AgentMessage("ready"))

    async with stage(url, slow) as found:
        await found.talk("source").create()
        talk = await found.talk("source").fork("a", beside=True)
        seq = await talk.send(UserMessage("go"))
        async with anyio.create_task_group() as group:

            async def read() -> None:
                replies.append((await talk.reply(seq, timeout=LONG)).text)

            group.start_soon(read)
            await anyio.sleep(0.2)
            itself, source = await talk.ancestors()
            assert (itself.lineage, itself.home, source.conversation_id) == ("fork", "source", "source")
            assert replies == []
            gate.set()
        assert replies == ["ready"]


async def test_resources_stay_behind_at_an_import(url: str) -> None:
    """The copy has the content and the state, and makes a resource of its own; it runs beside no other conversation."""
    made: list[str] = []

    def create(resource_id: str, _: str) -> str:
        made.append(resource_id)
        return resource_id

    box: affinity.Resource[str] = affinity.Resource(name="box", create=create, destroy=lambda *_: None)

    async def act(wake: affinity.Wake, chat: Chat) -> None:
        chat.received.append(await wake.resource(box))
        wake.append(AgentMessage("ok"))

    conversations = make(act)
    app = affinity.App("boxes")
    app.include(conversations)
    app.include(box)
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(conversations, "a")
        await talk.ask(UserMessage("one"), timeout=30)
        fork = await talk.fork("b", beside=True)
        copy = client.conversation(conversations, "copy")
        await copy.import_([line async for line in fork.export()])
        assert (await fork.resources(), await copy.resources()) == ({"box": made[0]}, {})
        assert [each.home for each in await copy.ancestors()] == [None]
        await copy.ask(UserMessage("two"), timeout=30)
        assert await copy.resources() == {"box": made[1]}
        async with conversations.open("copy", store=client.session_store) as chat:
            assert chat.received == made


async def test_what_is_attached_is_listed(url: str) -> None:
    """By its name; a fork has it too, and knows what it has closed. A fork beside may be the first to use it."""
    made: list[str] = []

    def create(resource_id: str, _: str) -> str:
        made.append(resource_id)
        return resource_id

    box: affinity.Resource[str] = affinity.Resource(name="box", create=create, destroy=lambda *_: None)

    async def act(wake: affinity.Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("use")]:
            await wake.resource(box)
        elif wake.events == [UserMessage("close")]:
            await wake.close_resource(box)
        wake.append(AgentMessage("ok"))

    conversations = make(act)
    app = affinity.App("boxes")
    app.include(conversations)
    app.include(box)
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(conversations, "a")
        assert await talk.resources() == {}
        await talk.ask(UserMessage("plain"), timeout=30)
        assert await talk.resources() == {}
        beside = await talk.fork("c", beside=True)
        await beside.ask(UserMessage("use"), timeout=30)
        assert await beside.resources() == {"box": made.pop()}
        await talk.ask(UserMessage("use"), timeout=30)
        assert await talk.resources() == {"box": made[0]}
        fork = await talk.fork("b")
        await talk.ask(UserMessage("close"), timeout=30)
        assert await talk.resources() == {"box": "closed"}
        assert await fork.resources() == {"box": made[0]}
