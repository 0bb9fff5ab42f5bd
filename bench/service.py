"""A service that others limit: an HTTP server that answers 429 above so many calls a second.

``python -m bench.service PORT CALLS`` runs it. ``POST /call/TENANT/NUMBER?seconds=0.2`` is a call, ``GET /counts`` says
what it has seen.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import NamedTuple
from urllib.request import urlopen

from bench.systems.base import ROOT
from tests.servers.base import free_port

WINDOW: float = 1.0
"""Seconds in which there may be so many calls."""


class Served(NamedTuple):
    """A call that the service has accepted."""

    at: float  # monotonic seconds, which all processes of a machine share
    tenant: str
    number: int


@dataclass
class Counts:
    """What a service has seen."""

    served: list[Served] = field(default_factory=list)
    rejected: list[float] = field(default_factory=list)  # when
    parallel: int = 0  # calls that run now
    most_parallel: int = 0
    broken: int = 0  # calls whose client went away before their end


class Service:
    """Accepts at most so many calls in any window of a second."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._recent = deque[float]()
        self.counts = Counts()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split(" ", 2)[1]
            if target == "/counts":
                await _answer(writer, 200, asdict(self.counts))
            elif not self._accepts():
                await _answer(writer, 429, {}, "Retry-After: 1\r\n")
            else:
                await self._call(target, reader, writer)
        writer.close()

    def _accepts(self) -> bool:
        now = time.monotonic()
        while self._recent and self._recent[0] <= now - WINDOW:
            self._recent.popleft()
        if len(self._recent) >= self._calls:
            self.counts.rejected.append(now)
            return False
        self._recent.append(now)
        return True

    async def _call(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path, _, seconds = target.partition("?seconds=")
        _, _, tenant, number = path.split("/")
        self.counts.served.append(Served(time.monotonic(), tenant, int(number)))
        self.counts.parallel += 1
        self.counts.most_parallel = max(self.counts.most_parallel, self.counts.parallel)
        try:
            async with asyncio.timeout(float(seconds)):
                await reader.read()  # returns before the time is over only if the client has gone
            self.counts.broken += 1
        except TimeoutError:
            await _answer(writer, 200, {"number": int(number)})
        finally:
            self.counts.parallel -= 1


async def _answer(writer: asyncio.StreamWriter, status: int, body: object, headers: str = "") -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\nConnection: close\r\n{headers}\r\n"
    writer.write(head.encode() + data)
    await writer.drain()


async def call(port: int, tenant: str, number: int, seconds: float) -> int:
    """Call the service; return the status of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"POST /call/{tenant}/{number}?seconds={seconds} HTTP/1.1\r\nHost: service\r\n\r\n".encode())
        answer = await reader.read()
        return int(answer.split(b" ", 2)[1])
    finally:
        writer.close()


def read_counts(port: int) -> Counts:
    """Return what the service has seen so far."""
    with urlopen(f"http://127.0.0.1:{port}/counts") as answer:
        found = json.load(answer)
    return Counts(**found | {"served": [Served(*row) for row in found["served"]]})


def most_in_window(times: Sequence[float], seconds: float = WINDOW) -> int:
    """Return the greatest number of times, in order, that one window has."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


@contextmanager
def service(calls: int) -> Iterator[int]:
    """A process that serves; its port."""
    port = free_port()
    command = [sys.executable, "-m", "bench.service", str(port), str(calls)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: S603 -- a module of ours
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield port
    finally:
        process.kill()
        process.communicate()


async def _run(port: int, calls: int) -> None:
    server = await asyncio.start_server(Service(calls).handle, "127.0.0.1", port, backlog=1_000)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), int(sys.argv[2])))
