"""The inbox: requests of all conversations, and the feed of their changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

import anyio
import pytest

import affinity
from affinity import Client, Wake
from affinity.client import changes
from affinity.client.changes import AllChanges
from affinity.conversation import CustomToolUse, RequestEvent, ToolConfirmation, UnknownEvent, UserMessage, inbox
from affinity.conversation.journal import RequestFilter
from affinity.errors import ClientError, InvalidInput
from tests.conversation.application import Chat, Stage, make, stage
from tests.conversation.lineage_helpers import LONG

pytestmark = pytest.mark.anyio


class Review(RequestEvent):
    """A request of the application."""

    score: int
    request_id: str = ""
    kind: Literal["desk.review"] = "desk.review"


async def handler(wake: Wake, chat: Chat) -> None:
    """Asks for what the messages say."""
    for event in wake.events:
        match event:
            case UserMessage(content="review"):
                wake.require(Review(score=7))
            case UserMessage(content="use"):
                wake.require(CustomToolUse("lookup", arguments={"id": 3}))
            case UserMessage(content="fork"):
                await wake.fork("fork")
            case UserMessage(content="soon"):
                wake.require(ToolConfirmation("pay"), expires_in=3.0)
            case UserMessage(content="withdraw"):
                for request in wake.requests:
                    wake.withdraw(request.request_id)
            case UserMessage(content=str(text)):
                for number in range(int(text)):
                    wake.require(ToolConfirmation("pay", arguments={"cents": number}))


@asynccontextmanager
async def desk(url: str) -> AsyncIterator[Stage]:
    async with stage(url, make(handler, events=[Review])) as on:
        yield on


async def ask(on: Stage, name: str, text: str = "1", **about: Any) -> str:
    """The id of the request that the wake makes; of the last one."""
    await on.talk(name).ask(UserMessage(text), timeout=LONG, **about)
    return (await on.talk(name).requests())[-1].request_id


async def names(client: Client, **where: Any) -> list[str]:
    return [each.conversation_id async for each in client.requests(**where)]


async def test_an_inbox_has_the_requests_of_all_conversations(url: str) -> None:
    """Oldest first, each with its conversation and its event; not one that is answered."""
    async with desk(url) as on:
        request_id = await ask(on, "b", "2", title="Refund", owner="ann", labels={"team": "eu"})
        await ask(on, "a", "review")
        first, second, third = [each async for each in on.client.requests()]
        assert (first.conversation_id, first.conversation_kind, first.title) == ("b", "chat", "Refund")
        assert (first.owner, first.labels, second.request_id) == ("ann", {"team": "eu"}, request_id)
        (pending, _) = await on.talk("b").requests()
        assert (first.request_id, first.wake_id, first.created_at, first.expires_at) == (
            pending.request_id, pending.wake_id, pending.created_at, None
        )  # fmt: skip
        assert first.kind == "agent.tool_confirmation"
        assert first.event == pending.event.model_dump(mode="json")
        assert on.conversations.read_request(first) == pending.event
        assert on.conversations.read_request(third) == Review(request_id=third.request_id, score=7)
        assert isinstance(make(kind="other").read_request(third), UnknownEvent)
        await on.talk("b").answer(first.request_id, allowed=True)
        assert [each.request_id async for each in on.client.requests()] == [request_id, third.request_id]


async def test_an_inbox_is_filtered_and_read_in_pages(url: str) -> None:
    async with desk(url) as on:
        await ask(on, "x/1", "2", owner="ann", labels={"team": "eu"})
        await ask(on, "x/2", "use", owner="bob", labels={"team": "eu"})
        await ask(on, "y/1", "review", owner="ann")
        assert await names(on.client) == ["x/1", "x/1", "x/2", "y/1"]
        assert await names(on.client, kinds=["agent.custom_tool_use", "desk.review"]) == ["x/2", "y/1"]
        assert await names(on.client, owner="ann") == ["x/1", "x/1", "y/1"]
        assert await names(on.client, labels={"team": "eu"}, owner="bob") == ["x/2"]
        assert await names(on.client, prefix="y/") == ["y/1"]
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await on.client.requests(labels={"team": "eu"}).page(after or None, limit=1)
            found += [each.request_id for each in page.items]
            after = page.next
        assert found == [each.request_id async for each in on.client.requests(labels={"team": "eu"})]
        assert len(found) == 3


@pytest.mark.parametrize(
    "words",
    [
        {"kinds": 7},
        {"kinds": [7]},
    ],
)
async def test_what_no_inbox_has_is_refused(sqlite_url: str, words: Any) -> None:
    await affinity.migrate(sqlite_url)
    async with Client(sqlite_url) as client:
        with pytest.raises(InvalidInput):
            client.requests(**words)
        with pytest.raises(InvalidInput, match="did you mean 'labels'"):
            client.watch_requests(lables={"a": "b"})  # type: ignore[call-arg]


# -- the feed


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No safety poll; returns the conversations that each read of a feed has asked for, None for all."""
    monkeypatch.setattr(inbox, "SAFETY_SECONDS", 1e6)
    return watch_reads(monkeypatch)


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    reads: list[Any] = []
    real = inbox.RequestFeed._read

    async def read(self: inbox.RequestFeed, where: RequestFilter) -> Any:
        reads.append(where.session_ids)
        return await real(self, where)

    monkeypatch.setattr(inbox.RequestFeed, "_read", read)
    return reads


