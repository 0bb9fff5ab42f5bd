"""Calls from activities in other processes to their test: each `call_test` waits for the test's answer.

So a test watches and steers activities without a sleep. It opens an `ActivityCalls`. Activities connect to its socket,
whose path is in the environment, send their ids, and wait. A process that dies drops its connection, which sets
`Call.gone`.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from affinity import ActivityContext

VARIABLE = "AFFINITY_TEST_CALLS"
LIMIT = 1 << 20


class Call:
    """One activity that waits for the test."""

    def __init__(self, said: dict[str, Any], stream: SocketStream) -> None:
        self.said = said
        self._stream = stream
        self.gone = anyio.Event()

    def __getitem__(self, key: str) -> Any:
        return self.said[key]

    async def answer(self, value: Any = None) -> None:
        """Let the activity go on: its `call_test` returns ``value``. Does nothing if it was killed or cancelled."""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._stream.send(json.dumps(value).encode() + b"\n")


class ActivityCalls:
    """The calls of activities, in the order in which they come."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._send, self._receive = anyio.create_memory_object_stream[Call](10_000)

    async def next(self, timeout: float = 60.0) -> Call:
        """The next call; the timeout is a bound for a broken test, not a pace."""
        with anyio.fail_after(timeout):
            return await self._receive.receive()

    def waiting(self) -> int:
        """The number of calls that `next` has not returned yet."""
        return self._receive.statistics().current_buffer_used

    async def _serve(self, stream: SocketStream) -> None:
        call: Call | None = None
        async with stream:
            received = BufferedByteReceiveStream(stream)
            try:
                call = Call(json.loads(await received.receive_until(b"\n", LIMIT)), stream)
                await self._send.send(call)
                await received.receive(1)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            finally:
                if call is not None:
                    call.gone.set()


@asynccontextmanager
async def open_calls() -> AsyncIterator[ActivityCalls]:
    """Calls of this process and its children: the path of the socket is in their environment."""
    async with serve_calls() as calls:
        os.environ[VARIABLE] = calls.path
        try:
            yield calls
        finally:
            del os.environ[VARIABLE]


@asynccontextmanager
async def serve_calls() -> AsyncIterator[ActivityCalls]:
    """Calls of processes that are given the path of the socket."""
    with tempfile.TemporaryDirectory() as folder:
        calls = ActivityCalls(str(Path(folder) / "calls"))
        listener = await anyio.create_unix_listener(calls.path)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, calls._serve)
            try:
                yield calls
            finally:
                tasks.cancel_scope.cancel()
        calls._send.close()
        calls._receive.close()


def _said(context: ActivityContext, **more: Any) -> bytes:
    about = {
        "activity": context.name,
        "instance": context.instance_id,
        "session": context.session_id,
        "epoch": context.session_epoch,
        "attempt": context.attempt,
        "worker": context.worker_id,
        "pid": os.getpid(),
    }
    return json.dumps(about | more).encode() + b"\n"


async def call_test(context: ActivityContext, **more: Any) -> Any:
    """Send the activity's ids to the test, and wait for its answer."""
    async with await anyio.connect_unix(os.environ[VARIABLE]) as stream:
        await stream.send(_said(context, **more))
        return json.loads(await BufferedByteReceiveStream(stream).receive_until(b"\n", LIMIT))


def call_test_blocking(context: ActivityContext, **more: Any) -> Any:
    """`call_test` for sync code; it blocks its thread, or the event loop."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[VARIABLE])
        connection.sendall(_said(context, **more))
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())
