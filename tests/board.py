"""How tests watch and steer activities in other processes, without a sleep: each call of `ask` waits for the test's
answer.

The test opens a `Board`; activities connect to its socket (path in the environment), say who and where they are, and
wait. A process that dies drops its connection, which the board sees as a gone call.
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

VARIABLE = "AFFINITY_TEST_BOARD"
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
        """Let the activity go on; `ask` returns ``value`` there. One that was killed or cancelled meanwhile hears
        nothing.
        """
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._stream.send(json.dumps(value).encode() + b"\n")


class Board:
    """Receives calls in the order in which they come."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._send, self._receive = anyio.create_memory_object_stream[Call](10_000)

    async def next(self, timeout: float = 60.0) -> Call:
        """The next call; the timeout is a bound for a broken test, not a pace."""
        with anyio.fail_after(timeout):
            return await self._receive.receive()

    def waiting(self) -> int:
        """Calls that came and were not taken yet."""
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
async def open_board() -> AsyncIterator[Board]:
    """A board whose path is in the environment, for this process and its children."""
    async with serve_board() as board:
        os.environ[VARIABLE] = board.path
        try:
            yield board
        finally:
            del os.environ[VARIABLE]


@asynccontextmanager
async def serve_board() -> AsyncIterator[Board]:
    """A board of which only those know who are told."""
    with tempfile.TemporaryDirectory() as folder:
        board = Board(str(Path(folder) / "board"))
        listener = await anyio.create_unix_listener(board.path)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, board._serve)
            try:
                yield board
            finally:
                tasks.cancel_scope.cancel()
        board._send.close()
        board._receive.close()


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


async def ask(context: ActivityContext, **more: Any) -> Any:
    """Tell the board that this activity runs, and wait for its answer."""
    async with await anyio.connect_unix(os.environ[VARIABLE]) as stream:
        await stream.send(_said(context, **more))
        return json.loads(await BufferedByteReceiveStream(stream).receive_until(b"\n", LIMIT))


def ask_blocking(context: ActivityContext, **more: Any) -> Any:
    """The same for sync code; blocks its thread, or the loop."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[VARIABLE])
        connection.sendall(_said(context, **more))
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())