async def take(feed: inbox.RequestFeed) -> tuple[str, str]:
    with anyio.fail_after(LONG):
        change = await anext(feed)
    return change.change, change.request.conversation_id


async def test_a_feed_gives_what_waits_and_then_each_change(url: str, only_hints: list[Any]) -> None:
    """By hints alone; of conversations that have changed, no others are read."""
    async with desk(url) as on:
        await on.talk("idle").ask(UserMessage("0"), timeout=LONG)
        first = await ask(on, "a")
        await ask(on, "b")
        async with on.client.watch_requests() as feed:
            assert [await take(feed), await take(feed)] == [("asked", "a"), ("asked", "b")]
            assert only_hints[0] is None
            start = len(only_hints)
            await ask(on, "c")
            assert await take(feed) == ("asked", "c")
            await on.talk("a").answer(first, allowed=True)
            assert await take(feed) == ("gone", "a")
            await on.talk("b").interrupt()
            assert await take(feed) == ("gone", "b")
            await on.talk("c").terminate()
            assert await take(feed) == ("gone", "c")
            await ask(on, "a", "2")
            assert [await take(feed), await take(feed)] == [("asked", "a")] * 2
            await on.talk("a").delete()
            assert [await take(feed), await take(feed)] == [("gone", "a")] * 2
            if not url.startswith("sqlite"):  # whose hints of other connections name no conversations
                assert {name for reads in only_hints[start:] for name in reads} == {"a", "b", "c"}


async def test_a_feed_follows_its_conditions(url: str, only_hints: list[Any]) -> None:
    """A conversation that is described otherwise comes or goes."""
    async with desk(url) as on, on.client.watch_requests(owner="ann", prefix="x", kinds=["desk.review"]) as feed:
        for name, text, owner in (("y", "review", "ann"), ("x1", "1", "ann"), ("x2", "review", "bob")):
            await ask(on, name, text, owner=owner)
        await ask(on, "x3", "review", owner="ann")
        assert await take(feed) == ("asked", "x3")
        await on.talk("x2").describe(owner="ann")
        assert await take(feed) == ("asked", "x2")
        await on.talk("x3").describe(owner=None)
        assert await take(feed) == ("gone", "x3")
        assert not any("y" in (reads or ()) for reads in only_hints)  # another prefix


