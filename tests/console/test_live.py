"""Pages that renew themselves."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import httpx2 as httpx
import pytest
import uvicorn

from affinity import Client, ConversationHandle
from affinity.client.inspection import Inspection
from affinity.console import ALL, NONE, Access, Console, create
from affinity.conversation import UserMessage
from affinity.conversation.follow import EventFeed
from affinity.errors import ConnectionLost, SchemaMismatch
from tests.console.conftest import fill
from tests.support.console_app import chats
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIVE = {"accept": "text/event-stream"}


class Events:
    """The events of a stream as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines: AsyncIterator[str] = response.aiter_lines()

    async def named(self, name: str) -> dict[str, str]:
        """The next event of this name."""
        while (event := await self.next(skip="")).get("event") != name:
            pass
        return event

    async def next(self, skip: str = "current") -> dict[str, str]:
        """The next event of another name; lines of data are joined."""
        fields: dict[str, str] = {}
        with anyio.fail_after(20):
            async for line in self._lines:
                if not line and fields:
                    if fields.get("event") != skip:
                        return fields
                    fields = {}
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = f"{fields[name]}\n{value}" if name in fields else value
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def serve(console: Console) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a console; gives a client of it."""
    server = _Server(uvicorn.Config(console, port=0, log_level="warning", timeout_graceful_shutdown=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)

        async def started() -> bool:
            return server.started

        await until(started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as opened:
            yield opened
        server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the tests."""
        yield


@pytest.fixture
async def http(client: Client) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Access]]]:
    """A client of a served console, and the access that its users have."""
    users = {"ann": Access(ALL, "ann")}
    async with serve(create(client, access=lambda request: users["ann"])) as opened:
        yield opened, users


