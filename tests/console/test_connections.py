"""Connections that send half of a request."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator

import anyio
import httpx2 as httpx
import pytest
from anyio.abc import SocketStream
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from affinity.console import connections, requests
from affinity.console.connections import MAX_WAITING, BoundedProtocol, max_waiting
from affinity.console.requests import Refused, read_form
from affinity.console.serving import USER, BasicLogin, serve_locally

pytestmark = pytest.mark.anyio

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-a: "


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    request, text = Request(scope, receive), f"you are {scope[USER]}"
    if request.method == "POST":
        try:
            await read_form(request, [])
        except Refused as refused:
            text = str(refused.status)
    await PlainTextResponse(text)(scope, receive, send)


class Anybody(BasicLogin):
    def __init__(self) -> None:
        super().__init__({})

    def identify(self, request: Request) -> str:
        return "ann"


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(BoundedProtocol, "_logged_at", -connections.LOG_SECONDS)
    async with serve_locally(answers, Anybody()) as address:
        yield int(address.rpartition(":")[2])


async def closed(stream: SocketStream) -> bytes:
    """What the server still sends, until it closes the connection."""
    found = b""
    with anyio.fail_after(20):
        try:
            while True:
                found += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return found


async def test_half_a_request_is_closed(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The first of a connection, and a later one; with a line in the log. Whole requests are answered meanwhile."""
    async with (
        await anyio.connect_tcp("127.0.0.1", port) as first,
        await anyio.connect_tcp("127.0.0.1", port) as second,
    ):
        await first.send(HALF)
        await second.send(HALF + b"1\r\n\r\n")
        assert b"you are ann" in await second.receive()
        await second.send(HALF)
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://127.0.0.1:{port}/")).text == "you are ann"
        assert await closed(first) == b""
        assert await closed(second) == b""
    lines = [record.getMessage() for record in caplog.records if record.name == "affinity.console"]
    assert lines[0].startswith("closed 1 connections without a complete request, the last from 127.0.0.1")


async def test_many_halves_do_not_keep_others_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further one closes the oldest, long before its time is over."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 600.0)
    monkeypatch.setattr(connections, "MAX_WAITING", 3)
    opened = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(5)]
    try:
        for stream in opened[:2]:
            assert await closed(stream) == b""
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://127.0.0.1:{port}/")).text == "you are ann"
    finally:
        for stream in opened:
            await stream.aclose()


async def test_half_a_form_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FORM_SECONDS", 0.1)
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nContent-Length: 99\r\n\r\nto"
    )
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(head.encode())
        assert (await stream.receive()).endswith(b"408")


def test_a_process_with_few_descriptors_keeps_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((200, 50), (1_000_000, MAX_WAITING), (-1, MAX_WAITING)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert max_waiting() == most
