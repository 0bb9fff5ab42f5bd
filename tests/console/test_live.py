"""Pages that renew themselves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import anyio
import httpx2 as httpx
import pytest
import uvicorn

from affinity import Client, ConversationHandle
from affinity.client.inspection import Inspection
from affinity.console import ALL, NONE, Access, create
from affinity.conversation import UserMessage
from affinity.conversation.follow import EventFeed
from tests.console.conftest import fill
from tests.support.console_app import chats
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIVE = {"accept": "text/event-stream"}


class Events:
    """The events of a stream as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines: AsyncIterator[str] = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The next event; lines of data are joined."""
        fields: dict[str, str] = {}
        with anyio.fail_after(20):
            async for line in self._lines:
                if not line and fields:
                    return fields
                name, _, value = line.partition(": ")
                fields[name] = f"{fields[name]}\n{value}" if name in fields else value
        raise AssertionError("the stream has ended")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the tests."""
        yield


@pytest.fixture
async def http(client: Client) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Access]]]:
    """A client of a served console, and the access that its users have."""
    users = {"ann": Access(ALL, "ann")}
    config = uvicorn.Config(
        create(client, access=lambda request: users["ann"]), port=0, log_level="warning", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)

        async def started() -> bool:
            return server.started

        await until(started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as opened:
            yield opened, users
        server.should_exit = True


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
    plain = Inspection.list_instances

    def counted(self: Inspection, **where: object) -> object:
        reads.append(anyio.current_time())
        return plain(self, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(Inspection, "list_instances", counted)
    browser, _ = http

    async def look() -> None:
        async with browser.stream("GET", "/instances", headers=LIVE) as response:
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