async def test_a_feed_has_the_requests_of_forks(url: str, only_hints: list[Any]) -> None:
    """Of a client's, and of a wake's."""
    async with desk(url) as on, on.client.watch_requests() as feed:
        await ask(on, "a")
        assert await take(feed) == ("asked", "a")
        await on.talk("a").fork("b")
        assert await take(feed) == ("asked", "b")
        await on.talk("a").ask(UserMessage("fork"), timeout=LONG)
        assert await take(feed) == ("asked", "fork")


async def test_a_feed_of_another_client_gets_hints_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(url) as on, Client(url) as other, other.watch_requests() as feed:
        monkeypatch.setattr(inbox, "SAFETY_SECONDS", 1e6)
        request_id = await ask(on, "a")
        assert await take(feed) == ("asked", "a")
        await on.talk("a").answer(request_id, allowed=True)
        assert await take(feed) == ("gone", "a")


async def test_lost_hints_cost_a_poll(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read then, also what has expired."""
    real = AllChanges.notify

    def notify(self: AllChanges, now: float, changed: Mapping[str, bool] | None = None) -> None:
        real(self, now)

    monkeypatch.setattr(AllChanges, "notify", notify)
    reads = watch_reads(monkeypatch)
    async with desk(url) as on, on.client.watch_requests() as feed:
        request_id = await ask(on, "a")
        assert await take(feed) == ("asked", "a")
        await on.talk("a").answer(request_id, allowed=True)
        assert await take(feed) == ("gone", "a")
        assert set(reads) == {None}


async def test_a_request_that_expires_goes(url: str) -> None:
    async with desk(url) as on, on.client.watch_requests() as feed:
        await ask(on, "stays")
        await ask(on, "goes", "soon")
        assert [await take(feed), await take(feed)] == [("asked", "stays"), ("asked", "goes")]
        assert await take(feed) == ("gone", "goes")


async def test_a_request_that_is_withdrawn_goes(url: str) -> None:
    async with desk(url) as on, on.client.watch_requests() as feed:
        await ask(on, "a")
        assert await take(feed) == ("asked", "a")
        await on.talk("a").ask(UserMessage("withdraw"), timeout=LONG)
        assert await take(feed) == ("gone", "a")
        assert await names(on.client) == []


async def test_after_too_many_changes_all_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_CHANGED", 1)
    monkeypatch.setattr(inbox, "SAFETY_SECONDS", 1e6)
    reads = watch_reads(monkeypatch)
    async with desk(url) as on, on.client.watch_requests() as feed:
        await ask(on, "a")
        assert await take(feed) == ("asked", "a")
        for name in ("b", "c"):
            await ask(on, name)
        assert sorted([await take(feed), await take(feed)]) == [("asked", "b"), ("asked", "c")]
        assert reads[-1] is None


async def test_a_wait_of_a_feed_may_be_cancelled(url: str, only_hints: list[Any]) -> None:
    """Wherever it is: no change is lost or given twice."""
    async with desk(url) as on, on.client.watch_requests() as feed:
        for number in range(3):
            await ask(on, f"c{number}")
            for _ in range(5):
                with anyio.move_on_after(0):
                    await anext(feed)
            assert await take(feed) == ("asked", f"c{number}")


async def test_a_feed_is_for_one_task_and_ends_with_its_client(url: str) -> None:
    async with desk(url) as on:
        client = Client(url)
        async with client, anyio.create_task_group() as tasks:
            feed = client.watch_requests()
            tasks.start_soon(anext, feed)
            while not feed._is_reading:
                await anyio.sleep(0)
            with pytest.raises(ClientError, match="a feed for each task"):
                await anext(feed)
            tasks.cancel_scope.cancel()
        with pytest.raises(ClientError, match="closed"):
            await take(feed)
        await feed.aclose()
        async with aclosing(on.client.watch_requests()) as left:
            await ask(on, "a")
            await take(left)
        with pytest.raises(StopAsyncIteration):
            await anext(left)