async def test_a_page_comes_again_when_it_has_changed(
    client: Client, http: tuple[httpx.AsyncClient, dict[str, Access]]
) -> None:
    """And not before: a stream that resumes at what it has shows nothing twice."""
    await fill(client, "plain")
    browser, users = http
    await browser.get("/approvals")
    async with browser.stream("GET", "/approvals", headers=LIVE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = Events(response)
        first = await events.next()
        assert "agent.tool_confirmation" in first["data"]
        request = (await client.requests())[0]
        async with browser.stream("GET", "/approvals", headers={**LIVE, "last-event-id": first["id"]}) as resumed:
            talk = client.conversation(chats, request.conversation_id)
            await talk.answer(request.request_id, allowed=False)
            for stream in (events, Events(resumed)):
                second = await stream.next()
                assert "Nothing waits for an answer" in second["data"]
                assert second["id"] != first["id"]
        users["ann"] = Access(NONE)
        assert "gone" in (await events.next()).values()


@pytest.mark.slow_cases(r"\[sqlite")
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_page_is_told_that_it_is_old(
    client: Client, http: tuple[httpx.AsyncClient, dict[str, Access]], monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Within seconds, while the database refuses or hangs; after each read it is told the age of what it shows."""
    browser, _ = http

    async def lost() -> object:
        await anyio.sleep(4.0 if hangs else 0.0)
        raise SchemaMismatch("it is too new") if hangs else ConnectionLost("gone: secret-of-the-network")

    async with browser.stream("GET", "/workers", headers=LIVE) as response:
        events = Events(response)
        assert "<h1>Workers</h1>" in (await events.next())["data"]
        assert float((await events.named("current"))["data"]) < 1.5
        with monkeypatch.context() as down:
            down.setattr(client, "workers", lost)
            began = anyio.current_time()
            assert (await events.named("stale"))["data"] == '"The database does not answer."'
            assert anyio.current_time() - began < 3.5
            if hangs:  # until the error says what is wrong
                while (await events.named("stale"))["data"] != '"it is too new"':
                    pass
        assert float((await events.named("current"))["data"]) < 1.5


async def test_a_console_without_a_database_says_so(
    client: Client, kept_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page loads itself again, and a live page is told; both have the page when the database is there."""

    async def lost(client: Client) -> Client:
        raise ConnectionLost("gone")

    async with create(kept_url) as console, serve(console) as browser, AsyncExitStack() as stack:
        with monkeypatch.context() as down:
            down.setattr(Client, "__aenter__", lost)
            page = await browser.get("/workers")
            assert (page.status_code, 'http-equiv="refresh"' in page.text) == (503, True)
            events = Events(await stack.enter_async_context(browser.stream("GET", "/workers", headers=LIVE)))
            await events.named("stale")
        while "<h1>Workers</h1>" not in (await events.next()).get("data", ""):
            pass
        page = await browser.get("/workers")
        assert (page.status_code, 'http-equiv="refresh"' in page.text) == (200, False)


async def test_a_page_says_when_it_was_made(http: tuple[httpx.AsyncClient, dict[str, Access]]) -> None:
    """In UTC, outside of what a live page replaces: a page that is read again a second later is the same page."""
    page = (await http[0].get("/workers")).text
    found = re.search(r'id="live">as it was <time datetime="([^"]+)">[\d-]+ [\d:]+ UTC</time>', page)
    assert found is not None
    assert abs(datetime.fromisoformat(found[1]) - datetime.now(UTC)) < timedelta(seconds=10)
    async with http[0].stream("GET", "/schedules", headers=LIVE) as response:
        events = Events(response)
        assert "as it was" not in (await events.next())["data"]
        for _ in range(3):
            assert (await events.next(skip=""))["event"] == "current"


async def test_a_page_that_fails_is_no_broken_stream(
    http: tuple[httpx.AsyncClient, dict[str, Access]],
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The browser loads the page, which is one of the console, and has no script that loads it again."""

    async def broken() -> object:
        raise KeyError("secret-of-the-code")

    monkeypatch.setattr(client, "workers", broken)
    async with http[0].stream("GET", "/workers", headers=LIVE) as response:
        assert await Events(response).next() == {"event": "gone", "data": ""}
    assert [record.getMessage() for record in caplog.records if record.name == "affinity.console"] == [
        "the live page /workers has failed"
    ]
    page = await http[0].get("/workers")
    assert (page.status_code, "Internal Server Error" in page.text, "<script" in page.text) == (500, True, False)
    assert "secret-of-the-code" not in page.text


@pytest.mark.slow_cases(r"\[sqlite")
async def test_what_is_said_is_pushed_as_it_comes(
    client: Client, http: tuple[httpx.AsyncClient, dict[str, Access]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To two browsers, by one feed: in pieces, and void at the end of each attempt."""
    feeds: list[str] = []
    plain = ConversationHandle.events

    def counted(self: ConversationHandle, **where: Any) -> EventFeed:
        feeds.append(self.conversation_id)
        return plain(self, **where)

    monkeypatch.setattr(ConversationHandle, "events", counted)
    talk = client.conversation(chats, "talk")
    await talk.ask(UserMessage("use a tool"), timeout=20)
    browser, _ = http
    words = "slowly breaks " + "".join([f"word{n} " for n in range(6)])
    seen: list[list[tuple[str, str]]] = [[], []]

    async def look(said: list[tuple[str, str]]) -> None:
        async with browser.stream("GET", "/conversation?id=talk", headers=LIVE) as response:
            events = Events(response)
            await events.next()
            looking.append(said)
            while ("replaced", words) not in said:
                event = await events.next()
                if event.get("event") == "stream":
                    piece = json.loads(event["data"])
                    said.append((piece["state"], piece["text"] if "text" in piece else said[-1][1] + piece["more"]))

    async def both_look() -> bool:
        return len(looking) == 2

    looking: list[list[tuple[str, str]]] = []
    async with anyio.create_task_group() as tasks:
        for said in seen:
            tasks.start_soon(look, said)
        await until(both_look)
        await talk.send(UserMessage(words))
    assert feeds == ["talk"]
    for said in seen:
        assert len([text for state, text in said if state == "said"]) > 4
        assert all(words.startswith(text) for _, text in said)
        assert ("retracted", words) in said


async def test_many_live_pages_read_once_a_second(
    client: Client, http: tuple[httpx.AsyncClient, dict[str, Access]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []
    plain = Inspection.sessions

    def counted(self: Inspection, **where: object) -> object:
        reads.append(anyio.current_time())
        return plain(self, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(Inspection, "sessions", counted)
    browser, _ = http

    async def look() -> None:
        async with browser.stream("GET", "/sessions", headers=LIVE) as response:
            events = Events(response)  # kept: without it the response is closed
            await events.next()
            await done.wait()

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(look)

        async def read_thrice() -> bool:
            return len(reads) >= 3

        await until(read_thrice)
        done.set()
    assert all(later - earlier >= 0.99 for earlier, later in pairwise(reads))
