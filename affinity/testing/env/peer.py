"""Questions and answers between an `Env` and the process of one of its workers: JSON, a line each, on a socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, TypeAlias

from affinity.limits import MAX_BATCH_BYTES

Fields: TypeAlias = Mapping[str, Any]

Handle: TypeAlias = Callable[[str, Fields], Awaitable[Fields]]
"""Answers a question of the other side: its name, and its fields."""


class PeerGone(Exception):
    """The other side has ended."""


class PeerFailed(Exception):
    """The other side could not answer."""


class Peer:
    """One side. Answers keep the order in which they are given."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Fields]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._is_gone = False

    async def open(self, end: socket.socket) -> None:
        """Take over this end of a pair of sockets."""
        self._reader, self._writer = await asyncio.open_connection(sock=end, limit=MAX_BATCH_BYTES)

    async def run(self) -> None:
        """Read until the other side ends."""
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except ConnectionError:
            pass
        finally:
            self._is_gone = True
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(PeerGone())
                    asked.exception()  # an answer that no task waits for any more is no error
            self._writer.close()

    def _take(self, line: dict[str, Any]) -> None:
        if (number := line.pop("answers", None)) is not None:
            asked = self._asked.pop(number)
            if not asked.done():  # its task may have been cancelled
                asked.set_result(line)
            return
        task = asyncio.get_running_loop().create_task(self._answer(line.pop("question"), line.pop("ask"), line))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, name: str, fields: Fields) -> None:
        try:
            answer = await self._handle(name, fields)
        except Exception as error:
            answer = {"failed": repr(error)}
        self._send({"answers": number, **answer})

    async def ask(self, name: str, **fields: Any) -> Fields:
        """Ask the other side.

        Raises:
            PeerGone: it has ended, or does before it answers.
            PeerFailed: an error has ended its answer.
        """
        if self._is_gone:
            raise PeerGone
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send({"question": number, "ask": name, **fields})
        found: Fields = await answer
        if "failed" in found:
            raise PeerFailed(found["failed"])
        return found

    def _send(self, line: Fields) -> None:
        if not self._is_gone:
            self._writer.write(json.dumps(line).encode() + b"\n")
